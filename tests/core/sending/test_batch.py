"""Messages keep their numbers, together and alone."""

from lanemq.core.sending.in_flight import Failed, SendError, SentBatch
from lanemq.model.units import Millis


def batch() -> SentBatch[str]:
    return SentBatch(7, ("a", "b", "c"), [10, 20, 5], Millis(500), attempt=2, doubt=True, given_up={1})


def test_messages_taken_apart_keep_their_numbers_and_their_doubt() -> None:
    first, second = batch().halves()
    assert [(part.first_sequence, part.messages) for part in (first, second)] == [(7, ("a",)), (8, ("b", "c"))]
    assert (first.left(), second.left()) == (("a",), ("c",))
    for part in (first, second):
        assert part.doubt
        assert part.suspect
        assert part.attempt == 2
        assert not part.in_flight


def test_messages_taken_apart_keep_their_sizes() -> None:
    first, second = batch().halves()
    assert (first.size, second.size) == (10, 25)
    assert list(second.entries()) == [("c", 5, 500)]


def test_what_was_given_up_is_left_out() -> None:
    assert batch().left() == ("a", "c")
    assert list(batch().entries()) == [("a", 10, 500), ("c", 5, 500)]


def test_its_size_is_that_of_its_own_messages() -> None:
    assert batch().size == 35


def test_everything_that_failed_is_there_once() -> None:
    failed = Failed(SendError.FATAL, ("a",), ("b",), ("c",), ("d",), ("e",))
    assert failed.everything == ("a", "b", "c", "d", "e")
