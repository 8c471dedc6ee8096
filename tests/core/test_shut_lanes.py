"""Parked lanes between a member and a broker, whatever gets lost between them: nothing overtakes, nothing is lost."""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from lanemq.core.gap_map import NO_GAPS, GapMap
from lanemq.core.lane_scheduler import LaneScheduler
from lanemq.core.parked_lanes import Failure, LaneName, LaneStatus, Limits, ParkedLanes
from lanemq.core.retry_policy import HoldKey, Park
from lanemq.core.shut_lanes import KeptLane, NextWork, ParkWork, RedriveWork, ShutLanes, Work
from lanemq.core.turns import DONE, FAILED, NO_LEASE_NEEDED, LaneOptions, Order, Turn
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("t", "b", 0)
PLACE = ("g", "t", 0)
PAUSE = Millis(10)


class M(NamedTuple):
    queue_offset: int
    key: str | None
    size: int = 1


def member(
    start: int = 0, done: GapMap = NO_GAPS, kept: tuple[KeptLane, ...] = (), policy: HoldKey | None = None
) -> LaneScheduler[M]:
    scheduler: LaneScheduler[M] = LaneScheduler(LaneOptions(policy=policy or HoldKey(retries=0), run_limit=2))
    scheduler.add(Q, QueueOffset(start), Order.KEY, usable_until=NO_LEASE_NEEDED, done=done, kept=kept)
    return scheduler


def put(scheduler: LaneScheduler[M], *messages: tuple[int, str]) -> None:
    start = scheduler.next_offset(Q)
    assert start is not None
    batch = [M(*message) for message in messages]
    assert scheduler.put(Q, batch, QueueOffset(batch[-1].queue_offset + 1), pulled_from=start)


def shut(scheduler: LaneScheduler[M]) -> ShutLanes[M]:
    lanes = scheduler.shut(Q)
    assert lanes is not None
    return lanes


def turn(scheduler: LaneScheduler[M]) -> Turn[M] | None:
    found = scheduler.next_turn(now=Millis(0))
    return found if isinstance(found, Turn) else None


def fail(scheduler: LaneScheduler[M], reason: str = "why") -> None:
    found = turn(scheduler)
    assert found is not None
    scheduler.finish(found, FAILED, now=Millis(0), reason=reason)


def parked(policy: HoldKey | None = None) -> LaneScheduler[M]:
    """Key k has failed at offset 0; 1 is behind it."""
    scheduler = member(policy=policy)
    put(scheduler, (0, "k"), (1, "k"))
    fail(scheduler)
    return scheduler


def work(scheduler: LaneScheduler[M], now: int = 0) -> list[Work[M]]:
    return shut(scheduler).work(now=Millis(now))


def one(scheduler: LaneScheduler[M], now: int = 0) -> Work[M]:
    (found,) = work(scheduler, now)
    return found


def store(scheduler: LaneScheduler[M], status: LaneStatus | None = LaneStatus.PARKED, settled: int = 2) -> None:
    found = one(scheduler)
    assert isinstance(found, ParkWork)
    shut(scheduler).stored(found, settled, status, now=Millis(0), pause=PAUSE)
    scheduler.offer(Q)


def give(scheduler: LaneScheduler[M], message: M | None, status: LaneStatus | None = LaneStatus.REDRIVING) -> NextWork:
    found = one(scheduler)
    assert isinstance(found, NextWork)
    shut(scheduler).given(found, message, status)
    scheduler.offer(Q)
    return found


def reconcile(scheduler: LaneScheduler[M], kept: dict[str | None, bool]) -> None:
    lanes = shut(scheduler)
    lanes.reconcile(kept, lanes.kept())
    scheduler.offer(Q)


def test_a_failed_lane_is_offered_to_the_broker_with_everything_behind_it() -> None:
    scheduler = parked()
    assert one(scheduler) == ParkWork("k", (M(0, "k"), M(1, "k")), Failure("why", 1))
    assert work(scheduler) == [], "one question at a time"
    assert scheduler.committable(Q) == 0


def test_what_the_broker_keeps_is_finished_and_the_lane_stays_shut() -> None:
    scheduler = parked()
    store(scheduler)
    assert scheduler.committable(Q) == 2
    put(scheduler, (2, "k"), (3, "j"))
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(3, "j"),)
    assert one(scheduler) == ParkWork("k", (M(2, "k"),), None)
    assert scheduler.snapshot()[Q].parked == ("k",)


def test_what_the_broker_does_not_take_is_offered_again_after_a_pause() -> None:
    scheduler = parked()
    store(scheduler, settled=1)
    assert scheduler.committable(Q) == 1
    assert work(scheduler, now=PAUSE - 1) == []
    assert one(scheduler, now=PAUSE) == ParkWork("k", (M(1, "k"),), None)


def test_a_lane_the_broker_would_not_begin_stays_here_whole() -> None:
    scheduler = parked()
    store(scheduler, status=None, settled=0)
    assert (scheduler.committable(Q), turn(scheduler)) == (0, None)
    assert one(scheduler, now=PAUSE) == ParkWork("k", (M(0, "k"), M(1, "k")), Failure("why", 1))


def test_a_lost_answer_is_asked_for_again() -> None:
    scheduler = parked()
    first = one(scheduler)
    shut(scheduler).failed(first, now=Millis(0), pause=PAUSE)
    assert (scheduler.committable(Q), work(scheduler)) == (0, [])
    assert one(scheduler, now=PAUSE) == first


def test_redriven_messages_run_alone_and_newer_ones_wait_for_the_last() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    assert give(scheduler, M(0, "k")).done == -1
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"),)
    assert turn(scheduler) is None
    scheduler.finish(found, DONE, now=Millis(0))
    assert turn(scheduler) is None, "the broker must know first"
    assert give(scheduler, M(1, "k")).done == 0
    found = turn(scheduler)
    assert found is not None
    scheduler.finish(found, DONE, now=Millis(0))
    assert give(scheduler, None, None).done == 1
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(2, "k"),)
    scheduler.finish(found, DONE, now=Millis(0))
    assert (scheduler.committable(Q), scheduler.snapshot()[Q].parked) == (3, ())


def test_a_redriven_message_that_fails_is_parked_again_and_not_taken_along_twice() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    give(scheduler, M(0, "k"))
    fail(scheduler, "again")
    assert one(scheduler) == ParkWork("k", (M(2, "k"),), Failure("again", 1), failed_again=0)
    assert scheduler.committable(Q) == 2


def test_an_emptied_lane_opens() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {})
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(2, "k"),)


def test_successors_of_a_lane_that_was_emptied_meanwhile_run() -> None:
    """The discard came between two renewals, and our request after it."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    store(scheduler, status=None, settled=0)
    assert turn(scheduler) is not None


def test_a_lane_with_a_question_under_way_is_not_opened_by_a_table() -> None:
    """The table may be older than the answer."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    assert work(scheduler)
    reconcile(scheduler, {})
    assert turn(scheduler) is None


def test_a_lane_that_came_after_the_question_is_not_opened_by_its_answer() -> None:
    scheduler = parked()
    lanes = shut(scheduler)
    before = lanes.kept()
    store(scheduler)
    put(scheduler, (2, "k"))
    lanes.reconcile({}, before)
    scheduler.offer(Q)
    assert turn(scheduler) is None


def test_a_lane_whose_message_runs_is_not_opened_beside_it() -> None:
    """Somebody discarded the whole lane meanwhile; two turns of one key must not overlap."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    give(scheduler, M(0, "k"))
    running = turn(scheduler)
    reconcile(scheduler, {})
    assert turn(scheduler) is None
    assert running is not None
    scheduler.finish(running, DONE, now=Millis(0))
    give(scheduler, None, None)
    assert turn(scheduler) is not None


def test_a_person_s_wish_is_not_lost_with_a_lane_the_broker_would_not_begin() -> None:
    scheduler = parked()
    under_way = one(scheduler)
    scheduler.resume(Q, "k")
    assert isinstance(under_way, ParkWork)
    shut(scheduler).stored(under_way, 0, None, now=Millis(0), pause=PAUSE)
    scheduler.offer(Q)
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"), M(1, "k"))


def test_a_redrive_learned_from_an_answer_begins_at_once() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    store(scheduler, status=LaneStatus.REDRIVING, settled=1)
    assert one(scheduler) == NextWork("k", -1)


def test_a_person_at_the_member_resumes_by_way_of_the_broker() -> None:
    scheduler = parked()
    store(scheduler)
    assert scheduler.resume(Q, "k")
    assert turn(scheduler) is None
    found = one(scheduler)
    assert found == RedriveWork("k")
    shut(scheduler).told(found)
    assert one(scheduler) == NextWork("k", -1)


def test_a_person_at_the_member_resumes_what_is_only_here_at_once() -> None:
    scheduler = parked()
    assert scheduler.resume(Q, "k")
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"), M(1, "k"))
    assert not scheduler.resume(Q, "k")


def test_a_resume_does_not_overtake_a_request_under_way() -> None:
    """Run here and parked there, the message would run a second time, behind its successors."""
    scheduler = parked()
    under_way = one(scheduler)
    assert scheduler.resume(Q, "k")
    assert turn(scheduler) is None
    assert isinstance(under_way, ParkWork)
    shut(scheduler).stored(under_way, 2, LaneStatus.PARKED, now=Millis(0), pause=PAUSE)
    assert one(scheduler) == RedriveWork("k")


def test_a_policy_may_keep_its_lanes_in_memory() -> None:
    scheduler = parked(HoldKey(retries=0, then=Park(at_broker=False)))
    assert work(scheduler) == []
    assert scheduler.snapshot()[Q].parked == ("k",)


def test_a_new_owner_keeps_shut_what_was_parked() -> None:
    scheduler = member(0, kept=(KeptLane("k", False, 1), KeptLane("j", True, 0)))
    put(scheduler, (0, "j"), (1, "k"), (2, "k"), (3, "i"))
    found = turn(scheduler)
    assert found is not None
    assert found.messages == (M(3, "i"),)
    assert work(scheduler) == [ParkWork("k", (M(2, "k"),), None), NextWork("j", -1)]


def test_what_is_pulled_again_of_a_parked_lane_is_a_gap_like_everything_finished() -> None:
    """Else a later owner would run it again, behind successors of its key that it leaves out."""
    scheduler = member(0, kept=(KeptLane("k", False, 2),))
    put(scheduler, (0, "i"), (1, "k"), (2, "k"))
    assert (scheduler.committable(Q), scheduler.gaps(Q).ranges()) == (0, [(1, 3)])
    assert work(scheduler) == []


# everything together, with losses, crashes and people


@dataclass
class World:
    """One queue of a broker, and the member that owns it now."""

    lanes: ParkedLanes
    scheduler: LaneScheduler[M]
    log: list[str]
    committed: int = 0
    gaps: GapMap = NO_GAPS
    now: int = 0

    def __post_init__(self) -> None:
        self.done: set[int] = set()
        self.discarded: set[int] = set()
        self.on_the_way: list[Work[M]] = []
        self.answers: list[tuple[Work[M], tuple[int, LaneStatus | None, M | None]]] = []
        self.begun: dict[str, int] = defaultdict(lambda: -1)
        """By key: the highest offset that this owner has begun."""

    def name(self, key: str) -> LaneName:
        return LaneName(*PLACE, key)

    def pull(self, most: int) -> None:
        start = self.scheduler.next_offset(Q)
        assert start is not None
        batch = [M(offset, self.log[offset]) for offset in range(start, min(start + most, len(self.log)))]
        if batch:
            put(self.scheduler, *((each.queue_offset, each.key or "") for each in batch))

    def run(self, good: bool) -> bool:
        found = self.scheduler.next_turn(now=Millis(self.now))
        if not isinstance(found, Turn):
            return False
        for number, message in enumerate(found.messages):
            self.begin(message)
            if not good:
                self.scheduler.finish(found, FAILED, done=number, now=Millis(self.now))
                return True
            self.done.add(message.queue_offset)
        self.scheduler.finish_done([found], now=Millis(self.now))
        return True

    def begin(self, message: M) -> None:
        key, offset = message.key or "", message.queue_offset
        earlier = {each for each in range(offset) if self.log[each] == key}
        assert earlier <= self.done | self.discarded, f"{offset} overtakes {earlier - self.done - self.discarded}"
        assert offset >= self.begun[key], "an owner never goes back"
        self.begun[key] = offset

    def ask(self) -> bool:
        asked = shut(self.scheduler).work(now=Millis(self.now))
        self.on_the_way += asked
        return bool(asked)

    def reach(self) -> None:
        """The oldest request reaches the broker; its answer is on the way back."""
        if self.on_the_way:
            each = self.on_the_way.pop(0)
            self.answers.append((each, self.broker(each)))

    def hear(self) -> None:
        if self.answers:
            self.tell(*self.answers.pop(0))
            self.scheduler.offer(Q)

    def lose(self) -> None:
        """The connection breaks: nobody knows which requests the broker has seen."""
        for each in [*self.on_the_way, *(each for each, _ in self.answers)]:
            shut(self.scheduler).failed(each, now=Millis(self.now), pause=PAUSE)
        self.on_the_way.clear()
        self.answers.clear()

    def talk(self) -> bool:
        """Asks, and gets every answer."""
        asked = self.ask()
        while self.on_the_way:
            self.reach()
        while self.answers:
            self.hear()
        return asked

    def broker(self, each: Work[M]) -> tuple[int, LaneStatus | None, M | None]:
        name = self.name(each.key or "")
        settled, message = 0, None
        match each:
            case ParkWork(messages=messages, failure=failure, failed_again=again):
                sizes = {m.queue_offset: 1 for m in messages}
                settled = self.lanes.park(
                    name, sizes, failure, now=Millis(0), again=again if again >= 0 else None
                ).settled
            case NextWork(done=done):
                if done >= 0:
                    self.lanes.finished(name, done)
                lane = self.lanes.get(name)
                if lane is not None and lane.status is LaneStatus.REDRIVING:
                    message = M(lane.first, name.key)
            case RedriveWork():
                self.lanes.redrive(name)
        lane = self.lanes.get(name)
        return settled, None if lane is None else lane.status, message

    def tell(self, each: Work[M], answer: tuple[int, LaneStatus | None, M | None]) -> None:
        settled, status, message = answer
        match each:
            case ParkWork():
                shut(self.scheduler).stored(each, settled, status, now=Millis(self.now), pause=PAUSE)
            case NextWork():
                shut(self.scheduler).given(each, message, status)
            case RedriveWork() if status is None:
                shut(self.scheduler).given(each, None, None)
            case RedriveWork():
                shut(self.scheduler).told(each)

    def renew(self) -> None:
        lanes = self.lanes.of_queue(PLACE)
        reconcile(self.scheduler, {lane.name.key: lane.status is LaneStatus.REDRIVING for lane in lanes})

    def discard(self, key: str, most: int) -> None:
        lane = self.lanes.get(self.name(key))
        if lane is not None:
            through = list(lane.messages)[:most][-1]
            self.discarded.update(self.lanes.discard(lane.name, through))

    def commit(self) -> None:
        committable = self.scheduler.committable(Q)
        assert committable is not None
        self.committed, self.gaps = committable, self.scheduler.gaps(Q)
        kept = {offset for lane in self.lanes for offset in lane.messages}
        passed = {*range(self.committed), *(o for o in range(len(self.log)) if o in self.gaps)}
        assert passed <= self.done | self.discarded | kept, "a commit passes only what is done, or kept"

    def crash(self) -> None:
        lanes = self.lanes.of_queue(PLACE)
        kept = tuple(KeptLane(lane.name.key, lane.status is LaneStatus.REDRIVING, lane.through) for lane in lanes)
        self.scheduler = member(self.committed, self.gaps, kept)
        self.on_the_way.clear()
        self.answers.clear()
        self.begun.clear()

    def come_to_rest(self) -> None:
        """Everything works, and a person redrives whatever is parked."""
        self.lose()
        for _ in range(200):
            self.now += PAUSE
            self.pull(3)
            moved = self.talk() | self.run(good=True)
            for lane in list(self.lanes):
                moved |= self.lanes.redrive(lane.name)
            self.renew()
            if not moved and self.scheduler.committable(Q) == len(self.log) and not list(self.lanes):
                return
        raise AssertionError(f"stuck at {self.scheduler.committable(Q)} of {len(self.log)}: {list(self.lanes)}")


KEYS = st.sampled_from(["k", "j"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), KEYS),
        st.tuples(st.just("pull"), st.integers(1, 3)),
        st.tuples(st.just("good")),
        st.tuples(st.just("bad")),
        st.sampled_from(["talk", "ask", "reach", "hear", "lose", "park"]).map(lambda what: (what,)),
        st.tuples(st.just("redrive"), KEYS),
        st.tuples(st.just("resume"), KEYS),
        st.tuples(st.just("discard"), KEYS, st.integers(1, 3)),
        st.tuples(st.just("renew")),
        st.tuples(st.just("commit")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("later")),
    ),
    min_size=10,
    max_size=60,
)


def new_world() -> World:
    return World(ParkedLanes(Limits(4, 6, 1_000), serial=1), member(), ["k", "j", "k", "k", "j"])


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_whatever_is_lost_nothing_overtakes_and_everything_is_done(steps: list[tuple[str, ...]]) -> None:
    world = new_world()
    for what, *args in steps:
        match what:
            case "send":
                world.log.append(args[0])
            case "pull":
                world.pull(int(args[0]))
            case "good" | "bad":
                world.run(good=what == "good")
            case "talk" | "ask" | "reach" | "hear" | "lose" | "renew" | "commit" | "crash":
                getattr(world, what)()
            case "park":
                world.pull(3)
                world.run(good=False)
                world.talk()
            case "redrive":
                world.lanes.redrive(world.name(args[0]))
            case "resume":
                world.scheduler.resume(Q, args[0])
            case "discard":
                world.discard(args[0], int(args[1]))
            case "later":
                world.now += PAUSE
        world.lanes._check()
    world.come_to_rest()
    assert world.done | world.discarded == set(range(len(world.log)))
