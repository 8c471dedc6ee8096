"""What the others notice of one key that fails for the whole run.

    python -m benchmarks lanes_failing

10,000 keys over 4 queues. A round with every key healthy and a round with one failing, in turns; medians are
compared. The handler takes a decoded event and reads key, offset and one property. Throughput: a stored backlog is
worked off. Latency: messages are sent at a steady rate and timed from the send call to the handler; the failing key's
are not counted. `verdict` is the checker's word on a shorter run with the failing key.
"""

import logging
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.events import PROPERTY, REGION
from benchmarks.harness import TOPIC, BrokerProcess, report
from benchmarks.judged import verdict
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.batches import Outgoing
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, HoldKey
from lanemq.history import NO_HISTORY, History

KEYS, BACKLOG, ROUNDS = 10_000, 500_000, 7
PACED, PER_SECOND, JUDGED = 8_000, 1_000, 20_000
BROKEN = "key-7"
PROPERTIES = {PROPERTY: REGION}


class Timed(msgspec.Struct):
    """An event of 100 bytes of JSON that says when it was sent, by `time.perf_counter`."""

    sent_at: float
    note: str = "x" * 66


class Run:
    """One group working on one topic until all messages of the healthy keys are done."""

    def __init__(
        self, address: str, group: str, topic: str, wanted: int, *, failing: bool, history: History = NO_HISTORY
    ) -> None:
        self.finished = threading.Event()
        self.latencies: list[float] = []
        self.times: list[float] = []
        self._wanted, self._failing = wanted, failing
        self.app: Any = App(address, group=group, history=history)
        self.app.ordered(topic, on_fail=HoldKey(retries=RETRY_FOREVER))(self._handle)

    def _handle(self, event: Timed, message: Message) -> None:
        check_read(message)
        if message.key == BROKEN:
            if self._failing:
                raise ValueError("broken for the whole run")
            return
        now = time.perf_counter()
        self.latencies.append(now - event.sent_at)
        self.times.append(now)
        if len(self.times) == self._wanted:
            self.finished.set()

    def wait(self) -> None:
        assert self.finished.wait(120), f"only {len(self.times)} of {self._wanted} were done"


def main() -> None:
    logging.getLogger("lanemq").addHandler(logging.NullHandler())
    with BrokerProcess() as broker:
        broker.create_topic()
        with Producer(broker.address) as producer:
            producer.send_many(TOPIC, backlog(BACKLOG))
        rates: dict[bool, list[float]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        tails: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * ROUNDS):
            failing = bool(number % 2)
            began = time.process_time()
            rates[failing].append(throughput(broker, number, failing=failing))
            cpu[failing].append((time.process_time() - began) / BACKLOG * 1e6)
        for number in range(2 * ROUNDS):
            failing = bool(number % 2)
            tails[failing].append(p99(broker, number, failing=failing))
    clean, hurt = (statistics.median(rates[each]) for each in (False, True))
    spent = [round(statistics.median(cpu[each]), 1) for each in (False, True)]
    more = {"clean": round(clean), "failing": round(hurt), "client_cpu_us": spent, "target": 0.95, "verdict": judged()}
    report("lanes/failing_key_throughput", hurt / clean, "x", **more)
    quiet, late = (statistics.median(tails[each]) * 1e3 for each in (False, True))
    more = {"clean_ms": round(quiet, 2), "failing_ms": round(late, 2), "per_second": PER_SECOND, "target": 1.2}
    report("lanes/failing_key_p99", late / quiet, "x", **more)


def throughput(broker: BrokerProcess, number: int, *, failing: bool) -> float:
    """Of the healthy keys, in messages per second."""
    run = Run(broker.address, f"backlog-{number}", TOPIC, BACKLOG - BACKLOG // KEYS, failing=failing)
    run.app.start()
    run.wait()
    run.app.stop(now=True)
    return len(run.times) / (max(run.times) - min(run.times))


def p99(broker: BrokerProcess, number: int, *, failing: bool) -> float:
    """Of the healthy keys, in seconds, at a steady rate."""
    topic = f"paced-{number}"
    broker.create_topic(topic)
    healthy = sum(1 for each in range(PACED) if paced_key(each) != BROKEN)
    run = Run(broker.address, f"paced-{number}", topic, healthy, failing=failing)
    run.app.start()
    with Producer(broker.address) as producer:
        began = time.perf_counter()
        for each in range(PACED):
            time.sleep(max(0.0, began + each / PER_SECOND - time.perf_counter()))
            producer.submit(topic, Timed(time.perf_counter()), key=paced_key(each), properties=PROPERTIES)
    run.wait()
    run.app.stop(now=True)
    return statistics.quantiles(run.latencies[PACED // 8 :], n=100)[98]


def judged() -> str:
    """Healthy keys pass the broken one, and its messages are left over."""

    def to_the_end(address: str, history: History) -> None:
        run = Run(address, "judged", TOPIC, JUDGED - JUDGED // KEYS, failing=True, history=history)
        run.app.start()
        run.wait()
        run.app.stop()

    return verdict(backlog(JUDGED), to_the_end, drained=False)


def check_read(message: Message) -> None:
    """Reads offset and property, as a user's handler does."""
    if message.offset < 0 or message.properties[PROPERTY] != REGION:
        raise AssertionError(f"{message} is not what was sent")


def backlog(count: int) -> Iterator[Outgoing]:
    for number in range(count):
        yield timed(f"key-{number % KEYS}")


def timed(key: str) -> Outgoing:
    return Outgoing(msgspec.json.encode(Timed(time.perf_counter())), key, properties=PROPERTIES)


def paced_key(number: int) -> str:
    """The broken key comes again and again, not once in 10,000."""
    return BROKEN if number % 100 == 0 else f"key-{number % KEYS}"
