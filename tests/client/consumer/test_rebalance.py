"""How queues are taken, kept and handed over: whole members with one broker on virtual time."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.client.consumer.fakes import HERE, FakeBroker, FakeRoutes, member, no_answer, queue, record, refuse, until
from tests.client.virtual_time import ManualClock, run_virtual

from lanemq.client.message import Message
from lanemq.client.topic_route import BrokerRoute, TopicRoute
from lanemq.core.consuming.queue_lease import ROCKETMQ_TIMES
from lanemq.core.consuming.retry_policy import HoldQueue
from lanemq.core.consuming.runs import Order
from lanemq.model.errors import BrokerRefused
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode

WHOLE_QUEUE = {"order": Order.QUEUE, "policy": HoldQueue()}


async def nothing(_: Message) -> None: ...


def held(engine: Any) -> set[MessageQueue]:
    return {assigned.queue for assigned in engine.assignment}


def per_queue(broker: FakeBroker, where: MessageQueue) -> list[str]:
    """The requests about one queue, in order."""
    names = []
    for _, _, name, about in broker.noted:
        queues = about[1] if name == "lock" else [about[0]] if isinstance(about, tuple) else [about]
        if where in (queues if not isinstance(about, MessageQueue) else [about]):
            names.append(name)
    return names


@pytest.mark.row("A47")
@pytest.mark.row("A57")
@pytest.mark.row("A7")
def test_a_new_queue_is_locked_then_located_then_pulled() -> None:
    async def main() -> list[str]:
        broker = FakeBroker([queue(0)], lane=False)
        async with member(broker, "me", nothing):
            await until(lambda: broker.what("pull"))
        return per_queue(broker, queue(0))[:3]

    assert run_virtual(main) == ["lock", "committed", "pull"]


@pytest.mark.row("A57")
@pytest.mark.row("A59")
def test_a_lanemq_broker_sends_the_offset_with_the_lease() -> None:
    async def main() -> list[str]:
        broker = FakeBroker([queue(0)])
        broker.offsets[queue(0)] = 0
        async with member(broker, "me", nothing):
            await until(lambda: broker.what("pull"))
        return per_queue(broker, queue(0))[:2]

    assert run_virtual(main) == ["lock", "pull"]


@pytest.mark.row("A57")
@pytest.mark.row("A49")
def test_a_take_over_starts_at_what_the_former_owner_committed_last() -> None:
    """The offset is read under the lease, so it cannot be older than the former owner's last commit."""

    async def main() -> tuple[list[int], list[int]]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(10)))
        seen: dict[str, list[int]] = {"a": [], "b": []}

        async def note_a(message: Message) -> None:
            seen["a"].append(message.queue_offset)

        async def note_b(message: Message) -> None:
            seen["b"].append(message.queue_offset)

        async with member(broker, "a", note_a):
            await until(lambda: len(seen["a"]) == 10)
        broker.store(queue(0), *(record(n) for n in range(10, 15)))
        async with member(broker, "b", note_b):
            await until(lambda: len(seen["b"]) == 5)
        return seen["a"], seen["b"]

    assert run_virtual(main) == (list(range(10)), list(range(10, 15)))


@pytest.mark.row("A48")
def test_a_contested_queue_is_skipped_and_tried_again_while_others_run() -> None:
    async def main() -> tuple[set[MessageQueue], set[MessageQueue], int]:
        broker = FakeBroker([queue(0), queue(1)])
        broker.locks.acquire("g", [queue(1)], "other", lease=Millis(2_000), now=Millis(0))
        async with member(broker, "me", nothing) as engine:
            first = held(engine)
            await until(lambda: len(held(engine)) == 2)
            return first, held(engine), broker.clock.now()

    first, then, at = run_virtual(main)
    assert first == {queue(0)}
    assert then == {queue(0), queue(1)}
    assert 2_000 <= at <= 3_000


@pytest.mark.row("A45")
def test_a_lost_notification_is_made_up_for_within_twenty_seconds() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0), queue(1)])
        async with member(broker, "a", nothing) as first:
            broker.listeners.clear()
            broker.members.append("b")
            began = broker.clock.now()
            await until(lambda: len(held(first)) == 1)
            return broker.clock.now() - began

    assert run_virtual(main) <= 20_010


def test_a_master_that_is_elected_is_found_at_once_and_not_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker announces it. A round that falls into the election finds a broker without a master."""

    async def main() -> float:
        broker, masters, asked = FakeBroker([queue(0), queue(0, broker="b")], lane=False), {"a", "b"}, list[float]()
        real = FakeRoutes.get

        async def route(self: FakeRoutes, topic: str) -> TopicRoute:
            found = await real(self, topic)
            asked.append(asyncio.get_running_loop().time())
            brokers = {name: BrokerRoute(name, {0 if name in masters else 1: HERE}, False) for name in ("a", "b")}
            return replace(found, brokers=brokers)

        monkeypatch.setattr(FakeRoutes, "get", route)
        async with member(broker, "a", nothing) as engine:
            await until(lambda: len(engine.assignment) == 2)
            await asyncio.sleep(5)
            masters.discard("b")
            engine.rebalance()
            await asyncio.sleep(4)
            masters.add("b")
            elected = asyncio.get_running_loop().time()
            await until(lambda: asked[-1] > elected)
            found = asked[-1] - elected
            await asyncio.sleep(10)
            assert asked[-1] - elected == found, "afterwards rounds are as rare as before"
        return found

    assert run_virtual(main) < 1


def test_a_broker_that_restarted_after_the_heartbeat_is_joined_again_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> set[MessageQueue]:
        broker = FakeBroker([queue(0)])

        def forget_once(member: str, name: str, about: object) -> None:
            if name == "members":
                broker.faults.remove(forget_once)
                broker.members.clear()
                raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "no consumer for this group, g")

        broker.faults.append(forget_once)
        async with member(broker, "me", nothing) as engine:
            assert broker.members == ["me"]
            return held(engine)

    assert run_virtual(main) == {queue(0)}
    assert not caplog.records


@pytest.mark.row("A46")
@pytest.mark.row("A4")
def test_two_members_divide_the_queues_and_each_queue_has_one_owner() -> None:
    async def main() -> tuple[set[MessageQueue], set[MessageQueue]]:
        broker = FakeBroker([queue(n) for n in range(5)])
        async with member(broker, "a", nothing) as a, member(broker, "b", nothing) as b:
            await until(lambda: len(held(b)) == 2)
            return held(a), held(b)

    a, b = run_virtual(main)
    assert a == {queue(0), queue(1), queue(2)}
    assert b == {queue(3), queue(4)}


@pytest.mark.row("A50")
@pytest.mark.row("A117")
def test_a_queue_that_comes_back_is_newly_assigned_and_repeats_at_most_the_uncommitted() -> None:
    async def main() -> list[int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(6)))
        seen: list[int] = []

        async def note(message: Message) -> None:
            seen.append(message.queue_offset)

        async with member(broker, "me", note) as engine:
            await until(lambda: len(seen) == 6)
            (before,) = engine.assignment
            engine.assignment.lose(before, "a test says so")
            await until(lambda: len(engine.assignment) == 1)
            (after,) = engine.assignment
            assert after is not before
            await until(lambda: len(seen) == 12)
        return seen

    assert run_virtual(main) == [*range(6), *range(6)]


@pytest.mark.row("A51")
def test_a_queue_whose_offset_is_unknown_is_neither_pulled_nor_reset() -> None:
    async def main() -> tuple[int, int]:
        broker = FakeBroker([queue(0)], lane=False)
        broker.offsets[queue(0)] = 7
        broker.store(queue(0), *(record(n) for n in range(10)))
        broker.faults.append(lambda _, name, __: no_answer() if name == "committed" else None)
        async with member(broker, "me", nothing):
            await asyncio.sleep(5)
            pulls = len(broker.what("pull"))
            broker.faults.clear()
            await until(lambda: broker.what("pull"))
        return pulls, broker.what("pull")[0][3][1]

    assert run_virtual(main) == (0, 7)


@pytest.mark.row("A52")
@pytest.mark.row("A53")
def test_another_round_leaves_assigned_queues_and_their_pull_loops_alone() -> None:
    async def main() -> bool:
        broker = FakeBroker([queue(0)])
        async with member(broker, "me", nothing) as engine:
            (assigned,) = engine.assignment
            puller = assigned.puller
            await engine.rebalancer.round()
            await engine.rebalancer.round()
            (same,) = engine.assignment
            return same is assigned and same.puller is puller and len(broker.what("pull")) == 1

    assert run_virtual(main)


@pytest.mark.row("A25")
def test_broadcasting_reads_every_queue_without_a_single_lock_request() -> None:
    from lanemq.client.consumer.options import Sharing

    async def main() -> tuple[dict[str, list[int]], int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(5)))
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}

        def noting(name: str) -> Any:
            async def note(message: Message) -> None:
                seen[name].append(message.queue_offset)

            return note

        change = {"sharing": Sharing.BROADCASTING}
        async with (
            member(broker, "a", noting("a"), **change),
            member(broker, "b", noting("b"), **change),
            member(broker, "c", noting("c"), **change),
        ):
            await until(lambda: all(len(each) == 5 for each in seen.values()))
        return seen, len(broker.what("lock")) + len(broker.what("commit"))

    assert run_virtual(main) == ({name: list(range(5)) for name in "abc"}, 0)


@pytest.mark.row("A85")
@pytest.mark.row("A90")
@pytest.mark.row("A83")
def test_a_queue_leaves_drained_committed_and_unlocked_in_that_order() -> None:
    async def main() -> list[Any]:
        broker = FakeBroker([queue(0), queue(1)])
        order: list[Any] = []
        release = asyncio.Event()

        async def slow(message: Message) -> None:
            await release.wait()
            order.append("handler ended")

        async with member(broker, "a", slow, hand_over_timeout=60):
            broker.store(queue(1), record(0))
            await asyncio.sleep(0.1)
            async with member(broker, "b", nothing) as b:
                await asyncio.sleep(0.5)
                broker.faults.append(lambda _, name, about: order.append((name, about)))
                release.set()
                await until(lambda: queue(1) in held(b))
                broker.faults.clear()
        wanted = {"handler ended", ("commit", (queue(1), 1)), ("unlock", queue(1))}
        return [each for each in order if each in wanted][:3]

    assert run_virtual(main) == ["handler ended", ("commit", (queue(1), 1)), ("unlock", queue(1))]


@pytest.mark.row("A87")
@pytest.mark.row("A89")
@pytest.mark.row("A12")
def test_a_handler_that_runs_for_ninety_seconds_keeps_its_queue_and_no_rival_starts() -> None:
    async def main() -> tuple[list[str], int]:
        broker = FakeBroker([queue(0), queue(1)], lane=False)
        events: list[str] = []

        async def slow(message: Message) -> None:
            events.append(f"a starts {message.queue_offset}")
            await asyncio.sleep(90)
            events.append(f"a ends {message.queue_offset}")

        async def rival(message: Message) -> None:
            events.append(f"b starts {message.queue_offset}")

        async with member(broker, "a", slow, plan=WHOLE_QUEUE) as a:
            broker.store(queue(1), *(record(n) for n in range(3)))
            await asyncio.sleep(1)
            async with member(broker, "b", rival, plan=WHOLE_QUEUE):
                await asyncio.sleep(60)
                late = max(each.lifecycle.late for each in a.assignment)
                await until(lambda: len(events) == 4)
        return events, late

    events, late = run_virtual(main)
    assert late > 0
    assert events == ["a starts 0", "a ends 0", "b starts 1", "b starts 2"]


@pytest.mark.row("A53")
@pytest.mark.row("A84")
def test_queues_that_stay_do_not_pause_while_another_is_handed_over() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0), queue(1)])
        stuck = asyncio.Event()
        done: list[int] = []

        async def handler(message: Message) -> None:
            if message.queue == queue(1):
                await stuck.wait()
            else:
                done.append(message.queue_offset)

        async with member(broker, "a", handler, hand_over_timeout=10):
            broker.store(queue(1), record(0))
            await asyncio.sleep(0.1)
            async with member(broker, "b", nothing):
                await asyncio.sleep(0.1)
                broker.store(queue(0), record(0))
                began = broker.clock.now()
                await until(lambda: done)
                waited = broker.clock.now() - began
                stuck.set()
        return waited

    assert run_virtual(main) < 100


@pytest.mark.row("A88")
def test_a_concurrent_queue_is_given_up_without_waiting_for_its_handler() -> None:
    from lanemq.core.consuming.retry_policy import SendBack

    async def main() -> int:
        broker = FakeBroker([queue(0), queue(1)])
        stuck = asyncio.Event()

        async def handler(message: Message) -> None:
            await stuck.wait()

        plan = {"order": Order.NONE, "policy": SendBack()}
        async with member(broker, "a", handler, plan=plan) as a:
            broker.store(queue(1), record(0))
            await asyncio.sleep(0.1)
            async with member(broker, "b", handler, plan=plan):
                began = broker.clock.now()
                await until(lambda: held(a) == {queue(0)})
                waited = broker.clock.now() - began
                stuck.set()
        return waited

    assert run_virtual(main) < 100


@pytest.mark.row("A91")
def test_after_a_clean_stop_a_rival_owns_the_queue_within_a_second() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0)])
        async with member(broker, "a", nothing):
            pass
        ended = broker.clock.now()
        async with member(broker, "b", nothing) as b:
            await until(lambda: held(b) == {queue(0)})
            return broker.clock.now() - ended

    assert run_virtual(main) < 1_000


@pytest.mark.row("A91")
def test_the_stop_commits_then_unlocks_then_leaves() -> None:
    async def main() -> list[str]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        seen = []

        async def note(message: Message) -> None:
            seen.append(message)

        async with member(broker, "me", note, commit_every=60):
            await until(lambda: seen)
        return [name for _, _, name, _ in broker.noted if name in ("commit", "unlock", "leave")]

    assert run_virtual(main) == ["commit", "unlock", "leave"]


def test_a_stop_leaves_a_handler_behind_after_its_timeout_and_does_not_unlock_its_queue() -> None:
    async def main() -> tuple[int, int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        stuck = asyncio.Event()

        async def handler(message: Message) -> None:
            await stuck.wait()

        async with member(broker, "me", handler, stop_timeout=2):
            await asyncio.sleep(0.1)
            began = broker.clock.now()
        return broker.clock.now() - began, len(broker.what("unlock"))

    took, unlocked = run_virtual(main)
    assert 2_000 <= took < 10_000
    assert unlocked == 0


@pytest.mark.row("A99")
@pytest.mark.row("A78")
def test_a_lost_queue_starts_nothing_more_and_commits_nothing() -> None:
    async def main() -> tuple[list[int], list[Any]]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(5)))
        started: list[int] = []
        go_on = asyncio.Event()

        async def handler(message: Message) -> None:
            started.append(message.queue_offset)
            await go_on.wait()

        async with member(broker, "me", handler, commit_every=0.05) as engine:
            await until(lambda: started)
            (assigned,) = engine.assignment
            engine.assignment.lose(assigned, "a test says so")
            go_on.set()
            await asyncio.sleep(0.4)  # the next round, after 0.5 s, takes the queue again
            return started, broker.what("commit")

    assert run_virtual(main) == ([0], [])


def test_a_refused_commit_loses_the_queue() -> None:
    """The broker has granted a newer epoch, so the queue belongs to another member."""

    async def main() -> bool:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0))
        broker.faults.append(lambda _, name, __: refuse() if name == "commit" else None)
        async with member(broker, "me", nothing) as engine:
            await until(lambda: broker.what("commit"))
            await until(lambda: not len(engine.assignment), seconds=10)
            return True

    assert run_virtual(main)


def test_a_refused_pull_loses_the_queue() -> None:
    async def main() -> bool:
        broker = FakeBroker([queue(0)])
        broker.faults.append(lambda _, name, __: refuse() if name == "pull" else None)
        async with member(broker, "me", nothing) as engine:
            await until(lambda: broker.what("pull"))
            await until(lambda: not len(engine.assignment), seconds=10)
            return True

    assert run_virtual(main)


def test_a_member_whose_turn_never_ends_does_not_start_the_same_queue_twice() -> None:
    """The same member loses the queue and takes it again while the handler runs."""

    async def main() -> int:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(3)))
        running = most = 0
        go_on = asyncio.Event()

        async def handler(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go_on.wait()
            running -= 1

        async with member(broker, "me", handler) as engine:
            await until(lambda: running == 1)
            (assigned,) = engine.assignment
            engine.assignment.lose(assigned, "a test says so")
            await until(lambda: len(engine.assignment) == 1)
            await asyncio.sleep(5)
            go_on.set()
            await asyncio.sleep(1)
        return most

    assert run_virtual(main) == 1


@pytest.mark.row("A43")
def test_a_cut_off_member_starts_no_message_after_its_lease_and_the_rival_none_before() -> None:
    async def main() -> tuple[list[tuple[str, int]], int]:
        broker = FakeBroker([queue(0)], lane=False)
        broker.store(queue(0), *(record(n) for n in range(200)))
        started: list[tuple[str, int]] = []

        def handler(name: str) -> Any:
            async def handle(message: Message) -> None:
                started.append((name, broker.clock.now()))
                await asyncio.sleep(1)

            return handle

        times = {"lease_times": ROCKETMQ_TIMES, "stop_timeout": 0}
        async with member(broker, "a", handler("a"), plan=WHOLE_QUEUE, **times):
            await asyncio.sleep(0.5)
            broker.faults.append(lambda who, *_: no_answer() if who == "a" else None)
            broker.members.append("b")
            broker.members.remove("a")
            async with member(broker, "b", handler("b"), plan=WHOLE_QUEUE, **times):
                await until(lambda: started[-1][0] == "b")
            broker.members.append("a")
        last_a = max(at for name, at in started if name == "a")
        return started, last_a

    started, last_a = run_virtual(main)
    first_b = min(at for name, at in started if name == "b")
    assert last_a < 30_000
    assert first_b >= 60_000


@pytest.mark.row("A85")
def test_a_queue_is_not_unlocked_before_its_offset_is_really_stored() -> None:
    """Otherwise the next owner would start at the old offset and repeat messages."""

    async def main() -> tuple[int, bool, list[int]]:
        broker = FakeBroker([queue(0), queue(1)])
        seen: dict[str, list[int]] = {"a": [], "b": []}

        def noting(name: str) -> Any:
            async def note(message: Message) -> None:
                seen[name].append(message.queue_offset)

            return note

        async with member(broker, "a", noting("a"), commit_every=600):
            broker.store(queue(1), *(record(n) for n in range(3)))
            await until(lambda: len(seen["a"]) == 3)
            broker.faults.append(lambda _, name, __: no_answer() if name == "commit" else None)
            async with member(broker, "b", noting("b")) as b:
                await asyncio.sleep(10)
                unlocked = len([each for each in broker.what("unlock") if each[3] == queue(1)])
                early = queue(1) in held(b)
                broker.faults.clear()
                await until(lambda: queue(1) in held(b))
                await asyncio.sleep(1)
        return unlocked, early, seen["b"]

    assert run_virtual(main) == (0, False, [])


def test_a_queue_that_is_wanted_again_while_its_offset_cannot_be_stored_runs_again() -> None:
    async def main() -> list[int]:
        broker = FakeBroker([queue(0), queue(1)])
        seen: list[int] = []

        async def note(message: Message) -> None:
            seen.append(message.queue_offset)

        async with member(broker, "a", note, commit_every=600) as a:
            broker.store(queue(1), record(0))
            await until(lambda: seen)
            broker.faults.append(lambda _, name, __: no_answer() if name == "commit" else None)
            broker.members.append("b")
            a.rebalance()
            await asyncio.sleep(5)
            broker.members.remove("b")
            broker.faults.clear()
            broker.store(queue(1), record(1))
            await until(lambda: len(seen) == 2, seconds=60)
        return seen

    assert run_virtual(main) == [0, 1]


def busy() -> None:
    """An answer, so `OutageLog` does not report it."""
    raise BrokerRefused(ResponseCode.SYSTEM_BUSY, "the fake broker is busy")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("asked", ["members", "lock", "committed"])
def test_an_unavailable_topic_is_logged_once_a_minute(asked: str, caplog: pytest.LogCaptureFixture) -> None:
    """The member tries twice a second."""

    async def main() -> None:
        broker = FakeBroker([queue(0)], lane=False)
        broker.faults.append(lambda _, name, about: busy() if name == asked else None)
        async with member(broker, "me", nothing):
            await asyncio.sleep(90)

    run_virtual(main)
    logged = [each for each in warnings(caplog) if "the fake broker is busy" in each]
    assert len(logged) == len(set(logged)) * 2 > 0


def test_another_reason_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    rate_limited = RateLimitedLog(logging.getLogger("lanemq"), clock)
    for clock.at, about, text in ((0, "a", "x"), (1, "a", "x"), (2, "a", "y"), (3, "b", "x"), (60_000, "a", "x")):
        rate_limited.warn(about, text)
    assert warnings(caplog) == ["x", "y", "x", "x"]


def test_no_warning_is_logged_for_a_retry_topic(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = FakeBroker([queue(0)])
        broker.faults.append(lambda _, name, about: busy() if name == "members" else None)
        async with member(broker, "me", nothing):
            await asyncio.sleep(5)

    run_virtual(main)
    assert warnings(caplog)
    assert [each for each in warnings(caplog) if "%RETRY%" in each] == []
