"""Which event loop consumers and brokers use."""

import _thread
import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from lanemq.net.fast_loop import LoopFactory, fast_loop, plain_loop

greenlet = pytest.importorskip("greenlet")


@pytest.fixture
def greenlets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As gevent and eventlet replace threads."""
    before = greenlet.gettrace()
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 0)
    yield
    greenlet.settrace(before)


def test_greenlets_instead_of_threads_do_not_get_uvloop(greenlets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop all greenlets while it waits."""
    uvloop = pytest.importorskip("uvloop")
    assert fast_loop() is not uvloop.new_event_loop
    monkeypatch.undo()
    assert (fast_loop(), plain_loop()) == (uvloop.new_event_loop, None)


def take_turns(make: LoopFactory) -> list[str]:
    """Two greenlets run a loop each, and give way to the other one in the middle of a callback."""
    steps: list[str] = []
    hub = greenlet.getcurrent()

    async def work(name: str) -> None:
        own = asyncio.get_running_loop()
        for step in range(3):
            hub.switch()
            assert asyncio.get_running_loop() is own
            await asyncio.sleep(0)
            async for each in counted(1):
                steps.append(f"{name}{step + each}")

    async def counted(end: int) -> AsyncIterator[int]:
        for each in range(end):
            yield each

    def run(name: str) -> Callable[[], None]:
        def running() -> None:
            with asyncio.Runner(loop_factory=make) as runner:
                runner.run(work(name))

        return running

    others = [greenlet.greenlet(run(name)) for name in "ab"]
    while any(not each.dead for each in others):
        for each in others:
            each.switch()
    return steps


@pytest.mark.parametrize("factory", [fast_loop, plain_loop])
def test_each_greenlet_may_run_a_loop(greenlets: None, factory: Callable[[], LoopFactory]) -> None:
    """So a program with gevent may have several consumers, and call `asyncio.run` beside them."""
    assert take_turns(factory()) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def runs_elsewhere(make: LoopFactory) -> bool:
    """Whether a greenlet has a running loop because another one runs a loop and has given way."""
    hub = greenlet.getcurrent()

    async def work() -> None:
        hub.switch()

    def run() -> None:
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(work())

    other = greenlet.greenlet(run)
    other.switch()
    running = asyncio._get_running_loop()
    other.switch()
    return running is not None


def test_control_without_the_tracer_a_loop_runs_in_every_greenlet(greenlets: None) -> None:
    """`asyncio.run` in any of them would be refused."""
    assert not runs_elsewhere(fast_loop())
    greenlet.settrace(None)
    assert runs_elsewhere(None)


def test_a_tracer_of_the_program_is_still_called(greenlets: None) -> None:
    events: list[str] = []
    greenlet.settrace(lambda event, _: events.append(event))
    take_turns(fast_loop())
    assert "switch" in events
