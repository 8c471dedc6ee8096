"""Whom to tell what became of a message.

A ticket is told once per message, with a receipt or with the error. Which kind there is depends on how the
caller waits: `send` waits for one, `send_many` for all of its messages, `submit` hands out a future.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Protocol

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


class WaitingThread:
    """One thread, one message. A bare lock: half the cost of a future or an event."""

    __slots__ = ("_error", "_receipt", "_settled")

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


class Crowd(ABC):
    """Receipts of many messages, in the order in which they were given; done when all are settled.

    How many there are is known only at `close`, since the first are settled while later ones are still read.
    No lock: whoever comes last, the last message or `close`, sees what the other has written before.
    """

    def __init__(self) -> None:
        self._receipts: dict[int, Receipt] = {}
        self.errors: dict[int, LaneError] = {}
        self._expected: int | None = None
        self.over = False
        """The call has ended: whoever made it knows what there is to know."""
        self.left = False
        """It has ended with something else: nobody is told any more."""

    def stored_all(self, indexes: Iterable[int], receipts: Iterable[Receipt]) -> None:
        """`stored` for each of them."""
        self._receipts.update(zip(indexes, receipts, strict=True))
        if self._expected is not None:
            self._look()

    def stored(self, index: int, receipt: Receipt) -> None:
        self._receipts[index] = receipt
        if self._expected is not None:
            self._look()

    def failed(self, index: int, error: LaneError) -> None:
        self.errors[index] = error
        if self._expected is not None:
            self._look()

    def close(self, count: int) -> None:
        self._expected = count
        self._look()

    def result(self) -> list[Receipt]:
        """All receipts, or the error of the first message that has none."""
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self._receipts[index] for index in range(self._expected or 0)]

    def _look(self) -> None:
        if len(self._receipts) + len(self.errors) == self._expected:
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
