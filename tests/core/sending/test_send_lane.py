"""Messages are stored as sent: one lane against a broker that loses, delays, refuses and repeats."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.core.backoff import Backoff
from lanemq.core.sending.send_lane import SendLane, SendOptions
from lanemq.core.sending.sent_window import Failed, SendBatch, SendError
from lanemq.model.errors import InvalidOption, LaneFrozen, UsageError
from lanemq.model.units import Epoch, Millis

NOW = Millis(0)
LATER = Millis(10_000)


def key_of(message: str) -> str | None:
    """ "m1" has none, "a1" has key a."""
    return None if message.startswith("m") else message[0]


def lane(window: int = 1, timeout: int = 120_000) -> SendLane[str]:
    options = SendOptions(window, Millis(timeout), Backoff(0.05, 2, 0.4))
    return SendLane(options, epoch=Epoch(1), key_of=key_of)


def offered(count: int, **options: int) -> SendLane[str]:
    filled = lane(**options)
    for number in range(count):
        filled.offer(f"m{number}", 10, now=NOW)
    return filled


def take(sender: SendLane[str], count: int = 2, size: int = 1_000, now: Millis = NOW) -> SendBatch[str]:
    batch = sender.take_batch(max_count=count, max_bytes=size, now=now)
    assert batch is not None
    return batch


def full(sender: SendLane[str], now: Millis = NOW) -> bool:
    return sender.take_batch(max_count=2, max_bytes=1_000, now=now) is None


def test_messages_offered_together_equal_messages_offered_one_by_one() -> None:
    sender = offered(1)
    assert sender.offer_all(("m1", "m2", "m3"), (10, 2_000, 10), now=NOW) == 1
    assert sender.offer("m4", 10, now=NOW) == 4
    batches = []
    while (batch := sender.take_batch(max_count=3, max_bytes=100, now=NOW)) is not None:
        batches.append((batch.first_sequence, batch.messages, batch.size))
        assert sender.acknowledged(batch)
    assert batches == [(0, ("m0", "m1"), 20), (2, ("m2",), 2_000), (3, ("m3", "m4"), 20)]


def test_a_frozen_lane_refuses_all_messages_of_a_run() -> None:
    sender = offered(1)
    sender.failed(take(sender), SendError.FATAL, now=NOW)
    with pytest.raises(LaneFrozen):
        sender.offer_all(("m1", "m2"), (1, 1), now=NOW)
    assert sender.idle


def test_sequences_follow_the_order_of_offers() -> None:
    sender = lane()
    assert [sender.offer("m", 1, now=NOW) for _ in range(3)] == [0, 1, 2]
    assert [take(sender).first_sequence] == [0]


@pytest.mark.row("A10")
def test_with_window_one_the_next_batch_waits_for_the_reply() -> None:
    sender = offered(4)
    first = take(sender)
    assert full(sender)
    sender.acknowledged(first)
    assert take(sender).messages == ("m2", "m3")


def test_a_narrowed_window_limits_repetitions_too() -> None:
    sender = offered(4, window=2)
    first, _ = take(sender), take(sender)
    sender.failed(first, SendError.RETRY, now=NOW)
    sender.set_window(1)
    again = take(sender, now=LATER)
    assert full(sender, now=LATER)
    sender.acknowledged(again)
    assert take(sender, now=LATER).messages == ("m2", "m3")


def test_batch_is_cut_by_count_and_by_bytes_but_never_empty() -> None:
    sender = offered(6, window=9)
    assert take(sender, count=3).messages == ("m0", "m1", "m2")
    assert take(sender, count=9, size=25).messages == ("m3", "m4")
    assert take(sender, count=9, size=5).messages == ("m5",), "too large for the limit: it travels alone"


@pytest.mark.row("A10")
def test_after_a_failure_every_unanswered_batch_is_sent_again_unchanged() -> None:
    sender = offered(6, window=3)
    batches = [take(sender, count=n) for n in (1, 2, 3)]
    sender.failed(batches[0], SendError.RETRY, now=NOW)
    assert full(sender, Millis(49))
    again = [take(sender, count=9, now=Millis(50)) for _ in range(3)]
    assert [b.messages for b in again] == [b.messages for b in batches]
    assert [b.first_sequence for b in again] == [0, 1, 3]
    assert [b.attempt for b in again] == [2, 2, 2]


def test_a_gap_behind_a_failed_batch_is_retried() -> None:
    sender = offered(4, window=2)
    first, second = take(sender), take(sender)
    assert sender.failed(second, SendError.GAP, now=NOW) is None
    assert sender.failed(first, SendError.RETRY, now=NOW) is None, "already counted as lost"
    assert take(sender, now=LATER).messages == first.messages
    assert take(sender, now=LATER).messages == second.messages


def test_a_gap_with_nothing_earlier_missing_freezes_the_lane() -> None:
    """The broker lost what it acknowledged; sending again cannot help."""
    sender = offered(4, window=2)
    sender.acknowledged(take(sender))
    failed = sender.failed(take(sender), SendError.GAP, now=NOW)
    assert failed == Failed(SendError.GAP, refused=("m2", "m3"))


def test_a_gap_is_retried_if_an_earlier_batch_was_open_when_the_batch_was_sent() -> None:
    """Replies may be read in another order than they were sent; that alone must not freeze a lane."""
    sender = offered(4, window=2)
    first, second = take(sender), take(sender)
    sender.acknowledged(first)
    assert sender.failed(second, SendError.GAP, now=NOW) is None
    assert take(sender, now=LATER).messages == second.messages


def test_acknowledged_batch_is_not_sent_again_when_an_earlier_one_fails() -> None:
    sender = offered(4, window=2)
    first, second = take(sender), take(sender)
    sender.acknowledged(second)
    sender.failed(first, SendError.RETRY, now=NOW)
    assert take(sender, now=LATER).messages == first.messages
    assert full(sender, LATER)


def test_a_late_acknowledgement_counts_and_a_late_refusal_does_not() -> None:
    """A refusal of an earlier attempt says nothing about the attempt in flight."""
    sender = offered(2)
    first = take(sender)
    sender.failed(first, SendError.RETRY, now=NOW)
    second = take(sender, now=LATER)
    assert sender.failed(first, SendError.FATAL, now=LATER) is None
    assert sender.acknowledged(first)
    assert not sender.acknowledged(second)
    assert sender.idle


def test_back_off_grows_and_an_acknowledgement_resets_it() -> None:
    sender = offered(3)
    waits, now = [], NOW
    for _ in range(5):
        sender.failed(take(sender, count=1, now=now), SendError.RETRY, now=now)
        retry_at = sender.next_deadline()
        assert retry_at is not None
        waits.append(retry_at - now)
        now = retry_at
    assert waits == [50, 100, 200, 400, 400]
    sender.acknowledged(take(sender, now=now))
    sender.failed(take(sender, now=now), SendError.RETRY, now=now)
    assert sender.next_deadline() == now + 50


def test_refused_message_freezes_everything_behind_it() -> None:
    sender = offered(6, window=2)
    first, second = take(sender), take(sender)
    failed = sender.failed(first, SendError.FATAL, now=NOW)
    assert failed == Failed(SendError.FATAL, ("m0", "m1"), unknown=second.messages, blocked=("m4", "m5"))
    with pytest.raises(LaneFrozen, match="resume"):
        sender.offer("m6", 1, now=NOW)
    assert full(sender, LATER)


def test_batches_before_the_refused_one_are_still_delivered() -> None:
    sender = offered(4, window=2)
    first, second = take(sender), take(sender)
    assert sender.failed(second, SendError.FATAL, now=NOW) == Failed(SendError.FATAL, second.messages)
    with pytest.raises(UsageError, match="unanswered"):
        sender.resume()
    sender.failed(first, SendError.RETRY, now=NOW)
    sender.acknowledged(take(sender, now=LATER))
    assert sender.resume() == 2
    assert first.messages == ("m0", "m1")


def test_resumed_lane_starts_a_new_epoch_from_zero() -> None:
    """The refused sequences are a hole in the old epoch; its delayed batches must be fenced."""
    sender = offered(2)
    old = take(sender)
    sender.failed(old, SendError.FATAL, now=NOW)
    assert sender.resume() == 2
    assert sender.offer("again", 1, now=NOW) == 0
    fresh = take(sender)
    assert (fresh.epoch, fresh.first_sequence, fresh.attempt) == (2, 0, 1)
    assert not sender.acknowledged(old), "of the old epoch, with the same sequence"
    assert sender.failed(old, SendError.FATAL, now=NOW) is None


def test_resume_of_a_healthy_lane_changes_nothing() -> None:
    sender = offered(1)
    assert sender.resume() == 1
    assert sender.offer("m1", 1, now=NOW) == 1


def test_a_delivery_timeout_separates_sent_from_unsent_messages() -> None:
    sender = offered(4, timeout=500)
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
    sender, broker = offered(count, window=window), Broker(checks_sequences=True)
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


def answer(sender: SendLane[str], batch: SendBatch[str], error: SendError | None, now: Millis) -> None:
    if error is None:
        sender.acknowledged(batch)
    else:
        assert sender.failed(batch, error, now=now) is None


@pytest.mark.row("A10")
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.lists(st.sampled_from(["ok", "request lost", "reply lost"]), max_size=20))
def test_window_of_one_never_inverts_even_without_broker_checks(count: int, fates: list[str]) -> None:
    """Against Apache RocketMQ repeats are possible, inversions are not: first appearances come in order."""
    sender, broker = offered(count), Broker(checks_sequences=False)
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
    sender = offered(3)
    sender.failed(take(sender, count=3), SendError.REFUSED, now=NOW)
    halves = []
    while (batch := sender.take_batch(max_count=9, max_bytes=1_000, now=NOW)) is not None:
        halves.append((batch.epoch, batch.first_sequence, batch.messages))
        sender.acknowledged(batch)
    assert halves == [(1, 0, ("m0",)), (1, 1, ("m1", "m2"))]
    assert not sender.must_renew


def test_no_new_batch_is_sent_while_a_part_of_a_refused_batch_is_in_flight() -> None:
    """It would be refused as a gap at every step of the search."""
    sender = offered(4, window=4)
    sender.failed(take(sender), SendError.REFUSED, now=NOW)
    for part in ("m0", "m1"):
        batch = take(sender)
        assert batch.messages == (part,)
        assert full(sender)
        sender.acknowledged(batch)
    assert take(sender).messages == ("m2", "m3")


def test_after_an_illegal_message_batches_start_small_and_double() -> None:
    sender = offered(20)
    assert sender.failed(take(sender, count=1), SendError.REFUSED, now=NOW) is not None
    sender.renew()
    sizes = []
    while (batch := sender.take_batch(max_count=8, max_bytes=1_000, now=NOW)) is not None:
        sizes.append(len(batch.messages))
        sender.acknowledged(batch)
    assert sizes == [1, 2, 4, 8, 4]


def test_a_gap_behind_a_split_batch_causes_no_wait() -> None:
    """The gap is expected and nothing was lost, so waiting would only cost time."""
    sender = offered(4, window=2)
    first, second = take(sender), take(sender)
    sender.failed(first, SendError.REFUSED, now=NOW)
    assert full(sender), "the later one is still in flight"
    sender.failed(second, SendError.GAP, now=NOW)
    assert take(sender).messages == ("m0",)


def test_an_illegal_message_fails_its_key_and_the_others_continue_in_a_new_epoch() -> None:
    sender = lane()
    sender.offer_all(("a0", "b0", "a1"), (10, 10, 10), now=NOW)
    failed = sender.failed(take(sender, count=1), SendError.REFUSED, now=NOW)
    assert failed == Failed(SendError.REFUSED, refused=("a0",), blocked=("a1",))
    assert full(sender), "the hole is still open"
    assert sender.must_renew
    sender.renew()
    batch = take(sender)
    assert (batch.epoch, batch.first_sequence, batch.messages) == (2, 0, ("b0",))


def test_nothing_continues_before_every_batch_is_accounted_for() -> None:
    sender = lane(window=3)
    sender.offer_all(("a0", "b0", "a1", "c0"), (10, 10, 10, 10), now=NOW)
    first, illegal, behind = (take(sender, count=1) for _ in range(3))
    failed = sender.failed(illegal, SendError.REFUSED, now=NOW)
    assert failed == Failed(SendError.REFUSED, refused=("b0",))
    assert not sender.must_renew
    sender.failed(behind, SendError.GAP, now=NOW)
    assert not sender.must_renew
    sender.acknowledged(first)
    assert sender.must_renew
    assert sender.renew() == 1
    assert take(sender, count=9).messages == ("a1", "c0")


def test_a_batch_behind_the_illegal_message_whose_reply_was_lost_is_sent_once_more() -> None:
    """Sent under a new sequence without that, it might be stored twice."""
    sender = lane(window=2)
    sender.offer_all(("a0", "b0"), (10, 10), now=NOW)
    illegal, behind = take(sender, count=1), take(sender, count=1)
    sender.failed(illegal, SendError.REFUSED, now=NOW)
    sender.failed(behind, SendError.RETRY, now=NOW)
    assert not sender.must_renew
    again = take(sender, now=LATER)
    assert (again.epoch, again.first_sequence, again.attempt) == (1, 1, 2)
    sender.failed(again, SendError.GAP, now=LATER)
    assert sender.must_renew


def test_messages_sent_again_in_a_new_epoch_keep_their_deadline() -> None:
    sender = lane(timeout=500)
    sender.offer_all(("a0", "b0"), (10, 10), now=NOW)
    sender.failed(take(sender, count=1), SendError.REFUSED, now=Millis(400))
    sender.renew()
    assert sender.next_deadline() == 500
    assert sender.expire(now=Millis(500)) == Failed(SendError.TOO_LATE, unsent=("b0",))


def test_a_forgotten_producer_starts_a_new_epoch_only_if_nothing_is_in_doubt() -> None:
    for in_doubt in (False, True):
        sender = lane()
        sender.offer_all(("a0", "a1", "b0"), (10, 10, 10), now=NOW)
        sender.acknowledged(take(sender, count=1))
        batch = take(sender, count=1)
        if in_doubt:
            sender.failed(batch, SendError.RETRY, now=NOW)
            batch = take(sender, count=1, now=LATER)
        failed = sender.failed(batch, SendError.FORGOTTEN, now=LATER)
        assert failed == (Failed(SendError.FORGOTTEN, unknown=("a1",)) if in_doubt else None)
        assert sender.must_renew
        sender.renew()
        assert take(sender, now=LATER).messages == (("b0",) if in_doubt else ("a1", "b0"))


def test_withdrawn_messages_free_their_sequences() -> None:
    sender = lane()
    sender.offer_all(("a0", "b0", "a1", "c0"), (10, 10, 10, 10), now=NOW)
    sender.acknowledged(take(sender, count=1))
    assert sender.withdraw("a") == ("a1",)
    batch = take(sender, count=9)
    assert (batch.epoch, batch.first_sequence, batch.messages) == (1, 1, ("b0", "c0"))


EVENTS = st.sampled_from(["stored", "stored", "stored", "unanswered", "later", *SendError])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 2)), max_size=12))
def test_a_message_sent_alone_is_sent_and_acknowledged_as_any_other(events: list[tuple[str | SendError, int]]) -> None:
    """Replies may be late: they may concern a batch of an earlier epoch, or one that is to be sent again."""
    ordinary, alone, now = lane(timeout=5_000), lane(timeout=5_000), Millis(0)
    sent: list[SendBatch[str]] = []
    for number, (event, which) in enumerate(events):
        message, batch = f"{'ab'[number % 2]}{number}", None
        if event == "later":
            now = Millis(now + 700)
        elif ordinary.frozen is not None:
            assert alone.send_alone(message, 10, now=now) is None
        else:
            ordinary.offer(message, 10, now=now)
            batch = alone.send_alone(message, 10, now=now)
            if batch is None:
                alone.offer(message, 10, now=now)
        taken = ordinary.take_batch(max_count=2, max_bytes=100, now=now)
        if batch is None:
            batch = alone.take_batch(max_count=2, max_bytes=100, now=now)
        assert batch == taken
        sent += [] if taken is None else [taken]
        answered = sent[-1 - which] if which < len(sent) else None
        if event == "stored" and answered is not None:
            known = alone.acknowledged_alone(answered) or alone.acknowledged(answered)
            assert ordinary.acknowledged(answered) == known
        elif isinstance(event, SendError) and event is not SendError.TOO_LATE and answered is not None:
            assert alone.failed(answered, event, now=now) == ordinary.failed(answered, event, now=now)
        assert alone.expire(now=now) == ordinary.expire(now=now)
        for each in (alone, ordinary):
            if each.must_renew:
                each.renew()
        one, other = (
            (each.idle, each.epoch, each.open_span, each.next_deadline(), each.waiting()) for each in (alone, ordinary)
        )
        assert one == other


def test_a_message_is_not_sent_alone_before_the_back_off_of_an_earlier_failure_is_over() -> None:
    sender = lane()
    first = sender.send_alone("m0", 10, now=NOW)
    assert first is not None
    sender.failed(first, SendError.RETRY, now=NOW)
    assert sender.acknowledged_alone(first)  # a late reply
    assert sender.send_alone("m1", 10, now=NOW) is None
    assert full(sender)


def test_a_late_reply_of_an_earlier_epoch_does_not_acknowledge_a_message_sent_alone() -> None:
    sender = lane()
    first = sender.send_alone("m0", 10, now=NOW)
    assert first is not None
    sender.failed(first, SendError.FATAL, now=NOW)
    sender.resume()
    second = sender.send_alone("m1", 10, now=NOW)
    assert second is not None
    assert (first.first_sequence, second.first_sequence) == (0, 0)
    assert not sender.acknowledged_alone(first)
    assert sender.acknowledged_alone(second)
