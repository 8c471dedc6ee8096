"""Members are restarted one after the other under load: the short form of a benchmark."""

import pytest
from benchmarks.lanes_restart import redelivered, roll
from tests.chaos.stage import Stage, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow


def test_a_rolling_restart_delivers_nothing_twice(stage: Stage) -> None:
    roll(stage, restarts=2)
    assert redelivered(stage) == 0
    report = stage.judge("rebalance", "redelivery=0")
    assert report.verdict is Verdict.PASS, complaint(report)
