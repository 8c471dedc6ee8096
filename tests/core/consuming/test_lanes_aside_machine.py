"""Lanes at the broker with lost answers, crashes and operators at once: nothing overtakes, nothing is lost."""

from collections import defaultdict
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.core.consuming.lanes_aside_fixture import (
    PAUSE,
    M,
    Q,
    lanes_of,
    member,
    put,
    reconcile,
)

from lanemq.core.backoff import Backoff
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import ParkedLane, QueueProgress
from lanemq.core.consuming.lanes_aside import (
    LaneAnswer,
    LaneRequest,
    NextRequest,
    ParkedAtBroker,
    ParkRequest,
    RedriveRequest,
)
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import FAILED, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.units import Millis


@dataclass
class World:
    """One queue of a broker, and the member that owns it."""

    progress: QueueProgress
    scheduler: LaneScheduler[M]
    log: list[str]
    policy: HoldKey
    committed: int = 0
    finished: FinishedRanges = NOTHING_FINISHED
    now: int = 0

    def __post_init__(self) -> None:
        self.done: set[int] = set()
        self.discarded: set[int] = set()
        self.on_the_way: list[LaneRequest[M]] = []
        self.answers: list[tuple[LaneRequest[M], LaneAnswer[M]]] = []
        self.begun: dict[str, int] = defaultdict(lambda: -1)
        """The highest offset that this owner has started, by key."""

    def pull(self, most: int) -> None:
        start = self.scheduler[Q].next_offset
        batch = [M(offset, self.log[offset]) for offset in range(start, min(start + most, len(self.log)))]
        if batch:
            put(self.scheduler, *((each.queue_offset, each.key or "") for each in batch))

    def run(self, good: bool) -> bool:
        found = self.scheduler.next_run(now=Millis(self.now))
        if not isinstance(found, LaneRun):
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
        asked = lanes_of(self.scheduler).requests(now=Millis(self.now))
        self.on_the_way += asked
        return bool(asked)

    def reach(self) -> None:
        """The oldest request reaches the broker; its answer is under way."""
        if self.on_the_way:
            each = self.on_the_way.pop(0)
            self.answers.append((each, self.broker(each)))

    def hear(self) -> None:
        if self.answers:
            request, answer = self.answers.pop(0)
            lanes_of(self.scheduler).answered(request, answer, now=Millis(self.now))

    def lose(self) -> None:
        """The connection breaks: the member does not know which requests arrived."""
        for each in [*self.on_the_way, *(each for each, _ in self.answers)]:
            lanes_of(self.scheduler).answered(each, None, now=Millis(self.now))
        self.on_the_way.clear()
        self.answers.clear()

    def talk(self) -> bool:
        """Sends all requests and gets all answers."""
        asked = self.ask()
        while self.on_the_way:
            self.reach()
        while self.answers:
            self.hear()
        return asked

    def broker(self, each: LaneRequest[M]) -> LaneAnswer[M]:
        key = each.key or ""
        settled, given = 0, []
        match each:
            case ParkRequest(messages=messages, failure=failure, failed_again=again, held=held):
                offsets = [m.queue_offset for m in messages]
                settled = self.progress.park(
                    key, offsets, failure, now=Millis(0), again=again if again >= 0 else None, held=held
                ).settled
            case NextRequest(done=done, wanted=wanted):
                if done >= 0:
                    self.progress.finish(key, done)
                lane = self.progress.lanes.get(key)
                if lane is not None and lane.status.runs:
                    offsets = lane.offsets.from_offset(lane.first, min(wanted, 2))
                    given = [M(offset, key) for offset in offsets]
            case RedriveRequest():
                self.progress.redrive(key)
        lane = self.progress.lanes.get(key)
        return LaneAnswer(None if lane is None else lane.status, settled, given)

    def renew(self) -> None:
        reconcile(self.scheduler, *map(as_read, self.progress.lanes.values()))

    def discard(self, key: str, most: int) -> None:
        lane = self.progress.lanes.get(key)
        if lane is not None:
            gone = list(lane.offsets)[:most]
            self.discarded.update(gone)
            assert self.progress.discard(key, gone[-1]) == len(gone)

    def commit(self) -> None:
        self.committed, self.finished = self.scheduler[Q].progress()
        kept = {offset for lane in self.progress.lanes.values() for offset in lane.offsets}
        passed = {*range(self.committed), *(o for o in range(len(self.log)) if o in self.finished)}
        assert passed <= self.done | self.discarded | kept, "a commit passes only messages that are done or parked"

    def crash(self) -> None:
        kept = tuple(map(as_read, self.progress.lanes.values()))
        self.scheduler = member(self.committed, self.finished, kept, self.policy)
        self.on_the_way.clear()
        self.answers.clear()
        self.begun.clear()

    def come_to_rest(self) -> None:
        """Everything works, and an operator redrives all parked lanes."""
        self.lose()
        for _ in range(200):
            self.now += PAUSE
            self.pull(3)
            moved = self.talk() | self.run(good=True)
            for key in self.progress.lanes:
                moved |= self.progress.redrive(key)
            self.renew()
            if not moved and self.scheduler[Q].committable == len(self.log) and not self.progress.lanes:
                return
        raise AssertionError(f"stuck at {self.scheduler[Q].committable} of {len(self.log)}: {self.progress.lanes}")


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


def as_read(lane: ParkedLane) -> ParkedAtBroker:
    return ParkedAtBroker(lane.name.key, lane.status, lane.through, lane.first, lane.failure.attempts)


def new_world(policy: HoldKey) -> World:
    return World(ProgressTable(serial=1).at("g", Q), member(policy=policy), ["k", "j", "k", "k", "j"], policy)


@pytest.mark.parametrize("retries", [0, 2], ids=["parked", "held"])
@settings(max_examples=250, deadline=None)
@given(steps=STEPS)
def test_with_any_losses_nothing_overtakes_and_everything_is_done(retries: int, steps: list[tuple[str, ...]]) -> None:
    world = new_world(HoldKey(retries=retries, backoff=Backoff(PAUSE / 1000, 1.0, PAUSE / 1000), keep=1))
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
                world.progress.redrive(args[0])
            case "resume":
                world.scheduler.resume(Q, args[0])
            case "discard":
                world.discard(args[0], int(args[1]))
            case "later":
                world.now += PAUSE
        assert all(lane.offsets for lane in world.progress.lanes.values())
    world.come_to_rest()
    assert world.done | world.discarded == set(range(len(world.log)))
