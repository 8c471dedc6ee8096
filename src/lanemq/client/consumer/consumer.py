"""Messages by iteration: the program takes each message and decides about it.

    with Consumer("localhost:9876", group="audit", topics=["orders"]) as consumer:
        for message in consumer:
            ...
            consumer.done(message)

Messages of a key come in order: the next one follows only after `done` or `dead`; `retry` delivers the same one again.
Messages of other keys come in between. SIGTERM ends the iteration after the current message; `close` commits and
releases the queues.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar, Unpack

from lanemq.client.consumer.engine import EngineThread, without_resources
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.monitor import consumer_samples
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.signals import TERMINATION
from lanemq.client.consumer.turns.handler import Stop, retry_delay
from lanemq.client.consumer.turns.history import TurnRecorder
from lanemq.client.consumer.turns.scheduler import MessageFinished, MessageRun, Scheduler, was_asleep
from lanemq.client.consumer.turns.subscription import Subscription, make_scheduler, ordered_by
from lanemq.client.consumer.turns.workers import RunEnd
from lanemq.client.ending import close_here_or_aside
from lanemq.client.message import Message
from lanemq.client.metrics import as_numbers
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy
from lanemq.core.consuming.runs import DONE, FAILED, STOPPED, Suspend, Why
from lanemq.history import History
from lanemq.model.checks import check_kind, check_text, seconds
from lanemq.model.errors import Closed, InvalidOption, LaneError, UsageError
from lanemq.model.units import Seconds
from lanemq.model.wording import shown
from lanemq.net.address import Servers

T = TypeVar("T")


class Consumer:
    """One member of a group. Iterate from one thread; decide about messages from any thread."""

    def __init__(
        self,
        servers: Servers,
        *,
        group: str,
        topics: str | Sequence[str],
        tags: str = "*",
        on_fail: FailurePolicy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.options = consumer_options(servers, group, **settings)
        subscriptions = subscriptions_for(topics, tags, on_fail)
        self._scheduler = make_scheduler(subscriptions[0], self.options.clock)
        self._undecided = Undecided(self._scheduler, group, self.options.history, self.options.clock)
        self._thread = EngineThread(self.options, without_resources(subscriptions), lambda *_: self._scheduler)
        self._term: object | None = None
        self._ending = False
        self._interruption: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self, *, now: bool = False) -> None:
        """Commits, and hands the queues over. Undecided messages are delivered again.

        A signal handler may call it. If the signal interrupted a call of a client, this returns at once, and closing
        continues in the background; the end of the program waits for it.
        """
        if self._thread.in_child:
            return
        close_here_or_aside(partial(self._close, now=now), sys._getframe(1))  # noqa: SLF001

    def _close(self, *, now: bool) -> None:
        self._undecided.give_back()
        try:
            self._thread.stop(now=now)
        finally:
            TERMINATION.forget(self._term)

    def poll(self, timeout: Seconds | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed.

        Raises:
            LaneError: the consumer ended by an error.
        """
        self._check()
        limit = None if timeout is None else seconds("timeout", timeout)
        message = self._whole(lambda: self._undecided.add(self._scheduler.take_run(limit)))
        if message is None:
            self._thread.check()
        return message

    def done(self, message: Message) -> bool:
        """Finishes the message; its lane continues.

        False: the message is delivered again, because the queue was lost or the consumer was closed in between.
        """
        self._thread.check_process()
        return self._whole(lambda: self._undecided.done(message))

    def retry(self, message: Message, after: Seconds | None = None) -> None:
        """Delivers the same message again, after `after` seconds or as the failure policy says."""
        self._thread.check_process()
        self._whole(lambda: self._undecided.retry(message, after))

    def dead(self, message: Message, why: str = "") -> bool:
        """Moves the message to the group's dead letters; its lane continues. False: the broker did not take it."""
        self._thread.check_process()
        run, end = self._undecided.dead(message, why)
        if run is None:
            return False
        engine = self._thread.engine
        reporting = engine.reporter.report(engine.subscriptions[run.queue.topic], run, end)
        return asyncio.run_coroutine_threadsafe(reporting, self._thread.loop).result().why is Why.STOPPED

    def snapshot(self) -> ConsumerSnapshot:
        """The assigned queues, and what was done so far."""
        return take_snapshot(self._thread.engine)

    def metrics(self) -> dict[str, float]:
        """All metrics of docs/reference/metrics.md, by their names and labels. Any thread may call it."""
        return as_numbers(consumer_samples(self._thread.engine))

    def _check(self) -> None:
        self._thread.check_process()
        if self._interruption is not None:
            raise LaneError(
                f"a signal handler raised {self._interruption!r} in the middle of a change, and this consumer has "
                "ended: close it and make a new one, which gets the undecided messages again"
            ) from self._interruption

    def _whole(self, call: Callable[[], T]) -> T:
        """Makes a call that changes lanes. If a signal handler raises in it, and it was not asleep, the consumer ends.

        A lane may be half changed then: its key would wait until the consumer is closed, and nobody would know.
        """
        try:
            return call()
        except LaneError:
            raise
        except BaseException as error:
            if not was_asleep(error):
                self._interruption = error
                self._undecided.forget()
                with contextlib.suppress(LaneError):  # it has ended
                    self._thread.engine.stop(now=True)
            raise

    def __iter__(self) -> Iterator[Message]:
        if self._term is None:
            self._term = TERMINATION.listen(self._end_iteration, again=False)
        return self

    def _end_iteration(self) -> None:
        self._ending = True
        with contextlib.suppress(RuntimeError, Closed):  # ended already
            self._thread.loop.call_soon_threadsafe(self._scheduler.close)

    def __next__(self) -> Message:
        message = None if self._ending else self.poll()
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> "Consumer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.in_child:
            self._close(now=False)


def subscriptions_for(topics: str | Sequence[str], tags: str, policy: FailurePolicy | None) -> list[Subscription]:
    """Subscriptions without handlers, one per topic, with runs of one message."""
    on_fail, order = ordered_by(policy)
    if isinstance(on_fail, DeadLetter):
        raise InvalidOption(
            "on_fail=DeadLetter(...) is not for an iterator, which holds failed messages: use HoldKey or HoldQueue, "
            "and dead() for a dead letter"
        )
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else topics
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidOption(f"topics={shown(topics)} must be the name of a topic, or a list of names")
    return [Subscription(topic=name, tags=tags, order=order, policy=on_fail, run_limit=1) for name in names]


class Undecided:
    """The messages that were delivered to the user and not decided. Shared by both iterators."""

    def __init__(self, scheduler: Scheduler, group: str, history: History, clock: Clock) -> None:
        self._scheduler = scheduler
        self._runs: dict[Message, MessageRun] = {}
        self._given_back = False
        self._recorder = TurnRecorder(group, history, clock) if history.on else None

    def add(self, run: MessageRun | None) -> Message | None:
        """The message of a run, if there is one; its lane waits for the decision."""
        if run is None:
            return None
        (message,) = run.messages
        message.retried_here = run.attempt - 1
        self._runs[message] = run
        if self._recorder is not None:
            self._recorder.begin(run.messages, run)
        return message

    def done(self, message: Message) -> bool:
        """False if the queue was lost, or everything was given back: its next owner gets the message again."""
        finished = self._finish(message, None)
        return finished is not None and finished.why is not Why.QUEUE_GONE

    def retry(self, message: Message, after: Seconds | None) -> None:
        self._finish(message, Stop(FAILED if after is None else Suspend(retry_delay(after))))

    def dead(self, message: Message, why: str) -> tuple[MessageRun | None, RunEnd]:
        """The run, and the end that makes its message a dead letter; the caller reports it. None: given back."""
        check_text("why", why)
        stop = Stop(Suspend(None), dead_letter=why)
        return self._remove(message, stop), RunEnd(stop, 0)

    def give_back(self) -> None:
        """Returns everything undecided to its lane. Safe while other threads decide: each run ends once."""
        self._given_back = True
        with contextlib.suppress(KeyError):  # empty
            while True:
                _, run = self._runs.popitem()
                self._scheduler.finish(run, STOPPED)

    def forget(self) -> None:
        """Everything undecided will be delivered to another member, and no decision about it counts."""
        self._given_back = True
        self._runs.clear()

    def _finish(self, message: Message, stop: Stop | None) -> MessageFinished | None:
        run = self._remove(message, stop)
        if run is None:
            return None
        try:
            if stop is None:
                return self._scheduler.finish(run, DONE)
            return self._scheduler.finish(run, stop.outcome, reason="the consumer asked for a retry")
        except UsageError:  # a signal handler or finalizer has interrupted this thread: it may decide later
            self._runs[message] = run
            raise

    def _remove(self, message: Message, stop: Stop | None) -> MessageRun | None:
        """The run of a message, which is decided now; None if a `close` has given it back before."""
        check_kind("message", message, Message, "a message that this consumer delivered")
        run = self._runs.pop(message, None)
        if run is None and self._given_back:
            return None
        if run is None:
            raise UsageError(f"{message} is not waiting for a decision: decide about each message once")
        if self._recorder is not None:
            self._recorder.end(run.messages, run, stop)
        return run
