"""A scheduler with one queue and parked lanes; tests give the broker's answers."""

from collections.abc import Sequence
from typing import NamedTuple

from lanemq.core.consuming.lanes_aside import (
    FULL_PAUSE,
    LaneAnswer,
    LaneRequest,
    LanesAside,
    NextRequest,
    ParkedAtBroker,
    ParkRequest,
)
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import FAILED, NO_LEASE_NEEDED, LaneOptions, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("t", "b", 0)
PAUSE = FULL_PAUSE
"""The longest pause before a request is repeated."""


class M(NamedTuple):
    queue_offset: int
    key: str | None
    size: int = 1


def member(
    start: int = 0,
    finished: FinishedRanges = NOTHING_FINISHED,
    parked: tuple[ParkedAtBroker, ...] = (),
    policy: HoldKey | None = None,
) -> LaneScheduler[M]:
    scheduler: LaneScheduler[M] = LaneScheduler(LaneOptions(policy=policy or HoldKey(retries=0), run_limit=2))
    scheduler.add(
        Q,
        QueueOffset(start),
        usable_until=NO_LEASE_NEEDED,
        finished=finished,
        parked=parked,
        broker_parks=True,
    )
    return scheduler


def put(scheduler: LaneScheduler[M], *messages: tuple[int, str]) -> None:
    start = scheduler[Q].next_offset
    batch = [M(*message) for message in messages]
    assert scheduler.put(Q, batch, QueueOffset(batch[-1].queue_offset + 1), pulled_from=start)


def lanes_of(scheduler: LaneScheduler[M]) -> LanesAside[M]:
    return scheduler[Q].aside


def run(scheduler: LaneScheduler[M]) -> LaneRun[M] | None:
    found = scheduler.next_run(now=Millis(0))
    return found if isinstance(found, LaneRun) else None


def fail(scheduler: LaneScheduler[M], reason: str = "why") -> None:
    found = run(scheduler)
    assert found is not None
    scheduler.finish(found, FAILED, now=Millis(0), reason=reason)


def parked(policy: HoldKey | None = None) -> LaneScheduler[M]:
    """Key k has failed at offset 0; 1 is behind it."""
    scheduler = member(policy=policy)
    put(scheduler, (0, "k"), (1, "k"))
    fail(scheduler)
    return scheduler


def work(scheduler: LaneScheduler[M], now: int = 0) -> list[LaneRequest[M]]:
    return lanes_of(scheduler).requests(now=Millis(now))


def one(scheduler: LaneScheduler[M], now: int = 0) -> LaneRequest[M]:
    (found,) = work(scheduler, now)
    return found


def answer(
    scheduler: LaneScheduler[M],
    request: LaneRequest[M],
    status: LaneStatus | None,
    settled: int = 0,
    messages: Sequence[M] = (),
) -> None:
    lanes_of(scheduler).answered(request, LaneAnswer(status, settled, messages), now=Millis(0))


def no_answer(scheduler: LaneScheduler[M], request: LaneRequest[M], now: int = 0) -> None:
    lanes_of(scheduler).answered(request, None, now=Millis(now))


def store(scheduler: LaneScheduler[M], status: LaneStatus | None = LaneStatus.PARKED, settled: int = 2) -> None:
    found = one(scheduler)
    assert isinstance(found, ParkRequest)
    answer(scheduler, found, status, settled)


def give(scheduler: LaneScheduler[M], *messages: M, status: LaneStatus | None = LaneStatus.REDRIVING) -> NextRequest:
    found = one(scheduler)
    assert isinstance(found, NextRequest)
    answer(scheduler, found, status, messages=messages)
    return found


def reconcile(scheduler: LaneScheduler[M], *at_broker: ParkedAtBroker) -> None:
    lanes = lanes_of(scheduler)
    lanes.reconcile({each.key: each for each in at_broker}, lanes.at_broker())
