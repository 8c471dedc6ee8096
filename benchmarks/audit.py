"""Is what was measured also right? The checker's verdict on the messages of a timed round.

After a round its receipts, in the order of the calls, and what the queues really hold are written down as a history,
and the checker judges it: every acknowledged message is there once, at the offset that its receipt names, and those of
a key lie in the order in which they were sent. Nothing of this is timed.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import TOPIC, BrokerProcess
from lanemq.checker.checking import CheckOptions, check
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.receipt import Receipt
from lanemq.clock import SystemClock
from lanemq.history import History, open_history
from lanemq.model.queue import MessageQueue


def verdict(broker: BrokerProcess, receipts: Sequence[Receipt]) -> str:
    """`pass`, `violation` or `unknown`, for one round that is over."""
    with tempfile.TemporaryDirectory(prefix="lanemq-audit-") as folder:
        now = SystemClock().now_ns
        sent = open_history(Path(folder), "sender", now, role="producer")
        for receipt in receipts:
            sent.send(TOPIC, receipt.key or "", receipt.message_id)
        for receipt in receipts:
            sent.acked(TOPIC, receipt.key or "", receipt.message_id, receipt.queue.queue_id, receipt.offset)
        sent.close()
        found = open_history(Path(folder), "reader", now)
        _read_back(broker, receipts, found)
        found.close()
        # Other rounds share the queues, and there are no consumers.
        options = CheckOptions(require=(f"acked={len(receipts)}", "turns=0"), foreign_producers=True)
        return check([Path(folder)], options).verdict.name.lower()


def _read_back(broker: BrokerProcess, receipts: Sequence[Receipt], found: History) -> None:
    """Everything that lies between the first and the last message of the round, queue by queue."""
    spans: dict[MessageQueue, tuple[int, int]] = {}
    for receipt in receipts:
        first, last = spans.get(receipt.queue, (receipt.offset, receipt.offset))
        spans[receipt.queue] = min(first, receipt.offset), max(last, receipt.offset)
    with PullConsumer(broker.address, group="audit", codec="bytes") as consumer:
        for queue, (first, last) in spans.items():
            consumer.assign([queue])
            consumer.seek(queue, first)
            while consumer.position(queue) <= last:
                for message in consumer.poll():
                    found.stored(TOPIC, message.key or "", message.message_id, queue.queue_id, message.offset)
