"""Fails if a path costs more CPU time per message than the committed baseline allows: about a minute.

    make bench-check                              compares with benchmarks/baseline.json
    python -m benchmarks.check --write            writes the baseline: use a quiet machine, about a minute
    python -m benchmarks.check --spread 5         measures five times: how far apart the runs are on this machine

A figure is a ratio: CPU time per message of our client, or of the broker, over that of a reference in plain Python.
Paths that handle many messages at once have a loop that decodes the same JSON and counts by key for a reference; paths
that wait for each answer have requests and answers of 200 bytes over loopback, because what they cost is system calls
and changes between processes. A machine that is slower, or busy with other work, makes both sides slower.

Every repetition is short, and each one is preceded by its reference, so that both meet the same neighbours. The least
repetition of a path over the least of its reference is the figure: what other programs take away only ever adds to a
cost. A path that seems too expensive is measured again, until it is not or the minute is over: its least repetition
comes down to what the path really costs, and no further.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from benchmarks.consume import consume, store
from benchmarks.events import OrderPaid, event_json
from benchmarks.harness import TOPIC, BrokerProcess, made_messages, process_cpu_seconds, timed
from lanemq._fast import VARIANT
from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.producer import Producer

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 0.15
"""How much a ratio may exceed its baseline."""
ROUNDS, ROUNDS_AGAIN, SECONDS = 12, 2, 60.0
"""Repetitions of all paths, repetitions between two looks at those that seem too expensive, and when to give up."""
WRITE_RUNS = 9
"""Runs of `ROUNDS` for a baseline."""
CONSUMED, MANY, LARGE, FEW, TASKS = 40_000, 10_000, 5_000, 200, 500
"""Messages of a repetition: read, sent in bulk, of 1 KB, one after the other; tasks that send at the same time."""
LOOPS, ECHOES, ECHO_BYTES = 20_000, 400, 200
ECHO = (
    "import socket, sys\n"
    "with socket.create_server(('127.0.0.1', 0)) as server:\n"
    "    print(server.getsockname()[1], flush=True)\n"
    "    connection, _ = server.accept()\n"
    "    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
    "    while data := connection.recv(65536):\n"
    "        connection.sendall(data)\n"
)

Ratios = Mapping[str, float]


class Cost(NamedTuple):
    """CPU seconds per message."""

    client: float
    broker: float


class Measured(NamedTuple):
    """A path, and the reference that does comparable work."""

    repeat: Callable[[], Cost]
    reference: Callable[[], float]


def main(words: list[str] | None = None) -> None:
    """Measures all paths, and ends the program with an error if one is too expensive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description="CPU time beside a baseline")
    parser.add_argument("--write", action="store_true", help="measure and write the baseline")
    parser.add_argument("--spread", type=int, default=0, metavar="RUNS", help="measure so often and show the spread")
    options = parser.parse_args(words or [])
    if VARIANT != "compiled":
        sys.exit("the baseline is that of the compiled module: run python hatch_build.py, and unset LANEMQ_PURE")
    if options.write:
        with paths() as all_paths:
            BASELINE.write_text(json.dumps(typical(all_paths), indent=2) + "\n")
    elif options.spread:
        spread(options.spread)
    else:
        check()


def check() -> None:
    """Compares with the baseline; measures again what seems too expensive."""
    baseline: Ratios = json.loads(BASELINE.read_text())
    least, give_up = Least(), time.monotonic() + SECONDS
    with paths() as all_paths:
        least.repeat(all_paths, ROUNDS)
        while (again := _paths_of(too_slow(baseline, least.ratios()), all_paths)) and time.monotonic() < give_up:
            least.repeat(again, ROUNDS_AGAIN)
    found = least.ratios()
    for row, ratio in found.items():
        print(json.dumps({"name": f"check/{row}", "value": ratio, "unit": "ratio", "baseline": baseline.get(row)}))
    if wrong := too_slow(baseline, found):
        sys.exit("\n".join(wrong.values()))


def typical(all_paths: Mapping[str, Measured]) -> Ratios:
    """What one run finds before it measures again, as the median of several runs. The least of all of them would be a
    baseline that a run with fewer repetitions does not reach: with 1 KB, few repetitions find their memory in use.
    """
    runs = [Least().repeat(all_paths, ROUNDS).ratios() for _ in range(WRITE_RUNS)]
    return {row: round(statistics.median(run[row] for run in runs), 3) for row in runs[0]}


def _paths_of(rows: Iterable[str], some: Mapping[str, Measured]) -> dict[str, Measured]:
    """The paths of these rows, of those that are measured."""
    return {path: some[path] for path in dict.fromkeys(row.rpartition(", ")[0] for row in rows) if path in some}


def spread(runs: int) -> None:
    """One line per row: the least and the largest ratio of all runs, as `check` sees them before it measures again."""
    with paths() as all_paths:
        found = [Least().repeat(all_paths, ROUNDS).ratios() for _ in range(runs)]
    for row in found[0]:
        ratios = sorted(each[row] for each in found)
        more = {"least": ratios[0], "largest": ratios[-1], "runs": runs, "unit": "ratio"}
        print(json.dumps({"name": f"check/{row}", "value": round(ratios[-1] / ratios[0] - 1, 3), **more}))


def too_slow(baseline: Ratios, found: Ratios) -> dict[str, str]:
    """A sentence for each row that costs more than the baseline allows, or that only one of the two has."""
    wrong: dict[str, str] = {}
    for row in sorted(baseline.keys() | found.keys()):
        if row not in baseline or row not in found:
            wrong[row] = f"{row} is not in both baseline and measurement: write the baseline anew"
        elif found[row] > baseline[row] * (1 + ALLOWED):
            more = found[row] / baseline[row] - 1
            wrong[row] = f"{row} costs {found[row]} references, {more:.0%} more than the baseline {baseline[row]}"
    return wrong


class Least:
    """The least repetition of each path, for client and broker, and of each reference."""

    def __init__(self) -> None:
        self._costs: dict[str, float] = {}
        self._references: dict[Callable[[], float], float] = {}
        self._reference_of: dict[str, Callable[[], float]] = {}

    def repeat(self, some: Mapping[str, Measured], rounds: int) -> Self:
        for _ in range(rounds):
            for path, (repeat, reference) in some.items():
                gc.collect()  # so that a repetition does not pay for the garbage of the one before
                self._references[reference] = min(self._references.get(reference, float("inf")), reference())
                for side, cost in repeat()._asdict().items():
                    row = f"{path}, {side}"
                    self._costs[row] = min(self._costs.get(row, float("inf")), cost)
                    self._reference_of[row] = reference
        return self

    def ratios(self) -> Ratios:
        return {row: round(cost / self._references[self._reference_of[row]], 3) for row, cost in self._costs.items()}


@contextlib.contextmanager
def paths() -> Iterator[dict[str, Measured]]:
    """Everything that is guarded, over one broker."""
    with BrokerProcess() as broker, Producer(broker.address, codec="bytes") as producer, echo() as round_trip:
        broker.create_topic()
        bulk = {**consume_paths(broker), **send_paths(broker, producer)}
        with asyncio.Runner() as runner:
            on_loop = runner.run(_opened(broker))
            try:
                bulk |= async_paths(broker, on_loop, runner)
                alone = single_paths(broker, producer, on_loop, runner)
                gc.collect()
                gc.freeze()  # messages that are made once are not looked at again and again
                yield {
                    **{path: Measured(repeat, reference_loop) for path, repeat in bulk.items()},
                    **{path: Measured(repeat, round_trip) for path, repeat in alone.items()},
                }
            finally:
                gc.unfreeze()
                runner.run(on_loop.close())


async def _opened(broker: BrokerProcess) -> AsyncProducer:
    return await AsyncProducer(broker.address, codec="bytes").__aenter__()


Repeats = dict[str, Callable[[], Cost]]


def consume_paths(broker: BrokerProcess) -> Repeats:
    groups = count(1)
    cases = {
        "consume, 100 keys": (100, 100, "event"),
        "consume, 10,000 keys": (10_000, 100, "event"),
        "consume, 100 keys, 1 KB": (100, 1_000, "event"),
        "consume, 100 keys, nothing read": (100, 100, "empty"),
    }
    for keys, size in {case[:2] for case in cases.values()}:
        store(broker, keys, _messages(size), size, f"check-{keys}-{size}")

    def repeat(keys: int, size: int, handler: str) -> Cost:
        topic, group = f"check-{keys}-{size}", f"check-{next(groups)}"
        before = broker.cpu_seconds()
        done = consume(broker, "key", keys, _messages(size), group, handler, topic)
        # Joining and leaving are part of it: how much is pulled before the first call of the handler differs too much.
        return Cost(done.client_cpu / done.count, (broker.cpu_seconds() - before) / done.count)

    return {path: lambda case=case: repeat(*case) for path, case in cases.items()}  # type: ignore[misc]


def send_paths(broker: BrokerProcess, producer: Producer) -> Repeats:
    small, large = made_messages(MANY, 100), made_messages(LARGE, 1_000)

    def submit(messages: list[tuple[str, bytes]]) -> None:
        for future in [producer.submit(TOPIC, value, key=key) for key, value in messages]:
            future.result()

    return {
        "send_many": lambda: _cost(broker, MANY, lambda: producer.send_many(TOPIC, small)),
        "send_many, 1 KB": lambda: _cost(broker, LARGE, lambda: producer.send_many(TOPIC, large)),
        "submit": lambda: _cost(broker, MANY, lambda: submit(small)),
        "submit, 1 KB": lambda: _cost(broker, LARGE, lambda: submit(large)),
    }


def async_paths(broker: BrokerProcess, producer: AsyncProducer, runner: asyncio.Runner) -> Repeats:
    messages = made_messages(MANY, 100)

    async def submit() -> None:
        await asyncio.gather(*[await producer.submit(TOPIC, value, key=key) for key, value in messages])

    async def one(number: int) -> None:
        for _ in range(MANY // TASKS):
            await producer.send(TOPIC, messages[0][1], key=f"task-{number}")

    async def tasks() -> None:
        await asyncio.gather(*[one(number) for number in range(TASKS)])

    return {
        "async submit": lambda: _cost(broker, MANY, lambda: runner.run(submit())),
        "async send, tasks": lambda: _cost(broker, MANY, lambda: runner.run(tasks())),
    }


def single_paths(broker: BrokerProcess, producer: Producer, on_loop: AsyncProducer, runner: asyncio.Runner) -> Repeats:
    messages = made_messages(FEW, 100)

    def send() -> None:
        for key, value in messages:
            producer.send(TOPIC, value, key=key)

    async def async_send() -> None:
        for key, value in messages:
            await on_loop.send(TOPIC, value, key=key)

    return {
        "send": lambda: _cost(broker, FEW, send),
        "async send": lambda: _cost(broker, FEW, lambda: runner.run(async_send())),
    }


def _messages(size: int) -> int:
    return CONSUMED if size == 100 else CONSUMED // 4


def _cost(broker: BrokerProcess, messages: int, work: Callable[[], object]) -> Cost:
    done = timed(broker, messages, work)
    return Cost(done.client_cpu / messages, done.broker_cpu / messages)


def reference_loop() -> float:
    """CPU seconds per message of plain Python for the same events."""
    bodies, decode = [event_json(number, 100) for number in range(1_000)], msgspec.json.Decoder(OrderPaid).decode
    totals: dict[str, int] = {}
    began = time.process_time()
    for number in range(LOOPS):
        event = decode(bodies[number % 1_000])
        key = f"key-{number % 100}"
        totals[key] = totals.get(key, 0) + event.amount
    return (time.process_time() - began) / LOOPS


@contextlib.contextmanager
def echo() -> Iterator[Callable[[], float]]:
    """A process that sends back what it gets; the call measures CPU seconds of both sides per request and answer."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = bytes(ECHO_BYTES)

            def round_trips() -> float:
                began, others = time.process_time(), process_cpu_seconds(process.pid)
                for _ in range(ECHOES):
                    connection.sendall(data)
                    left = ECHO_BYTES
                    while left:
                        left -= len(connection.recv(left))
                spent = time.process_time() - began + process_cpu_seconds(process.pid) - others
                return spent / ECHOES

            yield round_trips


if __name__ == "__main__":
    main(sys.argv[1:])
