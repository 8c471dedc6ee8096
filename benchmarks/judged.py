"""The checker's verdict on a run of the kind that is measured: a figure of a run that broke its order is worth nothing.

A round of its own that is not timed, because writing a history down costs more than the run: the broker, the producer
and the consumer each write theirs, and the checker reads them all.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.harness import QUEUES, TOPIC, Messages
from lanemq.broker.config import BrokerOptions
from lanemq.checker.checking import CheckOptions, check
from lanemq.client.admin.admin import Admin
from lanemq.client.producer.batches import Outgoing
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.history import History
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

Consume = Callable[[str, History], None]
"""A consumer at this address, which writes this history and comes back when everything is done and handed over."""


def verdict(
    messages: Messages | Iterable[Outgoing], consume: Consume, *, queues: int = QUEUES, drained: bool = True
) -> str:
    """PASS, or what is wrong; `drained`: the consumer leaves nothing over."""
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
        said = Path(folder, "history")
        said.mkdir()
        options = BrokerOptions(Path(folder, "data"), listen=Address("127.0.0.1", 0), history=said)
        with EmbeddedBroker(options) as broker:
            with Admin(broker.address) as admin:
                admin.create_topic(TOPIC, queues, ordered=True)
            sent = History(said / "producer.jsonl", "producer", SystemClock().now_ns, role="producer")
            done = History(said / "consumer.jsonl", "consumer", SystemClock().now_ns, role="consumer")
            with Producer(broker.address, codec="bytes", history=sent) as producer:
                producer.send_many(TOPIC, messages)
            consume(broker.address, done)
            sent.close()
            done.close()
        report = check([said], CheckOptions(require=("turns",), drained=drained))
    return " ".join([report.verdict.name, *report.reasons, *sorted({each.invariant for each in report.violations})])
