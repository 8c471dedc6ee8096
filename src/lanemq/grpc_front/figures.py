"""What a front shows about itself: health and metrics. docs/reference/metrics.md lists the names."""

import asyncio
from collections import Counter as Counts
from collections.abc import Iterator

from lanemq.grpc_front.service import FrontService
from lanemq.model.errors import LaneError
from lanemq.model.figures import Kind, Metric, MetricSample

READ_SECONDS = 5.0

CLIENTS = Metric("lanemq_grpc_clients", Kind.GAUGE, "Clients, by group and language.", ("group", "language"))
WAITING = Metric("lanemq_grpc_waiting_receives", Kind.GAUGE, "Receives that wait for messages.")
HELD = Metric("lanemq_grpc_held_messages", Kind.GAUGE, "Messages at clients that are not decided.", ("group",))
HANDED_OUT = Metric("lanemq_grpc_handed_out_total", Kind.COUNTER, "Messages given to clients, repeats included.")
ACKNOWLEDGED = Metric("lanemq_grpc_acknowledged_total", Kind.COUNTER, "Messages that clients have processed.")
FAILURES = Metric("lanemq_grpc_failures_total", Kind.COUNTER, "Messages whose handler at a client failed.")
RETURNED = Metric(
    "lanemq_grpc_returned_total", Kind.COUNTER, "Runs that ended without a decision: client gone, or too late."
)
STALE = Metric("lanemq_grpc_stale_total", Kind.COUNTER, "Decisions with a handle that was not valid any more.")
STORED = Metric("lanemq_grpc_stored_total", Kind.COUNTER, "Messages of clients that were stored.")
REPEATS = Metric(
    "lanemq_grpc_repeats_total", Kind.COUNTER, "Messages that a client sent again, and that were stored once."
)
NOT_STORED = Metric("lanemq_grpc_not_stored_total", Kind.COUNTER, "Messages of clients that were refused.")
REFUSED = Metric("lanemq_grpc_refused_total", Kind.COUNTER, "Calls without a valid signature or a right.")
GROUPS_DOWN = Metric("lanemq_grpc_unserved_groups", Kind.GAUGE, "Groups with clients and without a member.")
FRONT_CATALOGUE = (
    CLIENTS, WAITING, HELD, HANDED_OUT, ACKNOWLEDGED, FAILURES, RETURNED, STALE, STORED, REPEATS, NOT_STORED, REFUSED,
    GROUPS_DOWN,
)  # fmt: skip


class FrontHealth:
    """A front as its monitor sees it, from the monitor's threads."""

    def __init__(self, service: FrontService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()

    def live_problem(self) -> str | None:
        return None

    def ready_problems(self) -> list[str]:
        if self._service.consumers.draining:
            return ["stopping"]
        return [
            f"group {group.name} has no member: {group.failure}"
            for group in list(self._service.consumers.groups.values())
            if group.failure
        ]

    def samples(self) -> list[MetricSample]:
        async def read() -> list[MetricSample]:
            return list(front_samples(self._service))

        try:
            return asyncio.run_coroutine_threadsafe(read(), self._loop).result(READ_SECONDS)
        except (RuntimeError, TimeoutError) as error:
            raise LaneError(f"no figures: {error}") from error


def front_samples(service: FrontService) -> Iterator[MetricSample]:
    """All figures of a front."""
    handing, sender = service.handing, service.sender
    clients = Counts((client.group or "", client.language.name.lower()) for client in service.clients)
    yield from (MetricSample(CLIENTS, count, labels) for labels, count in clients.items())
    held = Counts[str]()
    for each in handing.hand_outs:
        held[each.group] += len(each.handles) - len(each.acknowledged)
    yield from (MetricSample(HELD, held[group], (group,)) for group in service.consumers.groups)
    yield MetricSample(GROUPS_DOWN, sum(bool(group.failure) for group in service.consumers.groups.values()))
    for metric, value in (
        (WAITING, handing.waiting),
        (HANDED_OUT, handing.handed_out),
        (ACKNOWLEDGED, handing.acknowledged),
        (FAILURES, handing.failures),
        (RETURNED, handing.returned),
        (STALE, handing.stale),
        (STORED, sender.stored),
        (REPEATS, sender.repeats),
        (NOT_STORED, sender.failed),
        (REFUSED, service.access.refused),
    ):
        yield MetricSample(metric, value)
