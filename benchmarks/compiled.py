"""What the compiled twins gain: hot functions, and the paths of sends and pulls, pure and compiled.

    python -m benchmarks compiled

Each variant runs in a process of its own (`LANEMQ_PURE=1` selects the references). The figures
are CPU time, which says more than wall time on a shared machine: nanoseconds per message of a function, microseconds
per message of broker and client on a path. `ratio` is pure over compiled.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import TOPIC, BrokerProcess, Messages, Round, made_messages, report, timed
from benchmarks.pull import MEBIBYTE, pull_all
from benchmarks.raw_send import MESSAGES as SINGLES
from benchmarks.raw_send import pipeline, requests
from lanemq._fast import VARIANT
from lanemq.client.message import find_key, read_messages
from lanemq.client.producer.batches import PendingMessage, batch_body, properties_text
from lanemq.client.producer.producer import Producer
from lanemq.log.appender import entries_of
from lanemq.log.key_index import scan_keys
from lanemq.log.reading import verify
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection, connect
from lanemq.wire.batch import split_batch_raw
from lanemq.wire.command import FrameDecoder
from lanemq.wire.properties import following_stamps
from lanemq.wire.record import NO_HOST, record_starts, seal_records
from lanemq.wire.sends import encode_send_answers, read_sends

COUNT, TRIES, MANY, ROUNDS = 1000, 30, 100_000, 3
VARIANTS = ("pure", "compiled")


def main() -> None:
    found = {variant: _in_a_process(variant) for variant in VARIANTS}
    if found["compiled"].pop("variant") != "compiled":
        print(json.dumps({"name": "compiled", "value": "nothing is compiled here: python hatch_build.py"}))
        return
    for name, figure in found["compiled"].items():
        pure = found["pure"][name]
        unit = "us" if name.startswith("path/") else "ns"
        report(f"compiled/{name}", figure, unit, pure=pure, ratio=round(pure / figure, 1))


def _in_a_process(variant: str) -> dict[str, Any]:
    environment = os.environ | {"LANEMQ_PURE": "1" if variant == "pure" else "0"}
    command = [sys.executable, "-m", "benchmarks.compiled"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def functions() -> dict[str, Callable[[], object]]:
    """Each works on `COUNT` messages of 100 B."""
    texts = [properties_text(f"key-{n % 100}", f"{n:032X}") for n in range(COUNT)]
    messages = tuple(PendingMessage(b"x" * 100, text, "") for text in texts)
    body = batch_body(messages, "LANE_STAMP\x01producer.1.", 0)
    _, bodies, properties = split_batch_raw(body)
    items = [(each, text, 0, 0, 0, 0, 0) for each, text in zip(bodies, properties, strict=True)]
    records = seal_records(items, b"bench", 0, 0, 0, NO_HOST, 1, NO_HOST)
    log, sizes = b"".join(records), list(map(len, records))
    starts = record_starts(log)
    entries, offsets = [(at, size, 0, 0) for at, size in zip(starts, sizes, strict=True)], list(range(COUNT))
    stream = requests(100, 0)
    stream = stream[: len(stream) * COUNT // SINGLES]
    frames = FrameDecoder().feed(stream)
    return {
        "cut frames": lambda: FrameDecoder().feed(stream),
        "read single sends": lambda: read_sends(frames, COUNT),
        "answer single sends": lambda: encode_send_answers(offsets, "0" * 16, starts, 0, 0, "durable"),
        "write a batch": lambda: batch_body(messages, "LANE_STAMP\x01producer.1.", 0),
        "cut a batch": lambda: split_batch_raw(body),
        "compare stamps": lambda: following_stamps(properties),
        "seal records": lambda: seal_records(items, b"bench", 0, 0, 0, NO_HOST, 1, NO_HOST),
        "index entries": lambda: entries_of(log, 0, 0, [0] * COUNT),
        "prove records": lambda: verify(log, 0, entries, offsets),
        "index keys": lambda: scan_keys(log, 0),
        "find records": lambda: record_starts(log),
        "make messages": lambda: read_messages(None, log),  # type: ignore[arg-type]
        "find keys": lambda: [find_key(log, start) for start in starts],
    }


def _nanoseconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TRIES):
        began = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - began)
    return round(best / COUNT, 1)


def paths() -> dict[str, float]:
    """Whole paths, a broker of the same variant in its own process."""
    figures: dict[str, float] = {}
    with BrokerProcess() as broker:
        broker.create_topic(queues=1)
        with connect(parse_address(broker.address)) as link:
            link.settimeout(None)
            rounds = []
            for number in range(ROUNDS):
                stream = requests(100, number * SINGLES)
                rounds.append(timed(broker, SINGLES, lambda data=stream: pipeline(link, data)))
        _note(figures, "single sends pipelined", rounds, client=False)
        many = made_messages(MANY, 100)
        with Producer(broker.address, codec="bytes") as producer:
            rounds = [timed(broker, MANY, lambda: producer.send_many(TOPIC, many)) for _ in range(ROUNDS)]
            _note(figures, "send_many", rounds)
            _note(figures, "submit", [timed(broker, MANY, lambda: submit(producer, many)) for _ in range(ROUNDS)])
        with BlockingConnection(parse_address(broker.address)) as connection:
            total = (SINGLES + 2 * MANY) * ROUNDS
            rounds = [timed(broker, total, lambda: pull_all(connection, MEBIBYTE)) for _ in range(ROUNDS)]
        _note(figures, "pull", rounds, client=False)
    return figures


def submit(producer: Producer, messages: Messages) -> None:
    for future in [producer.submit(TOPIC, value, key=key) for key, value in messages]:
        future.result()


def _note(figures: dict[str, float], name: str, rounds: list[Round], *, client: bool = True) -> None:
    count = sum(each.count for each in rounds)
    figures[f"path/{name}, broker"] = round(sum(each.broker_cpu for each in rounds) / count * 1e6, 2)
    if client:
        figures[f"path/{name}, client"] = round(sum(each.client_cpu for each in rounds) / count * 1e6, 2)


if __name__ == "__main__":
    print(json.dumps({"variant": VARIANT, **{n: _nanoseconds(work) for n, work in functions().items()}, **paths()}))
