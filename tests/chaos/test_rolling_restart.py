"""Members are restarted one after the other under load: the short form of a benchmark."""

import pytest
from benchmarks.lanes_restart import redelivered, roll
from tests.chaos.system import SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict

# `make test` has the same in test_members_change.py; this one keeps the benchmark working.
pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_a_rolling_restart_delivers_nothing_twice(system: SystemUnderTest) -> None:
    roll(system, restarts=2)
    assert redelivered(system) == 0
    report = system.judge("rebalance", "redelivery=0")
    assert report.verdict is Verdict.PASS, complaint(report)
