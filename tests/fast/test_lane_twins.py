"""Compiled twins of messages, runs and lanes, and of the steps of every message, do what their references do.

The references of the steps work on any classes, so both sides get the same kind of runs.
"""

import gc
import weakref
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.consuming.scheduler_fixture import Msg, Q
from tests.fast.both import damaged, needs_twins, outcome, references, twins
from tests.fast.test_key_twins import LOGS, MESSAGES, log_of

from lanemq.client.codec import BytesCodec
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.message import Message, MessageSource
from lanemq.core.consuming.busy_workers import Worker
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.runs import FAILED, NO_LEASE_NEEDED, STOPPED, Lane, LaneOptions, LaneRun, RunPermit, grow
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

pytestmark = needs_twins

SOURCE = MessageSource(MessageQueue("T", "b", 0), BytesCodec(), Epoch(1))
WITHDRAWN = Stop(STOPPED)


# --- messages


FIELDS = ("queue_offset", "size", "retried_here", "_source", "_buffer", "_start", "_view")


def laid(way: Any, kind: Any, body: bytes, *names: str) -> Any:
    """What can be seen of the messages of a body."""
    messages = outcome(way, kind, SOURCE, body)
    if isinstance(messages, tuple):
        return messages
    return [[getattr(each, name) for name in names] for each in messages]


@settings(deadline=None, max_examples=150)
@given(LOGS | damaged(LOGS))
def test_messages_are_laid_alike(body: bytes) -> None:
    ours = laid(twins["make_messages"], Message, body, *FIELDS)
    assert ours == laid(references["make_messages"], references["MessageBase"], body, *FIELDS)


@settings(deadline=None, max_examples=150)
@given(LOGS)
def test_messages_have_the_same_keys(body: bytes) -> None:
    """Read twice: the second value is cached."""
    ours = laid(twins["make_messages"], Message, body, "key", "key")
    assert ours == laid(references["make_messages"], references["MessageBase"], body, "key", "key")


@settings(deadline=None, max_examples=150)
@given(damaged(MESSAGES.filter(bool).map(log_of)) | st.binary(max_size=150), st.integers(-5, 150))
def test_a_key_is_never_read_outside_of_the_buffer(log: bytes, start: int) -> None:
    """Damaged records reach no consumer; the twin must only return or raise."""
    made = outcome(twins["MessageBase"], SOURCE, log, start)
    found = made if isinstance(made, tuple) else outcome(lambda: made.key)
    assert found is None or isinstance(found, str | tuple)


@pytest.mark.parametrize("waiting", [False, True], ids=["read by itself", "taken from its lane"])
def test_a_message_that_its_own_codec_leads_to_is_collected(waiting: bool) -> None:
    """A codec that refers to its consumer, and a message that is kept, form a reference cycle."""
    codec = BytesCodec()
    source = MessageSource(SOURCE.queue, codec, Epoch(1))
    kept = twins["make_messages"](Message, source, log_of([("T", b"", "")]), waiting)
    if waiting:
        assert not gc.is_tracked(kept[0])
        home: LaneQueue[Message] = LaneQueue(Q, QueueOffset(0), NO_LEASE_NEEDED, LaneOptions())
        home.put(kept, QueueOffset(1))
        twins["take_runs"](home, 1, 1, 9, count(1))
        del home
    codec.kept = kept  # type: ignore[attr-defined]
    gone = weakref.ref(codec)
    del codec, source, kept
    gc.collect()
    assert gone() is None


# --- runs and lanes


@given(st.booleans(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_runs_of_both_kinds_check_their_permit_alike(closed: bool, until: int, slice_end: int, now: int) -> None:
    def asked(kind: Any, permit: Any) -> tuple[bool, int]:
        permit.withdrawn = closed
        run = kind(Q, "k", (Msg(0, "k"),), 1, 1, permit, slice_end)
        return run.may_continue(now=now), run.usable_until

    there = asked(references["LaneRun"], references["RunPermit"](Millis(until)))
    assert asked(LaneRun, RunPermit(Millis(until))) == there


@pytest.mark.parametrize("name", ["RunPermit", "LaneRun", "Lane"])
def test_both_kinds_begin_alike(name: str) -> None:
    arguments = {
        "RunPermit": (5,),
        "LaneRun": (Q, "k", (Msg(0, "k"),), 2, 7, RunPermit(Millis(9)), 4),
        "Lane": ("k", [Msg(0, "k")]),
    }
    made, reference = twins[name](*arguments[name]), references[name](*arguments[name])
    fields = getattr(references[name], "__slots__", ("usable_until", "withdrawn", "dropped"))
    assert [getattr(made, field) for field in fields] == [getattr(reference, field) for field in fields]


# --- steps


class Side:
    """A queue that is worked on by the twins, or by the references."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.do = chosen
        self.home: LaneQueue[Msg] = LaneQueue(Q, QueueOffset(0), NO_LEASE_NEEDED, LaneOptions())
        self.lanes: dict[str | None, Any] = {}
        self.unfinished: Any = chosen["UnfinishedOffsets"]()
        self.running: list[LaneRun[Msg]] = []
        self.tokens = count(1)
        self.put_so_far = 0

    def put(self, keys: list[str]) -> list[str | None]:
        """Returns the keys of watched lanes that got messages."""
        messages = [Msg(self.put_so_far + n, key, size=n) for n, key in enumerate(keys)]
        self.put_so_far += len(keys)
        self.unfinished.add(messages)
        watched = self.do["lay_in_lanes"](self.lanes, self.home.ready, messages, Q, self.home)
        return [lane.key for lane in watched]

    def take(self, most: int, slice_end: int) -> Any:
        runs = self.do["take_runs"](self.home, most, 2, slice_end, self.tokens)
        self.running += runs
        return self.do["count_messages"](runs), [seen(run) for run in runs]

    def end(self, chosen: list[int]) -> Any:
        runs = [self.running[at] for at in sorted({at % len(self.running) for at in chosen})] if self.running else []
        self.running = [run for run in self.running if run not in runs]
        done, more, redriven = self.do["end_runs"](runs, self.lanes)
        self.home.ready.extend(more)
        self.unfinished.finish(done)
        again = [run.token for run in redriven]
        return done, [lane.key for lane in more], again, [run.running for run in runs]

    def note(self, at: int, done: int) -> None:
        """A run in progress has finished some of its messages."""
        if self.running:
            run = self.running[at % len(self.running)]
            settled = max(run.settled, min(done, len(run.messages) - 1))
            self.unfinished.finish(run.messages[run.settled : settled])
            run.settled = settled

    def fold(self) -> None:
        self.unfinished.forget_finished()

    def fail(self, at: int) -> None:
        """A run that fails gets its lane, and waits in it."""
        if not self.running:
            return
        run = self.running.pop(at % len(self.running))
        if run.lane is None:
            self.lanes[run.key] = grow(run)
        assert run.lane is not None
        run.lane.pending[:0] = run.messages[run.settled :]
        run.running, run.lane.run = False, None
        self.home.failures[run.messages[run.settled].queue_offset] = 1
        run.lane.watched, run.lane.redriven = True, None
        self.home.ready.append(run.lane)

    def redrive(self, at: int) -> None:
        """A running lane has messages that the broker gave back."""
        if self.running and (lane := self.running[at % len(self.running)].lane) is not None:
            lane.redriven = []

    def all_seen(self) -> Any:
        places = {key: seen(place) for key, place in self.lanes.items()}
        line = [seen(place) for place in self.home.ready]
        left = self.unfinished
        offsets = left.first, len(left), left.bytes, left.finished_count, left.offsets()
        return places, line, offsets, self.home.running


def seen(place: Any) -> Any:
    if isinstance(place, Lane):
        run = place.run.token if place.run else None
        return "lane", place.key, list(place.pending), place.slice_end, run
    lane = None if place.lane is None else place.lane.key
    return "run", place.key, place.messages, place.attempt, place.token, place.slice_end, place.running, lane


KEYS = st.lists(st.sampled_from("abcdef"), max_size=8)
STEPS = st.lists(
    st.tuples(st.just("put"), st.tuples(KEYS))
    | st.tuples(st.just("take"), st.tuples(st.integers(0, 6), st.integers(0, 9)))
    | st.tuples(st.just("end"), st.tuples(st.lists(st.integers(0, 9), max_size=4)))
    | st.tuples(st.just("note"), st.tuples(st.integers(0, 9), st.integers(0, 3)))
    | st.tuples(st.sampled_from(["fail", "redrive"]), st.tuples(st.integers(0, 9)))
    | st.tuples(st.just("fold"), st.just(())),
    max_size=20,
)


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_every_step_leaves_the_same(steps: list[tuple[str, Any]]) -> None:
    ours, theirs = Side(twins), Side(references)
    for name, arguments in steps:
        assert getattr(ours, name)(*arguments) == getattr(theirs, name)(*arguments)
        assert ours.all_seen() == theirs.all_seen()


KEY_BYTES = st.sampled_from([b"a", b"b", "ключ".encode(), b"\xff", b"\xfe", b"?", b"\xef\xbf\xbd"]) | st.none()


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(KEY_BYTES | st.integers(0, 600).map(b"key-%d".__mod__), max_size=12), max_size=4), st.booleans()
)
def test_stored_messages_join_the_same_lanes(pulls: list[list[bytes | None]], watched: bool) -> None:
    """Bytes that are not UTF-8 are replaced, so two keys that differ in their bytes may share a lane."""

    def joined(lay: Any, kind: Any) -> Any:
        lanes: dict[str | None, Any] = {}
        ready: list[Any] = []
        told = []
        for keys in pulls:
            log = b"".join(_with_key(at, key) for at, key in enumerate(keys))
            messages = references["make_messages"](kind, SOURCE, log)
            told.append([lane.key for lane in lay(lanes, ready, messages, Q, RunPermit(Millis(9)))])
            for lane in lanes.values():
                if isinstance(lane, Lane):
                    lane.watched = watched
        places = [
            _keys_and_starts(each.pending if isinstance(each, Lane) else each.messages) for each in lanes.values()
        ]
        return list(lanes), places, [each.key for each in ready], told

    assert joined(twins["lay_in_lanes"], Message) == joined(references["lay_in_lanes"], Message)


def _with_key(at: int, key: bytes | None) -> bytes:
    text = b"" if key is None else b"__SHARDINGKEY\x01" + key + b"\x02"
    mark = "#" * len(text)
    return log_of([("T", bytes([at]), mark)]).replace(mark.encode(), text) if text else log_of([("T", bytes([at]), "")])


def _keys_and_starts(messages: Any) -> list[Any]:
    return [(each.key, each.queue_offset, each.body) for each in messages]


@given(st.lists(st.sampled_from("ab"), max_size=9), st.integers(1, 4))
def test_messages_without_order_are_cut_alike(keys: list[str], size: int) -> None:
    messages = [Msg(n, key) for n, key in enumerate(keys)]
    cut = [chosen["cut_runs"](messages, size, Q, RunPermit(Millis(9))) for chosen in (twins, references)]
    assert [seen(run) for run in cut[0]] == [seen(run) for run in cut[1]]


# --- running


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 5), max_size=5), st.integers(1, 3), st.integers(1, 12), st.integers(0, 12))
def test_a_visit_is_run_alike(sizes: list[int], batch_size: int, failing: int, until: int) -> None:
    def outcome_of(run: Any, plain: Any) -> Any:
        worker, permit, now, calls = Worker(), RunPermit(Millis(until)), count(), count(1)
        made = [[_message(10 * n + at) for at in range(size)] for n, size in enumerate(sizes)]
        runs = [LaneRun(Q, "k", tuple(each), n + 1, n, permit, 100) for n, each in enumerate(made)]
        worker.waiting.extend(runs)
        handed: list[list[int]] = []

        def call(batch: Any) -> None:
            handed.append([each.queue_offset for each in batch])
            if next(calls) == failing:
                raise ValueError("broken")

        handler = plain(call, True, lambda error, batch: Stop(FAILED, error=None), lambda result: None)
        times = TurnTimes()
        ran = run(worker, handler, batch_size, lambda: next(now) * 1_000_000, WITHDRAWN, times)
        began = [(run.token, run.began, run.done) for run in runs]
        retried = [each.retried_here for messages in made for each in messages]
        in_hand = worker.run.token if worker.run else None
        ended = [run.token for run in worker.ended]
        assert sum(times.counts) == len(handed), "every turn is counted once, also the one that fails"
        assert times.sum_ns == len(handed) * 1_000_000
        return ran, handed, began, retried, in_hand, ended, len(worker.waiting), times.counts

    ours = outcome_of(twins["run_waiting"], twins["plain_handler"])
    assert ours == outcome_of(references["run_waiting"], references["plain_handler"])


def _message(offset: int) -> Message:
    (made,) = twins["make_messages"](Message, SOURCE, log_of([("T", b"", "")]))
    made.queue_offset = offset
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("chosen", [twins, references], ids=["twin", "reference"])
def test_an_exception_of_the_interpreter_is_interpreted_like_any_other(chosen: dict[str, Any]) -> None:
    def call(_: Any) -> None:
        raise SystemExit(3)

    worker, given = Worker(), []
    worker.waiting.append(LaneRun(Q, "k", (_message(0),), 1, 1, RunPermit(Millis(9)), 9))
    stop = Stop(FAILED)
    handler = chosen["plain_handler"](call, False, lambda error, batch: given.append(error) or stop, pytest.fail)
    assert chosen["run_waiting"](worker, handler, 1, lambda: 0, WITHDRAWN, TurnTimes()) == (0, 0, stop, 0)
    assert isinstance(given[0], SystemExit)


@pytest.mark.parametrize("chosen", [twins, references], ids=["twin", "reference"])
def test_a_result_other_than_none_is_checked_and_may_be_refused(chosen: dict[str, Any]) -> None:
    def refuse(result: object) -> None:
        raise ValueError(result)

    stop = Stop(FAILED)
    handler = chosen["plain_handler"](lambda batch: 7, False, lambda error, batch: (error.args, stop), refuse)
    assert handler((_message(0),), None) == ((7,), stop)


@pytest.mark.parametrize("chosen", [twins, references], ids=["twin", "reference"])
def test_after_an_error_in_the_interpretation_the_run_is_still_the_workers(chosen: dict[str, Any]) -> None:
    def call(_: Any) -> None:
        raise SystemExit(3)

    def interpret(error: BaseException, batch: Any) -> None:
        raise error

    worker = Worker()
    worker.waiting.append(LaneRun(Q, "k", (_message(0),), 1, 1, RunPermit(Millis(9)), 9))
    handler = chosen["plain_handler"](call, False, interpret, pytest.fail)
    with pytest.raises(SystemExit):
        chosen["run_waiting"](worker, handler, 1, lambda: 0, WITHDRAWN, TurnTimes())
    assert worker.run is not None
    assert not worker.ended


def test_both_clocks_are_one() -> None:
    before, between, after = references["running_ns"](), twins["running_ns"](), references["running_ns"]()
    assert before <= between <= after
