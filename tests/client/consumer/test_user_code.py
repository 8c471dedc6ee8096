"""Every way in which a handler can end also ends its turn, is in the log, and affects only its message.

A real broker, `App` with its default settings, and handlers of every kind.
"""

import asyncio
import functools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from tests.client.consumer.fakes import message as message_at
from tests.client.consumer.with_broker import WAIT, Inbox, committed, send, wait_for
from tests.client.consumer.worker_fixture import handler_call, run_of

from lanemq import (
    App,
    AsyncConsumer,
    Consumer,
    Message,
    MessageFailed,
    OrderlyStatus,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    Skip,
    StartFrom,
    ToDeadLetter,
)
from lanemq.client.consumer import engine as engine_module
from lanemq.client.consumer.turns import handler as handler_module
from lanemq.model.errors import InvalidOption
from lanemq.testing.embedded import EmbeddedBroker

KINDS = ("sync", "async", "batch", "async batch")
SYNC = ("sync", "batch")


def register(app: App, topic: str, kind: str, act: Callable[[Message], None]) -> None:
    """Registers a handler of this kind that calls `act` for every message."""
    size = 10 if "batch" in kind else 1

    def plain(message: Message) -> None:
        act(message)

    async def coroutine(message: Message) -> None:
        await asyncio.sleep(0)
        act(message)

    def batch(messages: tuple[Message, ...]) -> None:
        for message in messages:
            act(message)

    async def coroutine_batch(messages: tuple[Message, ...]) -> None:
        await asyncio.sleep(0)
        for message in messages:
            act(message)

    typed = {"messages": tuple[Message, ...]}
    batch.__annotations__, coroutine_batch.__annotations__ = typed, typed
    handlers = {"sync": plain, "async": coroutine, "batch": batch, "async batch": coroutine_batch}
    app.ordered(topic, batch_size=size)(handlers[kind])


def failures_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("handler failed")]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Own(BaseException):
    """A user's exception that is no `Exception`."""


def raising(make: Callable[[], BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise make()

    return act


ENDINGS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "without text": Unprintable,
    "Retry(nan)": lambda: Retry(after=float("nan")),
    "Retry(-1)": lambda: Retry(after=-1),
    "Retry(text)": lambda: Retry(after="soon"),  # type: ignore[arg-type]
    "generator exit": GeneratorExit,
    "own": Own,
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "lone surrogate": lambda: ValueError("\udc80"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_handler_ends_only_its_message_fails(
    broker: EmbeddedBroker, topic: str, kind: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, topic, keys=3, each=3)
    inbox, failed = Inbox(), threading.Event()
    app = App(broker.address, group=f"g-{topic}")

    def act(message: Message) -> None:
        if message.key == "k1" and message.value()["n"] == 1 and not failed.is_set():
            failed.set()
            raise ENDINGS[ending]()
        inbox.add((message.key, message.value()["n"]))

    register(app, topic, kind, act)
    with app:
        inbox.wait(9)
    for key in range(3):
        numbers = [n for k, n in inbox.items if k == f"k{key}"]
        assert sorted(set(numbers)) == [0, 1, 2]
        assert numbers[-2:] == [1, 2]
    assert committed(broker, topic) == 9
    assert len(failures_logged(caplog)) == 1


@pytest.mark.parametrize("ending", ["exit", "own"])
def test_a_guard_for_exceptions_only_would_let_a_message_end_its_worker(
    broker: EmbeddedBroker, topic: str, ending: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: `except Exception` is not enough. The worker is replaced all the same, with an error."""

    def only_exceptions(call: Any, *_: Any) -> Any:
        def handle(batch: Any, run: Any) -> None:
            call(batch[0])

        return handle

    monkeypatch.setattr(handler_module, "plain_handler", only_exceptions)
    send(broker, topic, keys=1, each=2)
    inbox, failed = Inbox(), threading.Event()
    app = App(broker.address, group=f"g-{topic}")

    def act(message: Message) -> None:
        if not failed.is_set():
            failed.set()
            raise ENDINGS[ending]()
        inbox.add(message.value()["n"])

    register(app, topic, "sync", act)
    with app:
        inbox.wait(2)
    assert inbox.items == [0, 1]
    assert [each for each in caplog.records if each.levelno == logging.ERROR and "worker" in each.getMessage()]


# --- long error texts


def fail_with_a_long_text(broker: EmbeddedBroker, topic: str) -> tuple[App, Inbox]:
    """An app with more messages behind its failing one than it keeps in memory."""
    send(broker, topic, keys=1, each=70)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    def handler(message: Message) -> None:
        if message.attempt == 1 and message.queue_offset == 0:
            raise ValueError("x" * 300_000)
        inbox.add(message.queue_offset)

    return app, inbox


def test_an_error_with_a_long_text_is_cut_and_its_lane_goes_on(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, inbox = fail_with_a_long_text(broker, topic)
    with app:
        assert inbox.wait(70) == list(range(70))
    (line,) = failures_logged(caplog)
    assert len(line) < 3_000
    assert line.endswith("x…")


def test_an_error_with_its_whole_text_would_hold_its_lane_for_good(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the broker refuses the request that sets the lane aside, again and again."""
    for limit in ("MAX_TEXT_CHARS", "REASON_CHARS"):
        monkeypatch.setattr(handler_module, limit, 1_000_000)
    app, inbox = fail_with_a_long_text(broker, topic)
    with app:
        wait_for(lambda: "too large for request" in caplog.text)
        assert inbox.items == []


# --- what ends the program, not the message


INTERRUPTED = """
import asyncio, sys
from lanemq import App, Message
from lanemq.client.consumer.turns import handler

address, group, topic, how = sys.argv[1:]
if how == "unguarded":
    handler._ends_the_task = lambda error: False
app, seen = App(address, group=group), []

@app.ordered(topic)
async def on_event(message: Message) -> None:
    seen.append(message.value()["n"])
    print(seen[-1], flush=True)
    if how != "calm" and seen == [0]:
        raise KeyboardInterrupt
    if seen[-1] == 1:
        app.stop()

asyncio.run(app.run_async())
"""
"""A program whose handler is a task of the main thread, where Ctrl-C arrives; it comes during the first message."""


def interrupted_program(broker: EmbeddedBroker, topic: str, how: str) -> tuple[bool, list[int]]:
    """Whether the program continued to its end, and the messages that it handled."""
    arguments = [sys.executable, "-c", INTERRUPTED, broker.address, f"g-{topic}", topic, how]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=2 * WAIT, check=False)
    assert (ended.returncode == 0) is ("KeyboardInterrupt" not in ended.stderr or how == "unguarded"), ended.stderr
    return ended.returncode == 0, [int(line) for line in ended.stdout.split()]


@pytest.mark.slow
def test_an_interrupt_on_the_main_thread_ends_the_program_and_its_message_comes_again(
    broker: EmbeddedBroker, topic: str
) -> None:
    send(broker, topic, keys=1, each=2)
    assert interrupted_program(broker, topic, "guarded") == (False, [0])
    assert interrupted_program(broker, topic, "calm") == (True, [0, 1])
    assert committed(broker, topic) == 2


def test_an_interrupt_that_counts_as_a_failure_would_not_end_the_program(broker: EmbeddedBroker, topic: str) -> None:
    """Negative control: the message fails and is tried again, and the program continues."""
    send(broker, topic, keys=1, each=2)
    assert interrupted_program(broker, topic, "unguarded") == (True, [0, 0, 1])


class NeverDone:
    """Something to wait for that needs no event loop."""

    def __await__(self) -> Generator[None]:
        yield


def close_while_the_handler_waits() -> list[Any]:
    """Ends a worker as Python does when its loop is gone: its coroutine is closed. Returns what the worker reported."""
    reported: list[Any] = []

    async def on_event(message: Message) -> None:
        await NeverDone()

    handle = handler_module.async_batch_handler(handler_call(on_event), batched=False)

    async def worker() -> None:
        reported.append(await handle((message_at(0),), run_of(message_at(0))))  # type: ignore[arg-type]

    coroutine = worker()
    coroutine.send(None)
    coroutine.close()
    return reported


def test_a_handler_that_is_closed_with_its_worker_has_not_failed() -> None:
    """No guard is needed: Python closes the handler first, drops what it returns, and then closes the worker."""
    assert close_while_the_handler_waits() == []


# --- handlers that return instead of running


async def work(inbox: Inbox, message: Message) -> None:
    await asyncio.sleep(0)
    inbox.add(message.value()["n"])


class AsyncObject:
    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    async def __call__(self, message: Message) -> None:
        await work(self.inbox, message)

    async def method(self, message: Message) -> None:
        await work(self.inbox, message)


RECOGNISED: dict[str, Callable[[Inbox], Callable[[Message], Any]]] = {
    "partial": lambda inbox: functools.partial(work, inbox),
    "partial of a partial": lambda inbox: functools.partial(functools.partial(work), inbox),
    "object": AsyncObject,
    "partial of an object": lambda inbox: functools.partial(AsyncObject(inbox)),
    "method": lambda inbox: AsyncObject(inbox).method,
}


@pytest.mark.parametrize("form", RECOGNISED)
def test_every_form_of_a_coroutine_function_is_awaited(broker: EmbeddedBroker, topic: str, form: str) -> None:
    send(broker, topic, keys=1, each=30)
    inbox, app = Inbox(), App(broker.address, group=f"g-{topic}")
    app.ordered(topic)(RECOGNISED[form](inbox))
    with app:
        inbox.wait(30)
    assert inbox.items == list(range(30))
    assert committed(broker, topic) == 30


def decorated(inbox: Inbox) -> Callable[[Message], Any]:
    @functools.wraps(work)
    def wrapper(message: Message) -> Any:
        return work(inbox, message)

    del wrapper.__wrapped__
    wrapper.__annotations__ = {"message": Message}
    return wrapper


def generator(inbox: Inbox) -> Callable[[Message], Any]:
    def numbers(message: Message) -> Any:
        yield inbox.add(message.value()["n"])

    return lambda message: numbers(message)


UNSEEN = {"decorator": decorated, "lambda": lambda inbox: lambda m: work(inbox, m), "generator": generator}


@pytest.mark.parametrize("form", UNSEEN)
def test_an_awaitable_that_a_plain_handler_returns_is_a_failure_and_never_done(
    broker: EmbeddedBroker, topic: str, form: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    send(broker, topic, keys=1, each=3)
    calls, app = Inbox(), App(broker.address, group=f"g-{topic}")
    handler = UNSEEN[form](calls)

    @app.ordered(topic)
    def call(message: Message) -> Any:
        calls.add(message.queue_offset)
        return handler(message)

    with app:
        calls.wait(2)
    assert set(calls.items) == {0}
    assert committed(broker, topic) == 0
    assert "async def" in failures_logged(caplog)[0]
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


def test_unchecked_results_would_commit_messages_that_never_ran(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what every message of a lambda came to."""
    monkeypatch.setattr(handler_module, "refuse_unfinished", lambda result: result.close())
    send(broker, topic, keys=1, each=3)
    inbox, called, app = Inbox(), Inbox(), App(broker.address, group=f"g-{topic}")
    app.ordered(topic)(lambda event: (called.add(event), work(inbox, event))[1])
    with app:
        called.wait(3)
    assert inbox.items == []
    assert committed(broker, topic) == 3


def test_a_generator_function_is_refused_at_registration() -> None:
    def handler(message: Message) -> Any:
        yield message

    with pytest.raises(InvalidOption, match="yield"):
        App("localhost:9876", group="g").ordered("orders")(handler)


def test_an_async_listener_is_refused_at_registration() -> None:
    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS

    consumer = PushConsumer("localhost:9876", group="g")
    for register_listener in (consumer.register_orderly, consumer.register_concurrent):
        with pytest.raises(InvalidOption, match="async"):
            register_listener(listener)  # type: ignore[arg-type]


# --- cancellation


@pytest.mark.parametrize("how", ["awaited", "own task"])
def test_cancelled_work_inside_a_handler_is_a_failure_of_its_message(
    broker: EmbeddedBroker, topic: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """More messages than there are lanes, so that a member that lost a worker to each would stand still."""
    send(broker, topic, keys=30, each=2)
    inbox, failed, app = Inbox(), set(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    async def handler(message: Message) -> None:
        if message.key not in failed:
            failed.add(message.key)
            if how == "own task":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        inbox.add((message.key, message.value()["n"]))

    with app:
        inbox.wait(60)
    assert len(inbox.items) == 60
    assert committed(broker, topic) == 60
    if how == "own task":
        assert [each for each in caplog.records if each.levelno == logging.ERROR and "worker" in each.getMessage()]
    else:
        assert len(failures_logged(caplog)) == 30


def test_a_cancellation_taken_for_the_workers_own_costs_a_worker_each_time(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the message runs again all the same, because the worker is replaced."""
    monkeypatch.setattr(handler_module, "_ends_the_task", lambda error: True)
    send(broker, topic, keys=1, each=1)
    inbox, failed, app = Inbox(), [], App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    async def handler(message: Message) -> None:
        if not failed:
            failed.append(message)
            raise asyncio.CancelledError
        inbox.add(message.attempt)

    with app:
        inbox.wait(1)
    assert inbox.items == [2]
    assert "ended unexpectedly and is replaced: CancelledError" in caplog.text


def test_cancelling_the_app_itself_ends_it_without_complaint(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, topic, keys=2, each=1)

    async def main() -> None:
        app, begun = App(broker.address, group=f"g-{topic}"), asyncio.Event()

        @app.ordered(topic)
        async def handler(message: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(app.run_async())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_cancelling_the_app_ends_it_although_its_handler_raises_something_else(
    broker: EmbeddedBroker, topic: str
) -> None:
    """`asyncio.wait_for` may do that, too: before Python 3.12 it loses a cancellation that comes with the result."""
    send(broker, topic, keys=2, each=5)

    async def main() -> bool:
        app, begun = App(broker.address, group=f"g-{topic}"), asyncio.Event()

        @app.ordered(topic)
        async def handler(message: Message) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                raise OSError("the call was interrupted") from error

        running = asyncio.create_task(app.run_async())
        await begun.wait()
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=WAIT)
        app.stop(now=True)
        return running in done

    assert asyncio.run(main())


# --- progress inside a run


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
@pytest.mark.slow
def test_messages_finished_inside_a_run_are_reported_every_second(
    broker: EmbeddedBroker, topic: str, kind: str
) -> None:
    """A member that is killed now repeats the last second, not the whole run."""
    send(broker, topic, keys=1, each=32)
    inbox, stuck, app = Inbox(), threading.Event(), App(broker.address, group=f"g-{topic}")
    size = 2 if kind == "batch" else 1

    def plain(message: Message) -> None:
        inbox.add(message.queue_offset)
        if message.queue_offset == 20:
            assert stuck.wait(WAIT)

    def batch(messages: Any) -> None:
        for message in messages:
            plain(message)

    async def coroutine(message: Message) -> None:
        inbox.add(message.queue_offset)
        if message.queue_offset == 20:
            assert await asyncio.to_thread(stuck.wait, WAIT)

    batch.__annotations__ = {"messages": tuple[Message, ...]}
    app.ordered(topic, batch_size=size)({"sync": plain, "async": coroutine, "batch": batch}[kind])
    with app:
        inbox.wait(21)
        began = time.monotonic()
        while committed(broker, topic) < 20:
            assert time.monotonic() - began < WAIT
            time.sleep(0.02)
        assert inbox.items == list(range(21)), "the run still runs"
        assert committed(broker, topic) == 20
        stuck.set()
        inbox.wait(32)
    assert committed(broker, topic) == 32
    assert inbox.items == list(range(32))


# --- batches


def dead_letters(broker: EmbeddedBroker, group: str) -> list[Any]:
    with PullConsumer(broker.address, group="reader") as consumer:
        consumer.assign(consumer.queues(f"%DLQ%{group}"))
        found: list[Any] = []
        for _ in range(int(WAIT * 5)):
            found += [each.value()["n"] for each in consumer.poll(0.2)]
            if found:
                break
        return found


NAMED: dict[str, Callable[[Any], BaseException]] = {
    "MessageFailed": lambda which: MessageFailed(which, "broken"),
    "Retry": lambda which: Retry(after=0.01, message=which),
    "Skip": lambda which: Skip(message=which),
    "ToDeadLetter": lambda which: ToDeadLetter("broken", message=which),
}


@pytest.mark.parametrize("by", ["message", "index"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("verdict", NAMED)
def test_a_batch_handler_names_the_message_that_it_is_about(
    broker: EmbeddedBroker, topic: str, verdict: str, asynchronous: bool, by: str
) -> None:
    send(broker, topic, keys=1, each=10)
    done, batches, app = Inbox(), [], App(broker.address, group=f"g-{topic}")

    def handle(messages: tuple[Message, ...]) -> None:
        batches.append([each.queue_offset for each in messages])
        for at, message in enumerate(messages):
            if message.queue_offset == 6 and message.attempt == 1:
                raise NAMED[verdict](message if by == "message" else at)
            done.add(message.value()["n"])

    async def handle_async(messages: tuple[Message, ...]) -> None:
        handle(messages)

    handle.__annotations__ = handle_async.__annotations__ = {"messages": tuple[Message, ...]}
    app.ordered(topic, batch_size=10)(handle_async if asynchronous else handle)
    again = verdict in ("MessageFailed", "Retry")
    with app:
        done.wait(10 if again else 9)
    assert done.items == [n for n in range(10) if again or n != 6]
    assert batches[-1][0] == (6 if again else 7)
    assert committed(broker, topic) == 10
    if verdict == "ToDeadLetter":
        assert dead_letters(broker, f"g-{topic}") == [6]


UNNAMED: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("broken"),
    "Retry": lambda: Retry(after=0.01),
    "Skip": Skip,
    "ToDeadLetter": lambda: ToDeadLetter("broken"),
    "another message": lambda: Skip(message=99),
}


@pytest.mark.parametrize("verdict", UNNAMED)
def test_an_exception_that_names_no_message_of_a_batch_is_asked_for_one_by_one(
    broker: EmbeddedBroker, topic: str, verdict: str
) -> None:
    """So that no message is skipped or dead-lettered that the handler did not mean."""
    send(broker, topic, keys=1, each=10)
    done, batches, app = Inbox(), [], App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, batch_size=10)
    def handle(events: list[dict[str, int]], messages: tuple[Message, ...]) -> None:
        batches.append([each.queue_offset for each in messages])
        for message in messages:
            if message.queue_offset == 6 and message.attempt == 1:
                raise UNNAMED[verdict]()
        for event in events:
            done.add(event["n"])

    dropped = verdict in ("Skip", "ToDeadLetter")
    with app:
        done.wait(9 if dropped else 10)
    assert done.items == [n for n in range(10) if not (dropped and n == 6)]
    assert batches[:8] == [list(range(10)), *([n] for n in range(7))]
    assert committed(broker, topic) == 10
    if verdict == "ToDeadLetter":
        assert dead_letters(broker, f"g-{topic}") == [6]


def test_a_verdict_that_is_not_asked_for_one_by_one_drops_what_it_did_not_mean(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a `Skip` that applies to its whole batch."""
    monkeypatch.setattr(handler_module, "stop_after", lambda error, batch: None)
    send(broker, topic, keys=1, each=10)
    called, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, batch_size=10)
    def handle(events: list[dict[str, int]], messages: tuple[Message, ...]) -> None:
        called.add(len(events))
        raise Skip

    with app:
        called.wait(1)
    assert committed(broker, topic) == 10
    assert called.items == [10]


def test_one_undecodable_body_does_not_park_the_rest_of_its_batch(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.address, codec="bytes") as producer:
        for n in range(6):
            producer.send(topic, b"not json" if n == 3 else b'{"n": %d}' % n, key="k")
    done, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, batch_size=10)
    def handle(events: list[dict[str, int]], messages: tuple[Message, ...]) -> None:
        for event in events:
            done.add(event["n"])

    with app:
        done.wait(3)
    assert done.items == [0, 1, 2]


# --- stopping from inside


@pytest.mark.parametrize("way", ["start", "run"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_app_can_be_stopped_by_its_handler(broker: EmbeddedBroker, topic: str, kind: str, way: str) -> None:
    inbox = Inbox()
    for begun in (1, 2):  # nothing is delivered again after the first stop
        send(broker, topic, keys=1, each=10)
        app = App(broker.address, group=f"g-{topic}")

        def act(message: Message, app: App = app) -> None:
            inbox.add(message.value()["n"])
            if message.value()["n"] == 9:
                app.stop()

        register(app, topic, kind, act)
        began = time.monotonic()
        if way == "run":
            app.run()
        else:
            app.start()
            inbox.wait(10 * begun)
            app.stop()
        assert time.monotonic() - began < 15
        assert committed(broker, topic) == 10 * begun
        assert inbox.items == [*range(10)] * begun


def test_a_stop_that_does_not_know_its_caller_waits_for_itself(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the handler is left behind after `stop_timeout`, and its message is delivered again."""
    monkeypatch.setattr(engine_module, "SERVING", ContextVar("unknown", default=None))
    send(broker, topic, keys=1, each=1)
    done, app = threading.Event(), App(broker.address, group=f"g-{topic}", stop_timeout=0.2)

    @app.ordered(topic)
    def handler(message: Message) -> None:
        app.stop()
        done.set()

    app.start()
    assert done.wait(WAIT)
    assert committed(broker, topic) == 0


@pytest.mark.parametrize("way", ["to_thread", "run_in_executor"])
def test_a_stop_in_a_thread_that_a_coroutine_waits_for_does_not_wait_for_the_coroutine(
    broker: EmbeddedBroker, topic: str, way: str
) -> None:
    send(broker, topic, keys=1, each=1)
    done, app = threading.Event(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    async def handler(message: Message) -> None:
        if way == "to_thread":
            await asyncio.to_thread(app.stop)
        else:
            await asyncio.get_running_loop().run_in_executor(None, app.stop)
        done.set()

    began = time.monotonic()
    app.start()
    assert done.wait(WAIT)
    app.stop()
    assert time.monotonic() - began < 15
    assert committed(broker, topic) == 1


@pytest.mark.parametrize("plain", [False, True])
def test_a_plain_executor_would_not_know_that_a_coroutine_waits_for_its_threads(
    broker: EmbeddedBroker, topic: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a stop in such a thread would wait for the loop, and the loop, at its end, for the thread."""
    if plain:
        monkeypatch.setattr(engine_module, "ThreadPoolExecutor", lambda **_: ThreadPoolExecutor())
    send(broker, topic, keys=1, each=1)
    found, app = Inbox(), App(broker.address, group=f"g-{topic}")

    @app.ordered(topic)
    async def handler(message: Message) -> None:
        found.add(await asyncio.get_running_loop().run_in_executor(None, engine_module.SERVING.get))

    with app:
        (serving,) = found.wait(1)
    assert (serving is None) is plain


def test_a_push_consumer_can_be_shut_down_by_its_listener(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)
    calls = Inbox()
    consumer = PushConsumer(broker.address, group=f"g-{topic}", start=StartFrom.FIRST)
    consumer.subscribe(topic)

    def listener(messages: Any, context: Any) -> OrderlyStatus:
        consumer.shutdown()
        calls.add(messages)
        return OrderlyStatus.SUCCESS

    consumer.register_orderly(listener)
    began = time.monotonic()
    consumer.start()
    calls.wait(1)
    consumer.shutdown()
    assert time.monotonic() - began < 15
    assert committed(broker, topic) == len(calls.items)


def test_a_consumer_can_be_closed_inside_its_iteration(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)
    got = []
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        for message in consumer:
            got.append(message.value()["n"])
            consumer.done(message)
            consumer.close()
    assert got == [0]
    assert committed(broker, topic) == 1


def test_an_async_consumer_can_be_closed_inside_its_iteration(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)

    async def main() -> list[int]:
        got = []
        async with AsyncConsumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
            async for message in consumer:
                got.append(message.value()["n"])
                await consumer.done(message)
                await consumer.close()
        return got

    assert asyncio.run(main()) == [0]
    assert committed(broker, topic) == 1


def test_a_message_of_a_closed_consumer_is_delivered_again(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    for _ in range(2):
        with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
            message = consumer.poll(WAIT)
            assert message is not None
            consumer.close()
            assert not consumer.done(message)
    assert committed(broker, topic) == 0
