"""The blocking producer: threads, plain sockets, no event loop. Its calls; what is behind them is `producer_shell`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Self

from lanemq.client.producer.batch_block import Batch
from lanemq.client.producer.packing import Many, choice_of
from lanemq.client.producer.requests import extras_of
from lanemq.client.producer.shell import ProducerShell
from lanemq.client.producer.waiters import UNHEARD, SubmittedFuture, WaitingCrowd, WaitingThread
from lanemq.client.producer.work import CLOSE_SPARE_SECONDS
from lanemq.client.receipt import Receipt
from lanemq.core.sending.sharding import Selector
from lanemq.model.errors import LaneError, LaneFrozen
from lanemq.model.queue import MessageQueue


class Producer(ProducerShell):
    """Sends messages and keeps those of a key in order. Safe for any number of threads."""

    # sending

    def send(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> Receipt:
        """Stores one message and returns where it is; raises when it is not known to be stored.

        Interrupted, it leaves the message to its fate: if it fails, its key is frozen.
        """
        self._here.check_may_wait("send")
        ticket = WaitingThread()
        extras = extras_of(tag, keys, properties, delay_level)
        try:
            self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (ticket, True))
            return ticket.wait()
        except LaneError:
            raise
        except BaseException:
            self._leave(ticket)
            raise

    def submit(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> Future[Receipt]:
        """Takes its place in line at once; the future says how it ended. Waits only while the buffer is full.

        If it fails, its key is frozen: what was submitted of that key behind it fails with `LaneFrozen`, and so
        does what comes later, until `resume` or `drop`. Other keys go on.
        """
        if not (tag or keys or properties or delay_level or selector) and queue is None and type(key) is str:
            taken: Future[Receipt] | None = self._take(topic, key, value)
            if taken is not None:
                return taken
        ticket = SubmittedFuture()
        extras = extras_of(tag, keys, properties, delay_level)
        try:
            self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (ticket, False))
        except LaneFrozen as error:
            ticket.failed(0, error.with_traceback(None))  # which would lead back to the future, for ever
        return ticket

    def send_oneway(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> None:
        """Takes its place in line; nobody is told how it ended."""
        extras = extras_of(tag, keys, properties, 0)
        self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (UNHEARD, True))

    def send_many(self, topic: str, messages: Many) -> list[Receipt]:
        """Stores all messages, those of a key in the order given; the fast way for more than a few.

        Raises the error of the first message that failed; nothing behind it of its key is stored, others of the
        call may be. No more messages are read after a failure. Any other error (of `messages` itself, an
        interruption) ends the call at once: what was read before is sent, and if it fails, its keys are frozen.
        """
        self._here.check_may_wait("send_many")
        crowd, count, told = WaitingCrowd(), 0, False
        try:
            try:
                for run in self._packer.runs(messages, crowd):
                    self._accept_run(topic, run)
                    count += len(run)
            except LaneError as error:
                crowd.failed(count, error)  # it stands for its run; the caller hears of the earliest failure
                count += 1
            crowd.close(count)
            crowd.wait()
            told = True
            return crowd.result()
        finally:
            self._empty_inbox()
            with self._lock:
                self._engine.call_ended(crowd, told=told)

    def batch(self, topic: str) -> Batch:
        """`with producer.batch("orders") as batch: batch.add(value, key=...)` sends all at the end of the block."""
        return Batch(self, topic)

    # life

    def flush(self) -> None:
        """Waits until everything accepted so far is settled, one way or the other; not for what comes later."""
        self._here.check_may_wait("flush")
        self._settle(None)

    def resume(self, topic: str, *, key: str | int | None = None, queue: int | MessageQueue | None = None) -> None:
        """Opens a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        self._resume(self._route(topic), key, queue)

    def close(self) -> None:
        """Refuses new messages, settles what was accepted (at most `timeout` seconds), ends connections and threads.

        Called again, it waits until the first call has done that.
        """
        self._here.check_may_wait("close")
        with self._changed:
            is_second, self._closing = self._closing, True
            self._adjust_inbox()
            self._changed.notify_all()  # whoever waits for space waits in vain
        if is_second:
            self._ended.wait()
            return
        try:
            self._end()
        finally:
            self._ended.set()

    def _end(self) -> None:
        self._settle(self._options.timeout + CLOSE_SPARE_SECONDS)
        with self._lock:
            self._closed = True
        self._wake.set()
        self._keeper.join()
        for link in tuple(self._links.values()):
            link.close()
        self._routes.close()
        self._empty_inbox()
        with self._lock:
            outcomes = self._engine.abandon()
        for outcome in outcomes:
            outcome.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
