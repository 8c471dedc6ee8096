"""Offsets and finished ranges: when a member reports them, to which brokers, and what it takes over."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.consumer.fakes import FakeBroker, FakeCalls, member, no_answer, queue, record, until
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import HoldQueue
from lanemq.core.consuming.runs import Order
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.units import QueueOffset

Q = queue(0)
COUNT = 10
BEHIND = FinishedRanges.of([(1, COUNT)])
Handler = Callable[[Message], Coroutine[Any, Any, None]]


def broker_with_messages(**options: Any) -> FakeBroker:
    """The first message has the key "slow", all others "quick"."""
    broker = FakeBroker([Q], **options)
    broker.offsets[Q] = 0
    broker.store(Q, record(0, key="slow"), *(record(n, key="quick") for n in range(1, COUNT)))
    return broker


def noting(seen: list[int]) -> Handler:
    async def handler(message: Message) -> None:
        seen.append(message.queue_offset)

    return handler


def stuck_with_slow(seen: list[int]) -> Handler:
    async def handler(message: Message) -> None:
        if message.key == "slow":
            await asyncio.Event().wait()
        seen.append(message.queue_offset)

    return handler


def failing_with_slow(seen: list[int]) -> Handler:
    async def handler(message: Message) -> None:
        if message.key == "slow":
            raise ValueError("not yet")
        seen.append(message.queue_offset)

    return handler


def asked_for_finished(monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """Collects what each lock request asks about finished ranges."""
    asked: list[bool | None] = []
    real = FakeCalls.lock

    async def lock(self: Any, broker: str, queues: Any, *, finished: bool | None = None, **more: Any) -> Any:
        asked.append(finished)
        return await real(self, broker, queues, finished=finished, **more)

    monkeypatch.setattr(FakeCalls, "lock", lock)
    return asked


def test_finished_ranges_are_reported_with_the_periodic_commit_and_only_when_they_changed() -> None:
    async def main() -> tuple[FinishedRanges, int, int]:
        broker, seen = broker_with_messages(), list[int]()
        async with member(broker, "a", stuck_with_slow(seen), stop_timeout=0.01) as engine:
            await until(lambda: broker.finished.get(Q) == BEHIND)
            reports = len(broker.what("commit"))
            await asyncio.sleep(20)
            later = len(broker.what("commit"))
            engine.stop(now=True)
        return broker.finished[Q], reports, later

    finished, reports, later = run_virtual(main)
    assert finished == BEHIND
    assert reports == later <= 2


def test_after_a_crash_the_next_owner_runs_only_what_was_not_reported() -> None:
    async def main() -> list[int]:
        broker, seen = broker_with_messages(), list[int]()
        async with member(broker, "a", stuck_with_slow([])) as engine:
            await until(lambda: broker.finished.get(Q) == BEHIND)
            engine.stop(now=True)
        broker.members.remove("a")
        broker.store(Q, record(COUNT, key="quick"))
        async with member(broker, "b", noting(seen)):
            await until(lambda: COUNT in seen)
        return seen

    assert sorted(run_virtual(main)) == [0, COUNT]


def test_a_hand_over_reports_what_is_finished_behind_a_held_key() -> None:
    async def main() -> tuple[FinishedRanges, list[int]]:
        broker, first, seen = broker_with_messages(), list[int](), list[int]()
        async with member(broker, "a", failing_with_slow(first), commit_every=600):
            await until(lambda: len(first) == COUNT - 1)
        reported = broker.finished[Q]
        async with member(broker, "b", noting(seen)):
            await until(lambda: broker.offsets[Q] == COUNT)
        return reported, seen

    assert run_virtual(main) == (BEHIND, [0])


def test_finished_ranges_that_were_not_confirmed_are_reported_again() -> None:
    async def main() -> FinishedRanges:
        broker = broker_with_messages()
        async with member(broker, "a", stuck_with_slow([])) as engine:
            broker.faults.append(lambda member, name, about: no_answer() if name == "commit" else None)
            await until(lambda: len(broker.what("commit")) > 2)
            assert Q not in broker.finished
            broker.faults.clear()
            await until(lambda: broker.finished.get(Q) == BEHIND)
            engine.stop(now=True)
        return broker.finished[Q]

    assert run_virtual(main) == BEHIND


def test_an_apache_broker_gets_offsets_only() -> None:
    """It cannot store finished ranges; they are repeated after a crash."""

    async def main() -> tuple[set[FinishedRanges], list[int]]:
        broker, first, seen = broker_with_messages(lane=False), list[int](), list[int]()
        async with member(broker, "a", stuck_with_slow(first)) as engine:
            await until(lambda: len(first) == COUNT - 1)
            await asyncio.sleep(5)
            engine.stop(now=True)
        broker.members.remove("a")
        reported = set(broker.finished.values())
        async with member(broker, "b", noting(seen)):
            await until(lambda: len(seen) == COUNT)
        return reported, seen

    reported, seen = run_virtual(main)
    assert reported <= {NOTHING_FINISHED}
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("checked", [True, False])
def test_an_offset_is_not_committed_to_an_apache_broker_that_came_back_empty(
    monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """It would accept it, and the group would skip new messages. Without the check it does."""
    if not checked:
        monkeypatch.setattr(AssignedQueue, "check_end", property(lambda _: False, lambda *_: None), raising=False)

    async def main() -> int:
        broker, seen = broker_with_messages(lane=False), list[int]()
        async with member(broker, "a", noting(seen)) as engine:
            await until(lambda: broker.offsets[Q] == COUNT)
            del broker.messages[Q][:]
            broker.offsets[Q] = 0
            (assigned,) = engine.assignment
            engine.progress.report_again(assigned.queue.broker)
            await engine.progress.commit_all()
        return broker.offsets[Q]

    assert run_virtual(main) == (0 if checked else COUNT)


@pytest.mark.parametrize(
    ("plan", "first"), [({}, True), ({"order": Order.QUEUE, "policy": HoldQueue()}, None)], ids=["key", "queue"]
)
def test_finished_ranges_are_asked_for_by_key_once_and_not_with_every_renewal(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], first: bool | None
) -> None:
    """A member that orders the whole queue repeats what they cover, so it does not ask, and the broker forgets them."""
    asked = asked_for_finished(monkeypatch)

    async def main() -> None:
        async with member(broker_with_messages(), "a", noting([]), plan=plan):
            await asyncio.sleep(10)

    run_virtual(main)
    assert asked[0] is first
    assert set(asked[1:]) == {False}


def test_a_reset_forgets_the_finished_ranges() -> None:
    """After a reset, messages that were finished before run again."""

    async def main() -> list[int]:
        broker, seen = broker_with_messages(), list[int]()
        broker.finished[Q] = BEHIND
        async with member(broker, "a", noting(seen)) as engine:
            await until(lambda: broker.offsets[Q] == COUNT)
            (assigned,) = engine.assignment
            engine.move(assigned, QueueOffset(3))
            await until(lambda: len(seen) == 1 + COUNT - 3)
            assert assigned.progress().finished == NOTHING_FINISHED
        return seen

    assert run_virtual(main) == [0, *range(3, COUNT)]


def test_turns_that_end_during_a_reset_are_not_reported() -> None:
    """The broker would take them for progress after the reset, and forget the reset."""

    async def main() -> tuple[int, Any]:
        broker, go = broker_with_messages(), asyncio.Event()

        async def slow(message: Message) -> None:
            await (go.wait() if message.key == "slow" else asyncio.sleep(3))

        async with member(broker, "a", slow) as engine:
            await until(lambda: len(broker.what("pull")) == 2)
            (assigned,) = engine.assignment
            engine.move(assigned, QueueOffset(7))
            await asyncio.sleep(30)
            during = len(broker.what("commit"))
            go.set()
            await until(lambda: broker.offsets[Q] == COUNT)
            assert assigned.moving_to is None
            return during, broker.what("commit")[0][3]

    assert run_virtual(main) == (0, (Q, 7))


def test_a_reset_that_is_interrupted_or_not_confirmed_is_completed() -> None:
    async def main() -> list[int]:
        broker, seen = broker_with_messages(), list[int]()
        async with member(broker, "a", noting(seen)) as engine:
            await until(lambda: broker.offsets[Q] == COUNT)
            broker.faults.append(lambda member, name, about: no_answer() if name == "commit" else None)
            (assigned,) = engine.assignment
            engine.move(assigned, QueueOffset(8))
            await asyncio.sleep(10)
            engine.move(assigned, QueueOffset(7))
            await asyncio.sleep(10)
            assert seen == list(range(COUNT)), "nothing runs before the broker knows"
            broker.faults.clear()
            await until(lambda: len(seen) == COUNT + 3)
        return seen

    assert run_virtual(main)[COUNT:] == [7, 8, 9]


def test_a_queue_handed_over_during_a_reset_is_handed_over_at_the_new_offset() -> None:
    async def main() -> int:
        broker, go = broker_with_messages(), asyncio.Event()

        async def slow(_: Message) -> None:
            await go.wait()

        async with member(broker, "a", slow) as engine:
            await until(lambda: len(broker.what("pull")) == 2)
            (assigned,) = engine.assignment
            engine.move(assigned, QueueOffset(7))
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_later(1, go.set)
        return broker.offsets[Q]

    assert run_virtual(main) == 7


REPORTED = 5


@pytest.mark.parametrize(("lane", "found"), [(False, REPORTED), (True, 2)], ids=["without leases", "with leases"])
def test_an_offset_that_a_former_owner_set_back_does_not_stay_behind(lane: bool, found: int) -> None:
    """Without leases the broker cannot refuse its late commit; with leases it does."""

    async def main() -> int:
        broker, seen = FakeBroker([Q], lane=lane), list[int]()
        broker.offsets[Q] = 0
        broker.store(Q, *(record(number) for number in range(REPORTED)))
        async with member(broker, "a", noting(seen)) as engine:
            await until(lambda: broker.offsets[Q] == REPORTED)
            broker.offsets[Q] = 2
            await asyncio.sleep(12)
            engine.stop(now=True)
            return broker.offsets[Q]

    assert run_virtual(main) == found


def commits_without_a_lease() -> tuple[int, int]:
    """How often a member commits at an Apache broker until it has renewed its lease, and what is committed in the end.

    It does not know whether it still owns the queue: as after it was frozen, or after a lost connection.
    """

    async def main() -> tuple[int, int]:
        broker, go = FakeBroker([Q], lane=False), asyncio.Event()
        broker.offsets[Q] = 0
        broker.store(Q, record(0))

        async def handle(_: Message) -> None:
            await go.wait()

        async with member(broker, "a", handle) as engine:
            await until(lambda: bool(broker.what("pull")))
            await asyncio.sleep(1)
            broker.faults.append(lambda member, name, about: no_answer() if name == "lock" else None)
            engine.leases.suspend("a")
            before = len(broker.what("commit"))
            go.set()
            await asyncio.sleep(4)
            commits = len(broker.what("commit")) - before
            broker.faults.clear()
            await until(lambda: broker.offsets[Q] == 1)
            return commits, broker.offsets[Q]

    return run_virtual(main)


def test_a_member_of_an_apache_broker_renews_its_lease_before_it_commits() -> None:
    """The broker takes the commit of a member that was frozen, and would move the group back."""
    assert commits_without_a_lease() == (0, 1)


def test_without_that_it_would_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(QueueReporter, "_check_leased", lambda *_: None)
    commits, _ = commits_without_a_lease()
    assert commits > 0


@pytest.mark.parametrize("lane", [True, False], ids=["LaneMQ", "Apache"])
@pytest.mark.parametrize("start", [StartFrom.LAST, datetime(2026, 1, 1, tzinfo=UTC)], ids=str)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_group_that_begins_late_reads_what_was_sent_while_it_was_away(
    killed: bool, start: StartFrom | datetime, lane: bool
) -> None:
    """Nothing was sent while its first member ran, so that member had finished nothing that it could commit."""

    async def main() -> list[int]:
        broker, seen = FakeBroker([Q], lane=lane), list[int]()
        broker.store(Q, record(0))  # the fake broker says that offset 1 was stored at the time
        async with member(broker, "a", noting([]), start=start) as engine:
            await until(lambda: bool(broker.what("pull", "a")))
            engine.stop(now=killed)
        if killed:
            broker.members.remove("a")
        broker.store(Q, record(1), record(2))
        broker.time_names = 2
        async with member(broker, "b", noting(seen), start=start):
            await until(lambda: 2 in seen)
        return seen

    assert run_virtual(main) == [1, 2]


def test_a_group_that_begins_at_the_end_reads_nothing_before_its_start_is_stored() -> None:
    """The next owner could not know of a message that was read before, and would skip it."""

    async def main() -> tuple[int, list[int]]:
        broker, seen = FakeBroker([Q]), list[int]()
        broker.store(Q, record(0))
        broker.faults.append(lambda member, name, about: no_answer() if name == "commit" else None)
        async with member(broker, "a", noting(seen), start=StartFrom.LAST):
            await until(lambda: len(broker.what("commit")) > 1)
            pulls = len(broker.what("pull"))
            broker.faults.clear()
            await until(lambda: bool(broker.what("pull")))
            broker.store(Q, record(1))
            await until(lambda: bool(seen))
        return pulls, seen

    assert run_virtual(main) == (0, [1])


def test_a_member_whose_lease_ended_does_not_move_the_group_back_at_a_broker_without_epochs() -> None:
    """An Apache broker takes the commit of any member. One that was frozen wakes up with old progress."""

    async def main() -> int:
        broker, seen, is_frozen = broker_with_messages(lane=False), list[int](), True
        async with member(broker, "a", noting(seen), commit_every=600) as former:
            await until(lambda: len(seen) == COUNT)
            broker.faults.append(lambda name, *_: no_answer() if name == "a" and is_frozen else None)
            broker.members.remove("a")
            async with member(broker, "b", noting([])) as new:
                await until(lambda: new.assignment.get(Q))
                broker.store(Q, *(record(number, key="quick") for number in range(COUNT, 3 * COUNT)))
                await until(lambda: broker.offsets[Q] == 3 * COUNT)
                assert former.assignment.get(Q) is not None, "it does not know yet that it lost the queue"
                is_frozen = False
                await former.progress.commit_all()
                offset = broker.offsets[Q]
                await until(lambda: former.assignment.get(Q) is None)
                return offset

    assert run_virtual(main) == 3 * COUNT
