"""Runtime info: the figures of a broker under the names that RocketMQ's tools read.

The dashboard and the Prometheus exporter parse every one of these texts, and fail as a whole if one is missing or has
another form. Names that begin with `lane` are LaneMQ's own: every metric of the monitor, under its name. Figures about
mechanisms that this broker does not have (thread pools for pulls and queries, a transient buffer pool, a lock around
the page cache, timers) are what they are in a RocketMQ broker where nothing waits.
"""

import shutil
from collections.abc import Generator, Sequence
from datetime import timedelta
from heapq import heappush, heappushpop

from lanemq.broker.parts import Parts
from lanemq.core.brokering.delay import MAX_LEVEL
from lanemq.core.brokering.traffic import MINUTE, TEN_MINUTES, TEN_SECONDS, Days, Tally
from lanemq.model.errors import LaneError
from lanemq.model.figures import Distribution, Metric, MetricSample
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis
from lanemq.wire.command import VERSION
from lanemq.wire.record import RecordView

LATENCY_NAMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
"""RocketMQ's names of `LATENCY_LIMITS_MS`."""

MAX_PER_METRIC = 500
"""Samples of one metric in an answer: a broker with many topics and groups would otherwise answer with megabytes."""

NO_BUFFER_POOL = 2**31 - 1
"""RocketMQ's answer without a transient buffer pool."""
UNKNOWN_RATIO = "-1.0"
"""RocketMQ's answer about a disk that cannot be asked."""


def runtime_info(
    parts: Parts, started: Millis, samples: Sequence[MetricSample]
) -> Generator[None, None, dict[str, str]]:
    """The table that answers GET_BROKER_RUNTIME_INFO, in steps; `started` is the monotonic time of the broker's start.

    It has as many figures as the broker has topics and groups.
    """
    texts = yield from _as_texts(samples)
    now = parts.clock.now()
    return {
        **_broker(parts, now - started),
        **_stored_and_read(parts, now, now - started),
        **_storage(parts),
        **_waiting(parts, now),
        "laneReadOnly": str(parts.group_commit.failure or "false"),
        "lanePaused": str(parts.group_commit.paused or "false"),
        **{f"laneRefused_{reason.value}": str(n) for reason, n in parts.counters.refusals.counts.items()},
        **texts,
    }


def _broker(parts: Parts, age: int) -> dict[str, str]:
    booted = str(parts.clock.wall() - age)
    return {
        "brokerVersionDesc": "LaneMQ",
        "brokerVersion": str(VERSION),
        "brokerActive": "true",
        "bootTimestamp": booted,
        "startAcceptSendRequestTimeStamp": booted,
        "runtime": _age_text(age),
    }


def _stored_and_read(parts: Parts, now: Millis, age: int) -> dict[str, str]:
    traffic = parts.traffic
    size = traffic.put_bytes.total
    times = zip(LATENCY_NAMES, traffic.put_times(now=now), strict=True)
    transferred, found, missed = (_rates(each, now, age) for each in (traffic.got, traffic.found, traffic.missed))
    return {
        "putTps": _rates_text(_rates(traffic.put, now, age)),
        "getFoundTps": _rates_text(found),
        "getMissTps": _rates_text(missed),
        "getTotalTps": _rates_text([hit + miss for hit, miss in zip(found, missed, strict=True)]),
        "getTransferredTps": _rates_text(transferred),
        "getTransferedTps": _rates_text(transferred),
        "putMessageTimesTotal": str(traffic.put.total),
        "putMessageFailedTimes": str(traffic.failed_puts),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(1, traffic.put.total)),
        "putMessageDistributeTime": " ".join(f"[{name}]:{count}" for name, count in times),
        "putMessageEntireTimeMax": str(traffic.slowest_put),
        "getMessageEntireTimeMax": str(traffic.slowest_get),
        **_days("msgPutTotal", traffic.put_days()),
        **_days("msgGetTotal", traffic.got_days()),
    }


def _days(name: str, days: Days) -> dict[str, str]:
    return {
        f"{name}YesterdayMorning": str(days.yesterday_morning),
        f"{name}TodayMorning": str(days.this_morning),
        f"{name}TodayNow": str(days.now),
    }


def _storage(parts: Parts) -> dict[str, str]:
    store, rebuild = parts.store, parts.store.rebuild
    return {
        "commitLogMinOffset": str(store.log_start),
        "commitLogMaxOffset": str(store.log_end),
        **_disk(parts),
        "earliestMessageTimeStamp": str(_earliest(parts)),
        "remainHowManyDataToFlush": _bytes_text(store.appender.staged - store.log_end),
        # Queue indexes are complete before a send is answered, unless they were lost and are rebuilt.
        "dispatchBehindBytes": str(0 if rebuild is None else rebuild.bytes_left),
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "remainTransientStoreBufferNumbs": str(NO_BUFFER_POOL),
        **_delayed(parts),
    }


def _disk(parts: Parts) -> dict[str, str]:
    """Size and use of the disk. If it cannot be asked, what RocketMQ answers then: a ratio of -1, and no size."""
    try:
        total, _, free = shutil.disk_usage(parts.options.data)
    except OSError:
        total, free = 0, 0
    used = str((total - free) / total) if total else UNKNOWN_RATIO
    return {
        "commitLogDirCapacity": f"Total : {_bytes_text(total)}, Free : {_bytes_text(free)}.",
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
    }


def _earliest(parts: Parts) -> int:
    """When the oldest record was stored; -1 if there is none, or it is damaged."""
    try:
        return RecordView(parts.store.read_at(parts.store.log_start)).store_timestamp
    except LaneError:
        return -1


def _delayed(parts: Parts) -> dict[str, str]:
    """For each delay level that was used: the next message to deliver, and the end of its queue."""
    levels = {level: parts.store.bounds(SCHEDULE_TOPIC, level - 1)[1] for level in range(1, MAX_LEVEL + 1)}
    return {
        f"scheduleMessageOffset_{level}": f"{parts.delays.next_offset(level)},{end}"
        for level, end in levels.items()
        if end
    }


def _waiting(parts: Parts, now: Millis) -> dict[str, str]:
    """Sends wait for the disk, limited by their bytes. Other requests are answered when they are read."""
    group_commit = parts.group_commit
    idle = {
        f"{kind}ThreadPoolQueue{figure}": "0"
        for kind in ("pull", "query", "litePull", "ack")
        for figure in ("Size", "Capacity", "HeadWaitTimeMills")
    }
    return {
        **idle,
        "sendThreadPoolQueueSize": str(group_commit.pending_bytes),
        "sendThreadPoolQueueCapacity": str(parts.options.max_pending_bytes),
        "sendThreadPoolQueueHeadWaitTimeMills": str(group_commit.longest_wait(now)),
    }


def _as_texts(samples: Sequence[MetricSample]) -> Generator[None, None, dict[str, str]]:
    """Every sample under its name and labels. Of a metric with many samples, those with the largest values."""
    largest: dict[Metric, list[tuple[float, int]]] = {}
    for number, sample in enumerate(samples):
        heap = largest.setdefault(sample.metric, [])
        if len(heap) < MAX_PER_METRIC:
            heappush(heap, (_size(sample), -number))
        else:
            heappushpop(heap, (_size(sample), -number))
        yield
    shown = sorted(-number for heap in largest.values() for _, number in heap)
    texts = {"lanemq_omitted_figures": str(len(samples) - len(shown))}
    for number in shown:
        texts.update(_sample_texts(samples[number]))
        yield
    return texts


def _size(sample: MetricSample) -> float:
    return sample.value.count if isinstance(sample.value, Distribution) else sample.value


def _sample_texts(sample: MetricSample) -> dict[str, str]:
    value = sample.value
    if not isinstance(value, Distribution):
        return {sample.title: f"{value:g}" if value != int(value) else str(int(value))}
    shares = {f"{sample.title}_p{share}": value.quantile(share / 100) for share in (50, 99)}
    known = {name: str(limit) for name, limit in shares.items() if limit is not None}
    return {f"{sample.title}_count": str(value.count), f"{sample.title}_sum": f"{value.sum:.6f}", **known}


def _rates(tally: Tally, now: Millis, age: int) -> list[float]:
    """Per second, in the last ten seconds, minute and ten minutes; since the start in a broker that is younger."""
    return [tally.last(window, now=now).since(age).per_second for window in (TEN_SECONDS, MINUTE, TEN_MINUTES)]


def _rates_text(rates: list[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def _age_text(millis: int) -> str:
    age = timedelta(milliseconds=millis)
    hours, seconds = divmod(age.seconds, 3600)
    return f"[ {age.days} days, {hours} hours, {seconds // 60} minutes, {seconds % 60} seconds ]"


def _bytes_text(count: int) -> str:
    """As RocketMQ writes sizes: `512 B`, `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    power = (count.bit_length() - 1) // 10
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
