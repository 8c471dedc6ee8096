"""`App(monitor=...)` and `metrics()`: true figures while messages are handled."""

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.client.consumer.with_broker import send, wait_for

from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.metrics import CONSUMER_CATALOGUE
from lanemq.client.producer.producer import Producer
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.model.errors import Closed, InvalidOption
from lanemq.testing.embedded import EmbeddedBroker


def test_an_app_shows_what_its_handlers_did_and_what_waits(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=3, each=4)
    app = App(broker.address, group=f"g-{topic}", monitor="127.0.0.1:0", commit_every=0.05)

    @app.ordered(topic, on_fail=HoldKey(backoff=Backoff(first=60.0, max=60.0)))
    def on_event(event: dict[str, int], message: Message) -> None:
        if message.key == "k2":
            raise ValueError("not today")

    def figure(name: str, **labels: str) -> float | None:
        inside = "".join(f',{label}="{value}"' for label, value in labels.items())
        return app.metrics().get(f'lanemq_consumer_{name}{{group="g-{topic}",topic="{topic}"{inside}}}')

    with app:
        wait_for(lambda: figure("messages_total", outcome="ok") == 8)
        wait_for(lambda: figure("held_lanes") == 1)
        wait_for(lambda: figure("lag_messages") is not None)
        assert figure("messages_total", outcome="failed") == 1
        assert figure("parked_lanes") == 0
        assert figure("handler_seconds_count") == figure("handler_seconds_bucket", le="+Inf") == 9
        assert figure("handler_seconds_bucket", le="300.0") == 9
        assert (figure("lag_messages") or 0) >= 1, "the held message is not committed"
        base = f"http://{app.monitor_address}"
        with urllib.request.urlopen(f"{base}/ready", timeout=60) as reply:
            assert json.load(reply) == {"ready": True, "reasons": []}
        with urllib.request.urlopen(f"{base}/metrics", timeout=60) as reply:
            families = list(text_string_to_metric_families(reply.read().decode()))
        given = {name.partition("{")[0] for name in app.metrics()}
    shown = {each.name + ("_total" if each.type == "counter" else "") for each in families}
    assert {name for name in shown if name.startswith("lanemq_")} == {metric.name for metric in CONSUMER_CATALOGUE}
    assert given == {series.name for each in families for series in each.samples if each.name.startswith("lanemq_")}
    with pytest.raises(Closed):
        app.metrics()
    with pytest.raises(OSError, match=r"refused|reset"):
        urllib.request.urlopen(f"{base}/live", timeout=60)


def test_a_producer_counts_what_was_stored_and_what_was_given_up(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.address, codec="bytes") as producer:
        producer.send_many(topic, [(f"k{n}", b"x") for n in range(5)])
        figures = producer.metrics()
    named = {name.partition("{")[0]: value for name, value in figures.items()}
    assert named == {
        "lanemq_producer_stored_total": 5,
        "lanemq_producer_failed_total": 0,
        "lanemq_producer_unsettled_bytes": 0,
        "lanemq_producer_frozen_keys": 0,
    }


def test_a_wrong_or_used_address_is_refused(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(InvalidOption, match="not an address"):
        App(broker.address, group="g", monitor="nowhere:x")
    app = App(broker.address, group="g", monitor=broker.address)

    @app.ordered(topic)
    def on_event(event: object) -> None: ...

    with pytest.raises(InvalidOption, match="cannot listen there"):
        app.start()
