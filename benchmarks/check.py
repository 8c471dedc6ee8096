"""Fails if a path costs more CPU time per message than the committed baseline allows: about a minute.

    make bench-check                          compares with benchmarks/baseline.json
    python -m benchmarks.check --write        measures and writes the baseline

A figure is a ratio: CPU time per message of our client, over that of a plain Python loop that decodes the same JSON and
counts by key. Both are measured in turns in one process, and each by its best round, so that a slower machine or a busy
neighbour changes both alike. A path that seems too slow is measured again before the check fails.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.consume import consume, store
from benchmarks.events import OrderPaid, event_json
from benchmarks.harness import TOPIC, BrokerProcess, made_messages, timed
from lanemq._fast import VARIANT
from lanemq.client.producer.producer import Producer

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 0.15
"""How much a ratio may exceed its baseline."""
ROUNDS, MESSAGES, ATTEMPTS = 4, 60_000, 3
LOOP_MESSAGES = 100_000

Ratios = Mapping[str, float]


def main() -> None:
    """Measures all paths, and ends the program with an error if one is too slow."""
    if VARIANT != "compiled":
        sys.exit("the baseline is that of the compiled module: run python hatch_build.py, and unset LANEMQ_PURE")
    baseline: Ratios = json.loads(BASELINE.read_text())
    found, wrong = _measured(), [""]
    for attempt in range(ATTEMPTS):
        wrong = too_slow(baseline, found)
        if not wrong or attempt == ATTEMPTS - 1:
            break
        found = better_of(found, _measured())
    for path, ratio in found.items():
        print(json.dumps({"name": f"check/{path}", "value": ratio, "unit": "ratio", "baseline": baseline.get(path)}))
    if wrong:
        sys.exit("\n".join(wrong))


def too_slow(baseline: Ratios, found: Ratios) -> list[str]:
    """A sentence for each path that costs more than the baseline allows, or that only one of the two has."""
    wrong: list[str] = []
    for path in sorted(baseline.keys() | found.keys()):
        if path not in baseline or path not in found:
            wrong.append(f"{path} is not in both baseline and measurement: write the baseline anew")
        elif found[path] > baseline[path] * (1 + ALLOWED):
            more = found[path] / baseline[path] - 1
            wrong.append(
                f"{path} costs {found[path]} reference loops, {more:.0%} more than the baseline {baseline[path]}"
            )
    return wrong


def better_of(one: Ratios, other: Ratios) -> Ratios:
    return {path: min(ratio, other.get(path, ratio)) for path, ratio in one.items()}


def _measured() -> Ratios:
    """The best round of each path over the best round of the loop."""
    loop, best = float("inf"), dict[str, float]()
    with BrokerProcess() as broker, Producer(broker.address, codec="bytes") as producer:
        broker.create_topic()
        paths = _paths(broker, producer)
        for _ in range(ROUNDS):
            for path, cost in paths.items():
                loop = min(loop, _reference_loop())
                best[path] = min(best.get(path, float("inf")), cost())
    return {path: round(each / loop, 2) for path, each in best.items()}


def _paths(broker: BrokerProcess, producer: Producer) -> dict[str, Callable[[], float]]:
    """What measures one round of each path, in CPU seconds of the client per message."""
    many, groups = made_messages(MESSAGES, 100), count(1)
    for keys in (100, 10_000):
        store(broker, keys, MESSAGES, 100)

    def consumed(keys: int, handler: str) -> float:
        return consume(broker, "key", keys, MESSAGES, f"check-{next(groups)}", handler).client_cpu / MESSAGES

    def submit() -> None:
        for future in [producer.submit(TOPIC, value, key=key) for key, value in many]:
            future.result()

    return {
        "consume, 100 keys": lambda: consumed(100, "event"),
        "consume, 10,000 keys": lambda: consumed(10_000, "event"),
        "consume, 100 keys, nothing read": lambda: consumed(100, "empty"),
        "send_many": lambda: timed(broker, MESSAGES, lambda: producer.send_many(TOPIC, many)).client_cpu / MESSAGES,
        "submit": lambda: timed(broker, MESSAGES, submit).client_cpu / MESSAGES,
    }


def _reference_loop() -> float:
    """CPU seconds per message of plain Python for the same events."""
    bodies, decode = [event_json(number, 100) for number in range(1_000)], msgspec.json.Decoder(OrderPaid).decode
    totals: dict[str, int] = {}
    began = time.process_time()
    for number in range(LOOP_MESSAGES):
        event = decode(bodies[number % 1_000])
        key = f"key-{number % 100}"
        totals[key] = totals.get(key, 0) + event.amount
    return (time.process_time() - began) / LOOP_MESSAGES


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        BASELINE.write_text(json.dumps(better_of(_measured(), _measured()), indent=2) + "\n")
    else:
        main()
