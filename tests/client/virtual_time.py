"""An event loop whose clock jumps to the next timer when every task waits: hours pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from lanemq.model.units import Millis


class _Selector(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits and no timer is set"
            self.loop.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.passed = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.passed


class VirtualClock:
    """Milliseconds of the running virtual loop."""

    def now(self) -> Millis:
        return Millis(round(asyncio.get_running_loop().time() * 1000))

    def wall(self) -> Millis:
        return Millis(1_700_000_000_000 + self.now())


class ManualClock:
    """A clock that a test moves; for code on threads."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> Millis:
        return Millis(self.at)

    def wall(self) -> Millis:
        return Millis(1_700_000_000_000 + self.at)


def run_virtual(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
