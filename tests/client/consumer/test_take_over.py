"""How a new owner starts a queue: with a lease from the master, at the offset read under it."""

import asyncio
import logging
from typing import Any

import pytest
from tests.client.consumer.fakes import (
    FakeBroker,
    SimEngine,
    assigned_queue,
    member,
    no_answer,
    options,
    queue,
    record,
    sim_subscription,
    until,
)
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.calls import LOCK_TIMEOUT, ConsumerCalls
from lanemq.client.consumer.queues.assigned_queue import Assignment
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.message import Message
from lanemq.client.topic_route import BrokerRoute, TopicRoute
from lanemq.core.consuming.allocation import averagely_by_circle
from lanemq.core.consuming.queue_lease import LANE_TIMES, QueueLease
from lanemq.model.errors import ConnectFailed
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.net.address import Address

SLAVE = 1


async def nothing(_: Message) -> None: ...


def held(engine: Any) -> set[MessageQueue]:
    return {assigned.queue for assigned in engine.assignment}


# --- no master


class OnlyReplicas:
    """Routes and connections of a broker of which only a replica is reachable."""

    def __init__(self) -> None:
        self.asked: list[Address] = []

    def known(self, topic: str) -> TopicRoute:
        copy = BrokerRoute("a", {SLAVE: Address("copy", 1)}, lane=True)
        return TopicRoute(topic, (), (queue(0),), {"a": copy})

    async def get(self, address: Address) -> Any:
        self.asked.append(address)
        raise AssertionError(f"{address} was asked for a lease")


async def join_again(_: Address) -> None: ...


def keeper_without_master() -> tuple[LeaseKeeper, Assignment, OnlyReplicas]:
    lost = lambda: pytest.fail("a queue was lost although the broker did not answer")  # noqa: E731
    wire, assignment = OnlyReplicas(), Assignment(options(), "me", lost)
    calls = ConsumerCalls(options(), "me", wire, wire)  # type: ignore[arg-type]
    renewed = lambda *_: pytest.fail("a lease was renewed")  # noqa: E731
    return LeaseKeeper(options(), calls, assignment, renewed, join_again, renewed), assignment, wire


@pytest.mark.row("A27")
def test_without_a_master_no_lease_is_asked_and_none_granted() -> None:
    """A replica has no leases: two members that asked two replicas would both own the queue."""

    async def main() -> list[Address]:
        keeper, _, wire = keeper_without_master()
        with pytest.raises(ConnectFailed, match="no master"):
            await keeper.acquire("a", [queue(0)], LANE_TIMES, lane=True)
        return wire.asked

    assert run_virtual(main) == []


@pytest.mark.row("A27")
def test_a_held_lease_is_not_renewed_elsewhere_while_the_master_is_away() -> None:
    async def main() -> tuple[list[Address], Millis | None]:
        keeper, assignment, wire = keeper_without_master()
        lease = QueueLease(LANE_TIMES.client_lease_ms)
        lease.granted(Epoch(1), asked_at=Millis(0))
        assignment.add(assigned_queue(queue(0), lease, LANE_TIMES))
        await asyncio.sleep(1)
        await keeper._renew("a", assignment.leased_by("a"))
        return wire.asked, lease.usable_until

    assert run_virtual(main) == ([], LANE_TIMES.client_lease_ms)


# --- a change is logged once


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "queues are for this member" in each.getMessage()]


@pytest.mark.row("A54")
def test_a_change_is_logged_once_and_an_unchanged_round_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> tuple[list[str], list[str]]:
        broker = FakeBroker([queue(n) for n in range(3)])
        async with member(broker, "a", nothing) as engine:
            for _ in range(3):
                await engine.rebalancer.round()
            alone = logged(caplog)
            broker.members.append("b")
            for _ in range(3):
                await engine.rebalancer.round()
                await asyncio.sleep(1)
            return alone, logged(caplog)[len(alone) :]

    alone, divided = run_virtual(main)
    assert alone == [
        "topic orders, group g: 3 of 3 queues are for this member, 3 taken now (members: 1, allocation: averagely)",
    ]
    assert divided == [
        "topic orders, group g: 2 of 3 queues are for this member, 0 taken now (members: 2, allocation: averagely)",
    ]


@pytest.mark.row("A54")
def test_a_queue_that_is_taken_later_is_logged_and_a_stuck_hand_over_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> list[str]:
        broker = FakeBroker([queue(0), queue(1)])
        broker.store(queue(1), record(0))
        broker.locks.acquire("g", [queue(1)], "other", lease=Millis(2_000), now=Millis(0))
        stuck = asyncio.Event()

        async def handler(_: Message) -> None:
            await stuck.wait()

        async with member(broker, "a", handler) as engine:
            await until(lambda: held(engine) == {queue(0), queue(1)})
            await asyncio.sleep(1)
            broker.members.append("b")
            broker.changed()
            await asyncio.sleep(10)
            stuck.set()
            return [line.split(": ", 1)[1].rpartition(",")[0] for line in logged(caplog)]

    assert run_virtual(main) == [
        "2 of 2 queues are for this member, 1 taken now (members: 1",
        "2 of 2 queues are for this member, 1 taken now (members: 1",
        "1 of 2 queues are for this member, 0 taken now (members: 2",
    ]


def test_a_strategy_given_as_a_function_is_logged_by_its_name() -> None:
    assert options(allocation=averagely_by_circle).strategy == "averagely_by_circle"


# --- where it begins


@pytest.mark.row("A58")
@pytest.mark.parametrize("lane", [True, False])
def test_an_offset_that_went_back_is_used_so_messages_repeat_and_none_is_skipped(lane: bool) -> None:
    """After a reset, or if the broker lost its last commits, the offset that comes with the lease counts."""

    async def main() -> list[int]:
        broker = FakeBroker([queue(0)], lane=lane)
        broker.store(queue(0), *(record(n) for n in range(10)))
        seen: list[int] = []

        async def note(message: Message) -> None:
            seen.append(message.queue_offset)

        async with member(broker, "me", note) as engine:
            await until(lambda: broker.offsets.get(queue(0)) == 10)
            (assigned,) = engine.assignment
            engine.assignment.lose(assigned, "a test says so")
            broker.offsets[queue(0)] = 4
            await until(lambda: len(seen) == 16)
            await until(lambda: broker.offsets[queue(0)] == 10)
        return seen

    assert run_virtual(main) == [*range(10), *range(4, 10)]


def silent_about(*queues: MessageQueue) -> Any:
    return lambda _, name, about: no_answer() if name == "committed" and about in queues else None


@pytest.mark.row("A51")
@pytest.mark.row("A48")
def test_a_queue_that_cannot_be_located_gives_its_lease_back_and_delays_no_other() -> None:
    async def main() -> tuple[set[MessageQueue], list[MessageQueue], bool, set[MessageQueue]]:
        broker = FakeBroker([queue(0), queue(1), queue(2)])
        broker.faults.append(silent_about(queue(0)))
        async with member(broker, "me", nothing) as engine:
            first = held(engine)
            given_back = [about for *_, about in broker.what("unlock")]
            grant = broker.locks.acquire("g", [queue(0)], "rival", lease=Millis(1), now=broker.clock.now())
            broker.faults.clear()
            await asyncio.sleep(1)
            await engine.rebalancer.round()
            return first, given_back, bool(grant.granted), held(engine)

    first, given_back, rival_got_it, then = run_virtual(main)
    assert first == {queue(1), queue(2)}
    assert given_back == [queue(0)]
    assert rival_got_it
    assert then == {queue(0), queue(1), queue(2)}


def test_a_lease_that_cannot_be_given_back_ends_by_itself() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0)])
        broker.faults.append(lambda _, name, __: no_answer() if name in ("committed", "unlock") else None)
        async with member(broker, "me", nothing) as engine:
            return len(engine.assignment)

    assert run_virtual(main) == 0


# --- a lease comes back, or does not


@pytest.mark.row("A73")
def test_a_renewed_lease_resumes_the_queue_at_once() -> None:
    async def main() -> tuple[list[int], int, int]:
        broker = FakeBroker([queue(0)])
        started: list[int] = []

        async def note(message: Message) -> None:
            started.append(broker.clock.now())

        async with member(broker, "me", note) as engine:
            await asyncio.sleep(0.5)
            broker.faults.append(lambda _, name, __: no_answer() if name == "lock" else None)
            engine.leases.suspend("a")
            broker.store(queue(0), record(0))
            await asyncio.sleep(0.2)
            closed = len(started)
            broker.faults.clear()
            engine.leases.suspend("a")  # asks for a renewal now
            regained = broker.clock.now()
            await until(lambda: started)
            return started, closed, regained

    started, while_closed, regained = run_virtual(main)
    assert while_closed == 0
    assert started == [regained]


def test_a_member_that_was_removed_gets_its_queues_back() -> None:
    """It was frozen, and another member took its queues over."""

    async def main() -> tuple[set[MessageQueue], set[MessageQueue], list[str]]:
        broker = FakeBroker([queue(0), queue(1)])
        async with member(broker, "me", nothing) as engine, member(broker, "other", nothing) as other:
            await until(lambda: len(held(engine)) == len(held(other)) == 1)
            broker.remove("me")
            await until(lambda: sorted(broker.members) == ["me", "other"] and len(held(engine)) == 1)
            await until(lambda: len(held(other)) == 1)
            return held(engine), held(other), sorted(broker.members)

    mine, others, members = run_virtual(main)
    assert mine | others == {queue(0), queue(1)}
    assert members == ["me", "other"]


@pytest.mark.row("A73")
def test_a_lost_queue_is_asked_for_again_after_a_short_delay() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0)])
        async with member(broker, "me", nothing) as engine:
            await asyncio.sleep(0.2)
            (assigned,) = engine.assignment
            asked = len(broker.what("lock"))
            lost_at = broker.clock.now()
            engine.assignment.lose(assigned, "a test says so")
            await until(lambda: len(broker.what("lock")) > asked)
            return broker.what("lock")[asked][0] - lost_at

    assert run_virtual(main) == 500


# --- a slow broker


def handled_with_slow_answers(seconds: float, limit: float = LOCK_TIMEOUT) -> int:
    """Messages handled in a minute if the broker takes so long to answer lease requests and keep-alives."""

    async def main() -> int:
        broker = FakeBroker([queue(0)])
        broker.members.append("a")
        broker.store(queue(0), *(record(n) for n in range(3)))
        seen: list[int] = []

        async def handler(message: Message) -> None:
            seen.append(message.queue_offset)

        engine = SimEngine(broker, "a", [sim_subscription(handler)])
        lock, keep_alive = engine.calls.lock, engine.calls.keep_alive

        async def answered_late(answer: Any) -> Any:
            await asyncio.sleep(min(seconds, limit))
            return no_answer() if seconds > limit else answer

        async def slow_lock(*given: Any, **named: Any) -> Any:
            return await answered_late(await lock(*given, **named))

        async def slow_keep_alive(*given: Any) -> Any:
            return await answered_late(await keep_alive(*given))

        engine.calls.lock, engine.calls.keep_alive = slow_lock, slow_keep_alive  # type: ignore[method-assign]
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(60)
        engine.stop(now=True)
        await running
        return len(seen)

    return run_virtual(main)


@pytest.mark.parametrize("seconds", [1.5, 2.9])
def test_a_broker_that_answers_within_a_lease_is_slow_and_serves_its_members(seconds: float) -> None:
    """Its disk takes seconds to sync, or its machine is overloaded."""
    assert handled_with_slow_answers(seconds) == 3


def test_members_that_wait_shorter_than_a_slow_broker_needs_never_get_a_queue() -> None:
    """Negative control: RocketMQ's second. The broker grants the lease each time, and the answer comes too late."""
    assert handled_with_slow_answers(1.5, limit=1) == 0
