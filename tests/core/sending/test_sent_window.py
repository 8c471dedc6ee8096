"""A message gets another sequence only when it is certain that it is not stored under the current one."""

from lanemq.core.sending.sent_window import Failed, SendBatch, SendError, SentWindow
from lanemq.model.units import Epoch, Millis


def window(*batches: tuple[int, str]) -> tuple[SentWindow[str], list[SendBatch[str]]]:
    """Batches in flight, by first sequence and messages. Each message is a letter, which is also its key."""
    found: SentWindow[str] = SentWindow(2, lambda message: message)
    sent = [SendBatch(Epoch(1), first, tuple(text), [1] * len(text), Millis(1), first) for first, text in batches]
    for batch in sent:
        found.add(batch, Millis(0))
    return found, sent


def test_only_batches_behind_a_hole_can_be_clear() -> None:
    found, (first, second) = window((0, "ab"), (2, "cd"))
    first.in_flight = second.in_flight = False
    assert not found.is_clear(second), "it is to be sent again unchanged"
    found.begin_hole_at(2)
    assert not found.is_clear(first)
    assert found.is_clear(second)
    assert not found.all_clear


def test_a_batch_in_flight_or_in_doubt_is_not_clear() -> None:
    found, (first, second) = window((0, "a"), (1, "b"))
    found.begin_hole_at(0)
    assert not found.is_clear(first)
    found.mark_unanswered()
    assert not found.is_clear(first)
    assert found.to_repeat() is first, "to get its refusal"
    first.doubt = second.doubt = False
    assert found.all_clear
    assert found.to_repeat() is None


def test_a_batch_in_doubt_is_clear_when_all_its_messages_are_given_up() -> None:
    """It is not sent again: a broker that does not check stamps would store it."""
    found, (first,) = window((0, "a"))
    found.begin_hole_at(0)
    found.mark_unanswered()
    assert found.give_up_keys({"a"}, -1) == (("a",), ())
    assert found.is_clear(first)


def test_an_earlier_batch_waits_while_a_later_one_is_in_flight() -> None:
    found, (first, second) = window((0, "ab"), (2, "c"))
    found.split(first)
    alone = found.to_repeat()
    assert alone is not None
    assert alone.messages == ("a",)
    assert not found.may_repeat(alone)
    second.in_flight = False
    assert found.may_repeat(alone)


def test_repetitions_do_not_exceed_the_window() -> None:
    found, _ = window((0, "a"), (1, "b"), (2, "c"))
    found.mark_unanswered()
    for _ in range(2):
        again = found.to_repeat()
        assert again is not None
        assert found.may_repeat(again)
        again.in_flight = True
    third = found.to_repeat()
    assert third is not None
    assert not found.may_repeat(third)


def test_parts_of_a_refused_batch_are_sent_one_at_a_time_and_nothing_else_with_them() -> None:
    found, (first, second) = window((0, "ab"), (2, "c"))
    found.mark_unanswered()
    found.split(first)
    for letter in "ab":
        assert found.has_suspects
        part = found.to_repeat()
        assert part is not None
        assert part.messages == (letter,)
        assert found.may_repeat(part)
        part.in_flight = True
        behind = found.to_repeat()
        assert behind is not None
        assert not found.may_repeat(behind)
        found.remove(part)
    assert not found.has_suspects
    assert found.to_repeat() is second


def test_lost_batches_leave_a_hole_at_the_lowest_sequence() -> None:
    found, (_, second, third) = window((0, "a"), (1, "b"), (2, "c"))
    assert found.give_up(lambda batch: batch is third) == ("c",)
    assert found.give_up(lambda batch: batch is second) == ("b",)
    assert found.is_behind_hole(second)
    assert len(found.batches) == 1


def test_giving_up_a_key_takes_later_messages_and_no_earlier_ones() -> None:
    found, (_, second, third) = window((0, "ab"), (2, "ac"), (4, "ad"))
    third.in_flight = False
    found.begin_hole_at(2)
    assert found.give_up_keys({"a"}, 1) == (("a",), ("a",))
    assert found.give_up_keys({"a"}, 1) == ((), ()), "given up once"
    second.in_flight = False
    assert [message for batch in found.take_all() for message in batch.left()] == ["a", "b", "c", "d"]
    assert found.hole is None


def test_a_frozen_queue_keeps_only_batches_that_can_still_be_stored() -> None:
    found, batches = window((0, "a"), (1, "b"), (2, "c"), (3, "d"))
    found.begin_hole_at(1)
    batches[1].in_flight = False
    assert found.keep_before(batches[2]) == (("d",), ("b",))
    assert found.first is batches[0]
    assert len(found.batches) == 1


def batch() -> SendBatch[str]:
    lost = frozenset({1})
    return SendBatch(Epoch(1), 7, ("a", "b", "c"), [10, 20, 5], Millis(500), 3, attempt=2, doubt=True, given_up=lost)


def test_parts_of_a_batch_keep_sequences_and_doubt() -> None:
    first, second = batch().halves()
    assert [(part.first_sequence, part.messages) for part in (first, second)] == [(7, ("a",)), (8, ("b", "c"))]
    assert (first.left(), second.left()) == (("a",), ("c",))
    for part in (first, second):
        assert part.doubt
        assert part.suspect
        assert part.attempt == 2
        assert not part.in_flight


def test_parts_of_a_batch_keep_sizes() -> None:
    first, second = batch().halves()
    assert (sum(first.sizes), sum(second.sizes)) == (10, 25)
    assert second.left_sizes() == [5]
    assert (first.number, second.number) == (3, 4)


def test_messages_given_up_are_left_out() -> None:
    assert batch().left() == ("a", "c")
    assert batch().left_sizes() == [10, 5]


def test_the_size_of_a_batch_is_the_sum_of_its_messages() -> None:
    assert sum(batch().sizes) == 35


def test_everything_lists_each_failed_message_once() -> None:
    failed = Failed(SendError.FATAL, ("a",), ("b",), ("c",), ("d",), ("e",))
    assert failed.everything == ("a", "b", "c", "d", "e")
