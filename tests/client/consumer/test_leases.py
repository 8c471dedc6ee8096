"""The lease keeper against a broker's lock table, on virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from itertools import count
from typing import Any

import pytest
from tests.client.consumer.fakes import FakeBroker, FakeCalls, FakeScheduler, assigned_queue, no_answer, options, queue
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.queues.assigned_queue import Assignment
from lanemq.client.consumer.queues.leases import LeaseKeeper, _Pace
from lanemq.core.consuming.queue_lease import CLUSTER_TIMES, LANE_TIMES, ROCKETMQ_TIMES, LeaseTimes
from lanemq.model.errors import ConnectFailed
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address


def _ignore(*_: Any) -> None: ...


class Member:
    """A lease keeper, its assigned queues, and those that it lost."""

    def __init__(self, broker: FakeBroker, name: str = "me", times: LeaseTimes = LANE_TIMES) -> None:
        self.calls = FakeCalls(broker, name)
        self.broker = broker
        self.times = times
        self.scheduler = FakeScheduler()
        self.taken: list[MessageQueue] = []
        self.lost: list[tuple[int, MessageQueue]] = []
        self.assignment = Assignment(options(), name, self._lost)
        self.joined_again: list[int] = []
        calls: Any = self.calls
        self.keeper = LeaseKeeper(options(), calls, self.assignment, _ignore, self._join_again, _ignore)

    async def _join_again(self, _: Address) -> None:
        self.joined_again.append(self.broker.clock.now())
        self.broker.removed.discard(self.calls.client_id)

    def _lost(self) -> None:
        (lost,) = [each for each in self.taken if self.assignment.get(each) is None]
        self.taken.remove(lost)
        self.lost.append((self.broker.clock.now(), lost))

    async def take(self, *queues: MessageQueue) -> set[MessageQueue]:
        lane = self.broker.lane
        taken: set[MessageQueue] = set()
        for broker in sorted({each.broker for each in queues}):
            part = [each for each in queues if each.broker == broker]
            for each, (lease, _) in (await self.keeper.acquire(broker, part, self.times, lane=lane)).items():
                self.assignment.add(assigned_queue(each, lease, self.times, lane=lane, scheduler=self.scheduler))
                self.taken.append(each)
                taken.add(each)
        return taken

    def usable(self, which: MessageQueue) -> bool:
        assigned = self.assignment.get(which)
        return assigned is not None and assigned.may_pull(now=self.broker.clock.now())


async def beside(loop: Coroutine[Any, Any, None], seconds: float) -> None:
    """Runs an endless loop for some seconds."""
    task = asyncio.create_task(loop)
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.row("A22")
def test_rocketmq_renews_after_one_second_and_then_every_twenty() -> None:
    async def main() -> list[int]:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=ROCKETMQ_TIMES)
        await member.take(queue(0))
        await beside(member.keeper.run(), 45)
        return [at for at, *_ in broker.what("lock")[1:]]

    assert run_virtual(main) == [1_000, 21_000, 41_000]


@pytest.mark.row("A23")
def test_a_renewal_that_raises_does_not_end_the_loop() -> None:
    async def main() -> tuple[int, bool]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))

        def break_once(*_: Any) -> None:
            broker.faults.clear()
            raise RuntimeError("a bug")

        broker.faults.append(break_once)
        await beside(member.keeper.run(), 3.5)
        return len(broker.what("lock")), member.usable(queue(0))

    assert run_virtual(main) == (4, True)


@pytest.mark.parametrize("lane", [True, False])
def test_only_a_slow_lanemq_broker_is_reported_with_the_time_of_its_keep_alives(
    lane: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An Apache broker gets none: turns go by its locks there."""

    async def main() -> None:
        broker = FakeBroker([queue(0), queue(1)], lane=lane)
        member = Member(broker, times=LANE_TIMES if lane else CLUSTER_TIMES)
        at_once = member.calls.lock

        async def slow_lock(*asked: Any, **more: Any) -> Any:
            await asyncio.sleep(0.9)
            return await at_once(*asked, **more)

        member.calls.lock = slow_lock  # type: ignore[method-assign]
        await member.take(queue(0))
        await member.take(queue(1))

    run_virtual(main)
    assert ("turns start within" in caplog.text) is lane


def test_queues_that_go_on_at_a_new_master_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=CLUSTER_TIMES)
        await member.take(queue(0))
        await beside(member.keeper.run(), 10)
        assert "new master" not in caplog.text
        member.calls.address = lambda *_: Address("10.0.0.9", 10911)  # type: ignore[method-assign]
        await beside(member.keeper.run(), 30)

    run_virtual(main)
    assert caplog.text.count("continue at its new master 10.0.0.9:10911, instead of") == 1


@pytest.mark.row("A24")
def test_a_stopped_lease_keeper_sends_nothing() -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        await beside(member.keeper.run(), 1.5)
        before = len(broker.noted)
        await asyncio.sleep(60)
        return len(broker.noted) - before

    assert run_virtual(main) == 0


@pytest.mark.row("A26")
def test_a_renewal_is_one_request_per_broker() -> None:
    async def main() -> list[tuple[str, int]]:
        queues = [queue(n, broker=name) for name in "ab" for n in range(4)]
        broker = FakeBroker(queues)
        member = Member(broker)
        await member.take(*queues)
        before = len(broker.what("lock"))
        await beside(member.keeper.run(), 1.1)
        return sorted((about[0], len(about[1])) for *_, about in broker.what("lock")[before:])

    assert run_virtual(main) == [("a", 4), ("b", 4)]


@pytest.mark.row("A28")
def test_a_slow_broker_does_not_delay_leases_of_other_brokers() -> None:
    async def main() -> tuple[bool, bool]:
        broker = FakeBroker([queue(0, broker="slow"), queue(0, broker="b")])
        member = Member(broker)
        await member.take(*broker.queues)
        lock = member.calls.lock

        async def slow_lock(name: str, queues: Any, **asked: Any) -> Any:
            await slowly(name)
            return await lock(name, queues, **asked)

        async def slow_keep_alive(topic: str, name: str, serial: int) -> bool:
            await slowly(name)
            return await keep_alive(topic, name, serial)

        async def slowly(name: str) -> None:
            if name == "slow":
                await asyncio.sleep(1)
                no_answer()

        keep_alive = member.calls.keep_alive
        member.calls.lock, member.calls.keep_alive = slow_lock, slow_keep_alive  # type: ignore[method-assign]
        renewing = asyncio.create_task(member.keeper.run())
        usable = []
        for _ in range(32):
            await asyncio.sleep(0.1)
            usable.append(member.usable(queue(0, broker="b")))
        renewing.cancel()
        return member.usable(queue(0, broker="slow")), all(usable)

    assert run_virtual(main) == (False, True)


@pytest.mark.row("A29")
def test_a_renewed_lease_lets_turns_start_until_its_end_counted_from_the_request() -> None:
    async def main() -> Millis:
        member = Member(FakeBroker([queue(0)]))
        await member.take(queue(0))
        await beside(member.keeper.run(), 1.1)
        return member.scheduler.usable_until[queue(0)]

    assert run_virtual(main) == 1_000 + LANE_TIMES.keep_alive_timeout_ms


@pytest.mark.row("A30")
def test_a_queue_left_out_of_the_answer_is_lost_at_once() -> None:
    async def main() -> list[tuple[int, MessageQueue]]:
        broker = FakeBroker([queue(0), queue(1)])
        member = Member(broker)
        await member.take(queue(0), queue(1))
        broker.locks.release("g", [queue(0)], "me", epoch=None, now=Millis(0))
        broker.locks.acquire("g", [queue(0)], "thief", lease=Millis(60_000), now=Millis(0))
        await beside(member.keeper.run(), 1.5)
        return member.lost

    assert run_virtual(main) == [(1_000, queue(0))]


@pytest.mark.row("A31")
def test_without_answers_the_lease_ends_at_its_time() -> None:
    async def main() -> tuple[bool, bool, list[Any]]:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=ROCKETMQ_TIMES)
        await member.take(queue(0))
        broker.faults.append(no_answer)
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(29.999)
        before = member.usable(queue(0))
        await asyncio.sleep(0.001)
        after = member.usable(queue(0))
        renewing.cancel()
        return before, after, member.lost

    assert run_virtual(main) == (True, False, [])


@pytest.mark.row("A32")
def test_a_queue_is_taken_only_if_the_answer_names_it() -> None:
    async def main() -> set[MessageQueue]:
        broker = FakeBroker([queue(0), queue(1)])
        broker.locks.acquire("g", [queue(1)], "other", lease=None, now=Millis(0))
        return await Member(broker).take(queue(0), queue(1))

    assert run_virtual(main) == {queue(0)}


@pytest.mark.row("A42")
def test_two_lost_renewals_are_survived() -> None:
    async def main() -> tuple[bool, list[Any]]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        lost = iter(range(2))
        broker.faults.append(lambda *_: no_answer() if next(lost, None) is not None else None)
        await beside(member.keeper.run(), 3.5)
        return member.usable(queue(0)), member.lost

    assert run_virtual(main) == (True, [])


@pytest.mark.row("A43")
def test_a_cut_off_owner_stops_before_a_rival_can_begin() -> None:
    """Their leases never overlap, because client lease < broker lease."""

    async def main() -> tuple[int, int]:
        broker = FakeBroker([queue(0)])
        owner, rival = Member(broker, "owner"), Member(broker, "rival")
        await owner.take(queue(0))
        broker.faults.append(lambda member, *_: no_answer() if member == "owner" else None)
        renewing = asyncio.create_task(owner.keeper.run())
        stopped_at = got_at = 0
        while not got_at:
            await asyncio.sleep(0.01)
            if not stopped_at and not owner.usable(queue(0)):
                stopped_at = broker.clock.now()
            if await rival.take(queue(0)):
                got_at = broker.clock.now()
        renewing.cancel()
        return stopped_at, got_at

    stopped_at, got_at = run_virtual(main)
    assert 0 < stopped_at < got_at


def test_a_lease_granted_under_a_new_epoch_is_not_a_renewal() -> None:
    """Another member may have owned the queue in between, so cached messages are dropped."""

    async def main() -> list[MessageQueue]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        broker.locks.release("g", [queue(0)], "me", epoch=None, now=Millis(0))
        broker.locks.acquire("g", [queue(0)], "other", lease=Millis(1), now=Millis(0))
        await beside(member.keeper.run(), 1.5)
        return [lost for _, lost in member.lost]

    assert run_virtual(main) == [queue(0)]


def test_a_lost_connection_pauses_turns_until_the_lease_is_renewed() -> None:
    async def main() -> tuple[Millis, Millis]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(0.5)
        member.keeper.suspend("a")
        closed = member.scheduler.usable_until[queue(0)]
        await asyncio.sleep(0.1)
        renewing.cancel()
        return closed, member.scheduler.usable_until[queue(0)]

    assert run_virtual(main) == (500, 500 + LANE_TIMES.keep_alive_timeout_ms)


def test_a_lost_connection_pauses_turns_of_an_apache_broker_too() -> None:
    """A broker that was killed has forgotten its locks, and another member may be the first to ask for them."""

    async def main() -> tuple[Millis, bool]:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=CLUSTER_TIMES)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(0.5)
        member.keeper.suspend("a")
        paused = member.scheduler.usable_until[queue(0)]
        await asyncio.sleep(0.1)
        renewing.cancel()
        return paused, member.scheduler.usable_until[queue(0)] > 500

    assert run_virtual(main) == (500, True)


def test_a_member_that_was_frozen_starts_no_turn_before_it_knows_of_its_lost_connection() -> None:
    """Nothing happens on its loop for 4 s, less than its lease; then it learns that the master is gone."""

    async def main() -> tuple[bool, bool, bool]:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=CLUSTER_TIMES)
        await member.take(queue(0))
        keeping = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(1.5)
        now, until = broker.clock.now(), member.scheduler.usable_until[queue(0)]
        runs, frozen = now < until, now + 4_000 < until
        broker.faults.append(no_answer)
        member.keeper.suspend("a")
        await asyncio.sleep(2)
        after = broker.clock.now() < member.scheduler.usable_until[queue(0)]
        keeping.cancel()
        return runs, frozen, after

    assert run_virtual(main) == (True, False, False)


def test_without_a_sign_of_the_loop_turns_of_an_apache_broker_go_on_for_the_whole_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above: without `_stay_awake` a frozen member's workers could start turns for 4 s."""

    async def idle(_: LeaseKeeper) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(LeaseKeeper, "_stay_awake", idle)

    async def main() -> bool:
        broker = FakeBroker([queue(0)], lane=False)
        member = Member(broker, times=CLUSTER_TIMES)
        await member.take(queue(0))
        keeping = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(1.5)
        keeping.cancel()
        return broker.clock.now() + 4_000 < member.scheduler.usable_until[queue(0)]

    assert run_virtual(main)


def test_keep_alives_let_turns_start_between_renewals() -> None:
    async def main() -> tuple[list[int], list[int], bool]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(0.9)
        usable = member.usable(queue(0))
        await asyncio.sleep(1.0)
        renewing.cancel()
        return [at for at, *_ in broker.what("keep_alive")], [at for at, *_ in broker.what("lock")], usable

    signs = [250, 500, 750, 1_250, 1_500, 1_750]
    assert run_virtual(main) == (signs, [0, 1_000], True)


def test_a_member_without_queues_sends_a_keep_alive_every_second() -> None:
    async def main() -> list[tuple[int, object]]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        member.keeper.stay_member("orders", "a", LANE_TIMES)
        await beside(member.keeper.run(), 3.5)
        return [(at, about) for at, _, _, about in broker.what("keep_alive")]

    assert run_virtual(main) == [(1_000, ("a", 0)), (2_000, ("a", 0)), (3_000, ("a", 0))]


@pytest.mark.parametrize(("owns", "joined_at"), [(False, 1_000), (True, 250)])
def test_a_member_that_was_removed_joins_again_with_the_next_answer(owns: bool, joined_at: int) -> None:
    async def main() -> list[int]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        member.keeper.stay_member("orders", "a", LANE_TIMES)
        if owns:
            await member.take(queue(0))
        broker.removed.add("me")
        await beside(member.keeper.run(), 3.5)
        return member.joined_again

    assert run_virtual(main) == [joined_at]


class NoRoute(FakeCalls):
    """The route of the topic was forgotten while the first two answers were on their way: it was deleted."""

    asked = 0

    def address(self, topic: str, broker: str) -> Address:
        self.asked += 1
        if self.asked <= 2:
            raise ConnectFailed("not known yet")
        return super().address(topic, broker)


@pytest.mark.parametrize("owns", [False, True])
def test_a_removed_member_without_a_route_waits_for_the_next_answer(
    owns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> int:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        if owns:
            await member.take(queue(0))
        calls = member.keeper._calls = NoRoute(broker, "me")  # type: ignore[assignment]
        member.keeper.stay_member("orders", "a", LANE_TIMES)
        broker.removed.add("me")
        await beside(member.keeper.run(), 3.5)
        assert calls.asked >= 3
        return len(member.joined_again)

    assert run_virtual(main) == 1
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize("owns", [False, True])
def test_a_connection_without_answers_for_as_long_as_a_lease_is_closed(owns: bool) -> None:
    """Not earlier: a broker that is only slow may answer while the member has leases to lose."""

    async def main() -> int:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        member.keeper.stay_member("orders", "a", LANE_TIMES)
        if owns:
            await member.take(queue(0))
        broker.faults.append(no_answer)
        await beside(member.keeper.run(), 20)
        asked_at = next(at for at, _, name, _ in broker.noted if at > 0)
        at, _, _, about = broker.what("close_silent")[0]
        assert about == ("a", LANE_TIMES.broker_lease_ms)
        return at - asked_at

    assert LANE_TIMES.broker_lease_ms <= run_virtual(main) <= LANE_TIMES.broker_lease_ms + 1_000


@pytest.mark.parametrize("answer", [None, ConnectFailed("nothing listens")])
def test_a_connection_that_was_answered_or_refused_once_is_not_closed(answer: ConnectFailed | None) -> None:
    async def main() -> list[Any]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        member.keeper.stay_member("orders", "a", LANE_TIMES)
        asked = count()

        def mostly_silent(*_: Any) -> None:
            if next(asked) % 4 != 3:
                no_answer()
            if answer is not None:
                raise answer

        broker.faults.append(mostly_silent)
        await beside(member.keeper.run(), 60)
        return broker.what("close_silent")

    assert run_virtual(main) == []


def test_one_request_that_was_under_way_when_the_process_froze_does_not_close_the_connection() -> None:
    """Its answer may wait in the socket, and the next request will be answered."""
    pace = _Pace()
    assert pace.unanswered(Millis(0), Millis(60_000)) == 0
    pace.reached()
    assert pace.unanswered(Millis(60_250), Millis(61_250)) == 0
    assert pace.unanswered(Millis(61_250), Millis(62_250)) == 2_000


def test_without_answers_turns_pause_after_the_keep_alive_deadline_and_resume_with_the_next_answer() -> None:
    """The queue is paused, not lost."""

    async def main() -> tuple[list[bool], list[Any]]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        broker.faults.append(no_answer)
        usable = []
        for pause in (LANE_TIMES.keep_alive_timeout_ms - 1, 1, 1_000):
            await asyncio.sleep(pause / 1000)
            usable.append(member.usable(queue(0)))
        broker.faults.clear()
        await asyncio.sleep(0.3)
        usable.append(member.usable(queue(0)))
        renewing.cancel()
        return usable, member.lost

    assert run_virtual(main) == ([True, False, False, True], [])


def test_a_refused_keep_alive_makes_the_member_renew_at_once() -> None:
    """The broker noticed the lost connection and the member did not."""

    async def main() -> tuple[list[int], bool]:
        broker = FakeBroker([queue(0)])
        member = Member(broker)
        await member.take(queue(0))
        tuple(broker.locks.disconnected("me", grace=Millis(500), now=Millis(0)))
        await beside(member.keeper.run(), 0.4)
        return [at for at, *_ in broker.what("lock")], member.usable(queue(0))

    assert run_virtual(main) == ([0, 250], True)


def test_queues_taken_under_different_serials_are_renewed_together() -> None:
    """A keep-alive covers one serial: queues of another would pause."""

    async def main() -> list[int]:
        broker = FakeBroker([queue(0), queue(1)])
        member = Member(broker)
        await member.take(queue(0))
        tuple(broker.locks.disconnected("me", grace=Millis(500), now=Millis(0)))
        await member.take(queue(1))
        await beside(member.keeper.run(), 0.6)
        return [len(about[1]) for *_, about in broker.what("lock")]

    assert run_virtual(main) == [1, 1, 2]


def test_a_broker_that_does_not_wait_for_keep_alives_gets_none() -> None:
    """Only the lease itself counts."""

    async def main() -> tuple[int, Millis]:
        broker = FakeBroker([queue(0)])
        broker.waits_for_keep_alives = False
        member = Member(broker)
        await member.take(queue(0))
        await beside(member.keeper.run(), 1.5)
        return len(broker.what("keep_alive")), member.scheduler.usable_until[queue(0)]

    assert run_virtual(main) == (0, 1_000 + LANE_TIMES.client_lease_ms)


@pytest.mark.row("A55")
def test_a_released_queue_is_free_at_once_and_not_locked_again_by_a_renewal() -> None:
    async def main() -> tuple[set[MessageQueue], int]:
        broker = FakeBroker([queue(0)])
        owner, rival = Member(broker, "owner"), Member(broker, "rival")
        await owner.take(queue(0))
        (assigned,) = owner.assignment
        await owner.keeper.release(assigned)
        await beside(owner.keeper.run(), 1.1)
        return await rival.take(queue(0)), broker.clock.now()

    assert run_virtual(main) == ({queue(0)}, 1_100)


# a slow broker


class FarAway(FakeCalls):
    """Delays requests and answers by `way` seconds each."""

    way = 0.0

    async def lock(self, *args: Any, **named: Any) -> Any:
        async with self._journey():
            return await super().lock(*args, **named)

    async def keep_alive(self, *args: Any, **named: Any) -> Any:
        async with self._journey():
            return await super().keep_alive(*args, **named)

    @contextlib.asynccontextmanager
    async def _journey(self) -> AsyncIterator[None]:
        await asyncio.sleep(self.way)
        yield
        await asyncio.sleep(self.way)


def far_away(broker: FakeBroker) -> tuple[Member, FarAway]:
    member, calls = Member(broker), FarAway(broker, "me")
    member.keeper._calls = calls  # type: ignore[assignment]
    return member, calls


@pytest.mark.parametrize("answer_ms", [100, 390, 500, 850, 1_400])
def test_a_broker_that_is_always_slow_makes_turns_pause_only_until_it_knows_a_longer_timeout(answer_ms: int) -> None:
    async def main() -> tuple[int, list[Any]]:
        broker = FakeBroker([queue(0)])
        member, far = far_away(broker)
        far.way = answer_ms / 2000
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(8)
        usable = 0
        for _ in range(1_000):
            await asyncio.sleep(0.01)
            usable += member.usable(queue(0))
        renewing.cancel()
        return usable, member.lost

    assert run_virtual(main) == (1_000, [])


def test_one_slow_answer_changes_no_timeout_and_a_longer_one_is_waited_for_at_the_broker() -> None:
    async def main() -> tuple[list[Any], Millis]:
        broker = FakeBroker([queue(0)])
        member, far = far_away(broker)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        timeouts = []
        for way in (0.4, 0.0, 0.4, 0.4, 0.0):
            far.way = way
            await asyncio.sleep(0.9)
            (assigned,) = member.assignment
            assert assigned.lease is not None
            timeouts.append(assigned.usable_until - assigned.lease.asked_at)
        renewing.cancel()
        now = broker.clock.now()
        tuple(broker.locks.disconnected("me", grace=Millis(0), now=now))
        while not broker.locks.acquire("g", [queue(0)], "other", lease=Millis(5_000), now=now).granted:
            now = Millis(now + 50)
        return timeouts, Millis(now - broker.clock.now())

    timeouts, waited = run_virtual(main)
    assert timeouts[0] == LANE_TIMES.keep_alive_timeout_ms
    assert timeouts[-1] == 3 * 800
    assert waited > 3 * 800 - 300
