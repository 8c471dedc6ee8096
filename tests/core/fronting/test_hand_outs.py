"""Runs at clients: handles, decisions, and how every run ends."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.consuming.runs import DONE, FAILED, STOPPED, LaneOptions, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.fronting.hand_outs import HandOut, HandOuts, Ruling
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

QUEUE = MessageQueue("orders", "lanemq", 3)
LEASED = Millis(1_000_000)


@dataclass(frozen=True, slots=True)
class Stored:
    key: str | None
    queue_offset: int
    size: int = 10


Run = LaneRun[Stored]


class Front:
    """A scheduler with one queue, and what is handed out of it."""

    def __init__(self, keys: str, boot: str = "boot") -> None:
        self.lanes: LaneScheduler[Stored] = LaneScheduler(LaneOptions(run_limit=1))
        self.lanes.add(QUEUE, QueueOffset(0), usable_until=LEASED)
        messages = [Stored(key, offset) for offset, key in enumerate(keys)]
        self.lanes.put(QUEUE, messages, QueueOffset(len(messages)), pulled_from=QueueOffset(0))
        self.out: HandOuts[Stored] = HandOuts(boot)
        self.now = Millis(0)
        self.done: list[Stored] = []

    def hand_out(self, client: str = "c", most: int = 1, *, until: int = 1000, **more: str) -> HandOut[Stored] | None:
        run = self.lanes.next_run(now=self.now, most=most)
        if not isinstance(run, LaneRun):
            return None
        return self.out.add(
            run, "g", "orders", client, now=self.now, until=Millis(self.now + until), renewed=True, **more
        )

    def acknowledge(self, handle: str, group: str = "g", topic: str = "orders") -> Ruling:
        decision = self.out.acknowledge(handle, group, topic, now=self.now)
        if decision.verdict is Ruling.ENDED and decision.hand_out is not None:
            self.done += decision.hand_out.run.messages
            self.lanes.finish(decision.hand_out.run, DONE, now=self.now)
        return decision.verdict

    def stop(self, hand_out: HandOut[Stored]) -> None:
        self.out.end(hand_out)
        self.done += hand_out.run.messages[: hand_out.done]
        self.lanes.finish(hand_out.run, STOPPED, done=hand_out.done, now=self.now)


def handed(front: Front, **more: int) -> HandOut[Stored]:
    found = front.hand_out(**more)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_an_acknowledged_run_ends_and_its_lane_continues() -> None:
    front = Front("aa")
    first = handed(front)
    assert front.hand_out() is None, "the second message of the key waits"
    assert front.acknowledge(first.handles[0]) is Ruling.ENDED
    assert handed(front).run.messages[0].queue_offset == 1


def test_a_handle_counts_once() -> None:
    front = Front("aa")
    handle = handed(front).handles[0]
    front.acknowledge(handle)
    assert front.acknowledge(handle) is Ruling.STALE
    assert front.out.fail(handle, "g", "orders", now=front.now).verdict is Ruling.STALE


def test_what_is_decided_cannot_be_decided_again_before_its_run_is_finished() -> None:
    front = Front("a")
    handle = handed(front).handles[0]
    assert front.out.fail(handle, "g", "orders", now=front.now).verdict is Ruling.ENDED
    assert front.out.acknowledge(handle, "g", "orders", now=front.now).verdict is Ruling.STALE


def test_a_handle_of_another_start_is_stale() -> None:
    before, front = Front("a", "before"), Front("a")
    old, handle = handed(before).handles[0], handed(front).handles[0]
    assert front.acknowledge(old) is Ruling.STALE
    assert front.out.fail(old, "g", "orders", now=front.now).verdict is Ruling.STALE
    assert front.acknowledge(handle) is Ruling.ENDED


def test_a_handle_of_another_group_or_topic_is_stale() -> None:
    front = Front("a")
    handle = handed(front).handles[0]
    assert front.acknowledge(handle, group="h") is Ruling.STALE
    assert front.acknowledge(handle, topic="h") is Ruling.STALE
    assert front.acknowledge(handle) is Ruling.ENDED


def test_a_run_of_a_lost_queue_can_neither_commit_nor_free_a_lane() -> None:
    front = Front("a")
    hand_out = handed(front)
    front.lanes.drop(QUEUE)
    assert front.acknowledge(hand_out.handles[0]) is Ruling.STALE
    assert front.out.over(front.now) == [hand_out]


def test_nothing_counts_after_the_keep_alive_deadline() -> None:
    front = Front("a")
    hand_out = handed(front, until=10_000_000)
    front.now = LEASED
    assert front.acknowledge(hand_out.handles[0]) is Ruling.NOT_NOW
    front.lanes.set_usable_until(QUEUE, Millis(LEASED + 1000))
    assert front.acknowledge(hand_out.handles[0]) is Ruling.ENDED


def test_a_run_of_several_returns_what_follows_the_first_that_is_not_acknowledged() -> None:
    front = Front("aaab")
    three = handed(front, most=3)
    assert [message.queue_offset for message in three.run.messages] == [0, 1, 2]
    assert front.acknowledge(three.handles[1]) is Ruling.COUNTED
    assert front.acknowledge(three.handles[2]) is Ruling.COUNTED
    assert three.done == 0
    assert front.acknowledge(three.handles[0]) is Ruling.ENDED


def test_changing_the_time_voids_the_handle() -> None:
    front = Front("a")
    hand_out = handed(front)
    old = hand_out.handles[0]
    front.out.change(old, "g", "orders", now=front.now, until=Millis(5000))
    assert front.acknowledge(old) is Ruling.STALE
    assert not front.out.over(Millis(4999))
    assert front.acknowledge(hand_out.handles[0]) is Ruling.ENDED


def test_its_time_ends_a_run() -> None:
    front = Front("a")
    hand_out = handed(front, until=1000)
    assert front.out.over(Millis(999)) == []
    assert front.out.over(Millis(1000)) == [hand_out]
    assert front.acknowledge(hand_out.handles[0]) is Ruling.STALE


def test_a_repeated_call_gets_the_same_until_something_is_decided() -> None:
    front = Front("aabb")
    both = [front.hand_out(attempt_id="try-1"), front.hand_out(attempt_id="try-1")]
    assert of_attempt(front, "c", "try-1") == both
    assert not of_attempt(front, "c", "try-2")
    assert not of_attempt(front, "d", "try-1")
    assert not of_attempt(front, "c", "")
    assert not of_attempt(front, "c", "try-1", topic="bills")
    assert not of_attempt(front, "c", "try-1", group="h")


def of_attempt(
    front: Front, client: str, attempt: str, group: str = "g", topic: str = "orders"
) -> list[HandOut[Stored]]:
    return list(front.out.of_attempt(client, attempt, group, topic, now=front.now))


def test_a_repeated_call_gets_nothing_of_a_queue_that_may_not_be_used() -> None:
    front = Front("a")
    front.hand_out(attempt_id="try-1", until=10_000_000)
    front.now = LEASED
    assert not of_attempt(front, "c", "try-1")
    front.lanes.set_usable_until(QUEUE, Millis(LEASED + 1000))
    assert of_attempt(front, "c", "try-1")
    front.lanes.drop(QUEUE)
    assert not of_attempt(front, "c", "try-1")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hand out", "acknowledge", "fail", "stop", "change", "pass", "stale"]), st.integers(0, 7)
    ),
    max_size=60,
)


@given(st.text("abc", max_size=12), STEPS, st.integers(1, 3))
def test_every_key_is_in_order_whatever_clients_do(keys: str, steps: list[tuple[str, int]], most: int) -> None:
    front, known = Front(keys), list[str]()
    for step, number in steps:
        if step == "hand out":
            given = front.hand_out(f"client-{number % 2}", most)
            known += given.handles if given is not None else []
        elif step == "pass":
            front.now = Millis(front.now + 200 * number)
            for over in front.out.over(front.now):
                front.done += over.run.messages[: over.done]
                front.lanes.finish(over.run, STOPPED, done=over.done, now=front.now)
        elif step == "stale":
            assert front.acknowledge(f"boot.{number}.0.0.9") is Ruling.STALE
        elif known:
            _decide(front, step, known[number % len(known)], known)
        _check(front)
    for each in front.out:  # every run ends, and everything is handed out again
        front.stop(each)
    finish_all(front, most)
    assert sorted(message.queue_offset for message in front.done) == list(range(len(keys)))
    for key in set(keys):
        offsets = [message.queue_offset for message in front.done if message.key == key]
        assert offsets == sorted(offsets)


def finish_all(front: Front, most: int) -> None:
    """Hands out and acknowledges until nothing is left."""
    while True:
        rest = front.hand_out(most=most)
        if rest is not None:
            for handle in list(rest.handles):
                front.acknowledge(handle)
        elif (until := front.lanes.wait().until) is not None:
            front.now = until
        else:
            break


def _decide(front: Front, step: str, handle: str, known: list[str]) -> None:
    if step == "acknowledge":
        front.acknowledge(handle)
    elif step == "change":
        decision = front.out.change(handle, "g", "orders", now=front.now, until=Millis(front.now + 300))
        if decision.hand_out is not None and decision.counts:
            known.append(decision.hand_out.handles[decision.at])
    elif step == "fail":
        decision = front.out.fail(handle, "g", "orders", now=front.now)
        if decision.verdict is Ruling.ENDED and decision.hand_out is not None:
            hand_out = decision.hand_out
            front.done += hand_out.run.messages[: hand_out.done]
            front.lanes.finish(hand_out.run, FAILED, done=hand_out.done, now=front.now)
    else:
        for each in front.out:
            if handle in each.handles:
                front.stop(each)


def _check(front: Front) -> None:
    """At most one run of a lane is out, and each handle names one message."""
    keys = [each.run.key for each in front.out]
    assert len(keys) == len(set(keys))
    handles = [handle for each in front.out for handle in each.handles]
    assert len(handles) == len(set(handles))
