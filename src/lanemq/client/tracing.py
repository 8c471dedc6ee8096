"""OpenTelemetry: a span for each send and for each turn, connected by the message.

    with trace_send("orders", key="order-42") as properties:
        producer.send("orders", order, key="order-42", properties=properties)

    app.middleware(trace_turns(group="billing"))

The context travels in the message's properties (`traceparent`, `tracestate`), so it survives the broker, also an Apache
one. A turn with one message continues the trace of its sender; a turn with several links to all of them. Needs
the extra `otel`, which is OpenTelemetry's API; without its SDK, spans cost little and go nowhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace

from lanemq.client.consumer.turns.arguments import Middleware
from lanemq.client.message import Message

SCOPE = "lanemq"


def tracer_of(provider: trace.TracerProvider | None) -> trace.Tracer:
    """The tracer of LaneMQ; without a provider, the process's own counts."""
    return trace.get_tracer(SCOPE, tracer_provider=provider)


@contextmanager
def trace_send(
    topic: str, *, key: object = None, provider: trace.TracerProvider | None = None
) -> Iterator[dict[str, str]]:
    """A span for what is sent inside the block. Pass the properties that it yields to every message.

    An exception inside the block marks the span as failed. With `submit`, the span ends when the message is accepted,
    unless the block waits for the receipt.
    """
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    if key is not None:
        attributes["messaging.rocketmq.message.group"] = str(key)
    tracer = tracer_of(provider)
    with tracer.start_as_current_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        properties: dict[str, str] = {}
        propagate.inject(properties)
        yield properties


def trace_turns(*, group: str = "", provider: trace.TracerProvider | None = None) -> Middleware:
    """Middleware with a span for each turn; `group` is the consumer group that the spans name."""
    tracer = tracer_of(provider)

    def traced(messages: Sequence[Message]) -> Iterator[None]:
        parent, links = continued([each.properties for each in messages], alone=len(messages) == 1)
        name, attributes = f"process {messages[0].topic}", _of_turn(messages, group)
        with tracer.start_as_current_span(name, parent, trace.SpanKind.CONSUMER, attributes, links):
            yield

    return traced


def continued(
    senders: Sequence[Mapping[str, str]], *, alone: bool
) -> tuple[context.Context | None, Sequence[trace.Link]]:
    """Parent and links of a span for messages with these properties: one that is `alone` continues its sender's trace.

    The others link to the spans of their senders, of those that have one.
    """
    contexts = [propagate.extract(properties) for properties in senders]
    if alone:
        return (contexts[0] if contexts else None), ()
    return None, [link for each in contexts if (link := _link(each)) is not None]


def _of_turn(messages: Sequence[Message], group: str) -> dict[str, Any]:
    first = messages[0]
    attributes: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.topic,
        "messaging.destination.partition.id": str(first.queue.queue_id),
        "messaging.batch.message_count": len(messages),
        "lanemq.offset": first.queue_offset,
    }
    if len(messages) == 1:
        attributes["messaging.message.id"] = first.message_id
    if first.key is not None:
        attributes["messaging.rocketmq.message.group"] = first.key
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _link(sender: context.Context) -> trace.Link | None:
    span_context = trace.get_current_span(sender).get_span_context()
    return trace.Link(span_context) if span_context.is_valid else None
