"""Programs that end: `close` in a signal handler does not hang, an exit without `close` loses nothing in silence."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.client.fake_broker import FakeBroker, serving

from lanemq.client import ending
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.model.errors import Closed
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow  # programs that end

fake = serving()

SECONDS = 60
BEGIN = """
import asyncio, itertools, multiprocessing, os, signal, sys
from lanemq import *
from lanemq.client import ending
address, topic = sys.argv[1:]
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


def new_topic(broker: EmbeddedBroker, name: str) -> str:
    with Admin(broker.address) as admin:
        admin.create_topic(name, 2, ordered=True)
    return name


def start(address: str, topic: str, program: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-W", "ignore", "-c", BEGIN + program, address, topic]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def numbers(broker: EmbeddedBroker, topic: str, skip: int = 0) -> list[int]:
    """What is stored for the key "k", which has one queue, without the first `skip` messages."""
    with TopicReader(broker.address, topic) as reader:
        ends = {queue: reader.bounds(queue)[1] for queue in reader.queues}
        found = [each for queue, end in ends.items() if end for each in reader.read(queue, skip, end)]
    return [int(message.body) for message in found]


SUBMITS = """
producer = Producer(address)
count = 0

def end(number, frame):
    producer.close()

signal.signal(signal.SIGTERM, end)
producer.send(topic, 0, key="k")
print("ready", flush=True)
try:
    for count in itertools.count(1):
        {call}
except Closed:
    pass
finally:
    os.write(1, f"{{count}}\\n".encode())
"""
CALLS = {
    "submit": 'producer.submit(topic, count, key="k")',
    "send": 'producer.send(topic, count, key="k")',
    "result": 'producer.submit(topic, count, key="k").result()',
    "send_many": 'producer.send_many(topic, [("k", count)])',
}


@pytest.mark.parametrize("call", CALLS)
def test_a_producer_closed_in_a_signal_handler_stores_what_it_accepted(broker: EmbeddedBroker, call: str) -> None:
    """And no signal of ten makes it hang, whatever it interrupts."""
    for stored, accepted, _ in ended_programs(
        broker, new_topic(broker, f"signals-{call}"), SUBMITS.format(call=CALLS[call]), times=10
    ):
        assert stored == list(range(len(stored)))
        assert len(stored) >= accepted, "what was accepted before the signal is stored"


def test_a_handler_that_exits_makes_no_gap(broker: EmbeddedBroker) -> None:
    program = SUBMITS.format(call=CALLS["submit"]).replace("producer.close()\n", "producer.close()\n    sys.exit()\n")
    for stored, accepted, errors in ended_programs(broker, new_topic(broker, "exits"), program, times=10):
        assert stored == list(range(len(stored)))
        assert len(stored) >= accepted or "messages that may be lost" in errors


def ended_programs(
    broker: EmbeddedBroker, topic: str, program: str, times: int
) -> Iterator[tuple[list[int], int, str]]:
    """Ends a program by SIGTERM, again and again: the numbers it stored, how many it had submitted, and its stderr."""
    last = 0
    for _ in range(times):
        with start(broker.address, topic, program) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            threading.Event().wait(0.05)
            process.send_signal(signal.SIGTERM)
            printed, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
        found = numbers(broker, topic, skip=last)
        last += len(found)
        yield found, int(printed), errors


def test_a_handler_that_waited_in_the_interrupted_call_would_wait_for_itself(fake: FakeBroker) -> None:
    """The negative control: the main thread holds the producer's lock when the handler runs."""
    with Producer(str(fake.address)) as producer:
        closing = threading.Thread(target=producer._close, args=(None,), daemon=True)
        with producer._lock:
            closing.start()
            closing.join(0.3)
            assert closing.is_alive()
        closing.join(SECONDS)
        assert not closing.is_alive()


INTERRUPTIONS = [KeyboardInterrupt(), SystemExit(0), ValueError("raised by a handler")]


@pytest.mark.parametrize("full", [True, False], ids=["before the inbox is emptied", "before the senders have it"])
@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda error: type(error).__name__)
def test_an_exception_inside_a_change_of_the_senders_fails_what_was_accepted(
    fake: FakeBroker,
    error: BaseException,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A signal handler may raise at any point. What is left in the inbox fails too, or it would be stored behind
    messages of the senders that failed."""
    producer = Producer(str(fake.address))
    producer.send("orders", 0, key="k")
    with fake.asleep():
        futures = interrupted_by(producer, error, monkeypatch, full=full)
        for future in futures[1:]:
            with pytest.raises(Closed):
                future.result(SECONDS)
        with pytest.raises(Closed):
            producer.send("orders", 4, key="k")
    producer.close()
    stored = [int(text) for queue in range(4) for text in fake.stored("orders", queue)]
    assert stored in ([0], [0, 1])
    assert "messages that may be lost" in caplog.text


def test_what_is_still_in_the_inbox_is_never_sent_after_an_interruption(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr("lanemq.client.producer.producer.close_aside", ends.append)
    producer = Producer(str(fake.address))
    producer.send("orders", 0, key="k")
    with fake.asleep():
        futures = interrupted_by(producer, KeyboardInterrupt(), monkeypatch, full=True)
        assert len(producer._inbox) == 0
    (end,) = ends
    end()
    for future in futures[2:]:
        with pytest.raises(Closed):
            future.result(SECONDS)


def test_without_the_notice_a_message_is_lost_and_the_next_one_stored(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Producer, "_give_up", lambda self, error: None)
    with Producer(str(fake.address)) as producer:
        producer.send("orders", 0, key="k")
        with fake.asleep():
            interrupted_by(producer, KeyboardInterrupt(), monkeypatch)
            monkeypatch.undo()
            producer.submit("orders", 9, key="k")
    stored = [int(text) for queue in range(4) for text in fake.stored("orders", queue)]
    assert stored == [0, 1, 9]


def interrupted_by(
    producer: Producer, error: BaseException, monkeypatch: pytest.MonkeyPatch, *, full: bool = False
) -> list[Future[Receipt]]:
    """Submits three messages of a key; the last two are in the inbox when an exception interrupts its move."""
    futures = [producer.submit("orders", number, key="k") for number in (1, 2, 3)]
    assert len(producer._inbox) == 2

    def interrupted(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        if full:
            patched.setattr(producer._inbox, "move", interrupted)
        else:
            patched.setattr(producer._engine, "accept", interrupted)
        with pytest.raises(type(error)):
            producer._empty_inbox()
    return futures


def test_a_call_is_interrupted_if_its_frames_are_below_the_handler(fake: FakeBroker) -> None:
    def handler() -> bool:
        return ending.interrupts_a_call(sys._getframe())

    assert not handler()
    future: Future[int] = Future()
    seen: list[bool] = []
    future.add_done_callback(lambda _: seen.append(handler()))
    future.set_result(1)
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(handler()))
    thread.start()
    thread.join()
    assert (seen, elsewhere) == ([True], [False])


def test_a_program_that_ends_without_close_loses_nothing(broker: EmbeddedBroker) -> None:
    topic = new_topic(broker, "unclosed")
    program = """
producer = Producer(address)
for number in range(2001):
    producer.submit(topic, number, key="k")
"""
    with start(broker.address, topic, program) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert numbers(broker, topic) == list(range(2001))


def test_the_workers_of_a_pool_flush_at_their_end(broker: EmbeddedBroker) -> None:
    topic = new_topic(broker, "workers")
    program = """
def work(first):
    global producer
    producer = Producer(address)
    for number in range(first, first + 500):
        producer.submit(topic, number, key="k")

process = multiprocessing.get_context("fork").Process(target=work, args=(0,))
process.start()
process.join()
"""
    with start(broker.address, topic, program) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert numbers(broker, topic) == list(range(500))


@pytest.mark.parametrize("kind", ["Producer", "AsyncProducer", "closed by a thread"])
def test_an_exit_that_cannot_reach_the_broker_says_how_much_is_lost(fake: FakeBroker, kind: str) -> None:
    assert "messages that may be lost: 7" in end_without_broker(fake, kind, "ending.EXIT_SECONDS = 0.5")


@pytest.mark.parametrize("kind", ["Producer", "AsyncProducer"])
def test_without_the_exit_hook_messages_are_lost_in_silence(fake: FakeBroker, kind: str) -> None:
    """The negative control."""
    without = "import atexit; atexit.unregister(ending.end_all)"
    assert "lost" not in end_without_broker(fake, kind, without)


def end_without_broker(fake: FakeBroker, kind: str, first: str) -> str:
    """What a program writes to stderr that ends with seven messages for a broker that is gone."""
    programs = {
        "Producer": """
producer = Producer(address)
producer.send(topic, 0, key="k")
print("ready", flush=True)
sys.stdin.readline()
for number in range(7):
    producer.submit(topic, number, key="k")
""",
        "AsyncProducer": """
async def main():
    global producer
    producer = AsyncProducer(address)
    await producer.send(topic, 0, key="k")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(7):
        await producer.submit(topic, number, key="k")

asyncio.run(main())
""",
    }
    # As after a signal handler that closes the producer while a call of it runs.
    closes = "import threading\nthreading.Thread(target=producer.close, daemon=True).start()\n"
    programs["closed by a thread"] = programs["Producer"] + closes
    words = [sys.executable, "-W", "ignore", "-c", f"{BEGIN}{first}\n{programs[kind]}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*words, str(fake.address), "orders"], text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        fake.stop()
        _, errors = process.communicate("\n", timeout=SECONDS)
    fake.start()
    return str(errors)


SLOW_LINES = """
import logging, time
from lanemq.background_log import ClientLog

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.1)
        os.write(2, record.getMessage().encode() + b"\\n")

def work():
    logging.getLogger("lanemq").addHandler(Slow())
    for number in range(5):
        ClientLog("lanemq.client.test", aside=True).warning("line %d", number)
    """


@pytest.mark.parametrize("method", ["fork", "spawn", "none"])
def test_the_end_of_a_process_writes_the_lines_of_its_log(method: str, tmp_path: Path) -> None:
    """A process of `multiprocessing` ends without the hooks of `atexit`; without a producer it has no other hook."""
    run = "work()" if method == "none" else f"multiprocessing.get_context({method!r}).Process(target=work).start()"
    program = tmp_path / "program.py"
    program.write_text(f"{BEGIN}{SLOW_LINES}\nif __name__ == '__main__':\n    {run}\n")
    words = [sys.executable, "-W", "ignore", str(program), "address", "topic"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert [line for line in done.stderr.splitlines() if line.startswith("line")] == [f"line {n}" for n in range(5)]
