"""Whom to tell what became of a message.

A ticket is told once per message, with a receipt or with the error. Which kind there is depends on how the
caller waits: `send` waits for one, `send_many` for all of its messages, `submit` hands out a future. A caller who
waits may be interrupted, and is told nothing then: the call's ticket says so (`left`), and the key is closed if its
message fails (`send_freezes`).
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from lanemq._fast import compiled
from lanemq.client.receipt import Receipt
from lanemq.model.errors import LaneError


class Ticket(Protocol):
    """What the engine's outcomes are delivered to."""

    def stored(self, index: int, receipt: Receipt) -> None: ...

    def failed(self, index: int, error: LaneError) -> None: ...


class Unheard:
    """Nobody waits; a failure is in the log, nowhere else."""

    def stored(self, index: int, receipt: Receipt) -> None:
        pass

    def failed(self, index: int, error: LaneError) -> None:
        pass


UNHEARD = Unheard()


class Sole:
    """Of a call that sends one message and waits: it hears of a failure, unless it is interrupted before."""

    left = False
    """The call ended with something else: its caller is told nothing any more."""
    if_unheard: Callable[[], None] | None = None
    """Closes the key of the message, which has failed, should the caller be interrupted on the way to hearing it."""


class WaitingThread(Sole):
    """One thread, one message. A bare lock: half the cost of a future or an event."""

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

    def wait(self) -> Receipt:
        """The engine's deadlines end every wait, so none is needed here."""
        self._settled.acquire()
        if self._receipt is None:
            assert self._error is not None
            raise self._error
        return self._receipt


FEW = threading.Lock()
"""Guards the moment in which a future gets its condition or its result."""


@compiled
class SubmittedFuture(Future[Receipt]):
    """A future that costs little as long as nobody waits for it.

    A message that was accepted is sent, so it cannot be cancelled. The base class makes a condition variable
    for every future, which takes longer than sending the message; here it is made when somebody looks before
    the result is there.
    """

    _made: threading.Condition | None = None
    _state = "PENDING"
    _result = None
    _exception = None

    def __init__(self) -> None:
        """What the base class would set here is set above, or when the condition is made."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with FEW:
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
        """For whoever holds the lock. False if somebody looks: a waiter, or a callback, has to be told then."""
        if self._made is not None:
            return False
        self._state = "FINISHED"
        self._result = receipt
        return True

    def stored(self, index: int, receipt: Receipt) -> None:
        with FEW:
            if self.end_unseen(receipt):
                return
        self.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        self.set_exception(error)


class LoopFuture(asyncio.Future[Receipt]):
    """The asyncio counterpart; a waiter that was cancelled is not told."""

    def stored(self, index: int, receipt: Receipt) -> None:
        if not self.done():
            self.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        if not self.done():
            self.set_exception(error)


class WaitingTask(Sole, LoopFuture):
    """One task, one message."""


@compiled
def put_in_place(receipts: list[Any], indexes: Iterable[int], some: Iterable[Receipt]) -> None:
    """Each of them where its index says."""
    for index, receipt in zip(indexes, some, strict=True):
        receipts[index] = receipt


class Crowd(ABC):
    """Receipts of many messages, in the order in which they were given; done when all are settled.

    How many there are is known only at `close`, since the first are settled while later ones are still read. They are
    kept as they come, a batch at a time, and put in order at the end. Readers of several connections may come at once.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[Sequence[int], Sequence[Receipt]]] = []
        self._settled = 0
        self._guard = threading.Lock()
        self.errors: dict[int, LaneError] = {}
        self._expected: int | None = None
        self.over = False
        """The call has ended: whoever made it knows what there is to know."""
        self.left = False
        """It has ended with something else: nobody is told any more."""

    def stored_all(self, indexes: Sequence[int], receipts: Sequence[Receipt]) -> None:
        """`stored` for each of them."""
        with self._guard:
            self._batches.append((indexes, receipts))
            self._settled += len(indexes)
            self._look()

    def stored(self, index: int, receipt: Receipt) -> None:
        self.stored_all((index,), (receipt,))

    def failed(self, index: int, error: LaneError) -> None:
        with self._guard:
            self.errors[index] = error
            self._settled += 1
            self._look()

    def close(self, count: int) -> None:
        with self._guard:
            self._expected = count
            self._look()

    def result(self) -> list[Receipt]:
        """All receipts, or the error of the first message that has none."""
        if self.errors:
            # Not kept here: it leads to the frames that it passes, to the parcels in them, and so back to this.
            errors, self.errors = self.errors, {}
            raise errors[min(errors)]
        receipts: list[Any] = [None] * self._settled
        for indexes, some in self._batches:
            put_in_place(receipts, indexes, some)
        return receipts

    def _look(self) -> None:
        if self._settled == self._expected:
            self._completed()

    @abstractmethod
    def _completed(self) -> None: ...


class WaitingCrowd(Crowd):
    """A thread waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._all = threading.Event()

    def wait(self) -> None:
        self._all.wait()

    def _completed(self) -> None:
        self._all.set()


class AwaitedCrowd(Crowd):
    """A task waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Event()

    async def wait(self) -> None:
        await self._all.wait()

    def _completed(self) -> None:
        self._all.set()
