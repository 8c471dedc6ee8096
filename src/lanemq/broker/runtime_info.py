"""Runtime info: the figures of a broker under the names that RocketMQ's tools read.

The dashboard and the Prometheus exporter parse all of these texts, and fail as a whole if one is missing or has another
form. Names that begin with `lane` are LaneMQ's own: every metric of the monitor, under its name.
"""

import shutil
from collections.abc import Generator, Iterable, Sequence
from datetime import timedelta
from heapq import heappush, heappushpop

from lanemq.broker.context import BrokerContext
from lanemq.broker.storage.group_commit import MAX_PENDING_BYTES
from lanemq.core.brokering.delay import MAX_LEVEL
from lanemq.core.brokering.traffic import DAY, MINUTE, TEN_MINUTES, TEN_SECONDS, Tally, Traffic, Window
from lanemq.model.figures import Distribution, Metric, MetricSample
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis
from lanemq.wire.command import VERSION

MAX_PER_METRIC = 500
"""Samples of one metric in an answer: a broker with many topics and groups would otherwise answer with megabytes."""

GIB = 1024**3

CONSTANT = {
    "brokerVersionDesc": "LaneMQ",
    "brokerVersion": str(VERSION),
    "brokerActive": "true",
    "dispatchMaxBuffer": "0",
    "earliestMessageTimeStamp": "-1",
    "getMessageEntireTimeMax": "0",
    "pageCacheLockTimeMills": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "putMessageEntireTimeMax": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "remainTransientStoreBufferNumbs": str(2**31 - 1),
}
"""What the tools must find and the broker does not have. The last one is RocketMQ's answer without a buffer pool."""

LATENCY_NAMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
"""RocketMQ's names of `LATENCY_LIMITS_MS`."""


def runtime_info(
    context: BrokerContext, started: Millis, samples: Sequence[MetricSample]
) -> Generator[None, None, dict[str, str]]:
    """The table that answers GET_BROKER_RUNTIME_INFO, in steps; `started` is the monotonic time of the broker's start.

    It has as many figures as the broker has topics and groups.
    """
    texts = yield from _as_texts(samples)
    now, traffic, store, commit = context.clock.now(), context.traffic, context.store, context.group_commit
    age = now - started
    total, free, used = _disk(context)
    booted, rebuild = str(context.clock.wall() - age), store.rebuild
    levels = {level: store.bounds(SCHEDULE_TOPIC, level - 1)[1] for level in range(1, MAX_LEVEL + 1)}
    return {
        **CONSTANT,
        "bootTimestamp": booted,
        "startAcceptSendRequestTimeStamp": booted,
        "runtime": _age_text(age),
        **_rates(traffic, now, age),
        **_totals(traffic),
        **_last_day("msgPutTotal", traffic.put, now),
        **_last_day("msgGetTotal", traffic.got, now),
        "remainHowManyDataToFlush": f"{store.appender.staged - store.log_end} B",
        # Queue indexes are complete before a send is answered, unless they were lost and are rebuilt.
        "dispatchBehindBytes": str(0 if rebuild is None else rebuild.bytes_left),
        "commitLogMinOffset": str(store.log_start),
        "commitLogMaxOffset": str(store.log_end),
        "commitLogDirCapacity": f"Total : {total / GIB:.1f} GiB, Free : {free / GIB:.1f} GiB.",
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        # Sends wait for the disk, limited by their bytes. Other requests are answered when they are read.
        "sendThreadPoolQueueSize": str(commit.pending_bytes),
        "sendThreadPoolQueueCapacity": str(MAX_PENDING_BYTES),
        "sendThreadPoolQueueHeadWaitTimeMills": str(commit.longest_wait(now)),
        # For each delay level that was used: the next message to deliver, and the end of its queue.
        **{f"scheduleMessageOffset_{n}": f"{context.delays.next_offset(n)},{end}" for n, end in levels.items() if end},
        "laneReadOnly": str(commit.failure or "false"),
        "lanePaused": str(commit.paused or "false"),
        **{f"laneRefused_{reason.value}": str(n) for reason, n in context.counters.refusals.counts.items()},
        **texts,
    }


def _disk(context: BrokerContext) -> tuple[int, int, str]:
    """Size, free bytes and used share of the disk. If it cannot be asked, as RocketMQ: no size, and a share of -1."""
    try:
        total, _, free = shutil.disk_usage(context.options.data)
    except OSError:
        return 0, 0, "-1.0"
    return total, free, str((total - free) / total)


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


def _rates(traffic: Traffic, now: Millis, age: int) -> dict[str, str]:
    put, got, missed = (_windows(tally, now, age) for tally in (traffic.put, traffic.got, traffic.missed))
    hits = [window.times_per_second for window in got]
    transferred = _rates_text(window.per_second for window in got)
    return {
        "putTps": _rates_text(window.per_second for window in put),
        "getFoundTps": _rates_text(hits),
        "getMissTps": _rates_text(window.per_second for window in missed),
        "getTotalTps": _rates_text(hit + miss.per_second for hit, miss in zip(hits, missed, strict=True)),
        "getTransferredTps": transferred,
        "getTransferedTps": transferred,
    }


def _windows(tally: Tally, now: Millis, age: int) -> list[Window]:
    """The last ten seconds, minute and ten minutes; the time since the start in a broker that started later."""
    return [tally.last(millis, now=now).since(age) for millis in (TEN_SECONDS, MINUTE, TEN_MINUTES)]


def _rates_text(rates: Iterable[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def _totals(traffic: Traffic) -> dict[str, str]:
    """Since the start."""
    messages, size, times = traffic.put.total, traffic.put_bytes, zip(LATENCY_NAMES, traffic.put_counts, strict=True)
    return {
        "putMessageTimesTotal": str(messages),
        "putMessageFailedTimes": str(traffic.failed_puts),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(1, messages)),
        "putMessageDistributeTime": " ".join(f"[{name}]:{count}" for name, count in times),
    }


def _last_day(name: str, tally: Tally, now: Millis) -> dict[str, str]:
    """The tools show the difference to the morning as "today". Totals at midnight are not kept, so "today" is the last
    24 hours, and "yesterday" is 0."""
    before = str(tally.total - tally.last(DAY, now=now).total)
    return {
        f"{name}YesterdayMorning": before,
        f"{name}TodayMorning": before,
        f"{name}TodayNow": str(tally.total),
    }


def _age_text(millis: int) -> str:
    age = timedelta(milliseconds=millis)
    hours, seconds = divmod(age.seconds, 3600)
    return f"[ {age.days} days, {hours} hours, {seconds // 60} minutes, {seconds % 60} seconds ]"
