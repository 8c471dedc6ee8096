"""Traces: a turn continues the trace of the send, through a real broker."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.chaos.members import until

from lanemq import App, HoldKey, Message, Producer, trace_send, trace_turns
from lanemq.client.topics import NewTopic
from lanemq.core.backoff import Backoff
from lanemq.testing.embedded import EmbeddedBroker

TOPIC = "orders"
pytestmark = pytest.mark.lanemq(own_broker=True)


def recording() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def of_kind(exporter: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def test_a_turn_continues_the_trace_of_its_send_and_a_failure_marks_it(lanemq_broker: EmbeddedBroker) -> None:
    provider, exporter = recording()
    with Producer(lanemq_broker.address, create=[NewTopic(TOPIC, 1)]) as producer:
        with trace_send(TOPIC, key="k", provider=provider) as properties:
            producer.send(TOPIC, {"n": 1}, key="k", properties=properties)
        producer.send(TOPIC, {"n": 2}, key="untraced")
    app = App(lanemq_broker.address, group="billing")
    app.middleware(trace_turns(group="billing", provider=provider))
    failures = ["once"]

    @app.ordered(TOPIC, on_fail=HoldKey(backoff=Backoff(first=0.01, max=0.01)))
    def on_order(event: dict[str, int], message: Message) -> None:
        if message.key == "k" and failures:
            raise ValueError(failures.pop())

    with app:
        until("three turns are traced", lambda: len(of_kind(exporter, SpanKind.CONSUMER)) == 3)
    (sent,) = of_kind(exporter, SpanKind.PRODUCER)
    turns = [span for span in of_kind(exporter, SpanKind.CONSUMER) if (span.attributes or {})["lanemq.offset"] == 0]
    assert [span.status.status_code for span in turns] == [StatusCode.ERROR, StatusCode.UNSET]
    for span in turns:
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (sent.context.trace_id, sent.context.span_id)
        assert span.attributes is not None
        assert span.attributes["messaging.consumer.group.name"] == "billing"
        assert span.attributes["messaging.rocketmq.message.group"] == "k"
    (other,) = [span for span in of_kind(exporter, SpanKind.CONSUMER) if span not in turns]
    assert other.parent is None, "its sender has no trace"


def test_a_turn_with_several_messages_links_to_all_of_their_senders(lanemq_broker: EmbeddedBroker) -> None:
    provider, exporter = recording()
    with Producer(lanemq_broker.address, create=[NewTopic(TOPIC, 1)]) as producer:
        for number in range(3):
            with trace_send(TOPIC, key="k", provider=provider) as properties:
                producer.send(TOPIC, number, key="k", properties=properties)
    app = App(lanemq_broker.address, group="billing")
    app.middleware(trace_turns(provider=provider))
    handled: list[int] = []

    @app.ordered(TOPIC, batch_size=10)
    def on_orders(events: Sequence[int]) -> None:
        handled.extend(events)

    with app:
        until("all messages are handled", lambda: len(handled) == 3)
    turns = of_kind(exporter, SpanKind.CONSUMER)
    linked = [link.context.span_id for span in turns for link in span.links]
    alone = [span.parent.span_id for span in turns if span.parent is not None]
    senders = {span.context.span_id for span in of_kind(exporter, SpanKind.PRODUCER)}
    assert {*linked, *alone} == senders
