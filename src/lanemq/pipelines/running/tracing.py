"""OpenTelemetry for pipelines: a span for each batch and retry pass.

    run(pipeline, trace=trace_batches())

A batch has too many messages to link to their senders: its span says which offsets it reads. Needs the extra `otel`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from lanemq.client.tracing import tracer_of

if TYPE_CHECKING:
    from lanemq.pipelines.running.batch_trace import BatchTrace, PlannedBatch, ProcessBatch
    from lanemq.pipelines.running.progress import AppliedBatch

MAX_RANGES = 128
"""Queue ranges in a span: more would only make it large."""


def trace_batches(*, provider: trace.TracerProvider | None = None) -> "BatchTrace":
    """A trace for `run` and `start` of pipelines: a span for each batch and retry pass, current while it runs.

    An error marks the span as failed.
    """
    tracer = tracer_of(provider)

    def traced(planned: "PlannedBatch", process: "ProcessBatch") -> "AppliedBatch | None":
        name = f"process {planned.batch.name}"
        with tracer.start_as_current_span(name, kind=trace.SpanKind.CONSUMER, attributes=_before(planned)) as span:
            applied = process()
            if applied is not None:
                span.set_attributes(_after(applied))
            return applied

    return traced


def _before(planned: "PlannedBatch") -> dict[str, AttributeValue]:
    batch = planned.batch
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "process",
        "lanemq.pipeline": batch.name,
        "lanemq.batch": batch.spark_batch,
        "lanemq.retry_pass": batch.retry_pass,
        "lanemq.queues": _shown(planned),
    }
    topics = sorted({each.queue.topic for each in planned.ranges})
    if topics:
        attributes["messaging.destination.name"] = ",".join(topics)
    if planned.messages is not None:
        attributes["messaging.batch.message_count"] = planned.messages
    return attributes


def _shown(planned: "PlannedBatch") -> Sequence[str]:
    return [str(each) for each in planned.ranges[:MAX_RANGES]]


def _after(applied: "AppliedBatch") -> dict[str, AttributeValue]:
    return {
        "lanemq.rows": applied.outputs,
        "lanemq.dead_letters": applied.dead_letters,
        **{f"lanemq.counted.{name}": count for name, count in applied.counts.items()},
    }
