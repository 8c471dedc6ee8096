"""The rule of `make check`: a fast test takes less than 0.5 s of processor time and sleeps for less than 0.2 s.

`pytest -p tests.fast_tests` watches every test. At the end it says how much processor time all of them took, and lists
those that break the rule: they should do their work with less, or be marked `slow`. Processor time counts, and not
time, so that a busy machine makes no test slow. What the fixtures of a test take is in the sum only.
"""

import os
import threading
import time
from collections.abc import Generator

import pytest

MAX_SECONDS = 0.5
"""Processor time of one test, with its threads and with the processes that it starts and waits for."""
MAX_SLEEP = 0.2
"""Seconds that a test sleeps in all. What takes longer can be waited for by itself."""

BROKEN, TOTAL = "breaks the rule of fast tests", "processor time"
"""Names of properties in a report, by which the processes of a parallel run tell the first one."""


def processor_time() -> float:
    return sum(os.times()[:4])


class FastTests:
    """Watches the tests of this process. The first process of a parallel run, or the only one, sums up."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.began = 0.0
        self.seconds = 0.0
        self.problems: dict[str, str] = {}
        self._sleep = time.sleep
        time.sleep = self._count_sleep  # type: ignore[assignment]

    def _count_sleep(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.slept += seconds
        self._sleep(seconds)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.began = processor_time()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self.slept, begin = 0.0, processor_time()
        try:
            return (yield)
        finally:
            took = processor_time() - begin
            if self.slept > MAX_SLEEP:
                item.user_properties.append((BROKEN, f"sleeps for {self.slept:.2f} s"))
            elif took > MAX_SECONDS:
                item.user_properties.append((BROKEN, f"takes {took:.2f} s of processor time"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":
            report.user_properties.append((TOTAL, processor_time() - self.began))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and "PYTEST_XDIST_WORKER" not in os.environ:
            for name, value in report.user_properties:
                if name == BROKEN:
                    self.problems[report.nodeid] = str(value)
                elif name == TOTAL:
                    self.seconds += float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"the tests took {self.seconds:.0f} s of processor time")
        if self.problems:
            terminalreporter.section("not fast: let them do less, or mark them `slow`")
            for test, problem in sorted(self.problems.items()):
                terminalreporter.write_line(f"{test} {problem}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FastTests())
