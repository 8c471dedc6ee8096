"""Everything that one producer has accepted for one queue and that is not settled yet.

Invariant: the messages of a key are stored in the order of `append`, through time-outs, refusals and reconnects, and no
message of a key is stored behind one that failed.

- A message gets a sequence number when it is first sent, and keeps it when it is sent again (`sent_window`), so a
  broker that has it already answers "stored". `RequestBuilder` writes the number into the message.
- At most `window` batches are unanswered. With one, a later batch cannot overtake an unanswered earlier one, which a
  broker that does not check sequences (Apache RocketMQ) requires. A LaneMQ broker refuses gaps, which makes larger
  windows safe on one connection: batches behind a failed one are refused, and all of them are sent again in order.
- A batch that is not full waits while an earlier one is in flight (as in Nagle's algorithm): it is sent with the next
  reply at the latest, and grows until then. Under load batches grow by themselves, without load no message waits. A
  batch that has to be sent again does not wait.
- A refused batch is split in halves, and so are the halves that are refused again, until the illegal message is alone:
  only that one fails. After it, batches start with one message and double with every acknowledgement: where one message
  is illegal there may be more, and neither one nor many of them cost a request per message.
- A failed message leaves a hole in the numbers of its epoch. Waiting messages of its key are given up with it. Other
  keys wait until every batch is accounted for: what came before the hole is stored, and what was sent behind it is
  refused as a gap, which proves that it is not stored. Then they continue under a new epoch, with numbers from 0. The
  new epoch fences the old one, so a delayed batch of the old one cannot be stored behind newer messages.
- A failure that concerns the whole queue freezes it until `resume`.

A sender knows neither connections nor encodings; the engine translates those to the calls below.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from lanemq.core.backoff import Backoff
from lanemq.core.sending.frozen_keys import Freeze, FrozenKeys
from lanemq.core.sending.pending_line import PendingLine
from lanemq.core.sending.sent_window import Failed, SendBatch, SendError, SentWindow
from lanemq.model.errors import InvalidOption, LaneError, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

M = TypeVar("M")
C = TypeVar("C")
"""A call that sends many messages (`frozen_keys`)."""

FIRST_EPOCH: Final = Epoch(1)
DELIVERY_TIMEOUT: Final = Millis(120_000)
ANSWER_TIMEOUT: Final = Millis(3_000)
"""A request without a reply for so long is sent again over a new connection. A broker that is merely slow drops the
repeats by their stamps; a dead connection costs this time, once."""
SEND_BACKOFF: Final = Backoff(0.05, 2.0, 5)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How far a sender may run ahead of the broker's replies, how long it tries, and how large its batches are.

    Programs choose `delivery_timeout`; the others have values that suit all of them.
    """

    window: int = 4
    """Unanswered batches of a queue. Three hide the way to a broker in another zone. With more, a message that the
    broker refuses has more behind it that must be sent again."""
    delivery_timeout: Millis = DELIVERY_TIMEOUT
    backoff: Backoff = SEND_BACKOFF
    max_count: int = 1000
    """Messages of a batch. A broker handles a thousand small ones in a few milliseconds, in which others wait."""
    max_bytes: int = 1024 * 1024
    """Bytes of a batch. Apache brokers refuse batches over 4 MiB, and a batch that is sent again costs more."""
    answer_timeout: Millis = ANSWER_TIMEOUT

    def __post_init__(self) -> None:
        if self.window < 1 or self.delivery_timeout < 1:
            raise InvalidOption(
                f"window={self.window} and delivery_timeout={self.delivery_timeout} must both be at least 1"
            )


class QueueSender(Generic[M, C]):
    """One queue of one producer. Messages whose `key_of` is None have no order to keep."""

    def __init__(
        self,
        queue: MessageQueue,
        options: SendOptions,
        *,
        key_of: Callable[[M], str | None],
        checks_stamps: bool = True,
    ) -> None:
        self.queue = queue
        self.accepted = 0
        """Messages that it was ever given."""
        self.creates = False
        """The newest route is provisional: the first message creates the topic."""
        self.last_error: LaneError | None = None
        self.freeze: Freeze[C] | None = None
        """Set while the whole queue is frozen: nothing may be appended."""
        self.frozen_keys: FrozenKeys[C] = FrozenKeys()
        self._options = options
        self._epoch = FIRST_EPOCH
        self._key_of = key_of
        self._next_sequence = 0
        self._pending: PendingLine[M] = PendingLine(key_of)
        # Earlier than everything in `_pending`.
        self._sent: SentWindow[M] = SentWindow(1, key_of)
        self.set_broker(checks_stamps=checks_stamps)
        # How many of the waiting messages were sent before, in an epoch that has ended.
        self._recovering = 0
        self._failures = 0
        self._retry_at: Millis | None = None
        # After an illegal message: how many messages may share a batch.
        self._max_count: int | None = None

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is unanswered."""
        return not self._pending.count and not self._sent.batches

    @property
    def settled_before(self) -> int:
        """Every message is settled that was accepted when `accepted` was not larger than this number."""
        if self._sent.batches:
            return self._sent.first.number
        return self.accepted if self._pending.number is None else self._pending.number

    @property
    def must_renew(self) -> bool:
        """Every batch is accounted for after a failure: call `renew`."""
        return self._sent.hole is not None and self.freeze is None and self._sent.all_clear

    def set_broker(self, *, checks_stamps: bool) -> None:
        """Says whether the broker refuses gaps and drops repeats (LaneMQ) or not (Apache), which decides how many
        batches may be in flight. Batches in flight beyond that are waited for."""
        self.checks_stamps = checks_stamps
        self._sent.max_in_flight = self._options.window if checks_stamps else 1

    def waiting(self) -> list[M]:
        """Messages that were never sent, or are to be sent again under a new epoch."""
        return self._pending.messages()

    # messages in

    def append(self, messages: Sequence[M], sizes: Sequence[int], *, now: Millis) -> None:
        """Adds messages at the end. Creates nothing per message. Not while the queue is frozen."""
        assert self.freeze is None
        self._pending.add(messages, sizes, Millis(now + self._options.delivery_timeout), self.accepted)
        self.accepted += len(messages)

    # batches out

    def next_batch(self, now: Millis) -> SendBatch[M] | None:
        """The batch to send now, or None."""
        if not (self._pending.count and self._is_due()) and self._sent.to_repeat() is None:
            return None
        return self.take_batch(max_count=self._options.max_count, max_bytes=self._options.max_bytes, now=now)

    def _is_due(self) -> bool:
        """Whether the messages that wait are sent now, although more may come to share their batch."""
        pending, options = self._pending, self._options
        if pending.count >= options.max_count or pending.size >= options.max_bytes or self._recovering:
            return True
        return not self._sent.any_in_flight

    def take_batch(self, *, max_count: int, max_bytes: int, now: Millis) -> SendBatch[M] | None:
        """The next batch to send, or None: nothing to send, window full, or waiting after a failure.

        Failed batches are sent again first, unchanged. A message over `max_bytes` travels alone.
        """
        if self._retry_at is not None and now < self._retry_at:
            return None
        self._retry_at = None
        sent = self._sent
        again = sent.to_repeat()
        if again is not None:
            return sent.repeat(again, now) if sent.may_repeat(again) else None
        if not self._pending.count or not sent.has_room:
            return None
        batch = self._cut(max_count, max_bytes)
        self._next_sequence += len(batch.messages)
        if self._recovering:
            self._recovering = max(0, self._recovering - len(batch.messages))
        return sent.add(batch, now)

    def _cut(self, max_count: int, max_bytes: int) -> SendBatch[M]:
        count = self._max_count or max_count
        if count >= max_count:
            count, self._max_count = max_count, None
        cut = self._pending.cut(count, max_bytes)
        return SendBatch(self._epoch, self._next_sequence, tuple(cut.messages), cut.sizes, cut.deadline, cut.number)

    # replies in

    def awaits(self, batch: SendBatch[M], attempt: int) -> bool:
        """Whether a reply to this attempt is expected. Not if it was counted as lost, or the batch was given up."""
        return batch.attempt == attempt and batch.in_flight and batch in self._sent.batches

    def acknowledged(self, batch: SendBatch[M]) -> bool:
        """The broker has stored the batch. False if that was known, or the batch has been given up.

        A reply to an earlier attempt counts: it is the same batch.
        """
        if batch not in self._sent.batches:
            return False
        self._sent.remove(batch)
        self._failures = 0
        if self._max_count is not None:
            self._max_count *= 2
        return True

    def failed(
        self, batch: SendBatch[M], error: SendError, why: LaneError, *, now: Millis, wall: Millis
    ) -> Failed[M] | None:
        """The batch was not acknowledged. Returns what is given up, or None if all of it will be sent again."""
        if not self.awaits(batch, batch.attempt):
            return None
        self.last_error = why
        match error:
            case SendError.RETRY:
                self._back_off(now)
                return None
            case SendError.GAP | SendError.FORGOTTEN:
                return self._missing(batch, error, why, now, wall)
            case SendError.REFUSED:
                return self._refused(batch)
        return self._freeze(batch, error, Freeze(wall, why))

    # time

    def expire(self, *, now: Millis) -> Failed[M] | None:
        """Gives up messages whose deadline has passed.

        Newer messages in flight are not: their replies tell whether they are stored, or were refused for the hole
        before them and continue in the next epoch. A frozen queue has no next epoch.
        """
        deadline = self._deadline()
        if deadline is None or now < deadline:
            return None
        unknown, clear = self._sent.give_up_late(now if self.freeze is None else None)
        lost = self._give_up(SendError.TOO_LATE, unknown=unknown, unsent=clear)
        late = tuple(self._pending.take_late(now))
        left = self._give_up(SendError.TOO_LATE, unsent=late)
        return replace(lost, unsent=(*clear, *late), blocked=(*lost.blocked, *left.blocked))

    def next_deadline(self) -> Millis | None:
        """When to call `expire` and `next_batch` again at the latest."""
        times = [time for time in (self._deadline(), self._retry_at) if time is not None]
        return min(times, default=None)

    def is_overdue(self, now: Millis) -> bool:
        """Whether a request has had no reply for the time after which it is sent again."""
        oldest = min((batch.sent_at for batch in self._sent.in_flight()), default=now)
        return now - oldest >= self._options.answer_timeout

    # what the user decides

    def withdraw(self, key: str) -> tuple[M, ...]:
        """Gives up all waiting messages of the key. Messages in flight are settled as usual."""
        return (*self._sent.withdraw(key), *self._take_keys({key}))

    def resume(self) -> bool:
        """Resumes a frozen queue in a new epoch with sequences from 0. False if it is not frozen.

        Raises:
            UsageError: batches from before the failure are unanswered; the new epoch would fence them.
        """
        if self.freeze is None:
            return False
        if self._sent.batches:
            raise UsageError("earlier batches are unanswered: resume after they were acknowledged or given up")
        self.freeze = self.last_error = None
        self._sent.take_all()
        self._begin_epoch()
        return True

    # failures

    def renew(self) -> int:
        """Continues behind a hole in a new epoch; returns how many messages are sent again."""
        before = self._pending.count
        self._pending.put_back(self._sent.take_all())
        again = self._pending.count - before
        self._recovering += again
        self._begin_epoch()
        return again

    def _begin_epoch(self) -> None:
        self._epoch = Epoch(self._epoch + 1)
        self._next_sequence = 0
        self._failures = 0
        self._retry_at = None

    def _back_off(self, now: Millis) -> None:
        self._sent.mark_unanswered()
        self._failures += 1
        self._retry_at = Millis(now + self._options.backoff.delay(self._failures))

    def _missing(
        self, batch: SendBatch[M], error: SendError, why: LaneError, now: Millis, wall: Millis
    ) -> Failed[M] | None:
        sent = self._sent
        if sent.is_behind_hole(batch):
            batch.in_flight = batch.doubt = False
        elif sent.waits_before(batch):
            batch.in_flight = False
        elif not batch.sent_first:
            self._back_off(now)
        elif error is SendError.GAP:
            return self._freeze(batch, error, Freeze(wall, why))
        elif not batch.doubt:
            # Sent once and refused, with everything behind it: nothing of that is stored.
            batch.in_flight = False
            sent.begin_hole_at(batch.first_sequence)
        else:
            unknown = sent.give_up(lambda each: each.doubt)
            return self._give_up(error, unknown=unknown, after=batch.first_sequence)
        return None

    def _refused(self, batch: SendBatch[M]) -> Failed[M] | None:
        batch.in_flight = False
        if len(batch.messages) > 1:
            self._sent.split(batch)
            return None
        illegal = self._sent.give_up(lambda each: each is batch)
        self._max_count = 1
        if not illegal:
            return None
        refused, unknown = ((), illegal) if batch.doubt else (illegal, ())
        return self._give_up(SendError.REFUSED, refused=refused, unknown=unknown, after=batch.first_sequence)

    def _give_up(
        self,
        error: SendError,
        *,
        refused: tuple[M, ...] = (),
        unknown: tuple[M, ...] = (),
        unsent: tuple[M, ...] = (),
        after: int = -1,
    ) -> Failed[M]:
        """Gives up these messages, and everything of their keys that was appended behind them."""
        keys = {key for message in (*refused, *unknown, *unsent) if (key := self._key_of(message)) is not None}
        behind, clear = self._sent.give_up_keys(keys, after)
        return Failed(error, refused, unknown, unsent, behind, (*clear, *self._take_keys(keys)))

    def _take_keys(self, keys: set[str]) -> list[M]:
        gone = self._pending.take_keys(keys)
        self._recovering = min(self._recovering, self._pending.count)
        return gone

    def _freeze(self, refused: SendBatch[M], error: SendError, freeze: Freeze[C]) -> Failed[M]:
        """Freezes the queue. Batches before the refused one are not at fault and stay."""
        unknown, clear = self._sent.keep_before(refused)
        blocked = (*clear, *self._pending.messages())
        self._pending.clear()
        self._recovering = 0
        self.freeze = freeze
        if refused.doubt and error is not SendError.GAP:  # the broker checks for gaps before anything else
            return Failed(error, unknown=(*refused.left(), *unknown), blocked=blocked)
        return Failed(error, refused.left(), unknown, blocked=blocked)

    def _deadline(self) -> Millis | None:
        """The deadline of the oldest message."""
        if self._sent.batches:
            return self._sent.first.deadline
        return self._pending.deadline
