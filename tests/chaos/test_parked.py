"""kill -9 of owners and of the broker while lanes are parked and redriven: nothing is lost, nothing overtakes."""

import pytest
from tests.chaos.system import Child, SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView

pytestmark = pytest.mark.slow


def lanes(system: SystemUnderTest) -> list[ParkedLaneView]:
    with ParkedAdmin(system.address) as admin:
        return admin.lanes()


def redrive_all(system: SystemUnderTest) -> None:
    with ParkedAdmin(system.address) as admin:
        for lane in admin.lanes():
            admin.redrive(lane)


def consumer(system: SystemUnderTest, name: str) -> Child:
    return system.consumer(name, broken=str(system.folder / "broken"))


def test_kills_while_lanes_are_parked_and_redriven_break_no_promise(system: SystemUnderTest) -> None:
    broken = system.folder / "broken"
    broken.touch()
    broker = system.broker(default_queues=2, recorded=True)
    producer = system.producer(keys=10, pause_ms=2)
    system.until("something is stored", lambda: system.seen("acked"))
    first, second = consumer(system, "a"), consumer(system, "b")
    system.until("lanes are parked", lambda: len(lanes(system)) == 4)
    system.kill(first)
    third = consumer(system, "c")
    parked = sum(lane.messages for lane in lanes(system))
    system.until("newer messages join", lambda: sum(lane.messages for lane in lanes(system)) > parked + 30)
    system.kill(broker)
    broker = system.broker(default_queues=2, recorded=True)
    system.until("all lanes are there again", lambda: len(lanes(system)) == 4)
    broken.unlink()
    redrive_all(system)
    system.until("the redrive continues", lambda: len(system.seen("redriven", "b") + system.seen("redriven", "c")) > 1)
    system.kill(second)
    fourth = consumer(system, "d")
    system.until("the new member owns a queue", lambda: system.seen("lease_granted", "d"))
    system.finish(producer)  # not before: there must be newer messages to join, however late the others were
    system.until("lanes are empty", lambda: not lanes(system))
    system.until("everything is done", system.is_drained)
    system.finish(third, fourth)
    system.finish(broker)
    report = system.judge("faults=3", "parked=30", "redriven=4", "rebalance")
    assert report.verdict is Verdict.PASS, complaint(report)
