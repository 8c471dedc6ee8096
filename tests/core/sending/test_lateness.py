"""A time-out fails the messages whose deadline has passed, and those of their keys; younger ones continue."""

from tests.core.sending.test_queue_sender import Sender, fail, new_sender, take

from lanemq.core.sending.sent_window import Failed, SendError
from lanemq.model.units import Millis

YOUNG, UP, ALL_UP = Millis(400), Millis(500), Millis(900)


def aged(*young: str, window: int = 3) -> Sender:
    """A message with deadline 500, and others with deadline 900, each in its own batch."""
    sender = new_sender(window=window, timeout=500)
    sender.append(("a0",), (10,), now=Millis(0))
    for message in young:
        sender.append((message,), (10,), now=YOUNG)
    return sender


def test_a_younger_batch_in_flight_is_not_given_up_with_an_old_one() -> None:
    sender = aged("b0", "c0")
    _, stored, refused = (take(sender, count=1) for _ in range(3))
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",))
    assert not sender.must_renew, "their replies are still to come"
    assert sender.acknowledged(stored), "so the old one was stored too"
    fail(sender, refused, SendError.GAP, now=UP)
    assert sender.must_renew
    assert sender.renew() == 1
    again = take(sender, now=UP)
    assert (again.epoch, again.first_sequence, again.messages) == (2, 0, ("c0",))
    assert sender.next_deadline() == ALL_UP


def test_a_batch_lost_with_the_connection_is_refused_as_a_gap_before_it_continues() -> None:
    sender = aged("b0")
    old, young = take(sender, count=1), take(sender, count=1)
    fail(sender, old, SendError.RETRY, now=YOUNG)
    fail(sender, young, SendError.RETRY, now=YOUNG)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",))
    again = take(sender, now=UP)
    assert (again.epoch, again.first_sequence, again.attempt) == (1, 1, 2)
    fail(sender, again, SendError.GAP, now=UP)
    sender.renew()
    assert take(sender, now=UP).messages == ("b0",)


def test_younger_messages_of_a_late_key_are_given_up_with_it() -> None:
    sender = aged("a1", "b0", "a2")
    for _ in range(3):
        take(sender, count=1)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",), behind=("a1",), blocked=("a2",))


def test_a_message_that_waits_for_the_next_epoch_times_out_as_unsent() -> None:
    sender = aged("b0", "c0")
    _, clear, silent = (take(sender, count=1) for _ in range(3))
    sender.expire(now=UP)
    fail(sender, clear, SendError.GAP, now=UP)
    assert sender.expire(now=ALL_UP) == Failed(SendError.TOO_LATE, unknown=("c0",), unsent=("b0",))
    assert sender.must_renew
    assert sender.idle
    assert not sender.acknowledged(silent)


def test_a_frozen_lane_is_idle_after_its_first_time_out() -> None:
    """There is no next epoch before `resume`, so waiting for replies would be pointless."""
    sender = aged("b0", "c0")
    _, _, illegal = (take(sender, count=1) for _ in range(3))
    fail(sender, illegal, SendError.FATAL, now=YOUNG)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0", "b0"))
    assert sender.idle
    assert sender.resume()
