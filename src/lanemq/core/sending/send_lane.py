"""The messages of one producer for one queue, on their way to the broker.

Invariant: the messages of a key are stored in the order of `offer`, through time-outs, refusals and reconnects, and no
message of a key is stored behind one that failed.

- Every message has a sequence number, its place in the line, and keeps it when it is sent again (`sent_window`), so a
  broker that has it already answers "stored". `RequestBuilder` writes the number into the message.
- At most `window` batches are unanswered. With window 1 a later batch cannot overtake an unanswered earlier one, which
  a broker that does not check sequences (Apache RocketMQ) requires. A LaneMQ broker refuses gaps, which makes larger
  windows safe on one connection: batches behind a failed one are refused, and all of them are sent again in order.
- A refused batch is split in halves, and so are the halves that are refused again, until the illegal message is alone:
  only that one fails. After it, batches start with one message and double with every acknowledgement: where one message
  is illegal there may be more, and neither one nor many of them cost a request per message.
- A failed message leaves a hole in the numbers of its epoch. Waiting messages of its key are given up with it. Other
  keys wait until every batch is accounted for: what came before the hole is stored, and what was sent behind it is
  refused as a gap, which proves that it is not stored. Then they continue under a new epoch, with numbers from 0. The
  new epoch fences the old one, so a delayed batch of the old one cannot be stored behind newer messages.
- A failure that concerns the whole queue freezes the lane until `resume`.

The lane knows neither connections nor encodings; the client translates those to the calls below.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from lanemq.core.backoff import Backoff
from lanemq.core.sending.pending_line import PendingLine
from lanemq.core.sending.sent_window import Failed, SendBatch, SendError, SentBatch, SentWindow
from lanemq.model.errors import InvalidOption, LaneFrozen, UsageError
from lanemq.model.units import Epoch, Millis

M = TypeVar("M")

DELIVERY_TIMEOUT: Final = Millis(120_000)
SEND_BACKOFF: Final = Backoff(0.05, 2.0, 5)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How far a lane may run ahead of the broker's replies, and how long it tries."""

    window: int = 1
    delivery_timeout: Millis = DELIVERY_TIMEOUT
    backoff: Backoff = SEND_BACKOFF

    def __post_init__(self) -> None:
        if self.window < 1 or self.delivery_timeout < 1:
            raise InvalidOption(
                f"window={self.window} and delivery_timeout={self.delivery_timeout} must both be at least 1"
            )


class SendLane(Generic[M]):
    """One queue's lane of one producer. Messages whose `key_of` is None have no order to keep."""

    def __init__(
        self,
        options: SendOptions,
        *,
        epoch: Epoch,
        key_of: Callable[[M], str | None],
        total_size: Callable[[Sequence[M]], int] = len,
    ) -> None:
        self._options = options
        self._total_size = total_size
        self._moved = 0
        self._epoch = epoch
        self._key_of = key_of
        self._next_sequence = 0
        # In the order of their sequences.
        self._pending: PendingLine[M] = PendingLine(key_of)
        # Earlier than everything in `_pending`.
        self._sent: SentWindow[M] = SentWindow(options.window, key_of)
        self._left_out = LeftOut()
        self._failures = 0
        self._retry_at: Millis | None = None
        self._frozen: SendError | None = None
        # After an illegal message: how many messages may share a batch.
        self._max_count: int | None = None

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def frozen(self) -> SendError | None:
        """Why nothing may be offered, if the whole lane is frozen. The lane does not know frozen keys."""
        return self._frozen

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is unanswered."""
        return not self._pending and not self._sent.batches

    @property
    def open_span(self) -> int:
        """How many messages were offered since the oldest open one, itself included.

        After messages were given up it may be too large for a while, never too small.
        """
        oldest = self._oldest()
        return self._next_sequence - oldest + self._left_out.since(oldest)

    @property
    def must_renew(self) -> bool:
        """Every batch is accounted for after a failure: call `renew`."""
        return self._sent.hole is not None and self._frozen is None and self._sent.all_clear

    @property
    def must_repeat(self) -> bool:
        """A batch waits to be sent again."""
        return self._sent.to_repeat() is not None

    def set_window(self, window: int) -> None:
        """Changes the window. Batches in flight beyond it are waited for."""
        self._options = replace(self._options, window=window)
        self._sent.max_in_flight = window

    def waiting(self) -> list[M]:
        """Messages that were never sent, or are to be sent again under a new epoch."""
        return self._pending.messages()

    @property
    def waiting_count(self) -> int:
        return len(self._pending)

    def take_moved(self) -> int:
        """Bytes that joined the waiting messages since the last call, or left them (negative), except by `offer` and
        `take_batch`, whose sizes the caller knows.
        """
        moved, self._moved = self._moved, 0
        return moved

    def in_flight(self) -> set[int]:
        """First sequences of the batches that a reply is expected for."""
        return {batch.first_sequence for batch in self._sent.in_flight()}

    def offer(self, message: M, size: int, *, now: Millis) -> int:
        """Adds a message; returns its sequence number in the current epoch, valid as long as nothing before it fails.

        Raises:
            LaneFrozen: the lane is frozen until `resume`.
        """
        if self._frozen is not None:
            raise self._refusal(self._frozen)
        self._pending.add((message,), (size,), Millis(now + self._options.delivery_timeout))
        self._next_sequence += 1
        return self._next_sequence - 1

    def offer_all(self, messages: Sequence[M], sizes: Sequence[int], *, now: Millis) -> int:
        """Calls `offer` for each; returns the first one's sequence number. Creates nothing per message."""
        if self._frozen is not None:
            raise self._refusal(self._frozen)
        first = self._next_sequence
        self._pending.add(messages, sizes, Millis(now + self._options.delivery_timeout))
        self._next_sequence = first + len(messages)
        return first

    def send_alone(self, message: M, size: int, *, now: Millis) -> SendBatch[M] | None:
        """`offer` and `take_batch` in one step, for a lane that is idle and has no failure behind it; otherwise None,
        and nothing is changed.
        """
        sent = self._sent
        if (
            self._pending
            or sent.batches
            or sent.hole is not None
            or self._frozen is not None
            or self._retry_at is not None
            or self._max_count is not None
        ):
            return None
        first = self._next_sequence
        self._next_sequence = first + 1
        deadline = Millis(now + self._options.delivery_timeout)
        return sent.add(SentBatch(first, (message,), [size], deadline), self._epoch)

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
            return sent.send(again, self._epoch) if sent.may_repeat(again) else None
        if not sent.has_room or not self._pending:
            return None
        return sent.add(self._cut(max_count, max_bytes), self._epoch)

    def acknowledged(self, batch: SendBatch[M]) -> bool:
        """The broker has stored the batch. False if that was known, or the batch has been given up.

        A reply to an earlier attempt counts: it is the same batch.
        """
        found = self._find(batch)
        if found is None:
            return False
        self._sent.remove(found)
        self._failures = 0
        if self._max_count is not None:
            self._max_count *= 2
        return True

    def acknowledged_alone(self, batch: SendBatch[M]) -> bool:
        """As `acknowledged`, for the only batch of a lane in which nothing waits and nothing has failed: the lane is
        idle afterwards. False if it is not so, and nothing is changed.
        """
        batches = self._sent.batches
        if len(batches) != 1 or self._pending or self._sent.hole is not None or self._max_count is not None:
            return False
        (found,) = batches
        if (
            batch.epoch != self._epoch
            or found.first_sequence != batch.first_sequence
            or len(found.messages) != len(batch.messages)
            or found.given_up
        ):
            return False
        batches.clear()
        self._failures = 0
        return True

    def failed(self, batch: SendBatch[M], error: SendError, *, now: Millis) -> Failed[M] | None:
        """The batch was not acknowledged. Returns what is given up, or None if all of it will be sent again."""
        found = self._find(batch)
        if found is None or found.attempt != batch.attempt or not found.in_flight:
            return None  # a reply to an attempt that was already counted as lost
        match error:
            case SendError.RETRY:
                self._back_off(now)
                return None
            case SendError.GAP | SendError.FORGOTTEN:
                return self._missing(found, error, now)
            case SendError.REFUSED:
                return self._refused(found)
        return self._freeze(found, error)

    def expire(self, *, now: Millis) -> Failed[M] | None:
        """Gives up messages whose deadline has passed.

        Younger messages in flight are not: their replies tell whether they are stored, or were refused for the hole
        before them and continue in the next epoch. A frozen lane has no next epoch.
        """
        deadline = self._deadline()
        if deadline is None or now < deadline:
            return None
        unknown, clear = self._sent.give_up_late(now if self._frozen is None else None)
        lost = self._give_up(SendError.TOO_LATE, unknown=unknown, unsent=clear)
        late = tuple(self._pending.take_late(now))
        self._shorten(len(late))
        self._moved -= self._total_size(late)
        left = self._give_up(SendError.TOO_LATE, unsent=late)
        return replace(lost, unsent=(*clear, *late), blocked=(*lost.blocked, *left.blocked))

    def next_deadline(self) -> Millis | None:
        """When to call `expire` and `take_batch` again at the latest."""
        times = [time for time in (self._deadline(), self._retry_at) if time is not None]
        return min(times, default=None)

    def renew(self) -> int:
        """Continues behind a hole in a new epoch; returns how many messages are sent again."""
        oldest, before = self._oldest(), self._next_sequence
        again = self._sent.take_all()
        self._pending.put_back(again)
        self._moved += self._total_size([message for message, _, _ in again])
        self._left_out.renumbered(oldest)
        self._begin_epoch()
        gone = before - oldest - self._next_sequence
        self._left_out.leave(gone, oldest=0, next_sequence=self._next_sequence)
        return len(again)

    def withdraw(self, key: str) -> tuple[M, ...]:
        """Gives up all waiting messages of the key. Messages in flight are settled as usual."""
        return (*self._sent.withdraw(key), *self._take_from_line({key}))

    def resume(self) -> Epoch:
        """Resumes a frozen lane in a new epoch with sequences from 0.

        Raises:
            UsageError: batches from before the failure are unanswered; the new epoch would fence them.
        """
        if self._frozen is None:
            return self._epoch
        if self._sent.batches:
            raise UsageError("earlier batches are unanswered: resume after they were acknowledged or given up")
        self._frozen = None
        self._left_out.clear()
        self._sent.take_all()
        return self._begin_epoch()

    # sending

    def _refusal(self, frozen: SendError) -> LaneFrozen:
        return LaneFrozen(
            f"an earlier message of this queue failed ({frozen.value}): "
            f"decide what to do about it, then resume the lane"
        )

    def _cut(self, max_count: int, max_bytes: int) -> SentBatch[M]:
        count = self._max_count or max_count
        if count >= max_count:
            count, self._max_count = max_count, None
        first, deadline = self._next_sequence - len(self._pending), self._pending.deadline
        assert deadline is not None
        messages, sizes = self._pending.cut(count, max_bytes)
        return SentBatch(first, tuple(messages), sizes, deadline)

    def _find(self, batch: SendBatch[M]) -> SentBatch[M] | None:
        return self._sent.find(batch) if batch.epoch == self._epoch else None

    # failures

    def _back_off(self, now: Millis) -> None:
        self._sent.mark_unanswered()
        self._failures += 1
        self._retry_at = Millis(now + self._options.backoff.delay(self._failures))

    def _missing(self, found: SentBatch[M], error: SendError, now: Millis) -> Failed[M] | None:
        sent = self._sent
        if sent.is_behind_hole(found):
            found.in_flight = found.doubt = False
        elif sent.waits_before(found):
            found.in_flight = False
        elif not found.sent_first:
            self._back_off(now)
        elif error is SendError.GAP:
            return self._freeze(found, error)
        elif not found.doubt:
            # Sent once and refused, with everything behind it: nothing of that is stored.
            found.in_flight = False
            sent.begin_hole_at(found.first_sequence)
        else:
            unknown = sent.give_up(lambda batch: batch.doubt)
            return self._give_up(error, unknown=unknown, after=found.first_sequence)
        return None

    def _refused(self, found: SentBatch[M]) -> Failed[M] | None:
        found.in_flight = False
        if len(found.messages) > 1:
            self._sent.split(found)
            return None
        illegal = self._sent.give_up(lambda batch: batch is found)
        self._max_count = 1
        if not illegal:
            return None
        refused, unknown = ((), illegal) if found.doubt else (illegal, ())
        return self._give_up(SendError.REFUSED, refused=refused, unknown=unknown, after=found.first_sequence)

    def _give_up(
        self,
        error: SendError,
        *,
        refused: tuple[M, ...] = (),
        unknown: tuple[M, ...] = (),
        unsent: tuple[M, ...] = (),
        after: int = -1,
    ) -> Failed[M]:
        """Gives up these messages, and everything of their keys that was offered behind them."""
        keys = {key for message in (*refused, *unknown, *unsent) if (key := self._key_of(message)) is not None}
        behind, clear = self._sent.give_up_keys(keys, after)
        return Failed(error, refused, unknown, unsent, behind, (*clear, *self._take_from_line(keys)))

    def _take_from_line(self, keys: set[str]) -> list[M]:
        gone = self._pending.take_keys(keys)
        if gone:
            self._shorten(len(gone))
            self._moved -= self._total_size(gone)
        return gone

    def _freeze(self, refused: SentBatch[M], error: SendError) -> Failed[M]:
        """Freezes the lane. Batches before the refused one are not at fault and stay."""
        unknown, clear = self._sent.keep_before(refused)
        waiting = self.waiting()
        blocked = (*clear, *waiting)
        self._moved -= self._total_size(waiting)
        self._pending.clear()
        self._frozen = error
        if refused.doubt and error is not SendError.GAP:  # the broker checks for gaps before anything else
            return Failed(error, unknown=(*refused.left(), *unknown), blocked=blocked)
        return Failed(error, refused.left(), unknown, blocked=blocked)

    def _begin_epoch(self) -> Epoch:
        self._epoch = Epoch(self._epoch + 1)
        self._next_sequence = len(self._pending)
        self._failures = 0
        self._retry_at = None
        return self._epoch

    # sequence numbers

    def _oldest(self) -> int:
        """The sequence of the oldest open message, or of the next one."""
        if self._sent.batches:
            return self._sent.first.first_sequence
        return self._next_sequence - len(self._pending)

    def _shorten(self, count: int) -> None:
        """`count` waiting messages have left. They were never sent, so their numbers are free."""
        self._next_sequence -= count
        self._left_out.leave(count, oldest=self._oldest(), next_sequence=self._next_sequence)

    def _deadline(self) -> Millis | None:
        """The deadline of the oldest message."""
        if self._sent.batches:
            return self._sent.first.deadline
        return self._pending.deadline


class LeftOut:
    """Counts messages that were given up while older ones were open. Usually none.

    It keeps the span of open messages right when messages leave the middle of the line. The span must not come out too
    small while an old message is open, or a flush would end before it; and what left the middle is counted only until
    everything that was in line then is gone, or a flush would never end.

    Memory: at most one entry per message in line; none if the line is empty.
    """

    def __init__(self) -> None:
        # Ascending pairs of a sequence and a count: so many left, all of them before the message with that sequence.
        # The sequences are those of the first epoch, as if no message had been renumbered.
        self._left: deque[tuple[int, int]] = deque()
        self._total = 0
        self._renumbered = 0

    def __len__(self) -> int:
        return len(self._left)

    def since(self, oldest: int) -> int:
        """How many left the line behind the oldest open message, or shortly before it."""
        left, oldest = self._left, oldest + self._renumbered
        while left and left[0][0] <= oldest:
            self._total -= left.popleft()[1]
        return self._total

    def leave(self, count: int, *, oldest: int, next_sequence: int) -> None:
        """`count` messages left; the line now reaches from `oldest` to `next_sequence`."""
        left, together, end = self._left, count, next_sequence + self._renumbered
        while left and left[-1][0] >= end:
            together += left.pop()[1]
        if together:
            left.append((end, together))
        self._total += count
        self.since(oldest)

    def renumbered(self, oldest: int) -> None:
        """The message with sequence `oldest` now has 0, and those behind it follow."""
        self.since(oldest)
        self._renumbered += oldest

    def clear(self) -> None:
        """The line is empty and starts again."""
        self._left.clear()
        self._total = self._renumbered = 0
