"""Reads all figures of a broker at one moment: those of its groups, its log, and what is behind."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lanemq.broker.context import BrokerContext
from lanemq.broker.monitor import catalogue as names
from lanemq.broker.monitor.group_figures import GroupFigures
from lanemq.core.brokering.delay import MAX_LEVEL
from lanemq.core.brokering.queue_progress import QueueProgress
from lanemq.core.brokering.traffic import LATENCY_LIMITS_MS
from lanemq.core.finished_ranges import count_finished
from lanemq.model.errors import NoDescriptors, StillRebuilding
from lanemq.model.figures import Distribution, MetricSample
from lanemq.model.names import DEAD_LETTER_PREFIX, SCHEDULE_TOPIC
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

MAX_TIMES = 10_000
"""Times of messages that one reading remembers. Many: memory. Few: a time is read again for each group."""


class Lag(NamedTuple):
    """How far a group is behind in one topic."""

    messages: int
    seconds: float | None
    """Age of the oldest message that is not committed; None if it is not known."""
    backlog_seconds: float | None
    """Age of the message from which on as many are stored as are not finished. Held keys have few messages, and old
    ones: this age is that of the others."""


_NO_LAG = Lag(0, 0.0, 0.0)


class Figures(GroupFigures):
    """The figures of one broker. Use it on the event loop only."""

    _context: BrokerContext

    def __init__(self, context: BrokerContext) -> None:
        options = context.options
        super().__init__(context, options.name, options.cluster, options.data, lambda: storage_problems(context))

    def _totals(self) -> Iterator[MetricSample]:
        yield from super()._totals()
        yield MetricSample(names.READ_ONLY, 0 if self._context.group_commit.failure is None else 1)
        yield MetricSample(names.PAUSED, 0 if self._context.group_commit.paused is None else 1)
        yield MetricSample(names.DURABLE, 1 if self._context.options.durable else 0)
        yield MetricSample(names.LONG_POLLS, len(self._context.polls))
        yield from self._traffic()

    def _traffic(self) -> Iterator[MetricSample]:
        traffic = self._context.traffic
        for topic, messages, size in traffic.topics():
            yield MetricSample(names.MESSAGES_IN, messages, (topic,))
            yield MetricSample(names.BYTES_IN, size, (topic,))
        for group, topic, messages, size in traffic.groups():
            yield MetricSample(names.MESSAGES_OUT, messages, (group, topic))
            yield MetricSample(names.BYTES_OUT, size, (group, topic))
        yield MetricSample(names.FAILED_SENDS, traffic.failed_puts)
        yield MetricSample(names.PULLS, traffic.got.times, ("found",))
        yield MetricSample(names.PULLS, traffic.missed.total, ("empty",))
        # Sends are timed in whole milliseconds: up to "0 ms" means in less than one.
        sends = Distribution([(limit + 1) / 1000 for limit in LATENCY_LIMITS_MS])
        sends.counts, sends.sum = list(traffic.put_counts), traffic.put_millis / 1000
        yield MetricSample(names.SEND_SECONDS, sends)

    def _disk(self) -> Iterator[MetricSample]:
        store, group_commit = self._context.store, self._context.group_commit
        yield MetricSample(names.COMMIT_SECONDS, group_commit.times.commit)
        yield MetricSample(names.FLUSH_SECONDS, group_commit.times.flush)
        yield MetricSample(names.PENDING_BYTES, group_commit.pending_bytes)
        yield MetricSample(names.LOG_BYTES, store.log_end - store.log_start)
        if disk := list(super()._disk()):
            yield MetricSample(names.WATERMARK, self._context.low_space.watermark())
            yield from disk

    def _of_groups(self) -> Iterator[MetricSample | None]:
        yield from self._lags()
        yield from super()._of_groups()
        for topic in self._context.topics.topics():
            if topic.name.startswith(DEAD_LETTER_PREFIX):
                yield MetricSample(
                    names.DEAD_LETTERS,
                    self._dead_letters(topic.name, topic.write_queues),
                    (topic.name.removeprefix(DEAD_LETTER_PREFIX),),
                )
        waiting = (
            self._context.store.bounds(SCHEDULE_TOPIC, level - 1)[1] - self._context.delays.next_offset(level)
            for level in range(1, MAX_LEVEL + 1)
        )
        yield MetricSample(names.DELAYED, sum(max(0, count) for count in waiting))
        yield MetricSample(names.DAMAGED, self._context.store.checkpoints.damaged_places)
        rebuild = self._context.store.rebuild
        yield MetricSample(names.REBUILD_BYTES, 0 if rebuild is None else rebuild.bytes_left)

    def _dead_letters(self, topic: str, queues: int) -> int:
        """Without those below the offset of the group that has the topic's name: they are discarded."""
        broker, table = self._context.options.name, self._context.progress
        discarded = (table.at(topic, MessageQueue(topic, broker, number)).offset or 0 for number in range(queues))
        return sum(
            max(0, high - max(low, below))
            for (low, high), below in zip(self._bounds(topic, queues), discarded, strict=True)
        )

    def _lags(self) -> Iterator[MetricSample | None]:
        times: dict[tuple[str, int, int], int | None] = {}  # groups often wait for the same message
        for group in self._context.progress.groups():
            if group.startswith(DEAD_LETTER_PREFIX):
                continue  # it marks discarded dead letters, and does not consume
            lags: dict[str, Lag] = {}
            wall = self._context.clock.wall()
            for progress in self._context.progress.of_group(group):
                topic = progress.queue.topic
                lags[topic] = _both(lags.get(topic, _NO_LAG), self._lag_of_queue(progress, wall, times))
                yield None
            for topic, lag in lags.items():
                yield MetricSample(names.LAG_MESSAGES, lag.messages, (group, topic))
                if lag.seconds is not None:
                    yield MetricSample(names.LAG_SECONDS, lag.seconds, (group, topic))
                if lag.backlog_seconds is not None:
                    yield MetricSample(names.BACKLOG_SECONDS, lag.backlog_seconds, (group, topic))
                yield MetricSample(names.UNREAD_DELETED, self._context.unread.deleted(group, topic), (group, topic))

    def _lag_of_queue(
        self, progress: QueueProgress, wall: Millis, times: dict[tuple[str, int, int], int | None]
    ) -> Lag:
        """`times` has when messages were stored that other groups wait for."""
        (topic, _, queue_id), offset = progress.queue, progress.offset or 0
        low, high = self._context.store.bounds(topic, queue_id)
        if high <= max(offset, low):
            return _NO_LAG
        messages = max(0, high - max(offset, low) - count_finished(progress.finished))
        oldest, backlog = (
            self._age((topic, queue_id, first), wall, times) for first in (max(offset, low), high - messages)
        )
        return Lag(messages, oldest, backlog if messages else 0.0)

    def _age(
        self, first: tuple[str, int, int], wall: Millis, times: dict[tuple[str, int, int], int | None]
    ) -> float | None:
        """Seconds since the first message from this offset on was stored; None if that cannot be read now."""
        if first not in times:
            if len(times) >= MAX_TIMES:
                times.clear()
            try:
                times[first] = self._context.store.times.first_from(*first)
            except (StillRebuilding, NoDescriptors):
                times[first] = None
        stored = times[first]
        return None if stored is None else max(0, wall - stored) / 1000

    def _bounds(self, topic: str, queues: int) -> Iterable[tuple[int, int]]:
        return (self._context.store.bounds(topic, queue_id) for queue_id in range(queues))


def _both(one: Lag, other: Lag) -> Lag:
    """The lag in two queues. If one age is unknown, so is the larger of the two."""
    return Lag(
        one.messages + other.messages,
        _larger(one.seconds, other.seconds),
        _larger(one.backlog_seconds, other.backlog_seconds),
    )


def _larger(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def storage_problems(context: BrokerContext) -> list[str]:
    """Why the broker takes no messages; empty if it takes them."""
    group_commit, problems = context.group_commit, []
    if group_commit.failure is not None:
        problems.append(f"read-only: {group_commit.failure}; repair the cause, then restart the broker")
    if group_commit.paused is not None:
        problems.append(f"sends are refused for now: {group_commit.paused}")
    return problems
