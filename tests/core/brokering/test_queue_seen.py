"""What a group has seen of a log: marks that stay, stamps that are saved, and what a reset leaves."""

from itertools import pairwise

from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import CommitKind, QueueProgress
from lanemq.core.brokering.queue_seen import MAX_MARKS, MAX_PRODUCERS, QueueSeen, SavedSeen, most_producers
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.core.lane_status import Failure
from lanemq.model.log_marks import LastStamp, LogMark, SeenLog, differs
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("t", "b", 0)


def mark(offset: int, log: int = 0) -> LogMark:
    return LogMark(offset, 100 * offset + log, 1_000 + offset, f"{log}-{offset}")


def stamp(number: int, offset: int, producer: str = "p") -> LastStamp:
    return LastStamp(producer, 1, number, offset)


def test_the_last_finished_message_is_known_among_those_that_were_read() -> None:
    seen = QueueSeen()
    seen.take(SeenLog(mark(9), mark(5)))
    assert (seen.last_read, seen.last_done) == (mark(9), mark(5))
    seen.take(SeenLog(mark(12)))
    assert (seen.last_read, seen.last_done) == (mark(12), mark(5))


def test_a_new_owner_that_reads_lower_offsets_takes_nothing_away() -> None:
    seen = QueueSeen((mark(5), mark(9)), done=9)
    seen.take(SeenLog(mark(3), mark(2)))
    assert (seen.last_read, seen.last_done, seen.done) == (mark(9), mark(9), 9)


def test_marks_become_fewer_with_their_distance() -> None:
    seen = QueueSeen()
    seen.take(SeenLog(mark(1), mark(1)))
    for offset in range(10, 100_000, 10):
        seen.take(SeenLog(mark(offset)))
    offsets = [each.offset for each in seen.marks]
    assert len(offsets) <= MAX_MARKS
    assert seen.last_done == mark(1)
    distances = [99_990 - each for each in offsets]
    assert distances[:-3:-1] == [0, 10]
    assert all(after >= before / 4 for before, after in pairwise(distances[1:-3]))


def test_what_changed_is_saved_once_and_again_after_a_failure() -> None:
    seen = QueueSeen()
    seen.take(SeenLog(mark(1), mark(1), (stamp(1, 1),)))
    saved = seen.take_unsaved()
    assert saved == SavedSeen((mark(1),), 1, (stamp(1, 1),))
    assert not seen.take_unsaved().stamps
    seen.not_saved(saved)
    assert seen.take_unsaved() == saved


def test_stamps_only_grow() -> None:
    seen = QueueSeen((), -1, (stamp(5, 50),))
    seen.take(SeenLog(stamps=(stamp(3, 30), stamp(1, 60, "q"))))
    assert set(seen.stamps) == {stamp(5, 50), stamp(1, 60, "q")}


def test_a_log_that_was_another_one_is_cut_before_the_report_is_taken() -> None:
    seen = QueueSeen((mark(5), mark(9)), 5, (stamp(9, 9),))
    seen.take(SeenLog(mark(8, log=1), None, (stamp(8, 8),), other_from=6))
    assert seen.marks == (mark(5), mark(8, log=1))
    assert seen.stamps == (stamp(8, 8),)
    assert seen.take_unsaved().discarded


def test_a_mark_is_compared_with_the_message_at_its_offset() -> None:
    assert differs(mark(5), mark(5), first=0) is None
    assert differs(mark(5), mark(5, log=1), first=0) == (mark(5), mark(5, log=1))
    assert differs(mark(5), None, first=0) == (mark(5), None)
    assert differs(mark(5), None, first=6) is None  # retention has deleted it


# as a part of the progress


def progress() -> QueueProgress:
    made = ProgressTable(serial=1_000).at("g", Q)
    seen = SeenLog(mark(30), mark(25), (stamp(30, 30),))
    made.commit(QueueOffset(10), kind=CommitKind.FORWARD, finished=FinishedRanges.of([(20, 26)]), seen=seen)
    return made


def test_a_reset_discards_marks_and_stamps() -> None:
    moved = progress()
    moved.move(QueueOffset(0), pending=False)
    assert moved.seen is not None
    assert (moved.seen.marks, moved.seen.stamps, moved.seen.done) == ((), (), -1)


def test_a_reset_keeps_the_marks_of_parked_messages() -> None:
    moved = progress()
    moved.park("k", [25], Failure("x", 1), now=Millis(1))
    moved.move(QueueOffset(0), pending=False)
    assert moved.seen is not None
    assert (moved.seen.marks, moved.seen.stamps) == ((mark(25),), ())


def test_rewinding_drops_what_lies_above() -> None:
    rewound = progress()
    rewound.park("k", [12, 24], Failure("x", 1), now=Millis(1))
    assert rewound.rewind(22, owned=False) == {"k": [24]}
    assert (rewound.offset, FinishedRanges.decode(rewound.finished, 10)) == (10, FinishedRanges.of([(20, 22)]))
    assert list(rewound.lanes["k"].offsets) == [12]
    assert rewound.seen is not None
    assert (rewound.seen.marks, rewound.seen.done) == ((), 21)


def test_an_owner_that_has_not_noticed_gets_a_reset() -> None:
    rewound = progress()
    rewound.rewind(5, owned=True)
    assert (rewound.offset, rewound.finished, rewound.tell_reset()) == (5, "", True)


def reports(table: ProgressTable, queue: int, producers: range) -> int:
    """Commits with stamps of these producers; how many stamps the queue has then."""
    stamps = tuple(stamp(1, number, f"p{number}") for number in producers)
    progress = table.at("g", MessageQueue("t", "b", queue))
    progress.commit(QueueOffset(1), kind=CommitKind.FORWARD, seen=SeenLog(stamps=stamps))
    assert progress.seen is not None
    return len(progress.seen.stamps)


def test_the_stamps_of_all_queues_are_bounded_together_and_the_longest_silent_producers_go() -> None:
    table = ProgressTable(serial=1)
    assert reports(table, 0, range(MAX_PRODUCERS)) == MAX_PRODUCERS
    for queue in range(1, 1_000):
        reports(table, queue, range(0))
    assert reports(table, 0, range(5, 6)) == 250
    seen = table.at("g", MessageQueue("t", "b", 0)).seen
    assert seen is not None
    assert {each.producer for each in seen.stamps} == {
        "p5",
        *(f"p{n}" for n in range(MAX_PRODUCERS - 249, MAX_PRODUCERS)),
    }
    assert len(seen.take_unsaved().gone) == MAX_PRODUCERS - 250
    table.forget_topic("t")
    assert (table.queues, most_producers(table.queues), most_producers(10**6)) == (0, MAX_PRODUCERS, 16)
