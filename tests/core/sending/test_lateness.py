"""A time-out costs the messages whose time is up, and those of their keys; what is younger goes on."""

from tests.core.sending.test_send_lane import lane, take

from lanemq.core.sending.in_flight import Failed, SendError
from lanemq.core.sending.send_lane import SendLane
from lanemq.model.units import Millis

YOUNG, UP, ALL_UP = Millis(400), Millis(500), Millis(900)


def aged(*young: str, window: int = 3) -> SendLane[str]:
    """A message whose time is up at 500, and others whose time is up at 900; each alone."""
    sender = lane(window=window, timeout=500)
    sender.offer("a0", 10, now=Millis(0))
    for message in young:
        sender.offer(message, 10, now=YOUNG)
    return sender


def test_a_younger_batch_under_way_is_not_given_up_with_an_old_one() -> None:
    sender = aged("b0", "c0")
    _, stored, refused = (take(sender, count=1) for _ in range(3))
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",))
    assert not sender.must_renew, "their answers are still to come"
    assert sender.acknowledged(stored), "the old one was stored too, as it turns out"
    sender.failed(refused, SendError.GAP, now=UP)
    assert sender.must_renew
    assert sender.renew() == 1
    again = take(sender, now=UP)
    assert (again.epoch, again.first_sequence, again.messages) == (2, 0, ("c0",))
    assert sender.next_deadline() == ALL_UP


def test_what_was_lost_with_the_connection_hears_of_the_gap_before_it_goes_on() -> None:
    sender = aged("b0")
    old, young = take(sender, count=1), take(sender, count=1)
    sender.failed(old, SendError.RETRY, now=YOUNG)
    sender.failed(young, SendError.RETRY, now=YOUNG)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",))
    again = take(sender, now=UP)
    assert (again.epoch, again.first_sequence, again.attempt) == (1, 1, 2)
    sender.failed(again, SendError.GAP, now=UP)
    sender.renew()
    assert take(sender, now=UP).messages == ("b0",)


def test_younger_messages_of_the_late_key_go_with_it() -> None:
    sender = aged("a1", "b0", "a2")
    for _ in range(3):
        take(sender, count=1)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0",), behind=("a1",), blocked=("a2",))


def test_what_waits_for_the_next_epoch_is_certainly_not_stored_when_its_time_is_up() -> None:
    sender = aged("b0", "c0")
    _, clear, silent = (take(sender, count=1) for _ in range(3))
    sender.expire(now=UP)
    sender.failed(clear, SendError.GAP, now=UP)
    assert sender.expire(now=ALL_UP) == Failed(SendError.TOO_LATE, unknown=("c0",), unsent=("b0",))
    assert sender.must_renew
    assert sender.idle
    assert not sender.acknowledged(silent)


def test_a_frozen_lane_is_idle_after_its_first_time_out() -> None:
    """There is no next epoch before `resume`, so nothing would come of waiting for answers."""
    sender = aged("b0", "c0")
    _, _, guilty = (take(sender, count=1) for _ in range(3))
    sender.failed(guilty, SendError.FATAL, now=YOUNG)
    assert sender.expire(now=UP) == Failed(SendError.TOO_LATE, unknown=("a0", "b0"))
    assert sender.idle
    assert sender.resume() == 2


def test_those_who_left_are_forgotten_with_the_line_they_left() -> None:
    """Without anybody asking: a producer that never flushes would remember them all."""
    sender = lane(timeout=100)
    for number in range(50):
        now = Millis(number * 200)
        sender.offer(f"a{number}", 10, now=now)
        if number % 2:
            take(sender, now=now)
        sender.expire(now=Millis(now + 100))
        if sender.must_renew:
            sender.renew()
        assert len(sender._left_out) == 0
        assert sender.open_span == 0
