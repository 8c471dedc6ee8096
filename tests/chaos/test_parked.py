"""kill -9 of owners and of the broker while lanes are parked and redriven: nothing is lost, nothing overtakes."""

import pytest
from tests.chaos.stage import Part, Stage, complaint

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView

pytestmark = pytest.mark.slow


def lanes(stage: Stage) -> list[ParkedLaneView]:
    with ParkedAdmin(stage.address) as admin:
        return admin.lanes()


def redrive_all(stage: Stage) -> None:
    with ParkedAdmin(stage.address) as admin:
        for lane in admin.lanes():
            admin.redrive(lane)


def consumer(stage: Stage, name: str) -> Part:
    return stage.consumer(name, broken=str(stage.folder / "broken"))


def test_kills_while_lanes_are_parked_and_redriven_break_no_promise(stage: Stage) -> None:
    broken = stage.folder / "broken"
    broken.touch()
    broker = stage.broker(default_queues=2, recorded=True)
    producer = stage.producer(keys=10, pause_ms=2)
    stage.until("something is stored", lambda: stage.seen("acked"))
    first, second = consumer(stage, "a"), consumer(stage, "b")
    stage.until("lanes are parked", lambda: len(lanes(stage)) == 4)
    stage.kill(first)
    third = consumer(stage, "c")
    parked = sum(lane.messages for lane in lanes(stage))
    stage.until("newer messages join", lambda: sum(lane.messages for lane in lanes(stage)) > parked + 30)
    stage.kill(broker)
    broker = stage.broker(default_queues=2, recorded=True)
    stage.until("all lanes are there again", lambda: len(lanes(stage)) == 4)
    broken.unlink()
    redrive_all(stage)
    stage.until("the redrive goes on", lambda: len(stage.seen("redriven", "b") + stage.seen("redriven", "c")) > 10)
    stage.kill(second)
    fourth = consumer(stage, "d")
    stage.finish(producer)  # not before: there must be newer messages to join, however late the others were
    stage.until("lanes are empty", lambda: not lanes(stage))
    stage.until("everything is done", stage.is_drained)
    stage.finish(third, fourth)
    stage.finish(broker)
    report = stage.judge("faults=3", "parked=30", "redriven=4", "rebalance")
    assert report.verdict is Verdict.PASS, complaint(report)
