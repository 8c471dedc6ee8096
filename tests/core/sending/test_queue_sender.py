"""Messages are stored as sent: one queue against a broker that loses, delays, refuses and repeats."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.core.backoff import Backoff
from lanemq.core.sending.queue_sender import QueueSender, SendOptions
from lanemq.core.sending.sent_window import Failed, SendBatch, SendError
from lanemq.model.errors import InvalidOption, LaneError, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

Sender = QueueSender[str, object]

NOW = Millis(0)
LATER = Millis(10_000)


def key_of(message: str) -> str | None:
    """ "m1" has none, "a1" has key a."""
    return None if message.startswith("m") else message[0]


def new_sender(window: int = 1, timeout: int = 120_000) -> Sender:
    options = SendOptions(window, Millis(timeout), Backoff(0.05, 2, 0.4))
    return QueueSender(MessageQueue("orders", "b", 0), options, key_of=key_of)


def given_one_by_one(count: int, **options: int) -> Sender:
    filled = new_sender(**options)
    for number in range(count):
        filled.append((f"m{number}",), (10,), now=NOW)
    return filled


def fail(sender: Sender, batch: SendBatch[str], error: SendError, *, now: Millis) -> Failed[str] | None:
    return sender.failed(batch, error, LaneError("refused"), now=now, wall=now)


def take(sender: Sender, count: int = 2, size: int = 1_000, now: Millis = NOW) -> SendBatch[str]:
    batch = sender.take_batch(max_count=count, max_bytes=size, now=now)
    assert batch is not None
    return batch


def full(sender: Sender, now: Millis = NOW) -> bool:
    return sender.take_batch(max_count=2, max_bytes=1_000, now=now) is None


def test_messages_appended_together_equal_messages_appended_one_by_one() -> None:
    sender = given_one_by_one(1)
    sender.append(("m1", "m2", "m3"), (10, 2_000, 10), now=NOW)
    sender.append(("m4",), (10,), now=NOW)
    assert sender.accepted == 5
    batches = []
    while (batch := sender.take_batch(max_count=3, max_bytes=100, now=NOW)) is not None:
        batches.append((batch.first_sequence, batch.messages, sum(batch.sizes)))
        assert sender.acknowledged(batch)
    assert batches == [(0, ("m0", "m1"), 20), (2, ("m2",), 2_000), (3, ("m3", "m4"), 20)]


@pytest.mark.row("A10")
def test_with_window_one_the_next_batch_waits_for_the_reply() -> None:
    sender = given_one_by_one(4)
    first = take(sender)
    assert full(sender)
    sender.acknowledged(first)
    assert take(sender).messages == ("m2", "m3")


def test_a_narrowed_window_limits_repetitions_too() -> None:
    sender = given_one_by_one(4, window=2)
    first, _ = take(sender), take(sender)
    fail(sender, first, SendError.RETRY, now=NOW)
    sender.set_broker(checks_stamps=False)
    again = take(sender, now=LATER)
    assert full(sender, now=LATER)
    sender.acknowledged(again)
    assert take(sender, now=LATER).messages == ("m2", "m3")


def test_batch_is_cut_by_count_and_by_bytes_but_never_empty() -> None:
    sender = given_one_by_one(6, window=9)
    assert take(sender, count=3).messages == ("m0", "m1", "m2")
    assert take(sender, count=9, size=25).messages == ("m3", "m4")
    assert take(sender, count=9, size=5).messages == ("m5",), "too large for the limit: it travels alone"


@pytest.mark.row("A10")
def test_after_a_failure_every_unanswered_batch_is_sent_again_unchanged() -> None:
    sender = given_one_by_one(6, window=3)
    batches = [take(sender, count=n) for n in (1, 2, 3)]
    fail(sender, batches[0], SendError.RETRY, now=NOW)
    assert full(sender, Millis(49))
    again = [take(sender, count=9, now=Millis(50)) for _ in range(3)]
    assert [b.messages for b in again] == [b.messages for b in batches]
    assert [b.first_sequence for b in again] == [0, 1, 3]
    assert [b.attempt for b in again] == [2, 2, 2]
    assert again == batches, "the same batches, with the requests that were built for them"


def test_a_gap_behind_a_failed_batch_is_retried() -> None:
    sender = given_one_by_one(4, window=2)
    first, second = take(sender), take(sender)
    assert fail(sender, second, SendError.GAP, now=NOW) is None
    assert fail(sender, first, SendError.RETRY, now=NOW) is None, "already counted as lost"
    assert take(sender, now=LATER).messages == first.messages
    assert take(sender, now=LATER).messages == second.messages


def test_a_gap_with_nothing_earlier_missing_freezes_the_lane() -> None:
    """The broker lost what it acknowledged; sending again cannot help."""
    sender = given_one_by_one(4, window=2)
    sender.acknowledged(take(sender))
    failed = fail(sender, take(sender), SendError.GAP, now=NOW)
    assert failed == Failed(SendError.GAP, refused=("m2", "m3"))


def test_a_gap_is_retried_if_an_earlier_batch_was_open_when_the_batch_was_sent() -> None:
    """Replies may be read in another order than they were sent; that alone must not freeze a lane."""
    sender = given_one_by_one(4, window=2)
    first, second = take(sender), take(sender)
    sender.acknowledged(first)
    assert fail(sender, second, SendError.GAP, now=NOW) is None
    assert take(sender, now=LATER).messages == second.messages


def test_acknowledged_batch_is_not_sent_again_when_an_earlier_one_fails() -> None:
    sender = given_one_by_one(4, window=2)
    first, second = take(sender), take(sender)
    sender.acknowledged(second)
    fail(sender, first, SendError.RETRY, now=NOW)
    assert take(sender, now=LATER).messages == first.messages
    assert full(sender, LATER)


def test_a_late_acknowledgement_counts_and_a_late_refusal_does_not() -> None:
    """A refusal of an earlier attempt says nothing about the attempt in flight."""
    sender = given_one_by_one(2)
    batch = take(sender)
    fail(sender, batch, SendError.RETRY, now=NOW)
    assert not sender.awaits(batch, 1), "it counts as lost"
    assert take(sender, now=LATER) is batch
    assert [sender.awaits(batch, attempt) for attempt in (1, 2)] == [False, True]
    assert sender.acknowledged(batch)
    assert not sender.acknowledged(batch)
    assert sender.idle


def test_back_off_grows_and_an_acknowledgement_resets_it() -> None:
    sender = given_one_by_one(3)
    waits, now = [], NOW
    for _ in range(5):
        fail(sender, take(sender, count=1, now=now), SendError.RETRY, now=now)
        retry_at = sender.next_deadline()
        assert retry_at is not None
        waits.append(retry_at - now)
        now = retry_at
    assert waits == [50, 100, 200, 400, 400]
    sender.acknowledged(take(sender, now=now))
    fail(sender, take(sender, now=now), SendError.RETRY, now=now)
    assert sender.next_deadline() == now + 50


def test_refused_message_freezes_everything_behind_it() -> None:
    sender = given_one_by_one(6, window=2)
    first, second = take(sender), take(sender)
    failed = fail(sender, first, SendError.FATAL, now=NOW)
    assert failed == Failed(SendError.FATAL, ("m0", "m1"), unknown=second.messages, blocked=("m4", "m5"))
    assert sender.freeze is not None
    assert full(sender, LATER)


def test_batches_before_the_refused_one_are_still_delivered() -> None:
    sender = given_one_by_one(4, window=2)
    first, second = take(sender), take(sender)
    assert fail(sender, second, SendError.FATAL, now=NOW) == Failed(SendError.FATAL, second.messages)
    with pytest.raises(UsageError, match="unanswered"):
        sender.resume()
    fail(sender, first, SendError.RETRY, now=NOW)
    sender.acknowledged(take(sender, now=LATER))
    assert sender.resume()
    assert sender.epoch == 2
    assert first.messages == ("m0", "m1")


def test_resumed_lane_starts_a_new_epoch_from_zero() -> None:
    """The refused sequences are a hole in the old epoch; its delayed batches must be fenced."""
    sender = given_one_by_one(2)
    old = take(sender)
    fail(sender, old, SendError.FATAL, now=NOW)
    assert sender.resume()
    sender.append(("again",), (1,), now=NOW)
    fresh = take(sender)
    assert (fresh.epoch, fresh.first_sequence, fresh.attempt) == (2, 0, 1)
    assert not sender.acknowledged(old), "of the old epoch, with the same sequence"
    assert fail(sender, old, SendError.FATAL, now=NOW) is None


def test_resume_of_a_healthy_lane_changes_nothing() -> None:
    sender = given_one_by_one(1)
    assert not sender.resume()
    assert take(sender).epoch == 1


def test_a_delivery_timeout_separates_sent_from_unsent_messages() -> None:
    sender = given_one_by_one(4, timeout=500)
    batch = take(sender)
    assert sender.next_deadline() == 500
    assert sender.expire(now=Millis(499)) is None
    failed = sender.expire(now=Millis(500))
    assert failed == Failed(SendError.TOO_LATE, unknown=("m0", "m1"), unsent=("m2", "m3"))
    assert sender.must_renew, "the first two leave a hole in the numbers of the epoch"
    sender.renew()
    assert not sender.acknowledged(batch)
    assert sender.next_deadline() is None


@pytest.mark.parametrize("options", [{"window": 0}, {"delivery_timeout": 0}])
def test_options_that_send_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="at least 1"):
        SendOptions(**options)  # type: ignore[arg-type]


@dataclass
class Broker:
    """Stores batches in sequence, acknowledges repeats, and refuses gaps."""

    checks_sequences: bool
    log: list[str] = field(default_factory=list)
    next: int = 0

    def store(self, batch: SendBatch[str]) -> SendError | None:
        if self.checks_sequences and batch.first_sequence > self.next:
            return SendError.GAP
        if not self.checks_sequences or batch.first_sequence == self.next:
            self.log += batch.messages
            self.next = batch.first_sequence + len(batch.messages)
        return None


FATES = st.sampled_from(["ok", "ok", "request lost", "reply lost", "busy", "late reply"])


@pytest.mark.row("A10")
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), st.lists(FATES, max_size=40))
def test_any_schedule_of_loss_and_repetition_stores_each_message_once_in_order(
    count: int, window: int, fates: list[str]
) -> None:
    sender, broker = given_one_by_one(count, window=window), Broker(checks_sequences=True)
    now, held = NOW, []
    for fate in [*fates, *["ok"] * 200]:
        batch = sender.take_batch(max_count=3, max_bytes=25, now=now)
        if batch is None:
            now = Millis(now + 500)
            for older, error in held:
                answer(sender, older, error, now)
            held = []
            continue
        error = broker.store(batch) if fate in ("ok", "reply lost", "late reply") else SendError.RETRY
        if fate == "ok":
            answer(sender, batch, error, now)
        elif fate == "late reply":
            held.append((batch, error))
        else:
            answer(sender, batch, SendError.RETRY, now)
    assert broker.log == [f"m{number}" for number in range(count)]
    assert sender.idle


def answer(sender: Sender, batch: SendBatch[str], error: SendError | None, now: Millis) -> None:
    if error is None:
        sender.acknowledged(batch)
    else:
        assert fail(sender, batch, error, now=now) is None


@pytest.mark.row("A10")
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.lists(st.sampled_from(["ok", "request lost", "reply lost"]), max_size=20))
def test_window_of_one_never_inverts_even_without_broker_checks(count: int, fates: list[str]) -> None:
    """Against Apache RocketMQ repeats are possible, inversions are not: first appearances come in order."""
    sender, broker = given_one_by_one(count), Broker(checks_sequences=False)
    now = NOW
    for fate in [*fates, *["ok"] * 60]:
        batch = sender.take_batch(max_count=2, max_bytes=1_000, now=now)
        if batch is None:
            now = Millis(now + 500)
            continue
        error = SendError.RETRY if fate == "request lost" else broker.store(batch)
        answer(sender, batch, SendError.RETRY if fate == "reply lost" else error, now)
    assert list(dict.fromkeys(broker.log)) == [f"m{number}" for number in range(count)]


# a refused message and its key


def test_a_refused_batch_is_sent_again_in_halves_with_the_same_sequences() -> None:
    sender = given_one_by_one(3)
    fail(sender, take(sender, count=3), SendError.REFUSED, now=NOW)
    halves = []
    while (batch := sender.take_batch(max_count=9, max_bytes=1_000, now=NOW)) is not None:
        halves.append((batch.epoch, batch.first_sequence, batch.messages))
        sender.acknowledged(batch)
    assert halves == [(1, 0, ("m0",)), (1, 1, ("m1", "m2"))]
    assert not sender.must_renew


def test_no_new_batch_is_sent_while_a_part_of_a_refused_batch_is_in_flight() -> None:
    """It would be refused as a gap at every step of the search."""
    sender = given_one_by_one(4, window=4)
    fail(sender, take(sender), SendError.REFUSED, now=NOW)
    for part in ("m0", "m1"):
        batch = take(sender)
        assert batch.messages == (part,)
        assert full(sender)
        sender.acknowledged(batch)
    assert take(sender).messages == ("m2", "m3")


def test_after_an_illegal_message_batches_start_small_and_double() -> None:
    sender = given_one_by_one(20)
    assert fail(sender, take(sender, count=1), SendError.REFUSED, now=NOW) is not None
    sender.renew()
    sizes = []
    while (batch := sender.take_batch(max_count=8, max_bytes=1_000, now=NOW)) is not None:
        sizes.append(len(batch.messages))
        sender.acknowledged(batch)
    assert sizes == [1, 2, 4, 8, 4]


def test_a_gap_behind_a_split_batch_causes_no_wait() -> None:
    """The gap is expected and nothing was lost, so waiting would only cost time."""
    sender = given_one_by_one(4, window=2)
    first, second = take(sender), take(sender)
    fail(sender, first, SendError.REFUSED, now=NOW)
    assert full(sender), "the later one is still in flight"
    fail(sender, second, SendError.GAP, now=NOW)
    assert take(sender).messages == ("m0",)


def test_an_illegal_message_fails_its_key_and_the_others_continue_in_a_new_epoch() -> None:
    sender = new_sender()
    sender.append(("a0", "b0", "a1"), (10, 10, 10), now=NOW)
    failed = fail(sender, take(sender, count=1), SendError.REFUSED, now=NOW)
    assert failed == Failed(SendError.REFUSED, refused=("a0",), blocked=("a1",))
    assert full(sender), "the hole is still open"
    assert sender.must_renew
    sender.renew()
    batch = take(sender)
    assert (batch.epoch, batch.first_sequence, batch.messages) == (2, 0, ("b0",))


def test_nothing_continues_before_every_batch_is_accounted_for() -> None:
    sender = new_sender(window=3)
    sender.append(("a0", "b0", "a1", "c0"), (10, 10, 10, 10), now=NOW)
    first, illegal, behind = (take(sender, count=1) for _ in range(3))
    failed = fail(sender, illegal, SendError.REFUSED, now=NOW)
    assert failed == Failed(SendError.REFUSED, refused=("b0",))
    assert not sender.must_renew
    fail(sender, behind, SendError.GAP, now=NOW)
    assert not sender.must_renew
    sender.acknowledged(first)
    assert sender.must_renew
    assert sender.renew() == 1
    assert take(sender, count=9).messages == ("a1", "c0")


def test_a_batch_behind_the_illegal_message_whose_reply_was_lost_is_sent_once_more() -> None:
    """Sent under a new sequence without that, it might be stored twice."""
    sender = new_sender(window=2)
    sender.append(("a0", "b0"), (10, 10), now=NOW)
    illegal, behind = take(sender, count=1), take(sender, count=1)
    fail(sender, illegal, SendError.REFUSED, now=NOW)
    fail(sender, behind, SendError.RETRY, now=NOW)
    assert not sender.must_renew
    again = take(sender, now=LATER)
    assert (again.epoch, again.first_sequence, again.attempt) == (1, 1, 2)
    fail(sender, again, SendError.GAP, now=LATER)
    assert sender.must_renew


def test_messages_sent_again_in_a_new_epoch_keep_their_deadline() -> None:
    sender = new_sender(timeout=500)
    sender.append(("a0", "b0"), (10, 10), now=NOW)
    fail(sender, take(sender, count=1), SendError.REFUSED, now=Millis(400))
    sender.renew()
    assert sender.next_deadline() == 500
    assert sender.expire(now=Millis(500)) == Failed(SendError.TOO_LATE, unsent=("b0",))


def test_a_forgotten_producer_starts_a_new_epoch_only_if_nothing_is_in_doubt() -> None:
    for in_doubt in (False, True):
        sender = new_sender()
        sender.append(("a0", "a1", "b0"), (10, 10, 10), now=NOW)
        sender.acknowledged(take(sender, count=1))
        batch = take(sender, count=1)
        if in_doubt:
            fail(sender, batch, SendError.RETRY, now=NOW)
            batch = take(sender, count=1, now=LATER)
        failed = fail(sender, batch, SendError.FORGOTTEN, now=LATER)
        assert failed == (Failed(SendError.FORGOTTEN, unknown=("a1",)) if in_doubt else None)
        assert sender.must_renew
        sender.renew()
        assert take(sender, now=LATER).messages == (("b0",) if in_doubt else ("a1", "b0"))


def test_withdrawn_messages_free_their_sequences() -> None:
    sender = new_sender()
    sender.append(("a0", "b0", "a1", "c0"), (10, 10, 10, 10), now=NOW)
    sender.acknowledged(take(sender, count=1))
    assert sender.withdraw("a") == ("a1",)
    batch = take(sender, count=9)
    assert (batch.epoch, batch.first_sequence, batch.messages) == (1, 1, ("b0", "c0"))


# which batch is sent now


def test_a_batch_that_is_not_full_waits_for_the_reply_to_the_one_in_flight() -> None:
    sender = new_sender(window=4)
    sender.append(("m0",), (10,), now=NOW)
    first = sender.next_batch(NOW)
    assert first is not None
    sender.append(("m1",), (10,), now=NOW)
    assert sender.next_batch(NOW) is None
    sender.append(("m2",), (SendOptions().max_bytes,), now=NOW)
    full_one = sender.next_batch(NOW)
    assert full_one is not None, "a full batch does not wait"
    assert full_one.messages == ("m1",)
    sender.acknowledged(first)
    sender.acknowledged(full_one)
    last = sender.next_batch(NOW)
    assert last is not None
    assert last.messages == ("m2",)


# what a flush waits for


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["give", "give", "take", "ack", "refuse", "withdraw", "late"]), max_size=40))
def test_no_message_counts_as_settled_while_it_or_an_earlier_one_is_open(steps: list[str]) -> None:
    """Although others leave the middle of the line, are split, or get new numbers."""
    sender, now, gone, sent = new_sender(window=2, timeout=1_000), Millis(0), set[str](), list[SendBatch[str]]()
    for step in steps:
        now = Millis(now + 100)
        failed: Failed[str] | None = None
        if step == "give":
            number = sender.accepted
            sender.append([f"{'abc'[each % 3]}{each}" for each in (number, number + 1)], (10, 10), now=now)
        elif step == "take":
            batch = sender.take_batch(max_count=3, max_bytes=1_000, now=now)
            sent += [] if batch is None else [batch]
        elif step == "ack" and sent:
            batch = sent.pop(0)
            gone |= set(batch.left()) if sender.acknowledged(batch) else set()
        elif step == "refuse" and sent:
            failed = fail(sender, sent.pop(0), SendError.REFUSED, now=now)
        elif step == "withdraw":
            gone |= set(sender.withdraw("a"))
        for lost in (failed, sender.expire(now=now)):
            gone |= set(lost.everything) if lost is not None else set()
        if sender.must_renew:
            sender.renew()
        open_ones = [each for each in range(sender.accepted) if f"{'abc'[each % 3]}{each}" not in gone]
        assert sender.settled_before <= (open_ones[0] if open_ones else sender.accepted)
        assert not sender.idle or sender.settled_before == sender.accepted
