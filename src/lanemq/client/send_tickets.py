"""Whom to tell what became of a message.

A ticket is told once per message, with a receipt or with the error. Which kind there is depends on how the
caller waits: `send` waits for one, `send_many` for all of its messages, `submit` hands out a future.
"""

import asyncio
import threading
from concurrent.futures import Future
from typing import Protocol

from lanemq.client.receipt import Receipt
from lanemq.model.errors import LaneError


class Ticket(Protocol):
    """What the engine's outcomes are delivered to."""

    def stored(self, index: int, receipt: Receipt) -> None: ...

    def failed(self, index: int, error: LaneError) -> None: ...


class Unheard:
    """Nobody waits."""

    def stored(self, index: int, receipt: Receipt) -> None:
        pass

    def failed(self, index: int, error: LaneError) -> None:
        pass


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


class SubmittedFuture(Future[Receipt]):
    """A message that was accepted is sent: it cannot be cancelled, only waited for."""

    def cancel(self) -> bool:
        return False

    def stored(self, index: int, receipt: Receipt) -> None:
        self.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        self.set_exception(error)


class LoopFuture:
    """The asyncio twin; a waiter that was cancelled is not told."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Receipt]) -> None:
        self.future = future

    def stored(self, index: int, receipt: Receipt) -> None:
        if not self.future.done():
            self.future.set_result(receipt)

    def failed(self, index: int, error: LaneError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Crowd:
    """Receipts of many messages, in the order in which they were given; done when all are settled.

    The count is fixed only at `close`, because messages are settled while later ones are still being read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipts: dict[int, Receipt] = {}
        self._errors: dict[int, LaneError] = {}
        self._expected: int | None = None

    def stored(self, index: int, receipt: Receipt) -> None:
        with self._lock:
            self._receipts[index] = receipt
            complete = self._is_complete()
        if complete:
            self._completed()

    def failed(self, index: int, error: LaneError) -> None:
        with self._lock:
            self._errors[index] = error
            complete = self._is_complete()
        if complete:
            self._completed()

    def close(self, count: int) -> None:
        with self._lock:
            self._expected = count
            complete = self._is_complete()
        if complete:
            self._completed()

    def result(self) -> list[Receipt]:
        """All receipts, or the error of the first message that has none."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._receipts[index] for index in range(self._expected or 0)]

    def _is_complete(self) -> bool:
        return len(self._receipts) + len(self._errors) == self._expected

    def _completed(self) -> None:
        raise NotImplementedError


class WaitingCrowd(Crowd):
    """A thread waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._all = threading.Event()

    def wait(self) -> list[Receipt]:
        self._all.wait()
        return self.result()

    def _completed(self) -> None:
        self._all.set()


class AwaitedCrowd(Crowd):
    """A task waits for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Event()

    async def wait(self) -> list[Receipt]:
        await self._all.wait()
        return self.result()

    def _completed(self) -> None:
        self._all.set()
