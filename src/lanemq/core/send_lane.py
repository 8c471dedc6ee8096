"""The messages of one producer for one queue, on their way to the broker.

Rule: they are stored in the order of `offer`, through time-outs, refusals and reconnects.

- Every message gets its sequence number at the offer, once. A batch keeps its messages and numbers for life,
  so what is sent again is byte for byte what was sent before, and a broker that knows it answers "stored".
- At most `window` batches are unanswered. With window 1 a later batch cannot pass an unanswered earlier one:
  that is the setting for a broker that does not check sequences (Apache RocketMQ). A LaneMQ broker refuses
  gaps, which makes larger windows safe, on one connection: batches behind a failed one are refused, and all
  of them are sent again in order.
- A message that will not be stored, or of which nobody can tell, freezes the lane: nothing behind it may pass.
  `resume` opens a new epoch with sequences from 0, since the old epoch's numbers have a hole now. The broker
  fences the old epoch, so a straggler still in some buffer can no longer be stored behind newer messages.

It does not know connections or answers' encodings; the shell translates those to the calls below.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice, repeat
from typing import Final, Generic, TypeVar

from lanemq.core.retry_policy import Backoff
from lanemq.model.errors import InvalidOption, LaneFrozen, UsageError
from lanemq.model.units import Epoch, Millis

M = TypeVar("M")

DELIVERY_TIMEOUT: Final = Millis(120_000)
SEND_BACKOFF: Final = Backoff(Millis(50), 2.0, Millis(5_000))


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How far a lane may run ahead of the broker's answers, and how long it tries."""

    window: int = 1
    delivery_timeout: Millis = DELIVERY_TIMEOUT
    backoff: Backoff = SEND_BACKOFF

    def __post_init__(self) -> None:
        if self.window < 1 or self.delivery_timeout < 1:
            raise InvalidOption(
                f"window={self.window} and delivery_timeout={self.delivery_timeout} must both be at least 1"
            )


class SendError(Enum):
    """Why a batch was not acknowledged."""

    RETRY = "may succeed later"
    """Busy, timed out, connection lost: nobody knows, or not now."""
    GAP = "the broker misses an earlier message"
    """Expected behind a failed batch; a reason to freeze when everything earlier was acknowledged."""
    FATAL = "will never be stored"
    """The message is illegal, or the producer is fenced."""
    TOO_LATE = "not acknowledged within the delivery timeout"


@dataclass(frozen=True, slots=True)
class SendBatch(Generic[M]):
    """One request: these messages with sequences first_sequence, first_sequence + 1, ... of this epoch."""

    epoch: Epoch
    first_sequence: int
    messages: tuple[M, ...]
    size: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed(Generic[M]):
    """Messages that are given up, with the reason; the lane is frozen behind them.

    `unknown` may or may not be stored. `blocked` were never sent and are certainly not.
    """

    error: SendError
    refused: tuple[M, ...] = ()
    unknown: tuple[M, ...] = ()
    blocked: tuple[M, ...] = ()


@dataclass(slots=True)
class _Sent(Generic[M]):
    first_sequence: int
    messages: tuple[M, ...]
    size: int
    deadline: Millis
    """Of its first message, which is the oldest."""
    attempt: int = 0
    in_flight: bool = False
    sent_first: bool = False
    """Everything earlier was acknowledged when it was sent last, so a gap cannot come from an open retry."""


class SendLane(Generic[M]):
    """One queue's lane of one producer."""

    def __init__(self, options: SendOptions, *, epoch: Epoch) -> None:
        self._options = options
        self._epoch = epoch
        self._next_sequence = 0
        # (message, size, deadline), in the order of their sequences.
        self._pending: deque[tuple[M, int, Millis]] = deque()
        # Batches sent at least once and not acknowledged, ascending by sequence; all before `_pending`.
        self._unanswered: deque[_Sent[M]] = deque()
        self._failures = 0
        self._retry_at: Millis | None = None
        self._frozen: SendError | None = None

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def frozen(self) -> SendError | None:
        return self._frozen

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is unanswered."""
        return not self._pending and not self._unanswered

    @property
    def open_span(self) -> int:
        """How many were offered since the oldest that is neither acknowledged nor given up, itself included."""
        if self._unanswered:
            return self._next_sequence - self._unanswered[0].first_sequence
        return len(self._pending)

    def offer(self, message: M, size: int, *, now: Millis) -> int:
        """Queue a message; its sequence number in the present epoch.

        Raises:
            LaneFrozen: an earlier message failed; nothing may pass it before `resume`.
        """
        if self._frozen is not None:
            raise self._refusal(self._frozen)
        self._pending.append((message, size, Millis(now + self._options.delivery_timeout)))
        self._next_sequence += 1
        return self._next_sequence - 1

    def offer_all(self, messages: Sequence[M], sizes: Sequence[int], *, now: Millis) -> int:
        """As `offer` for each of them; the first one's sequence number. Nothing is created per message."""
        if self._frozen is not None:
            raise self._refusal(self._frozen)
        first, deadline = self._next_sequence, Millis(now + self._options.delivery_timeout)
        self._pending.extend(zip(messages, sizes, repeat(deadline), strict=False))
        self._next_sequence = first + len(messages)
        return first

    def take_batch(self, *, max_count: int, max_bytes: int, now: Millis) -> SendBatch[M] | None:
        """The next request to send, or None: nothing to send, window full, or waiting after a failure.

        What failed is sent again first, cut exactly as before. A message over `max_bytes` travels alone.
        """
        if self._retry_at is not None and now < self._retry_at:
            return None
        self._retry_at = None
        again = next((batch for batch in self._unanswered if not batch.in_flight), None)
        if again is not None:
            return self._send(again)
        if not self._pending or len(self._unanswered) >= self._options.window:
            return None
        fresh = self._cut(max_count, max_bytes)
        self._unanswered.append(fresh)
        return self._send(fresh)

    def acknowledged(self, batch: SendBatch[M]) -> bool:
        """The broker has stored it; False if that was known, or the batch was given up meanwhile.

        An answer to an earlier attempt counts: it is the same batch.
        """
        found = self._find(batch)
        if found is None:
            return False
        self._unanswered.remove(found)
        self._failures = 0
        return True

    def failed(self, batch: SendBatch[M], error: SendError, *, now: Millis) -> Failed[M] | None:
        """The batch was not acknowledged; what is given up for that, or None when it will be retried."""
        found = self._find(batch)
        if found is None or found.attempt != batch.attempt or not found.in_flight:
            return None  # an answer to an attempt that was already counted as lost
        if error is SendError.RETRY or (error is SendError.GAP and not found.sent_first):
            self._back_off(now)
            return None
        return self._freeze(found, error)

    def connection_lost(self, *, now: Millis) -> None:
        """Every batch in flight is unanswered for good; all go out again, in order, from the first."""
        if any(batch.in_flight for batch in self._unanswered):
            self._back_off(now)

    def expire(self, *, now: Millis) -> Failed[M] | None:
        """Give up when the oldest message has waited longer than the delivery timeout."""
        deadline = self._deadline()
        if deadline is None or now < deadline:
            return None
        unknown = _all(batch.messages for batch in self._unanswered)
        self._unanswered.clear()
        return self._give_up(SendError.TOO_LATE, unknown=unknown)

    def next_deadline(self) -> Millis | None:
        """When to call `expire` and `take_batch` again, if nothing happens before."""
        times = [time for time in (self._deadline(), self._retry_at) if time is not None]
        return min(times, default=None)

    def resume(self) -> Epoch:
        """Go on after a freeze, in a new epoch with sequences from 0.

        Raises:
            UsageError: batches from before the failure are unanswered; the new epoch would fence them out.
        """
        if self._unanswered:
            raise UsageError("earlier batches are unanswered: resume after they were acknowledged or given up")
        if self._frozen is not None:
            self._epoch = Epoch(self._epoch + 1)
            self._next_sequence = 0
            self._frozen = None
            self._failures = 0
            self._retry_at = None
        return self._epoch

    def _refusal(self, frozen: SendError) -> LaneFrozen:
        return LaneFrozen(
            f"an earlier message of this queue failed ({frozen.value}): "
            f"decide what to do about it, then resume the lane"
        )

    def _send(self, batch: _Sent[M]) -> SendBatch[M]:
        batch.attempt += 1
        batch.in_flight = True
        batch.sent_first = self._unanswered[0] is batch
        return SendBatch(self._epoch, batch.first_sequence, batch.messages, batch.size, batch.attempt)

    def _cut(self, max_count: int, max_bytes: int) -> _Sent[M]:
        pending = self._pending
        first = self._next_sequence - len(pending)
        sizes = list(accumulate([size for _, size, _ in islice(pending, max_count)]))
        count = bisect_right(sizes, max_bytes) or 1
        deadline = pending[0][2]
        messages = tuple([pending.popleft()[0] for _ in range(count)])
        return _Sent(first, messages, sizes[count - 1], deadline)

    def _find(self, batch: SendBatch[M]) -> _Sent[M] | None:
        if batch.epoch != self._epoch:
            return None
        return next((sent for sent in self._unanswered if sent.first_sequence == batch.first_sequence), None)

    def _back_off(self, now: Millis) -> None:
        for batch in self._unanswered:
            batch.in_flight = False
        self._failures += 1
        self._retry_at = Millis(now + self._options.backoff.delay(self._failures))

    def _freeze(self, refused: _Sent[M], error: SendError) -> Failed[M]:
        # Earlier batches are innocent and stay; what was sent behind the refused one may be stored or not.
        behind: list[_Sent[M]] = []
        while self._unanswered[-1] is not refused:
            behind.insert(0, self._unanswered.pop())
        self._unanswered.pop()
        unknown = _all(batch.messages for batch in behind)
        return self._give_up(error, refused=refused.messages, unknown=unknown)

    def _give_up(self, error: SendError, *, refused: tuple[M, ...] = (), unknown: tuple[M, ...] = ()) -> Failed[M]:
        blocked = tuple(message for message, _, _ in self._pending)
        self._pending.clear()
        self._frozen = error
        return Failed(error, refused, unknown, blocked)

    def _deadline(self) -> Millis | None:
        """Of the oldest message."""
        if self._unanswered:
            return self._unanswered[0].deadline
        return self._pending[0][2] if self._pending else None


def _all(parts: Iterable[tuple[M, ...]]) -> tuple[M, ...]:
    return tuple(message for part in parts for message in part)
