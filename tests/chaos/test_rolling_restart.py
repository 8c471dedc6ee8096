"""Members are killed, and restarted in good order, one after the other under load; the benchmarks' short forms."""

import pytest
from benchmarks.lanes_kill import take_overs
from benchmarks.lanes_restart import redelivered, roll
from tests.chaos.stage import Stage, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow

PATIENT_SECONDS = 20.0
"""The benchmark's target is 1.5 s; a machine that runs tests is busy with others, and may be a slow one."""


def test_a_rolling_restart_delivers_nothing_twice(stage: Stage) -> None:
    roll(stage, restarts=2)
    assert redelivered(stage) == 0
    report = stage.judge("rebalance", "redelivery=0")
    assert report.verdict is Verdict.PASS, complaint(report)


def test_owners_killed_one_after_the_other_are_replaced_in_seconds_without_overlap(stage: Stage) -> None:
    waits = take_overs(stage, kills=2)
    assert max(waits) < PATIENT_SECONDS
    report = stage.judge("rebalance", "faults")
    assert report.verdict is Verdict.PASS, complaint(report)
