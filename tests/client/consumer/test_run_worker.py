"""One run, batch by batch: the permit is checked before each call of the handler."""

from typing import Any

import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.worker_fixture import run_of
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.workers import RunEnd, run_worker
from lanemq.client.message import Message
from lanemq.core.consuming.busy_workers import Worker
from lanemq.core.consuming.runs import FAILED, STOPPED, LaneRun


def ended(run: LaneRun[Message], handler: Any, clock: ManualClock | None = None) -> RunEnd | None:
    worker = Worker()
    worker.waiting.append(run)
    return run_worker(worker, handler, 1, clock or ManualClock(), TurnTimes()).end


@pytest.mark.row("A72")
@pytest.mark.row("A60")
def test_a_run_stops_before_the_next_message_when_the_lease_has_ended() -> None:
    clock = ManualClock()
    seen: list[int] = []

    def handler(batch: Any, _: Any) -> None:
        seen.append(batch[0].queue_offset)
        clock.at += 400

    end = ended(run_of(message(0), message(1), message(2), message(3), until=1_000), handler, clock)
    assert end is not None
    assert (seen, end.stop.outcome, end.done) == ([0, 1, 2], STOPPED, 3)


@pytest.mark.row("A67")
@pytest.mark.row("A78")
def test_a_run_of_a_dropped_queue_calls_no_handler() -> None:
    run = run_of(message(0))
    run.permit.withdrawn = True
    end = ended(run, lambda *_: pytest.fail("called"))
    assert end is not None
    assert (end.stop.outcome, end.done) == (STOPPED, 0)


def test_a_failed_run_reports_how_many_messages_succeeded() -> None:
    def handler(batch: Any, _: Any) -> Stop | None:
        return Stop(FAILED) if batch[0].queue_offset == 2 else None

    end = ended(run_of(message(0), message(1), message(2), message(3)), handler)
    assert end is not None
    assert (end.stop.outcome, end.done) == (FAILED, 2)


def test_a_repeated_message_has_its_attempt_number() -> None:
    first = message(0)
    assert ended(run_of(first, attempt=3), lambda *_: None) is None
    assert first.attempt == 3
