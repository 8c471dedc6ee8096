"""Signal handlers of the program that use a consumer. They interrupt the main thread wherever it is, also where it
holds the mutex of the scheduler: the program's clock raises the signal there.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lanemq import Consumer, Producer, UsageError
from lanemq.client.consumer.turns import scheduler
from lanemq.testing.embedded import EmbeddedBroker

SECONDS = 60
BEGIN = """
import signal, sys, threading, time
from lanemq import *
from lanemq.clock import SystemClock

class Clock(SystemClock):
    armed = False

    def now(self):
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            signal.raise_signal(signal.SIGUSR1)
        return super().now()

address, group = sys.argv[1:]
clock = Clock()
consumer = Consumer(address, group=group, topics="signalled", clock=clock)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Producer(running.address, create=["signalled", "decided", "answers", "empty"]) as producer:
            producer.send_many("signalled", [("k", n) for n in range(3)])
            producer.send_many("decided", [("k", 0), ("other", 0)])
            producer.send("answers", 0, key="k")
            producer.send("empty", 0, key="k")
        yield running


def lines(broker: EmbeddedBroker, group: str, program: str) -> list[str]:
    """What the program prints until its end."""
    words = [sys.executable, "-c", BEGIN + program, broker.address, group]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


CLOSES = """
signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
consumer.start()
for message in consumer:
    clock.armed = message.value() == 1
    print(message.value(), consumer.done(message), flush=True)
print("ended")
"""


def test_a_consumer_closed_in_the_middle_of_its_own_change_ends_the_iteration(broker: EmbeddedBroker) -> None:
    printed = lines(broker, "closes", CLOSES)
    assert printed[:2] == ["0 True", "1 True"]
    assert printed[-1] == "ended"


@pytest.mark.parametrize("call", ["snapshot", "metrics"])
def test_a_handler_that_asks_in_the_middle_of_a_change_waits_for_nothing(broker: EmbeddedBroker, call: str) -> None:
    asks = f"""
signal.signal(signal.SIGUSR1, lambda *_: print(consumer.{call}() is not None, flush=True))
consumer.start()
for message in consumer:
    clock.armed = message.value() == 1
    print(message.value(), consumer.done(message), flush=True)
    if message.value() == 2:
        break
consumer.close()
"""
    assert lines(broker, call, asks) == ["0 True", "True", "1 True", "2 True"]


DECIDES = """
def decide(*_):
    try:
        consumer.done(second)
    except UsageError as error:
        print(error)

signal.signal(signal.SIGUSR1, decide)
consumer = Consumer(address, group=group, topics="decided", clock=clock)
consumer.start()
first, second = consumer.poll(), consumer.poll()
clock.armed = True
print(consumer.done(first), consumer.done(second))
consumer.close()
"""


def test_a_decision_in_the_middle_of_a_change_is_refused_and_can_be_made_later(broker: EmbeddedBroker) -> None:
    assert lines(broker, "decides", DECIDES) == [str(scheduler.interrupts_itself()), "True True"]


STOPS = """
app = App(address, group=group, clock=clock)
running, finish = threading.Event(), threading.Event()

@app.ordered("answers")
def handler(value, message):
    running.set()
    finish.wait()
    print("handled", flush=True)

def stop(*_):
    app.stop()
    print("stopping", flush=True)
    finish.set()

signal.signal(signal.SIGUSR1, stop)
app.start()
running.wait()
clock.armed = True
app.snapshot()
app.stop()
print("ended")
"""


def test_an_app_stopped_in_the_middle_of_a_call_ends_after_it(broker: EmbeddedBroker) -> None:
    assert lines(broker, "stops", STOPS) == ["stopping", "handled", "ended"]


RAISES = """
class TimeIsUp(Exception):
    pass

def raises(*_):
    raise TimeIsUp

signal.signal(signal.SIGUSR1, raises)
consumer.start()
first = consumer.poll()
clock.armed = True
try:
    consumer.done(first)
except TimeIsUp:
    print("interrupted", consumer.done(first), flush=True)
try:
    consumer.poll(10)
except LaneError as error:
    print(error, flush=True)
began = time.monotonic()
consumer.close()
print(time.monotonic() - began < 15, flush=True)
with Consumer(address, group=group, topics="signalled") as another:
    print(another.poll(20).value())
"""


def test_a_handler_that_raises_in_the_middle_of_a_change_ends_the_consumer(broker: EmbeddedBroker) -> None:
    """The key would wait until the consumer is closed, and nobody would know."""
    printed = lines(broker, "raises", RAISES)
    assert printed[0] == "interrupted False"
    assert "TimeIsUp() in the middle of a change" in printed[1]
    assert printed[2:] == ["True", "0"]


SLEEPS = """
class TimeIsUp(Exception):
    pass

def raises(*_):
    raise TimeIsUp

signal.signal(signal.SIGALRM, raises)
consumer = Consumer(address, group=group, topics="empty")
consumer.start()
consumer.done(consumer.poll())
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    consumer.poll()
except TimeIsUp:
    print("interrupted")
with Producer(address) as producer:
    producer.send("empty", 1, key="k")
print(consumer.done(consumer.poll(20)))
consumer.close()
"""


def test_a_handler_that_raises_while_a_poll_waits_changes_nothing(broker: EmbeddedBroker) -> None:
    assert lines(broker, "sleeps", SLEEPS) == ["interrupted", "True"]


def test_what_a_handler_has_given_back_is_not_done(broker: EmbeddedBroker) -> None:
    """The signal comes while the program works on a message: closing gives the message back, to be delivered again."""
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        consumer = Consumer(broker.address, group="given-back", topics="signalled")
        consumer.start()
        for message in consumer:
            signal.raise_signal(signal.SIGUSR1)
            assert not consumer.done(message)
            assert not consumer.dead(message)
            consumer.retry(message)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with Consumer(broker.address, group="given-back", topics="signalled") as again:
        message = again.poll(10)
        assert message is not None
        assert message.value() == 0
        assert again.done(message)
        with pytest.raises(UsageError, match="decide about each message once"):
            again.done(message)
