"""Runs all collected cases at the same time; pytest reports each as its own test.

Most cases only wait for RocketMQ's timers (25 s for a start, 60 s for a lease). One after the other they would
take half an hour; side by side the suite takes about as long as its slowest case.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import pytest

AT_ONCE = 12


class Closable(Protocol):
    """The environment of one case."""

    def close(self) -> None: ...


class SideBySide:
    """Starts all cases when the first result is requested; cases that wait for a lease start first."""

    def __init__(
        self, items: list[pytest.Function], stage_of: Callable[[str], Closable], at_once: int = AT_ONCE
    ) -> None:
        self._stage_of = stage_of
        self._seconds: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="case")
        first = sorted(items, key=lambda item: item.get_closest_marker("lease") is None)
        self._running = {
            item.nodeid: self._pool.submit(self._run, item, f"{number}_{item.name}")
            for number, item in enumerate(first)
        }

    def result(self, item: pytest.Function) -> None:
        """Waits for the case and raises its failure."""
        running: Future[None] = self._running[item.nodeid]
        running.result()

    def slowest(self, most: int) -> list[tuple[float, str]]:
        return sorted(((seconds, case) for case, seconds in self._seconds.items()), reverse=True)[:most]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, item: pytest.Function, case: str) -> None:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        stage = self._stage_of(case)
        started = time.monotonic()
        try:
            item.obj(stage=stage, **parameters)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - started
            stage.close()
