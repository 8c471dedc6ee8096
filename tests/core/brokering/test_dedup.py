"""Each stamped message is in the log once, in order, whatever happens on the network."""

from collections import deque
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.core.brokering.consistency import check

from lanemq.core.brokering.dedup import (
    MAX_SEQUENCE_RANGES,
    Duplicate,
    Fenced,
    Fresh,
    Gap,
    Judgement,
    ProducerTable,
    SavedProducer,
    Saving,
    Unsaved,
)
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset

DAY = 24 * 3_600_000


def store(
    table: ProducerTable,
    sequence: int,
    count: int,
    offset: int,
    *,
    epoch: int = 0,
    producer: str = "p",
    topic: str = "t",
    at: int = 0,
    user: str | None = None,
) -> None:
    stamp = Stamp(producer, epoch, sequence)
    table.record(topic, 0, stamp, count, QueueOffset(offset), stored_at=Millis(at), user=user)


def judge(table: ProducerTable, sequence: int, count: int = 1, *, epoch: int = 0, producer: str = "p") -> Judgement:
    return table.judge("t", 0, Stamp(producer, epoch, sequence), count)


def expired(table: ProducerTable, now: int) -> int:
    """How many producers are forgotten because they are idle."""
    before = len(table)
    deque(table.expire(now=Millis(now)), maxlen=0)
    return before - len(table)


@pytest.mark.parametrize(
    ("sequence", "count", "epoch", "expected"),
    [
        (5, 3, 1, Fresh()),
        (6, 1, 1, Gap(5)),
        (0, 5, 1, Duplicate(QueueOffset(100))),
        (3, 2, 1, Duplicate(QueueOffset(103))),
        (3, 4, 1, Fresh(2, QueueOffset(103))),
        (5, 1, 0, Fenced(1)),
        (0, 1, 0, Fenced(1)),
        (0, 1, 2, Fresh()),
        (5, 1, 2, Gap(0)),
    ],
)
def test_judgement_after_five_messages_of_epoch_one(sequence: int, count: int, epoch: int, expected: Judgement) -> None:
    table = ProducerTable()
    store(table, 0, 5, 100, epoch=1)
    assert judge(table, sequence, count, epoch=epoch) == expected


def test_unknown_producer_must_start_at_zero() -> None:
    """Otherwise the loss of its earlier messages would go unnoticed."""
    assert judge(ProducerTable(), 0) == Fresh()
    assert judge(ProducerTable(), 7) == Gap(0)


def test_sequences_are_counted_per_queue_and_producer() -> None:
    table = ProducerTable()
    store(table, 0, 5, 100)
    assert judge(table, 0, producer="other") == Fresh()
    assert table.judge("t", 1, Stamp("p", 0, 0), 1) == Fresh()


def test_judging_changes_nothing() -> None:
    table = ProducerTable()
    assert [judge(table, 0), judge(table, 0)] == [Fresh(), Fresh()]
    assert table.dirty() == Unsaved((), ())


def test_recording_what_was_not_fresh_is_refused_and_changes_nothing() -> None:
    table = ProducerTable()
    store(table, 0, 5, 100)
    before = table.export()
    for sequence in (4, 6):
        with pytest.raises(ValueError, match="judge it before"):
            store(table, sequence, 2, 105)
    assert table.export() == before


def test_duplicate_finds_its_offset_among_other_producers_batches() -> None:
    table = ProducerTable()
    for number in range(10):
        store(table, number * 2, 2, number * 50)
    assert judge(table, 7) == Duplicate(QueueOffset(151))


def test_a_batch_stored_in_two_places_is_a_duplicate_without_offset() -> None:
    """A crash cut it in two, and other messages lie between its parts."""
    table = ProducerTable()
    store(table, 0, 3, 100)
    store(table, 3, 3, 200)
    assert judge(table, 0, 6) == Duplicate(None)
    assert judge(table, 1, 7) == Fresh(5, None)
    assert [judge(table, 0, 3), judge(table, 3, 3)] == [Duplicate(QueueOffset(100)), Duplicate(QueueOffset(200))]


def test_adjacent_batches_are_kept_as_one_run() -> None:
    """So the only producer of a queue always gets the original offset, in constant memory."""
    table = ProducerTable()
    for number in range(1000):
        store(table, number, 1, number)
    assert judge(table, 3) == Duplicate(QueueOffset(3))
    assert len(table.export()[0].ranges) == 1


def test_very_old_duplicate_is_still_a_duplicate_without_offset() -> None:
    table = ProducerTable()
    for number in range(MAX_SEQUENCE_RANGES + 1):
        store(table, number, 1, number * 2)
    assert judge(table, 0) == Duplicate(None)
    assert judge(table, 1) == Duplicate(QueueOffset(2))
    check(table)


def test_a_new_epoch_drops_the_offsets_of_the_old_one() -> None:
    table = ProducerTable()
    store(table, 0, 5, 100)
    store(table, 0, 1, 200, epoch=1)
    assert judge(table, 0, epoch=1) == Duplicate(QueueOffset(200))
    assert judge(table, 1, epoch=1) == Fresh()


def test_replay_accepts_a_log_that_starts_in_the_middle_of_a_sequence() -> None:
    table = ProducerTable()
    table.replay("t", 0, Stamp("p", 3, 40), 2, QueueOffset(900), stored_at=Millis(0))
    assert judge(table, 42, epoch=3) == Fresh()
    assert judge(table, 39, epoch=3) == Duplicate(None)


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (3, 1, Gap(0)),
        (0, 6, Gap(0)),
        (4, 4, Gap(0)),
        (0, 1, Duplicate(QueueOffset(10))),
        (5, 1, Duplicate(QueueOffset(20))),
        (5, 3, Fresh(1, QueueOffset(20))),
        (6, 1, Fresh()),
    ],
)
def test_a_message_in_a_damaged_hole_of_the_log_is_not_a_duplicate(
    sequence: int, count: int, expected: Judgement
) -> None:
    """The log lost it to a damaged record, so answering "duplicate" would lose the message."""
    table = ProducerTable()
    for stored, offset in ((0, 10), (5, 20)):
        table.replay("t", 0, Stamp("p", 0, stored), 1, QueueOffset(offset), stored_at=Millis(0))
    assert judge(table, sequence, count) == expected


def test_replay_of_what_the_checkpoint_knows_changes_nothing() -> None:
    table = ProducerTable()
    store(table, 0, 5, 100, epoch=1)
    before = table.export()
    for epoch, sequence in ((1, 3), (0, 77)):
        table.replay("t", 0, Stamp("p", epoch, sequence), 1, QueueOffset(103), stored_at=Millis(9))
    assert table.export() == before


def test_export_and_restore_give_the_same_judgements() -> None:
    table = ProducerTable()
    store(table, 0, 5, 100, epoch=2)
    copy = ProducerTable()
    copy.restore(table.export(), now=Millis(0))
    assert copy.export() == table.export()
    assert judge(copy, 2, 5, epoch=2) == Fresh(3, QueueOffset(102))
    assert copy.dirty() == Unsaved((), ())


def save(table: ProducerTable) -> list[int]:
    """Save everything in one piece; returns the next sequences."""
    saving = table.begin_saving()
    deque(table.copy(saving), maxlen=0)
    rows = list(saving.take_rows())
    table.saved(saving)
    return sorted(row.next_sequence for row in rows)


def test_row_changed_while_it_was_saved_stays_dirty() -> None:
    table = ProducerTable()
    store(table, 0, 1, 0)
    saving = table.begin_saving()
    store(table, 1, 1, 1)
    table.saved(saving)
    assert [row.next_sequence for row in table.dirty().rows] == [2]
    assert save(table) == [2]
    assert table.dirty() == Unsaved((), ())


@pytest.mark.parametrize(
    "change",
    [
        lambda table: store(table, 1, 1, 9, producer="b"),
        lambda table: store(table, 0, 1, 9, producer="b", epoch=1),
        lambda table: table.undo("t", 0, Stamp("b", 0, 0)),
        lambda table: [store(table, 0, 1, 9, producer=f"new-{number}") for number in range(4)],
        lambda table: deque(table.expire(now=Millis(DAY)), maxlen=0),
    ],
    ids=["a message", "a new epoch", "an undo", "forgotten for others", "forgotten when idle"],
)
def test_a_row_that_changes_before_it_is_copied_is_saved_as_it_was(change: Callable[[ProducerTable], object]) -> None:
    table = ProducerTable(capacity=4, idle_ms=1)
    for number, producer in enumerate("abc"):
        store(table, 0, 1, number, producer=producer)
    deque(table.expire(now=Millis(0)), maxlen=0)
    before, saving = set(table.export()), table.begin_saving()
    copying = table.copy(saving)
    next(copying)
    change(table)
    check(table)
    deque(copying, maxlen=0)
    assert set(saving.take_rows()) == before
    table.saved(saving)
    check(table)


@pytest.mark.parametrize("copied", [0, 1, 6], ids=["before", "meanwhile", "after"])
def test_a_topic_that_is_deleted_while_rows_are_copied_is_left_out(copied: int) -> None:
    table = ProducerTable()
    for producer in "abc":
        store(table, 0, 1, 0, producer=producer)
        store(table, 0, 1, 0, producer=producer, topic="other")
    saving = table.begin_saving()
    copying = table.copy(saving)
    for _ in range(copied):
        next(copying)
    table.forget_topic("t")
    store(table, 0, 1, 0, epoch=1)  # in a new topic of the same name
    deque(copying, maxlen=0)
    assert [row.topic for row in saving.take_rows()] == ["other"] * 3
    table.saved(saving)
    assert [row.epoch for row in table.dirty().rows] == [1]


def test_a_checkpoint_that_was_not_written_is_part_of_the_next_one() -> None:
    table = ProducerTable(capacity=2)
    store(table, 0, 1, 0, producer="gone")
    store(table, 0, 2, 1, producer="kept")
    saving = table.begin_saving()
    store(table, 0, 3, 3, producer="new")
    assert [row.next_sequence for row in sorted(table.dirty().rows)] == [2, 3], "also at a clean stop in between"
    table.give_back(saving)
    assert table.dirty().gone == (("t", 0, "gone"),)
    assert save(table) == [2, 3]


def test_idle_producer_is_forgotten_and_must_start_again() -> None:
    table = ProducerTable(idle_ms=7 * DAY)
    store(table, 0, 1, 0, at=1000)
    assert expired(table, DAY) == 0, "it has stored something since the last look"
    assert expired(table, 8 * DAY - 1) == 0
    assert expired(table, 8 * DAY) == 1
    assert judge(table, 1) == Gap(0)
    assert table.dirty() == Unsaved((), (("t", 0, "p"),))


def test_after_a_start_every_producer_is_remembered_for_its_full_time() -> None:
    """How long it was idle before, only the wall clock could tell; a wrong one would make the broker forget them all,
    and store repeats again."""
    table, copy = ProducerTable(), ProducerTable(idle_ms=7 * DAY)
    store(table, 0, 1, 0, at=100 * DAY)
    copy.restore(table.export(), now=Millis(DAY))
    assert expired(copy, 8 * DAY - 1) == 0
    assert expired(copy, 8 * DAY) == 1


def test_the_longest_idle_producer_is_forgotten_first() -> None:
    table = ProducerTable(capacity=2)
    store(table, 0, 1, 0, producer="a")
    store(table, 0, 1, 1, producer="b")
    store(table, 1, 1, 2, producer="a")
    store(table, 0, 1, 3, producer="c")
    assert judge(table, 1, producer="b") == Gap(0)
    assert judge(table, 2, producer="a") == Fresh()
    assert table.dirty().gone == (("t", 0, "b"),)
    check(table)


def test_a_flood_of_producers_in_one_topic_forgets_none_of_another() -> None:
    table = ProducerTable(capacity=100, topic_capacity=10)
    store(table, 0, 1, 0, producer="quiet")
    for number in range(50):
        store(table, 0, 1, number, producer=f"flood-{number}", topic="other")
    assert judge(table, 1, producer="quiet") == Fresh()
    assert len(table) == 11
    check(table)


@pytest.mark.parametrize(("user", "survives"), [("flooder", True), (None, False)], ids=["counted", "control"])
def test_a_flood_of_producers_of_one_user_in_many_topics_forgets_none_of_another(user: str, survives: bool) -> None:
    """Control: if the user is not counted, the flood takes the whole table."""
    table = ProducerTable(capacity=100, topic_capacity=10, user_capacity=20)
    store(table, 0, 1, 0, producer="quiet", user="other")
    for number in range(300):
        store(table, 0, 1, number, producer=f"flood-{number}", topic=f"t{number % 30}", user=user)
        check(table)
    assert judge(table, 1, producer="quiet") == (Fresh() if survives else Gap(0))
    assert len(table) == (21 if survives else 100)


def test_a_producer_counts_for_the_user_that_used_it_last() -> None:
    table = ProducerTable(capacity=100, user_capacity=2)
    for number, producer in enumerate("abc"):
        store(table, 0, 1, number, producer=producer, user="u" if producer != "c" else "v")
    store(table, 1, 1, 3, producer="a", user="u")
    store(table, 0, 1, 4, producer="d", user="u")
    table.forget_topic("other")
    check(table)
    assert judge(table, 1, producer="b") == Gap(0), "the longest idle one"
    assert [judge(table, 2, producer="a"), judge(table, 1, producer="c"), judge(table, 1, producer="d")] == [
        Fresh()
    ] * 3


@pytest.mark.parametrize(("lost", "expected"), [(3, Duplicate(QueueOffset(102))), (2, Fresh()), (0, Gap(0))])
def test_a_message_that_could_not_be_stored_is_forgotten_with_all_later_ones(lost: int, expected: Judgement) -> None:
    table = ProducerTable()
    store(table, 0, 3, 100, epoch=1)
    store(table, 3, 2, 103, epoch=1)
    table.undo("t", 0, Stamp("p", 1, 4))
    table.undo("t", 0, Stamp("p", 1, lost))
    assert judge(table, 2, epoch=1) == (expected if lost else Gap(0))
    assert judge(table, lost, epoch=1) == Fresh()
    assert judge(table, 0, epoch=0) == Fenced(1), "the old epoch stays fenced"
    check(table)


def test_forgotten_producer_that_comes_back_is_not_deleted_from_the_checkpoint() -> None:
    table = ProducerTable()
    store(table, 0, 1, 0)
    table.forget_topic("t")
    store(table, 0, 1, 0, epoch=1)
    assert table.dirty().gone == ()
    assert [row.epoch for row in table.dirty().rows] == [1]


def test_deleted_topic_forgets_its_producers_only() -> None:
    table = ProducerTable()
    store(table, 0, 1, 0)
    store(table, 0, 1, 0, topic="other")
    table.forget_topic("t")
    assert [row.topic for row in table.export()] == ["other"]


class Broker:
    """A queue whose tail is lost in a crash unless it was flushed. Checkpoints are made in steps."""

    def __init__(self) -> None:
        self.log: list[Stamp] = []
        self.flushed = 0
        self.table = ProducerTable()
        self.rows: dict[tuple[str, int, str], SavedProducer] = {}
        self.position = 0
        self.marked: tuple[int, Saving, Iterator[None]] | None = None

    def send(self, first: Stamp, count: int) -> Judgement:
        judgement = self.table.judge("t", 0, first, count)
        if isinstance(judgement, Fresh):
            rest = first._replace(sequence=first.sequence + judgement.skip)
            stored = count - judgement.skip
            self.table.record("t", 0, rest, stored, QueueOffset(len(self.log)), stored_at=Millis(0))
            self.log += [rest._replace(sequence=rest.sequence + step) for step in range(stored)]
        return judgement

    def flush(self) -> None:
        self.flushed = len(self.log)

    def go_on_with_checkpoint(self) -> None:
        """Begin one, or copy a row of it."""
        if self.marked is None:
            saving = self.table.begin_saving()
            self.marked = (len(self.log), saving, self.table.copy(saving))
        else:
            next(self.marked[2], None)

    def save_checkpoint(self) -> None:
        if self.marked is None:
            self.go_on_with_checkpoint()
        assert self.marked is not None
        self.position, saving, copying = self.marked
        deque(copying, maxlen=0)
        self.flushed = max(self.flushed, self.position)
        self.rows.update({row[:3]: row for row in saving.take_rows()})
        self.table.saved(saving)
        self.marked = None

    def crash(self, *, replay_from_start: bool) -> None:
        del self.log[self.flushed :]
        self.table, self.marked = ProducerTable(), None
        self.table.restore(self.rows.values(), now=Millis(0))
        for offset in range(0 if replay_from_start else self.position, len(self.log)):
            self.table.replay("t", 0, self.log[offset], 1, QueueOffset(offset), stored_at=Millis(0))


class Producer:
    """Sends batches with fixed boundaries one after the other and repeats the unacknowledged one."""

    def __init__(self, name: str, sizes: list[int]) -> None:
        self.name = name
        self.sizes = sizes
        self.acknowledged = 0

    def batch(self, number: int) -> tuple[Stamp, int]:
        return Stamp(self.name, 0, sum(self.sizes[:number])), self.sizes[number]


steps = st.tuples(
    st.sampled_from(["send", "answer lost", "old repeat", "too early", "flush", "mark", "checkpoint", "crash"]),
    st.integers(0, 1),
    st.integers(0, 3),
)


@settings(max_examples=150, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=5, max_size=8), schedule=st.lists(steps, max_size=60))
def test_any_schedule_leaves_each_message_once_and_in_order(
    sizes: list[int], schedule: list[tuple[str, int, int]]
) -> None:
    """Answers lost, old frames arriving late, later batches arriving first, crashes that cut the tail."""
    broker = Broker()
    producers = [Producer("p", sizes), Producer("q", sizes[::-1])]
    for action, which, number in schedule:
        producer = producers[which]
        done = producer.acknowledged
        match action:
            case "send" | "answer lost" if done < len(sizes):
                first, count = producer.batch(done)
                judgement = broker.send(first, count)
                assert isinstance(judgement, Fresh | Duplicate)
                if isinstance(judgement, Duplicate):
                    assert judgement.offset is not None
                    assert broker.log[judgement.offset] == first
                if action == "send":
                    broker.flush()
                    producer.acknowledged += 1
            case "old repeat" if done:
                first, count = producer.batch(min(number, done - 1))
                assert broker.send(first, count) == Duplicate(QueueOffset(broker.log.index(first)))
            case "too early" if done + 2 < len(sizes):
                assert isinstance(broker.send(*producer.batch(done + 2)), Gap)
            case "flush":
                broker.flush()
            case "mark":
                broker.go_on_with_checkpoint()
            case "checkpoint":
                broker.save_checkpoint()
            case "crash":
                broker.crash(replay_from_start=number % 2 == 0)
        check(broker.table)
    for producer in producers:
        stored = [stamp.sequence for stamp in broker.log if stamp.producer == producer.name]
        assert stored == list(range(len(stored)))
        assert len(stored) >= sum(producer.sizes[: producer.acknowledged]), "an acknowledged message is lost"


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 10), sizes=st.lists(st.integers(1, 4), min_size=3, max_size=6))
def test_a_batch_torn_by_a_crash_is_completed_by_its_repeat(cut: int, sizes: list[int]) -> None:
    """The flush may end inside a batch: only the missing messages of the repeat are stored."""
    broker = Broker()
    producer = Producer("p", sizes)
    for number in range(len(sizes)):
        broker.send(*producer.batch(number))
    broker.flushed = min(cut, len(broker.log))
    broker.crash(replay_from_start=True)
    for number in range(len(sizes)):
        broker.send(*producer.batch(number))
    assert [stamp.sequence for stamp in broker.log] == list(range(sum(sizes)))
