"""Waiters: objects that are notified when a message has been stored or has failed.

A waiter is notified once per message, with a receipt or an error. Its class follows from the call: `send` waits for one
message, `send_many` for all of its messages, `submit` returns a future. A caller that waits may be interrupted and then
does not learn the outcome: its waiter is marked `interrupted`, and if the message fails, its key is frozen (`freezes`).
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from lanemq._fast import compiled
from lanemq.background_log import ClientLog
from lanemq.client.bell import Bell
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.receipts import ReceiptTable, Sent
from lanemq.client.receipt import Receipt, Receipts, StoredAs
from lanemq.model.errors import LaneError, LaneFrozen, UsageError
from lanemq.model.queue import MessageQueue

log = ClientLog(__name__, aside=True)


class Waiter(Protocol):
    """What every waiter offers."""

    def stored(self, index: int, receipt: Receipt) -> None: ...

    def failed(self, index: int, error: LaneError) -> None: ...


class NoWaiter:
    """The waiter of a message whose outcome no caller asks for."""

    def stored(self, index: int, receipt: Receipt) -> None:
        pass

    def failed(self, index: int, error: LaneError) -> None:
        pass


NO_WAITER = NoWaiter()


class OnewayWaiter(NoWaiter):
    """The waiter of `send_oneway`. What fails after the call appears only in the log."""

    _refusal: LaneError | None = None
    _has_ended = False

    def failed(self, index: int, error: LaneError) -> None:
        self._refusal = error
        if self._has_ended and isinstance(error, LaneFrozen):
            log.warning("a message of send_oneway was not sent: %s", error)

    def raise_refusal(self) -> None:
        """Raises the error of a message that was refused before the call ended, because its key is frozen."""
        self._has_ended = True
        if self._refusal is not None:
            raise self._refusal


class SingleWaiter:
    """The waiter of `send`: one message whose caller waits for the outcome."""

    interrupted = False
    """The call ended early; its caller does not learn the outcome."""
    on_interrupt: Callable[[], None] | None = None
    """Set when the message has failed: freezes its key if the caller is interrupted before it gets the error."""


class ThreadWaiter(SingleWaiter):
    """A thread waits. A bare lock: half the cost of a future or an event."""

    def __init__(self) -> None:
        self._settled = threading.Lock()
        self._settled.acquire()
        self._receipt: Receipt | None = None
        self._error: LaneError | None = None

    def stored(self, index: int, receipt: Receipt) -> None:
        self._receipt = receipt
        self._settled.release()

    def failed(self, index: int, error: LaneError) -> None:
        self._error = error
        self._settled.release()

    def wait(self, seconds: float | None) -> bool:
        """Waits until the message is settled; without a time-out the engine's deadline settles it. False if not yet."""
        return self._settled.acquire(timeout=-1 if seconds is None else seconds)

    def result(self) -> Receipt:
        if self._receipt is None:
            assert self._error is not None
            raise self._error
        return self._receipt


def receipt_seconds(options: ProducerOptions, waited_ms: int) -> float | None:
    """How long `send` may still wait for its receipt; None if the message's own deadline comes first."""
    if options.timeout >= options.delivery_timeout:
        return None
    return max(0.0, options.timeout - waited_ms / 1000)


FUTURE_LOCK = threading.Lock()
"""Guards the moment in which a `SubmittedFuture` gets its condition or its result."""


@compiled
class SubmittedFuture(Future[Receipt]):
    """The future of `submit`: cheap as long as no thread waits for it.

    The base class creates a condition variable for every future, which takes longer than sending the message. This
    class creates it when a caller looks before the result is there. A future cannot be cancelled, because a message
    that was accepted is sent.
    """

    _made: threading.Condition | None = None
    _state = "PENDING"
    _result = None
    _exception = None

    def __init__(self) -> None:
        """Sets nothing: the class attributes above replace what the base class would set."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with FUTURE_LOCK:
                if self._made is None:
                    self._waiters = []
                    self._done_callbacks: list[object] = []
                    self._made = threading.Condition()
        return self._made

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == "FINISHED"

    def result(self, timeout: float | None = None) -> Receipt:
        receipt: Receipt | None = self._result
        return super().result(timeout) if receipt is None else receipt

    def end_unseen(self, receipt: Receipt) -> bool:
        """Sets the result, with `FUTURE_LOCK` held. False if a thread waits or a callback is set: notify it instead."""
        if self._made is not None:
            return False
        self._state = "FINISHED"
        self._result = receipt
        return True

    def stored(self, index: int, receipt: Receipt) -> None:
        with FUTURE_LOCK:
            if self.end_unseen(receipt):
                return
        self.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        self.set_exception(error)


def leave_future(future: Any) -> None:
    """Fails the future of `submit` in a child process: message and callbacks belong to the parent.

    Locks are replaced, not used: a thread of the parent may have held them during the fork.
    """
    if future.done():
        return
    if future._made is not None:  # noqa: SLF001
        future._made = threading.Condition()  # noqa: SLF001
    error = UsageError("this message was submitted before a fork: its outcome is known in the parent")
    future._exception, future._state = error, "FINISHED"  # noqa: SLF001


@compiled
class LoopFuture(asyncio.Future[Receipt]):
    """The future of `AsyncProducer.submit`. It ignores the outcome if it was cancelled.

    The compiled twin is not a subclass, but `isinstance` and asyncio take it for an `asyncio.Future`. It costs less:
    see `_fast/loop_futures.pyx`.
    """

    def stored(self, index: int, receipt: Receipt) -> None:
        if not self.done():
            self.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        if not self.done():
            self.set_exception(error)


class TaskWaiter(SingleWaiter, LoopFuture):
    """A task waits."""


class BatchWaiter(ABC):
    """The waiter of `send_many`: collects the receipts of many messages, and wakes the caller when all are settled.

    Their number is known only at `close`, because the first messages are settled while later ones are still read. Safe
    for several reader threads.
    """

    def __init__(self) -> None:
        self._receipts = ReceiptTable(Receipt)
        self._settled = 0
        self._guard = threading.Lock()
        self.errors: dict[int, LaneError] = {}
        self._expected: int | None = None
        self.ended = False
        """The call has returned or raised the outcome: its caller knows it."""
        self.interrupted = False
        """The call ended early; its caller does not learn the outcome."""

    def stored_all(
        self, messages: Sequence[Sent], queue: MessageQueue, first_offset: int, stored: StoredAs, repeat: bool
    ) -> bool:
        """Messages are stored one behind the other. Does nothing, and returns False, if some are not of this call."""
        with self._guard:
            if not self._receipts.add(messages, self, queue, first_offset, stored, repeat):
                return False
            self._settled += len(messages)
            self._check_complete()
        return True

    def stored(self, index: int, receipt: Receipt) -> None:
        with self._guard:
            self._receipts.put(index, receipt)
            self._settled += 1
            self._check_complete()

    def failed(self, index: int, error: LaneError) -> None:
        with self._guard:
            self.errors[index] = error
            self._settled += 1
            self._check_complete()

    def close(self, count: int) -> None:
        """All messages were handed over; `count` is their number."""
        with self._guard:
            self._expected = count
            self._check_complete()

    def result(self) -> Receipts:
        """All receipts in order; raises the error of the first message that has none."""
        if self.errors:
            # Not kept here: a raised error refers to frames and their messages, which refer back to this waiter.
            errors, self.errors = self.errors, {}
            raise errors[min(errors)]
        return Receipts(self._receipts.get, self._settled)

    def _check_complete(self) -> None:
        if self._settled == self._expected:
            self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Wakes the caller."""


class ThreadBatchWaiter(BatchWaiter):
    """A thread waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._bell, self._all = Bell(), False

    def wait(self) -> None:
        self._bell.wait_until(lambda: self._all)

    def _wake(self) -> None:
        self._all = True
        self._bell.ring()


class TaskBatchWaiter(BatchWaiter):
    """A task waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Event()

    async def wait(self) -> None:
        await self._all.wait()

    def _wake(self) -> None:
        self._all.set()
