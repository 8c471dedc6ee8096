"""The names of a client's metrics. docs/reference/metrics.md lists them."""

from collections.abc import Iterable, Iterator

from lanemq.model.figures import Distribution, Kind, Metric, MetricSample, limit_text

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_OF_TOPIC = ("group", "topic")

HANDLED = Metric(
    "lanemq_consumer_messages_total",
    COUNTER,
    "Messages whose handler succeeded or failed.",
    (*_OF_TOPIC, "outcome"),
)
RUNS = Metric("lanemq_consumer_runs_total", COUNTER, "Runs: messages of a key that a worker took at once.", _OF_TOPIC)
HANDLER_SECONDS = Metric(
    "lanemq_consumer_handler_seconds", HISTOGRAM, "Time of a turn, which is one call of the handler.", _OF_TOPIC
)
QUEUES = Metric("lanemq_consumer_queues", GAUGE, "Queues that this member owns.", _OF_TOPIC)
CACHED = Metric("lanemq_consumer_cached_messages", GAUGE, "Messages pulled and not finished.", _OF_TOPIC)
RUNNING = Metric("lanemq_consumer_running_lanes", GAUGE, "Lanes whose handler runs now.", _OF_TOPIC)
HELD = Metric("lanemq_consumer_held_lanes", GAUGE, "Lanes that wait for their next attempt.", _OF_TOPIC)
PARKED = Metric("lanemq_consumer_parked_lanes", GAUGE, "Lanes that wait for an operator.", _OF_TOPIC)
CONSUMER_LAG = Metric(
    "lanemq_consumer_lag_messages",
    GAUGE,
    "Messages above the committed offsets of the own queues.",
    _OF_TOPIC,
)
CONSUMER_CATALOGUE = (HANDLED, RUNS, HANDLER_SECONDS, QUEUES, CACHED, RUNNING, HELD, PARKED, CONSUMER_LAG)

STORED = Metric("lanemq_producer_stored_total", COUNTER, "Messages that a broker has stored.", ("group",))
FAILED = Metric(
    "lanemq_producer_failed_total",
    COUNTER,
    "Messages given up: refused, late, or behind one that failed.",
    ("group",),
)
UNSETTLED_BYTES = Metric(
    "lanemq_producer_unsettled_bytes", GAUGE, "Bytes of messages accepted and neither stored nor given up.", ("group",)
)
FROZEN = Metric("lanemq_producer_frozen_keys", GAUGE, "Keys that refuse messages after a failure.", ("group",))
PRODUCER_CATALOGUE = (STORED, FAILED, UNSETTLED_BYTES, FROZEN)


def as_numbers(samples: Iterable[MetricSample]) -> dict[str, float]:
    """The samples by their names and labels, as Prometheus shows them: a histogram has several."""
    return {title: value for each in samples for title, value in _series(each)}


def _series(sample: MetricSample) -> Iterator[tuple[str, float]]:
    metric, value = sample.metric, sample.value
    if not isinstance(value, Distribution):
        yield sample.title, value
        return
    buckets = metric._replace(name=f"{metric.name}_bucket", labels=(*metric.labels, "le"))
    for limit, count in value.cumulated():
        yield MetricSample(buckets, count, (*sample.labels, limit_text(limit))).title, count
    yield MetricSample(metric._replace(name=f"{metric.name}_count"), 0, sample.labels).title, value.count
    yield MetricSample(metric._replace(name=f"{metric.name}_sum"), 0, sample.labels).title, value.sum
