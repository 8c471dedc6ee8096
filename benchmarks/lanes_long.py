"""One failing key of 10,000, with a million messages behind it.

    python -m benchmarks lanes_long
    BEHIND=100000 ROUNDS=2 python -m benchmarks lanes_long

10,000 keys over 4 queues. First the failing key gets `BEHIND` messages, which every group with the failing key sets
aside at the broker; groups without it skip them. Then a group without and a group with the failing key work off the
same stored backlog of the other keys, in turns; medians are compared, also of the member's CPU time. Latency: messages
are sent at a steady rate to two groups, in turns, and timed from the send call to the handler.

Memory: the growth of the member and of the broker while the messages are set aside. In the end the lane of the first
group is mended, and runs in order to its end.
"""

import logging
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import TOPIC, BrokerProcess, report
from benchmarks.lanes_failing import (
    BROKEN,
    KEYS,
    PACED,
    PER_SECOND,
    PROPERTIES,
    Timed,
    backlog,
    check_read,
    paced_key,
    timed,
)
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, HoldKey

BEHIND = int(os.environ.get("BEHIND", "1000000"))
"""Messages behind the failing one."""
ROUNDS = int(os.environ.get("ROUNDS", "7"))
BACKLOG, PART = 500_000, 10_000
PATIENCE = 600
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Member:
    """A group of one member; `failing`: the broken key fails until it is mended."""

    def __init__(self, address: str, group: str, *, failing: bool) -> None:
        self._address, self.group, self.failing = address, group, failing
        self.times: list[float] = []
        self.latencies: list[float] = []
        self.broken_done: list[int] = []
        self._wanted, self._reached = 0, threading.Event()
        self._app: Any = None

    def start(self, wanted: int) -> None:
        self.times.clear()
        self.latencies.clear()
        self._wanted = wanted
        self._reached.clear()
        self._app = App(self._address, group=self.group)
        self._app.ordered(TOPIC, on_fail=HoldKey(retries=RETRY_FOREVER))(self._handle)
        self._app.start()

    def stop(self) -> None:
        self._app.stop()

    def forget_times(self) -> None:
        """So that later rounds do not pay for the memory of earlier ones."""
        self.times, self.latencies = [], []

    def wait(self) -> None:
        assert self._reached.wait(PATIENCE), f"only {len(self.times)} of {self._wanted} were done"

    def _handle(self, event: Timed, message: Message) -> None:
        check_read(message)
        if message.key == BROKEN:
            if self.failing:
                raise ValueError("broken")
            self.broken_done.append(message.queue_offset)
            return
        now = time.perf_counter()
        self.times.append(now)
        self.latencies.append(now - event.sent_at)
        if len(self.times) == self._wanted:
            self._reached.set()


def main() -> None:
    logging.getLogger("lanemq").addHandler(logging.NullHandler())
    with BrokerProcess() as broker, ParkedAdmin(broker.address) as parked, Admin(broker.address) as admin:
        broker.create_topic()
        with Producer(broker.address) as producer:
            for _ in range(BEHIND // PART):  # in parts, so that the member's memory is not that of the producer
                producer.send_many(TOPIC, [timed(BROKEN)] * PART)
        members = [Member(broker.address, f"long-{number}", failing=bool(number % 2)) for number in range(2 * ROUNDS)]
        for member in members:
            if member.failing:
                set_aside(broker, parked, member)
            else:
                admin.reset_offsets(member.group, TOPIC, to="last")
        with Producer(broker.address) as producer:
            producer.send_many(TOPIC, backlog(BACKLOG))
        throughput(members)
        latency(broker, members[:2])
        redrive(parked, members[1])


def set_aside(broker: BrokerProcess, parked: ParkedAdmin, member: Member) -> None:
    """Consumes until the whole lane is at the broker."""
    before, brokers, began, cpu = resident_mib(), broker.resident_mib(), time.perf_counter(), time.process_time()
    peak = before
    member.start(0)
    while sum(lane.messages for lane in parked.lanes(member.group)) < BEHIND:
        peak = max(peak, resident_mib())
        time.sleep(0.2)
        assert time.perf_counter() - began < PATIENCE, f"only {parked.lanes(member.group)}"
    seconds, spent = time.perf_counter() - began, (time.process_time() - cpu) / BEHIND * 1e6
    member.stop()
    more = {"behind": BEHIND, "broker_growth": round(broker.resident_mib() - brokers, 1), "seconds": round(seconds, 1)}
    report("lanes/long_lane_growth", peak - before, "MiB", **more, client_cpu_us=round(spent, 2))


def throughput(members: list[Member]) -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for member in _alternating(members):
        member.start(BACKLOG - BACKLOG // KEYS)
        while not member.times:
            time.sleep(0.001)
        began, before = time.process_time(), len(member.times)
        member.wait()
        cpu[member.failing].append((time.process_time() - began) / (BACKLOG - before) * 1e6)
        rates[member.failing].append(len(member.times) / (max(member.times) - min(member.times)))
        member.stop()
        member.forget_times()
    clean, hurt = (statistics.median(rates[each]) for each in (False, True))
    spent = [round(statistics.median(cpu[each]), 2) for each in (False, True)]
    more = {"clean": round(clean), "failing": round(hurt), "client_cpu_us": spent, "behind": BEHIND, "target": 0.95}
    report("lanes/long_lane_throughput", hurt / clean, "x", **more)


def _alternating(members: list[Member]) -> list[Member]:
    """Pairs of a group without and a group with the failing key, each second pair in the other order."""
    pairs = [members[each : each + 2] for each in range(0, len(members), 2)]
    return [member for number, pair in enumerate(pairs) for member in (pair if number % 2 == 0 else reversed(pair))]


def latency(broker: BrokerProcess, members: list[Member]) -> None:
    """Both groups get every message; they take turns as the one that is running."""
    tails: dict[bool, list[float]] = {False: [], True: []}
    healthy = sum(1 for each in range(PACED) if paced_key(each) != BROKEN)
    for member in members * ROUNDS:
        with Admin(broker.address) as admin:
            admin.reset_offsets(member.group, TOPIC, to="last")
        member.start(healthy)
        with Producer(broker.address) as producer:
            began = time.perf_counter()
            for each in range(PACED):
                time.sleep(max(0.0, began + each / PER_SECOND - time.perf_counter()))
                producer.submit(TOPIC, Timed(time.perf_counter()), key=paced_key(each), properties=PROPERTIES)
        member.wait()
        tails[member.failing].append(statistics.quantiles(member.latencies[PACED // 8 :], n=100)[98])
        member.stop()
    quiet, late = (statistics.median(tails[each]) * 1e3 for each in (False, True))
    more = {"clean_ms": round(quiet, 2), "failing_ms": round(late, 2), "per_second": PER_SECOND, "target": 1.2}
    report("lanes/long_lane_p99", late / quiet, "x", **more)


def redrive(parked: ParkedAdmin, member: Member) -> None:
    """The failing key is mended: its lane runs in order to the end, without an operator."""
    member.failing = False
    waiting = sum(lane.messages for lane in parked.lanes(member.group))
    began, cpu = time.perf_counter(), time.process_time()
    member.start(-1)
    while parked.lanes(member.group):
        time.sleep(0.2)
        assert time.perf_counter() - began < PATIENCE, f"only {len(member.broken_done)} of {waiting} were done"
    seconds, spent = time.perf_counter() - began, (time.process_time() - cpu) / waiting * 1e6
    member.stop()
    ordered = member.broken_done == sorted(set(member.broken_done)) and len(member.broken_done) >= waiting
    report(
        "lanes/long_lane_redrive",
        waiting / seconds,
        "msg/s",
        messages=waiting,
        in_order=ordered,
        client_cpu_us=round(spent, 2),
    )


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MIB
