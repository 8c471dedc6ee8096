"""The log's handlers belong to the program, and may use the client whose records they get.

A handler holds a lock of its own while it runs. So a thread of the client that called it, with a lock held or while
others wait for the thread, would wait for a thread that waits for it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.consumer.with_broker import wait_for
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.held_locks import HeldLocks, tracked_locks

import lanemq.client
from lanemq import App, AsyncConsumer, AsyncProducer, Backoff, Consumer, HoldKey, Message, Producer, background_log
from lanemq.background_log import LINES, ClientLog
from lanemq.client.consumer.turns import scheduler
from lanemq.client.receipt import Receipt
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import LaneOptions
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.errors import Closed, LaneError
from lanemq.net import rate_limited_log
from lanemq.testing.embedded import EmbeddedBroker

broker = serving()

PROGRAM = logging.getLogger("program")
LOGGERS = ("lanemq.client", "lanemq.net.calling.connection", "lanemq.net.calling.blocking", "program")
"""Not all of `lanemq`: the brokers of the tests run in this process."""
WAIT = 30.0


class Ships(logging.Handler):
    """Gives every record to a function, as a handler does that sends records somewhere."""

    def __init__(self, ship: Callable[[str], object]) -> None:
        super().__init__(logging.DEBUG)
        self.ship = ship
        self.shipped: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.ship(record.getMessage())
        self.shipped.append(record.getMessage())


@contextmanager
def shipping(ship: Callable[[str], object]) -> Iterator[Ships]:
    handler, loggers = Ships(ship), [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        LINES.drain(WAIT)
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextmanager
def logging_all_the_time() -> Iterator[None]:
    """Threads of the program log as well, and so hold the handler's lock now and then."""
    ended = threading.Event()

    def log() -> None:
        while not ended.wait(0.005):
            PROGRAM.warning("at work")

    threads = [threading.Thread(target=log, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "the program's threads hang in their log calls"


@pytest.fixture(autouse=True)
def _every_attempt_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limited_log, "REMIND_AFTER", 0)


def waits_for_outage(handler: Ships) -> None:
    wait_for(lambda: sum("answer" in line for line in handler.shipped) > 1)


def ship_records(broker: FakeBroker, held: HeldLocks) -> None:
    """An everyday pattern: the log goes through the producer, also what the producer itself logs."""
    broker.create("logs")
    shipped: list[Future[Receipt]] = []

    def ship(text: str) -> None:
        held.check(f"log: {text!r} is logged")
        shipped.append(producer.submit("logs", text))

    with Producer(str(broker.address)) as producer:
        producer.send("logs", "first")
        producer.send("orders", 0, key="k")
        with shipping(ship) as handler, logging_all_the_time():
            with broker.stopped():
                waiting = [producer.submit("orders", number, key="k") for number in range(3)]
                waits_for_outage(handler)
            assert [future.result(WAIT).offset for future in waiting] == [1, 2, 3]
        for future in shipped:
            future.result(WAIT)


def test_a_handler_that_submits_records_does_not_stop_the_producer(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called without a lock of the producer, for which other threads would wait as long as for the handler."""
    with tracked_locks(monkeypatch) as held:
        ship_records(broker, held)
    assert held.violations == []


def test_control_without_the_log_s_thread_a_handler_submits_while_the_producer_is_locked(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClientLog, "log", lambda self, level, text, *args, **how: self.logger.log(level, text, *args))
    with tracked_locks(monkeypatch) as held:
        ship_records(broker, held)
    assert any("is logged with lanemq.client" in each for each in held.violations)


def test_a_handler_that_waits_for_its_receipt_waits_only_for_the_broker(broker: FakeBroker) -> None:
    broker.create("logs")
    with Producer(str(broker.address)) as producer:
        producer.send("logs", "first")
        producer.send("orders", 0, key="k")
        with shipping(lambda text: producer.send("logs", text)) as handler, logging_all_the_time():
            with broker.stopped():
                waiting = [producer.submit("orders", number, key="k") for number in range(3)]
                wait_for(lambda: LINES._lines or LINES._writing.locked())
            assert [future.result(WAIT).offset for future in waiting] == [1, 2, 3]
            wait_for(lambda: any("does not answer" in line for line in handler.shipped))


def test_a_handler_may_close_the_producer_whose_record_it_gets(broker: FakeBroker) -> None:
    with Producer(str(broker.address)) as producer:
        producer.send("orders", 0, key="k")
        with broker.stopped(), shipping(lambda text: producer.close(timeout=0.01)), logging_all_the_time():
            future = producer.submit("orders", 1, key="k")
            with pytest.raises(Closed):
                future.result(WAIT)


def test_what_an_asyncio_producer_logs_is_written_on_its_loop_so_a_handler_may_start_tasks(broker: FakeBroker) -> None:
    """Nothing is locked there. On the thread that writes the records of other clients, a handler has no event loop."""
    broker.create("logs")

    async def main() -> list[int]:
        async with AsyncProducer(str(broker.address)) as producer:
            await producer.send("logs", "first")
            await producer.send("orders", 0, key="k")
            tasks: list[asyncio.Task[Any]] = []

            def ship(text: str) -> None:
                tasks.append(asyncio.get_running_loop().create_task(producer.send("logs", text)))

            with shipping(ship) as handler:
                broker.stop()
                waiting = [await producer.submit("orders", number, key="k") for number in range(3)]
                while sum("answer" in line for line in handler.shipped) < 2:  # noqa: ASYNC110 - lines of its tasks
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(broker.start)
                offsets = [(await future).offset for future in waiting]
                await asyncio.gather(*tasks)
            return offsets

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == [1, 2, 3]


@pytest.mark.slow
def test_a_handler_that_raises_does_not_end_an_app_on_the_program_s_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are written there, where an exception would end the task that logs, and with it the app."""
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def fails(text: str) -> None:
        raise OSError("the disk of the log is full")

    async def main(real: EmbeddedBroker) -> None:
        app, got = App(real.address, group="g"), asyncio.Event()

        @app.ordered("orders")
        async def on_event(event: int) -> None:
            got.set()

        with shipping(fails):
            async with app:
                await asyncio.to_thread(real.kill)
                await asyncio.to_thread(real.restart)
                with Producer(real.address, create=["orders"]) as producer:
                    await asyncio.to_thread(producer.send, "orders", 1, key="k")
                await got.wait()

    with EmbeddedBroker() as real, Producer(real.address, create=["orders"]) as producer:
        producer.send("orders", 0, key="k")
        asyncio.run(asyncio.wait_for(main(real), WAIT))


@pytest.mark.slow
def test_a_handler_may_close_the_consumer_while_the_consumer_logs() -> None:
    with EmbeddedBroker() as real, Producer(real.address, create=["orders", "logs"]) as producer:
        producer.send("logs", "first", key="k")
        producer.send("orders", 0, key="k")
        consumer = Consumer(real.address, group="g", topics="orders")
        closed = threading.Event()

        def ship(text: str) -> None:
            producer.submit("logs", text, key="k")
            if text == "the last line":
                consumer.close()  # the handler's lock is held, and the consumer logs that it gives its queues up
                closed.set()

        with shipping(ship) as handler:
            consumer.start()
            assert consumer.poll(WAIT) is not None
            real.kill()
            waits_for_outage(handler)
            real.restart()
            wait_for(lambda: any("answers again" in line for line in handler.shipped))
            threading.Thread(target=PROGRAM.warning, args=("the last line",), daemon=True).start()
            assert closed.wait(WAIT), "the consumer waits for the handler, and the handler for the consumer"


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_record_waits_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a program. The thread that logs may hold a lock, so it must not call a handler."""
    log = ClientLog("lanemq.client.test", aside=True)
    with shipping(lambda _: None) as handler:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            log.warning("one")
            log.warning("two")
            assert handler.shipped == []
            assert LINES.drain(WAIT)
        assert handler.shipped == ["one", "two"]


def test_the_end_of_a_program_does_not_wait_for_a_handler_that_hangs() -> None:
    log, opened = ClientLog("lanemq.client.test", aside=True), threading.Event()
    with shipping(lambda _: opened.wait(WAIT)) as handler:
        log.warning("one")
        assert not LINES.drain(0.05)
        opened.set()
        assert LINES.drain(WAIT)
        assert handler.shipped == ["one"]


def test_dropped_records_are_counted_behind_those_before_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_log, "MAX_LINES", 2)
    log, opened = ClientLog("lanemq.client.test", aside=True), threading.Event()
    background_log._LOG.addHandler(own := Ships(lambda _: None))
    try:
        with shipping(lambda _: opened.wait(WAIT)) as handler:
            for number in range(6):
                log.warning("%d", number)
                wait_for(lambda: LINES._writing.locked())
            opened.set()
            assert LINES.drain(WAIT)
    finally:
        background_log._LOG.removeHandler(own)
    dropped = 6 - len(handler.shipped)
    assert handler.shipped == [str(number) for number in range(len(handler.shipped))]
    assert own.shipped == [f"{dropped} log lines were dropped while a log handler hung"]


# no lock is held


def test_modules_of_the_client_log_through_the_client_s_log() -> None:
    """One that called a handler itself might hold a lock. The exception is a child process that ends with the line."""
    folder = Path(lanemq.client.__file__).parent
    found = [path for path in folder.rglob("*.py") if "getLogger" in path.read_text()]
    assert [path.relative_to(folder).as_posix() for path in found] == ["consumer/turns/forked.py"]


class CheckingCodec:
    """JSON's numbers, with a look at the locks."""

    def __init__(self, held: HeldLocks) -> None:
        self._held = held

    def encode(self, value: object) -> bytes:
        self._held.check("encode")
        return str(value).encode()

    def decode(self, body: bytes, wanted: object = None) -> object:
        self._held.check("decode")
        return int(body)


def produce(broker: FakeBroker, held: HeldLocks) -> None:
    """Everything that makes a producer call the program or its log."""
    broker.refuses = lambda body: body == b"13"
    broker.faults = lambda header, number: Fault.HANG_UP if number == 2 else None
    codec, settings = CheckingCodec(held), {"delivery_timeout": 0.4, "timeout": 0.4}

    def selector(queues: Any, value: object, key: object) -> Any:
        held.check("selector")
        return queues[0]

    with shipping(lambda text: held.check(f"log: {text!r} is logged")) as handler:
        with Producer(str(broker.address), codec=codec, **settings) as producer:  # type: ignore[arg-type]
            producer.send("orders", 1, key="k")
            producer.send("orders", 2, key="k", selector=selector)
            futures = [producer.submit("orders", value, key=str(value)) for value in range(11, 16)]
            with broker.stopped():
                futures.append(producer.submit("orders", 20, key="lost"))
                for future in futures:
                    future.add_done_callback(lambda _: held.check("a callback is called"))
                waits_for_outage(handler)
                for future in futures:
                    future.exception(WAIT)
            wait_for(lambda: sends(producer))
            producer.send_many("orders", [(f"m{number}", number) for number in range(30, 50)])
            producer.resume("orders")
        LINES.drain(WAIT)
        assert any("messages not stored" in line for line in handler.shipped)


def sends(producer: Producer) -> bool:
    try:
        producer.send("orders", 3, key="other")
    except LaneError:
        return False
    return True


@pytest.mark.slow
def test_a_producer_holds_no_lock_while_it_calls_the_program(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracked_locks(monkeypatch) as held:
        produce(broker, held)
    assert held.violations == []


@pytest.mark.slow
def test_without_the_log_s_thread_a_record_is_written_with_a_lock_held(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(ClientLog, "log", lambda self, level, text, *args, **how: self.logger.log(level, text, *args))
    with tracked_locks(monkeypatch) as held:
        produce(broker, held)
    assert any("is logged with lanemq.client" in each for each in held.violations)


def checks_history(client: Any, held: HeldLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    record = client.options.history._write

    def write(event: str, fields: Any) -> None:
        held.check(f"history: {event} is recorded")
        record(event, fields)

    monkeypatch.setattr(client.options.history, "_write", write)


@pytest.fixture
def orders() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as real:
        with Producer(real.address, create="orders") as producer:
            producer.send_many("orders", [(f"k{number % 3}", number) for number in range(9)])
        yield real


@pytest.mark.slow
def test_a_consumer_holds_no_lock_while_it_calls_the_program(
    orders: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with tracked_locks(monkeypatch) as held:
        recorded = Consumer(orders.address, group="g", topics="orders", codec=CheckingCodec(held), history=tmp_path)  # type: ignore[arg-type]
        checks_history(recorded, held, monkeypatch)
        with shipping(lambda text: held.check(f"log: {text!r} is logged")), recorded as consumer:
            for number in range(7):
                message = consumer.poll(WAIT)
                assert message is not None
                message.value()
                if number == 4:
                    assert consumer.dead(message, "enough")
                elif number == 5:
                    consumer.retry(message, after=60)
                else:
                    consumer.done(message)
    assert held.violations == []
    assert held.checked == {"decode", "log:", "history:"}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["function", "coroutine"])
def test_an_app_holds_no_lock_while_it_calls_the_program(
    orders: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, form: str
) -> None:
    done, failed = threading.Semaphore(0), threading.Event()

    def handle(message: Message) -> None:
        held.check("handler")
        if message.value() == 4 and not failed.is_set():
            failed.set()
            raise ValueError("fails once, and is logged")
        done.release()

    async def handle_later(message: Message) -> None:
        handle(message)

    with tracked_locks(monkeypatch) as held:
        app = App(orders.address, group=form, codec=CheckingCodec(held), history=tmp_path)  # type: ignore[arg-type]
        checks_history(app, held, monkeypatch)
        policy = HoldKey(retries=3, backoff=Backoff(first=0.01))
        app.ordered("orders", on_fail=policy)(handle if form == "function" else handle_later)
        with shipping(lambda text: held.check(f"log: {text!r} is logged")), app:
            for _ in range(9):
                assert done.acquire(timeout=WAIT)
    assert held.violations == []
    assert held.checked == {"handler", "decode", "log:", "history:"}


@pytest.mark.slow
def test_an_asyncio_consumer_holds_no_lock_while_it_calls_the_program(
    orders: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def main(held: HeldLocks) -> None:
        codec: Any = CheckingCodec(held)
        consumer = AsyncConsumer(orders.address, group="a", topics="orders", codec=codec, history=tmp_path)
        checks_history(consumer, held, monkeypatch)
        with shipping(lambda text: held.check(f"log: {text!r} is logged")):
            async with consumer:
                for _ in range(9):
                    message = await consumer.poll(WAIT)
                    assert message is not None
                    message.value()
                    await consumer.done(message)

    with tracked_locks(monkeypatch) as held:
        asyncio.run(main(held))
    assert held.violations == []
    assert held.checked == {"decode", "log:", "history:"}


def test_a_lock_that_is_held_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a consumer that logs under the lock of its scheduler."""
    with tracked_locks(monkeypatch) as held:
        mutex = scheduler.Scheduler(LaneScheduler(LaneOptions()), SystemClock())._mutex
        held.check("log: free")
        assert held.violations == []
        with mutex:
            held.check("log: held")
    assert len(held.violations) == 1
