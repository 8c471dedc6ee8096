"""What a consumer shows about itself: metrics, and the monitor of `App(monitor="127.0.0.1:0")`."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lanemq.client import metrics as names
from lanemq.client.consumer.inspection import Member, take_snapshot
from lanemq.model.environment import WORKER_MONITOR
from lanemq.model.errors import InvalidOption
from lanemq.model.figures import MetricSample
from lanemq.net.address import Address, parse_address

if TYPE_CHECKING:
    from lanemq.net.serving.monitor import Monitor

DEFAULT_PORT = 9881


def consumer_samples(member: Member) -> Iterator[MetricSample]:
    """All figures of a member. Any thread may call it; nothing is paused for it."""
    snapshot, group = take_snapshot(member), member.options.group
    for topic, done in snapshot.topics.items():
        yield MetricSample(names.HANDLED, done.ok, (group, topic, "ok"))
        yield MetricSample(names.HANDLED, done.failed, (group, topic, "failed"))
        yield MetricSample(names.RUNS, done.runs, (group, topic))
    for topic, times in snapshot.turn_times.items():
        yield MetricSample(names.HANDLER_SECONDS, times, (group, topic))
    sums = {metric: Counter[str]() for metric in (names.QUEUES, names.CACHED, names.RUNNING, names.HELD, names.PARKED)}
    lags = Counter[str]()
    for assigned in member.assignment:
        owned = snapshot.queues.get(assigned.queue)
        if assigned.end is not None and owned is not None:
            lags[assigned.queue.topic] += max(0, assigned.end - owned.lanes.committable)
    for queue, owned in snapshot.queues.items():
        view = owned.lanes
        for metric, count in (
            (names.QUEUES, 1),
            (names.CACHED, view.cached.count),
            (names.RUNNING, view.running),
            (names.HELD, len(view.held)),
            (names.PARKED, len(view.parked)),
        ):
            sums[metric][queue.topic] += count
    for metric, counts in (*sums.items(), (names.CONSUMER_LAG, lags)):
        for topic, total in counts.items():
            yield MetricSample(metric, total, (group, topic))


class ConsumerHealth:
    """A consumer as its monitor sees it."""

    def __init__(self, member: Member, problems: Callable[[], list[str]]) -> None:
        self._member = member
        self._problems = problems

    def live_problem(self) -> str | None:
        """A consumer that fails ends by itself, so one that answers is alive."""
        return None

    def ready_problems(self) -> list[str]:
        return self._problems()

    def samples(self) -> list[MetricSample]:
        return list(consumer_samples(self._member))


def open_monitor(listen: str, health: ConsumerHealth) -> "Monitor":
    """Starts the monitor of a consumer; raises `InvalidOption` if it cannot listen.

    In a worker of `lanemq run`, `listen` is the address of all workers, and this one takes a free port of the machine.
    """
    from lanemq.net.serving.monitor import Monitor  # costs 50 ms, which consumers without a monitor save

    address: Address = parse_address(listen, DEFAULT_PORT)
    file = os.environ.pop(WORKER_MONITOR, None)
    try:
        if file is None:
            return Monitor(address, health)
        own = Monitor(Address("127.0.0.1", 0), health)
        _tell(Path(file), f"{own.address}\n{address}\n")
        return own
    except OSError as error:
        raise InvalidOption(
            f"monitor={listen!r}: cannot listen there: {error.strerror or error}; port 0 takes a free one"
        ) from error


def _tell(file: Path, text: str) -> None:
    """Writes the file as a whole: the process that watches the workers may read it at any moment."""
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    new.replace(file)
