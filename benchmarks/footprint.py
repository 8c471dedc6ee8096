"""How long a broker takes to start and how much memory it holds: empty, and after a million messages.

    python -m benchmarks footprint

Resident memory as the kernel counts it, pages of the program included.
"""

import statistics
import time

from benchmarks.harness import TOPIC, BrokerProcess, made_messages, report
from lanemq.client.producer.producer import Producer

ROUNDS, PART, PARTS = 5, 100_000, 10


def main() -> None:
    starts = []
    for _ in range(ROUNDS):
        with BrokerProcess() as broker:
            starts.append(broker.start_seconds)
    report("broker/start", statistics.median(starts), "s", best=round(min(starts), 2), rounds=ROUNDS)
    with BrokerProcess() as broker:
        broker.create_topic()
        report("broker/memory_idle", broker.resident_mib(), "MiB")
        with Producer(broker.address, codec="bytes") as producer:
            for _ in range(PARTS):
                producer.send_many(TOPIC, made_messages(PART, 100))
        report("broker/memory_after_1m", broker.resident_mib(), "MiB", messages=PART * PARTS, bytes=100)
        time.sleep(12)  # two checkpoints: what waited in memory is in files
        report("broker/memory_settled", broker.resident_mib(), "MiB", messages=PART * PARTS, bytes=100)
