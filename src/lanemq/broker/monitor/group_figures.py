"""The figures of groups and their clients, which a broker and a coordinator have.

Invariant: no figure is invented. What is not known has no sample: the lag of a group without commits, the age of a
message whose index is being rebuilt, a disk that cannot be asked.

Reading runs on the event loop, where the tables live, in slices: requests are answered between two of them, so a broker
with many groups serves its clients while it is scraped.
"""

import shutil
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from lanemq.broker.context import GroupContext
from lanemq.broker.group_rules import is_reported
from lanemq.broker.monitor import catalogue as names
from lanemq.core.lane_status import LaneStatus
from lanemq.model.figures import MetricSample


class GroupFigures:
    """The figures of one process. Use it on the event loop only."""

    def __init__(
        self, context: GroupContext, name: str, cluster: str, data: Path | None, problems: Callable[[], list[str]]
    ) -> None:
        """`data` is the data folder, None if there is none; `problems` say why the process cannot do its work now."""
        self._context = context
        self._data = data
        self._problems = problems
        self._started_wall = context.clock.wall()
        self.started = context.clock.now()
        """Monotonic time of the start."""
        self._labels = (_version(), name, cluster)  # not later: reading the version needs a descriptor

    def problems(self) -> list[str]:
        """Why the process cannot do its work now; any thread may ask."""
        return self._problems()

    async def read(self) -> list[MetricSample]:
        """All samples."""
        return await self._context.slices.result(self.steps())

    def steps(self) -> Generator[None, None, list[MetricSample]]:
        """All samples, one in each step."""
        samples: list[MetricSample] = []
        for sample in chain(self._totals(), self._of_groups()):
            if sample is not None:
                samples.append(sample)
            yield
        return samples

    def _totals(self) -> Iterator[MetricSample]:
        """Figures that are only looked up."""
        yield MetricSample(names.INFO, 1, self._labels)
        yield MetricSample(names.STARTED, self._started_wall / 1000)
        yield MetricSample(names.READY, 0 if self._context.stopping or self.problems() else 1)
        yield from self._disk()
        yield from self._clients()

    def _disk(self) -> Iterator[MetricSample]:
        if self._data is None:
            return
        try:
            disk = shutil.disk_usage(self._data)
        except OSError:
            return
        yield MetricSample(names.DISK_FREE, disk.free)
        yield MetricSample(names.DISK_SIZE, disk.total)

    def _clients(self) -> Iterator[MetricSample]:
        context, counters = self._context, self._context.counters
        yield MetricSample(names.CONNECTIONS, len(context.notices) + counters.joining.count)
        end = None if context.tls is None else context.tls.certificate_end
        if end is not None:
            yield MetricSample(names.CERTIFICATE, max(0, end - context.clock.wall()) / 1000)
        for reason, count in counters.refusals.counts.items():
            yield MetricSample(names.REFUSALS, count, (reason.value,))
        yield MetricSample(names.LOOP_DELAY, counters.loop_delay)
        for change, count in (
            ("granted", counters.leases_granted),
            ("released", counters.leases_released),
            ("expired", counters.leases_expired),
        ):
            yield MetricSample(names.LEASE_CHANGES, count, (change,))
        yield MetricSample(names.GIVEN_UP, counters.filters_given_up)
        for request, count in (
            ("pull", counters.stale_pulls),
            ("stock commit", counters.stale_commits),
            ("commit", counters.refused_commits),
            ("park", counters.refused_parks),
        ):
            yield MetricSample(names.STALE, count, (request,))

    def _of_groups(self) -> Iterator[MetricSample | None]:
        """Figures by group. Yields after every step of bounded length, None if there is nothing to show yet."""
        yield from self._lanes()
        for group in self._context.members.groups():
            yield MetricSample(names.MEMBERS, len(self._context.members.members(group)), (group,))
            for name, count in self._context.members.narrower_members(group):
                yield MetricSample(names.NARROWER, count, (group, name))
        for group in list(self._context.groups):
            yield MetricSample(names.REPORTED, 1, (group,)) if is_reported(self._context, group) else None

    def _lanes(self) -> Iterator[MetricSample | None]:
        lanes: dict[tuple[str, str, LaneStatus], tuple[int, int]] = {}
        parked = self._context.progress.parked()
        for lane in [lane for progress in parked for lane in progress.lanes.values()]:
            key = (lane.name.group, lane.name.queue.topic, lane.status)
            count, messages = lanes.get(key, (0, 0))
            lanes[key] = (count + 1, messages + len(lane.offsets))
            yield None
        for (group, topic, status), (count, messages) in lanes.items():
            yield MetricSample(names.LANES, count, (group, topic, status.value))
            yield MetricSample(names.LANE_MESSAGES, messages, (group, topic, status.value))


@cache
def _version() -> str:
    return version("lanemq")
