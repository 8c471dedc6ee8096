"""The broker's monitor over HTTP: health, metrics, and what they cost the event loop."""

import asyncio
import errno
import itertools
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.conftest import Start
from tests.broker.handlers.test_parking import Owner, fill
from tests.broker.running import ManualClock, RunningBroker
from tests.certificates import Authority
from tests.faulty_disk import FaultyDisk

from lanemq.broker import runtime_info
from lanemq.broker.monitor import catalogue, figures, health
from lanemq.broker.monitor.catalogue import CATALOGUE
from lanemq.broker.monitor.health import Phase, hung
from lanemq.client.admin.watching import WatchAdmin
from lanemq.model.errors import InvalidOption
from lanemq.model.figures import Kind, MetricSample
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.net.calling.blocking import connect
from lanemq.net.serving import loop_slices
from lanemq.net.serving.server_tls import ServerTls, TlsMode

ANY_PORT = Address("127.0.0.1", 0)


def get(running: RunningBroker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{running.broker.monitor_address}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def series(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each series of `/metrics` by its name and the sorted values of its labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def busy(start: Start, authority: Authority) -> RunningBroker:
    """A broker with something to show for every metric: eight messages, a group behind, held and parked lanes."""
    identity = authority.issue("busy")
    tls = ServerTls(identity.cert, identity.key, mode=TlsMode.PERMISSIVE)
    running = start(clock=ManualClock(), monitor=ANY_PORT, tls=tls)
    assert running.clock is not None
    fill(running.connect())
    owner = Owner(running)
    owner.raw.heartbeat("a", topics={"T": "*"})
    owner.raw.pull("T")
    owner.raw.commit(2, laneClient="a", laneEpoch=str(owner.lease.epoch))
    owner.park(2, 3, key="parked")
    owner.park(4, key="held", held=True)
    owner.raw.create("%DLQ%g", 1)
    owner.raw.send("%DLQ%g", queue=0)
    with WatchAdmin(str(running.broker.address)) as admin:
        admin.report("query", MessageQueue("T", "lanemq", 0), QueueOffset(1))
        groups, _ = admin.describe_groups()
        assert {each.group: each.reported for each in groups}.items() >= {("g", False), ("query", True)}
    running.clock.passed += 7_000
    return running


def test_the_metrics_are_those_of_the_catalogue(busy: RunningBroker) -> None:
    status, text = get(busy, "/metrics")
    assert status == 200
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(text)
        if family.name.startswith("lanemq_")
    }
    assert shown == {metric.name: metric.kind.value for metric in CATALOGUE}
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    assert all(metric.name.endswith("_total") == (metric.kind is Kind.COUNTER) for metric in CATALOGUE)


def test_connections_in_a_handshake_are_shown(start: Start, authority: Authority) -> None:
    identity = authority.issue("monitored")
    running = start(monitor=ANY_PORT, tls=ServerTls(identity.cert, identity.key))
    with connect(running.broker.address), connect(running.broker.address) as begun:
        begun.sendall(b"\x16\x03")
        while running.broker.running.server.joining.count < 2:
            pass
        assert series(get(running, "/metrics")[1])["lanemq_connections", ()] == 2


def test_the_values_are_true(busy: RunningBroker) -> None:
    shown = series(get(busy, "/metrics")[1])
    expected = {
        ("lanemq_messages_in_total", ("T",)): 8,
        ("lanemq_messages_out_total", ("T", "g")): 8,
        ("lanemq_lag_messages", ("T", "g")): 6,
        ("lanemq_lag_seconds", ("T", "g")): 7,
        ("lanemq_backlog_seconds", ("T", "g")): 7,
        ("lanemq_lanes", ("T", "g", "parked")): 1,
        ("lanemq_lane_messages", ("T", "g", "parked")): 2,
        ("lanemq_lane_messages", ("T", "g", "held")): 1,
        ("lanemq_dead_letters", ("g",)): 1,
        ("lanemq_group_members", ("g",)): 1,
        ("lanemq_group_reported", ("query",)): 1,
        ("lanemq_lease_changes_total", ("granted",)): 1,
        ("lanemq_connections", ()): 2,
        ("lanemq_ready", ()): 1,
        ("lanemq_send_seconds_count", ()): 9,
        ("lanemq_send_seconds_bucket", ("10.001",)): 9,
    }
    assert {name: shown[name] for name in expected} == expected
    assert ("lanemq_send_seconds_bucket", ("0.0",)) not in shown, "no send takes no time"
    assert shown["lanemq_disk_free_bytes", ()] > 0
    assert shown["lanemq_group_commit_seconds_count", ()] >= 9
    assert shown["lanemq_flush_seconds_count", ()] >= 9


@pytest.mark.parametrize("remembered", [figures.MAX_TIMES, 1])
def test_each_group_has_the_age_of_the_message_that_it_waits_for(
    start: Start, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """One reading looks up the time of a message once for all groups that wait for it."""
    monkeypatch.setattr(figures, "MAX_TIMES", remembered)
    running = start(clock=ManualClock())
    raw, clock = running.connect(), running.clock
    assert clock is not None
    for _ in range(3):
        raw.send("T")
        clock.passed += 1_000
    for group, offset in (("a", 0), ("b", 1), ("c", 0), ("d", 2), ("e", 3)):
        running.progress(group, "T").move(QueueOffset(offset), pending=False)
    shown = running.wait_for(running.broker.running.figures.read())
    ages = {each.labels[0]: each.value for each in shown if each.metric is catalogue.LAG_SECONDS}
    assert ages == {"a": 3, "b": 2, "c": 3, "d": 1, "e": 0}


def test_runtime_info_has_the_same_figures(busy: RunningBroker) -> None:
    runtime = busy.connect().runtime()
    assert runtime['lanemq_lag_seconds{group="g",topic="T"}'] == "7"
    assert runtime['lanemq_lane_messages{group="g",topic="T",status="parked"}'] == "2"
    assert runtime["lanemq_send_seconds_count"] == "9"
    names = {name.partition("{")[0] for name in runtime}
    assert {metric.name for metric in CATALOGUE if metric.kind is not Kind.HISTOGRAM} <= names


def test_of_a_metric_with_many_samples_runtime_info_has_the_largest_step_by_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each metric for itself: large numbers of bytes do not hide small lags."""
    monkeypatch.setattr(runtime_info, "MAX_PER_METRIC", 3)
    context = start().broker.running.context
    samples = [MetricSample(catalogue.BYTES_OUT, 10**9 + n, (f"g{n}", "T")) for n in range(9)]
    samples += [MetricSample(catalogue.LAG_SECONDS, n % 5, (f"g{n}", "T")) for n in range(9)]
    steps, table = 0, dict[str, str]()
    work = runtime_info.runtime_info(context, Millis(0), samples)
    try:
        while True:
            next(work)
            steps += 1
    except StopIteration as end:
        table = end.value
    assert steps == len(samples) + 6
    assert table["lanemq_omitted_figures"] == "12"
    late = {name: text for name, text in table.items() if name.startswith("lanemq_lag_seconds")}
    assert sorted(late.values()) == ["3", "3", "4"]
    assert len([name for name in table if name.startswith("lanemq_bytes_out")]) == 3


def test_a_group_without_commits_has_no_lag_instead_of_an_invented_one(start: Start) -> None:
    running = start(monitor=ANY_PORT)
    raw = running.connect()
    raw.create("T", 1)
    raw.send("T")
    raw.heartbeat("a", topics={"T": "*"})
    assert not [name for name, _ in series(get(running, "/metrics")[1]) if name == "lanemq_lag_messages"]


def test_a_read_only_broker_is_live_and_not_ready_and_says_why(start: Start) -> None:
    disk = FaultyDisk()
    running = start(disk=disk, monitor=ANY_PORT)
    raw = running.connect()
    raw.send("T")
    assert get(running, "/ready") == (200, '{"ready": true, "reasons": []}\n')
    disk.failing_sync = 1
    raw.send("T")
    status, text = get(running, "/ready")
    assert status == 503
    assert "read-only" in json.loads(text)["reasons"][0]
    assert get(running, "/live")[0] == 200
    assert series(get(running, "/metrics")[1])["lanemq_read_only", ()] == 1


def test_a_broker_that_stops_is_not_ready_for_clients_that_are_still_connected(start: Start) -> None:
    running = start()
    raw, context = running.connect(), running.broker.running.context
    assert raw.runtime()["lanemq_ready"] == "1"
    context.stopping = True
    assert raw.runtime()["lanemq_ready"] == "0"
    context.stopping = False
    running.stop()
    assert context.stopping, "a stop begins with it"


def test_a_disk_that_cannot_be_asked_is_unknown_in_runtime_info_and_fails_nothing_else(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    raw = start().connect()
    monkeypatch.setattr(shutil, "disk_usage", fail)
    shown = raw.runtime()
    assert shown["commitLogDiskRatio"] == shown["consumeQueueDiskRatio"] == "-1.0", "as RocketMQ answers"
    assert shown["commitLogDirCapacity"] == "Total : 0.0 GiB, Free : 0.0 GiB."
    assert "lanemq_disk_free_bytes" not in shown


def test_the_monitor_answers_while_the_event_loop_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(monitor=ANY_PORT)
    monkeypatch.setattr(health, "READ_SECONDS", 0.05)
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    monkeypatch.setattr(figures.Figures, "_totals", lambda _: itertools.repeat(None, 100_000))
    go_on, blocked = threading.Event(), threading.Event()

    def hang() -> None:
        blocked.set()
        go_on.wait(60)

    running._loop.call_soon_threadsafe(hang)
    try:
        assert blocked.wait(60)
        assert get(running, "/live")[0] == 200, "it has hung for a moment only"
        status, text = get(running, "/metrics")
        assert status == 503
        assert "did not answer" in text
        monkeypatch.setattr(health, "MAX_SILENCE_MS", -1)
        assert get(running, "/live")[0] == 503
        assert get(running, "/ready")[0] == 503
    finally:
        go_on.set()
    running.call(lambda: None)
    tasks = running.call(lambda: [task.get_coro() for task in asyncio.all_tasks()])
    assert not [each for each in tasks if "Figures.read" in str(each)], "no client waits for them any more"
    while running.call(lambda: bool(running.broker.running.context.slices._waiting)):
        pass


@pytest.mark.parametrize(
    ("phase", "silent", "problem"),
    [
        (Phase.RUNNING, 10_000, False),
        (Phase.RUNNING, 10_001, True),
        (Phase.STARTING, 3_600_000, False),
        (Phase.STOPPING, 3_600_000, False),
    ],
)
def test_only_a_running_broker_can_hang(phase: Phase, silent: int, problem: bool) -> None:
    assert (hung(phase, Millis(silent)) is not None) is problem


def pauses_during_read(running: RunningBroker) -> int:
    """How often another task ran while the figures of 3,000 queues were read."""

    async def count() -> int:
        pauses, done = 0, False

        async def other() -> None:
            nonlocal pauses
            while not done:
                pauses += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        pauses = 0
        await running.broker.running.figures.read()
        done = True
        await task
        return pauses

    return running.wait_for(count())


def test_reading_the_figures_lets_requests_through(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the control: read in one piece, nothing else gets a turn."""
    running = start()

    def commit() -> None:
        for group in range(300):
            for queue_id in range(10):
                running.progress(f"g{group}", "T", queue_id).move(QueueOffset(0), pending=False)

    running.call(commit)
    monkeypatch.setattr(loop_slices, "SLICE_NS", 200_000)
    assert pauses_during_read(running) > 3
    monkeypatch.setattr(loop_slices, "SLICE_NS", 10**12)
    assert pauses_during_read(running) <= 1


def test_a_port_in_use_stops_only_a_broker_whose_monitor_is_required(start: Start, folder: Path) -> None:
    first = start(monitor=ANY_PORT)
    used = first.broker.monitor_address
    with pytest.raises(InvalidOption, match=f"monitor cannot listen on {used}"):
        start(folder / "second", monitor=used)
    second = start(folder / "second", monitor=used, monitor_required=False)
    assert second.broker.monitor_address is None
    assert second.connect().send("T").code == 0


def test_a_stopped_broker_frees_the_monitors_port(start: Start, folder: Path) -> None:
    first = start(monitor=ANY_PORT)
    used = first.broker.monitor_address
    first.stop()
    assert start(folder / "second", monitor=used).broker.monitor_address == used
