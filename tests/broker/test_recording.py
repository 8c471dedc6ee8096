"""A broker's history is exact about leases and offsets, so that the checker finds a broken broker."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, heartbeat
from tests.broker.running import Gate, ManualClock, RunningBroker, retire_now

from lanemq.broker.config import BrokerOptions
from lanemq.broker.handlers.pull import PullHandler
from lanemq.broker.recording import Recording
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report, Verdict
from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.brokering import lock_table
from lanemq.core.brokering.members.group import Group
from lanemq.history import open_history
from lanemq.model.errors import StorageError
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.bodies import HeartbeatData
from lanemq.wire.codes import RequestCode, ResponseCode

WAIT = 60.0
START_MS = 1_000_000
LEASE_MS = 5_000


@pytest.fixture
def clocked(start: Start, folder: Path) -> RunningBroker:
    running = start(clock=ManualClock(), history=folder / "history")
    running.connect().create("T", 2)
    return running


def lines(folder: Path, *wanted: str) -> list[tuple[Any, ...]]:
    """The named fields of every line but the first of each start."""
    text = (folder / "history" / "broker-lanemq.jsonl").read_bytes()
    found = [msgspec.json.decode(line) for line in text.splitlines()]
    return [tuple(each.get(name) for name in wanted) for each in found if each["e"] != "begin"]


def ns(millis: int) -> int:
    return (START_MS + millis) * 1_000_000


def test_a_lease_is_recorded_from_grant_to_release(clocked: RunningBroker, folder: Path) -> None:
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    clocked.advance(1_000)
    raw.lane_lock("a", millis=LEASE_MS)
    raw.lane_lock("b", millis=LEASE_MS)
    raw.unlock("a", laneEpoch="1")
    raw.lane_lock("b", millis=LEASE_MS)
    assert lines(folder, "e", "t", "group", "topic", "queue", "member", "epoch", "until") == [
        ("lease_granted", ns(0), "g", "T", 0, "a", 1, ns(LEASE_MS)),
        ("lease_renewed", ns(1_000), "g", "T", 0, "a", 1, ns(1_000 + LEASE_MS)),
        ("lease_released", ns(1_000), "g", "T", 0, "a", 1, None),
        ("lease_granted", ns(1_000), "g", "T", 0, "b", 2, ns(1_000 + LEASE_MS)),
    ]


def test_a_deleted_topic_is_recorded_after_its_leases(clocked: RunningBroker, folder: Path) -> None:
    """The same offsets may be used again from then on."""
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert lines(folder, "e", "topic")[1:] == [("lease_expired", "T"), ("topic_deleted", "T")]


def test_a_deletion_is_recorded_once_it_is_on_disk(clocked: RunningBroker, folder: Path) -> None:
    """Before that, a crash would bring the topic back with its messages."""
    raw = clocked.connect()
    gate = Gate(clocked)
    deletion = raw.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    clocked.connect().bounds("U")
    raw.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert lines(folder, "e") == []
    gate.open()
    assert raw.answer(deletion).code == 0
    assert lines(folder, "e", "topic") == [("topic_deleted", "T")]


def test_an_expired_lease_is_recorded_once(clocked: RunningBroker, folder: Path) -> None:
    clocked.connect().lane_lock("a", millis=LEASE_MS)
    clocked.advance(LEASE_MS)
    clocked.advance(LEASE_MS)
    assert lines(folder, "e", "member", "epoch")[1:] == [("lease_expired", "a", 1)]


def test_a_lease_shortened_by_a_lost_connection_is_recorded_with_its_new_end(
    clocked: RunningBroker, folder: Path
) -> None:
    """Otherwise the next grant would look too early."""
    raw = clocked.connect()
    raw.heartbeat("a", "g", {"T": "*"})
    raw.lane_lock("a", millis=LEASE_MS, laneKeepAliveMillis="100")
    raw.close()
    for _ in range(int(WAIT * 100)):
        if len(lines(folder, "e")) > 1:
            break
        threading.Event().wait(0.01)
    assert lines(folder, "e", "epoch", "until")[1:] == [("lease_renewed", 1, ns(lock_table.DISCONNECT_GRACE_MS))]


def test_commits_are_recorded_with_their_outcome(clocked: RunningBroker, folder: Path) -> None:
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    raw.commit(3, laneClient="a", laneEpoch="1")
    raw.unlock("a", laneEpoch="1")
    raw.lane_lock("b", millis=LEASE_MS)
    raw.commit(4, laneClient="a", laneEpoch="1")
    raw.commit(2, laneClient="b", laneEpoch="2")
    raw.unlock("b", laneEpoch="2")
    raw.commit(1)
    written = [each for each in lines(folder, "e", "offset", "epoch", "reason") if not str(each[0]).startswith("lease")]
    assert written == [
        ("committed", 3, 1, None),
        ("commit_refused", 4, 1, "the queue was granted to another member"),
        ("reset", 1, 0, "a stock client went back from 3"),
    ]


@pytest.mark.parametrize("online", [True, False])
def test_the_broker_records_a_reset_only_if_the_group_has_no_members(
    clocked: RunningBroker, folder: Path, online: bool
) -> None:
    raw = clocked.connect()
    raw.send("T", queue=0)
    if online:
        raw.heartbeat("a", "g", {"T": "*"})
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "offset": "1", "queueId": "0", "isForce": "true"}
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    assert lines(folder, "e", "offset") == ([] if online else [("reset", 1)])


RESET = {"topic": "T", "group": "g", "timestamp": "-1", "offset": "1", "queueId": "0", "isForce": "true"}


def test_a_reset_after_a_restart_waits_for_members_without_a_heartbeat_yet(
    clocked: RunningBroker, folder: Path
) -> None:
    """Their leases show that they exist. Otherwise their next commit would undo the reset."""
    raw = clocked.connect()
    for _ in range(4):
        raw.send("T", queue=0)
    raw.lane_lock("a", millis=LEASE_MS)
    raw.commit(3, laneClient="a", laneEpoch="1")
    clocked.restart()
    raw = clocked.connect()
    before = len(lines(folder, "e"))
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
    raw.commit(4, laneClient="a", laneEpoch="1")
    assert raw.committed() == 1
    assert lines(folder, "e", "offset")[before:] == []


def test_a_new_owner_that_starts_at_the_offset_of_a_reset_is_recorded(clocked: RunningBroker, folder: Path) -> None:
    """The old owner never moved there, so nothing else in the history explains the jump."""
    raw = clocked.connect()
    for _ in range(4):
        raw.send("T", queue=0)
    raw.heartbeat("a", "g", {"T": "*"})
    raw.commit(3)
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
    assert raw.pull("T", 3, hold=10).code == ResponseCode.PULL_OFFSET_MOVED
    before = len(lines(folder, "e"))
    for _ in range(2):
        assert raw.pull("T", 1, hold=10).code == 0
    assert lines(folder, "e", "offset")[before:] == [("reset", 1)]


def test_members_without_leases_may_commit_different_offsets(clocked: RunningBroker, folder: Path) -> None:
    raw = clocked.connect()
    raw.commit(3)
    raw.commit(1)
    assert lines(folder, "e", "offset", "kept")[-1] == ("reset", 1, 1)


def test_a_clean_restart_records_the_offsets_and_leases_it_found(clocked: RunningBroker, folder: Path) -> None:
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    raw.commit(3, laneClient="a", laneEpoch="1")
    before = len(lines(folder, "e"))
    clocked.restart()
    found = lines(folder, "e", "epoch", "offset")[before:]
    assert [each for each in found if each[0] != "lease_renewed"] == [("recovered", 0, 3)]
    assert ("lease_renewed", 1, None) in found


def test_a_restart_after_a_crash_records_the_crash_and_the_remaining_offsets(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    """With the time of the last line before the crash: only commits of the last moments may be lost."""
    clocked.connect().commit(3)
    clocked.advance(1_000)
    clocked.connect().commit(4)
    image = clocked.crash_image(folder / "image")
    (folder / "second").mkdir()
    shutil.copytree(folder / "history", folder / "second" / "history")
    (alive,) = lines(folder, "t")[-1]
    before = len(lines(folder, "e"))
    clock = ManualClock()
    clock.passed = 5_000
    again = start(image, clock=clock, history=folder / "second" / "history")
    again.connect().committed()
    again.connect().committed(group="late")
    again.connect().committed(group="late")
    written = lines(folder / "second", "e", "group", "offset", "clean", "alive")[before:]
    assert [each for each in written if each[0] != "crashed"] == [
        ("recovered", "g", 3, 0, alive),
        ("recovered", "late", -1, 0, alive),
    ]
    crashed = lines(folder / "second", "e", "topic", "queue", "alive")[before:]
    assert {("crashed", "T", 0, alive), ("crashed", "T", 1, alive)} <= set(crashed), "also queues without messages"


def test_a_pending_reset_after_a_clean_stop_is_not_recorded_as_a_lost_commit(
    clocked: RunningBroker, folder: Path
) -> None:
    raw = clocked.connect()
    for _ in range(3):
        raw.send("T", queue=0)
    raw.heartbeat("a", "g", {"T": "*"})
    raw.commit(3)
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
    clocked.restart()
    assert [each for each in lines(folder, "e", "offset") if each[0] == "recovered"] == []


def test_a_pending_reset_after_a_crash_is_not_recorded_as_a_lost_commit(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    """The commit that it replaced may be old: no crash has taken it."""
    raw = clocked.connect()
    for _ in range(3):
        raw.send("T", queue=0)
    raw.heartbeat("a", "g", {"T": "*"})
    raw.commit(3)
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
    image = clocked.crash_image(folder / "image")
    (folder / "second").mkdir()
    shutil.copytree(folder / "history", folder / "second" / "history")
    start(image, clock=ManualClock(), history=folder / "second" / "history")
    found = [each[0] for each in lines(folder / "second", "e")]
    assert "crashed" in found
    assert "recovered" not in found


def test_a_restart_after_a_crash_records_owned_queues_without_an_offset(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    """The owner continues without a query, perhaps beyond the next restart, when the crash is no longer known."""
    clocked.connect().lane_lock("a", millis=LEASE_MS)
    image = clocked.crash_image(folder / "image")
    (folder / "second").mkdir()
    shutil.copytree(folder / "history", folder / "second" / "history")
    start(image, clock=ManualClock(), history=folder / "second" / "history")
    assert lines(folder / "second", "e", "group", "queue", "offset")[-1] == ("recovered", "g", 0, -1)


def test_an_offset_that_a_crash_took_is_recorded_when_its_group_asks_only_after_a_clean_stop(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    """The queue has no owner when the broker starts after the crash, so that start cannot tell what is missing."""
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    raw.commit(1, laneClient="a", laneEpoch="1")
    raw.unlock("a", laneEpoch="1")
    image = clocked.crash_image(folder / "image")
    (folder / "second").mkdir()
    shutil.copytree(folder / "history", folder / "second" / "history")
    again = start(image, clock=ManualClock(), history=folder / "second" / "history")
    again.restart()
    assert "recovered" not in [each[0] for each in lines(folder / "second", "e")]
    again.connect().committed()
    assert lines(folder / "second", "e", "group", "queue", "offset", "clean")[-1] == ("recovered", "g", 0, -1, 1)
    report = check([folder / "second" / "history"], CheckOptions())
    assert (report.violations, report.coverage["forgotten_commits"]) == ((), 1)


def test_a_broker_that_never_ran_before_has_nothing_to_recover(clocked: RunningBroker, folder: Path) -> None:
    clocked.connect().committed()
    assert lines(folder, "e") == []


def test_without_a_folder_nothing_is_written(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock())
    running.connect().lock("a")
    assert not running.broker.running.context.recording.on
    assert not (folder / "history").exists()


# the checker reads it


def judge_retention(start: Start, folder: Path) -> tuple[Report, dict[int, int]]:
    """Retention deletes messages that were sent with a history, and a group that had not read them continues.

    Returns the verdict, and what was recorded as deleted of each queue.
    """
    running = start(history=folder / "history", segment_bytes=64 * 1024, retention_bytes=64 * 1024)
    raw = running.connect()
    raw.create("T", 2)
    with Producer(running.address, history=folder / "history") as producer:
        producer.send_many("T", [(f"k{n % 9}", f"{n:04000}") for n in range(64)])
    for queue in range(2):
        raw.commit(0, queue=queue)
    retire_now(running)
    firsts = [raw.bounds("T", queue)[0] for queue in range(2)]
    assert all(firsts)
    for queue, first in enumerate(firsts):
        raw.commit(first, queue=queue)
    running.stop()
    trimmed = {each[1]: each[2] for each in lines(folder, "e", "queue", "offset") if each[0] == "trimmed"}
    return check([folder / "history"]), trimmed


def test_what_retention_deletes_is_recorded_and_not_taken_for_lost(start: Start, folder: Path) -> None:
    report, trimmed = judge_retention(start, folder)
    assert trimmed.keys() == {0, 1}
    assert (report.violations, report.groups["g"].undecided) == ((), 0)


def test_without_the_record_it_would_not_be_known_whether_it_is_lost(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control. The member has no history: with one, it would be taken for lost."""
    monkeypatch.setattr(Recording, "trimmed", lambda self, firsts: None)
    report, trimmed = judge_retention(start, folder)
    assert trimmed == {}
    assert (report.violations, report.groups["g"].undecided) == ((), 2)


class RecordedRun:
    """A broker and members in this process, all with histories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "history"
        self._ends = ExitStack()
        options = BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0), history=self.folder)
        self.broker = self._ends.enter_context(EmbeddedBroker(options))
        with Admin(self.broker.address) as admin:
            admin.create_topic("orders", queues=4, ordered=True)

    def send(self, count: int) -> None:
        with Producer(self.broker.address) as producer:
            producer.send_many("orders", [(f"k{n % 16}", n) for n in range(count)])

    def send_tagged(self, *tags: str) -> None:
        """A message with each tag for each of 16 keys, with a history."""
        history = open_history(self.folder, "p", SystemClock().now_ns, role="producer")
        with Producer(self.broker.address, history=history) as producer:
            for key in range(16):
                for tag in tags:
                    producer.send("orders", key, key=f"k{key}", tag=tag)
        history.close()

    def member(self, name: str, seen: list[int], tags: str = "*") -> App:
        history = open_history(self.folder, name, SystemClock().now_ns, role="consumer")
        settings = {"client_id": name, "history": history, "commit_every": 0.05}
        app = App(self.broker.address, group="g", **settings)

        @app.ordered("orders", tags=tags)
        def note(value: int, message: Message) -> None:
            seen.append(value)

        self._ends.callback(history.close)
        self._ends.enter_context(app)
        return app

    def close(self) -> None:
        self._ends.close()

    def judge(self, *require: str) -> Report:
        self.close()
        return check([self.folder], CheckOptions(require=require, foreign_producers=True))


@pytest.fixture
def run(folder: Path) -> Iterator[RecordedRun]:
    made = RecordedRun(folder)
    yield made
    made.close()


def wait_for(true: Any) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT * 100)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true in time")


def owned(app: App) -> int:
    return sum(queue.topic == "orders" for queue in app.snapshot().queues)


def lag(admin: Admin) -> int:
    return sum(queue.end - (admin.committed("g", queue.queue) or 0) for queue in admin.describe_topic("orders").queues)


def test_a_run_with_two_members_passes_the_checker(run: RecordedRun) -> None:
    seen: list[int] = []
    run.send(200)
    first = run.member("a", seen)
    wait_for(lambda: len(seen) == 200)
    second = run.member("b", seen)
    wait_for(lambda: owned(first) == owned(second) == 2)
    run.send(200)
    wait_for(lambda: len(seen) == 400)
    second.stop()
    wait_for(lambda: owned(first) == 4)
    report = run.judge("rebalance=4", "commits=8")
    assert report.verdict is Verdict.PASS, report


def test_a_reset_of_running_members_is_recorded_and_passes_the_checker(run: RecordedRun) -> None:
    seen: list[int] = []
    run.send(40)
    run.member("a", seen)
    with Admin(run.broker.address) as admin:
        wait_for(lambda: lag(admin) == 0)
        admin.reset_offsets("g", "orders", to="first")
    wait_for(lambda: len(seen) == 80)
    report = run.judge("resets=4")
    assert report.verdict is Verdict.PASS, report


def test_the_checker_finds_a_broker_that_grants_a_queue_too_early(
    clocked: RunningBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: only the broker's own lines show when the lease really ended."""
    monkeypatch.setattr(lock_table._Entry, "live", lambda self, now: False)
    raw = clocked.connect()
    raw.lane_lock("a", millis=LEASE_MS)
    clocked.advance(1_000)
    raw.lane_lock("b", millis=LEASE_MS)
    report = check([folder / "history"], CheckOptions())
    assert report.counts == {"C1": 1}
    assert "4000.000 ms before the lease of a" in report.violations[0].text


def test_a_grant_that_is_not_on_disk_is_not_recorded(clocked: RunningBroker, folder: Path) -> None:
    """A crash loses it, and the same epoch goes to another member; the first grant was never answered."""
    raw, state = clocked.connect(), clocked.broker.running.context.state
    works = state.save_leases

    def refuse(rows: object) -> None:
        raise StorageError("the state database failed: disk I/O error")

    state.save_leases = refuse  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        raw.lane_lock("a", millis=LEASE_MS)
    assert lines(folder, "e") == []
    state.save_leases = works  # type: ignore[method-assign]
    raw.lane_lock("a", millis=LEASE_MS)
    assert lines(folder, "e", "member", "epoch") == [("lease_granted", "a", 1)]


@pytest.mark.parametrize("writer", ["first", "broker-lanemq"])
def test_the_checker_finds_that_a_release_is_missing(run: RecordedRun, writer: str) -> None:
    seen: list[int] = []
    run.member("first", seen)
    run.send(16)
    wait_for(lambda: len(seen) == 16)
    second = run.member("second", seen)
    wait_for(lambda: owned(second) == 2)
    assert run.judge("rebalance").verdict is Verdict.PASS
    path = run.folder / f"{writer}.jsonl"
    found = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    gone = next(n for n, each in enumerate(found) if each["e"] == "lease_released" and each["member"] == "first")
    del found[gone]
    path.write_bytes(b"".join(msgspec.json.encode({**each, "n": n}) + b"\n" for n, each in enumerate(found)))
    report = run.judge()
    assert report.verdict is Verdict.VIOLATION
    assert report.violations[0].invariant == "C1"


def test_the_widest_tags_of_a_group_are_recorded_once_its_members_differ(clocked: RunningBroker, folder: Path) -> None:
    def join(name: str, tags: str) -> RawClient:
        body = HeartbeatData.of_request(heartbeat(name, "g", {"T": tags}))
        body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
        raw = clocked.connect()
        raw.ask(RequestCode.HEART_BEAT, {}, body.encode())
        return raw

    first = join("a", "paid")
    assert lines(folder, "e") == [], "all have the same tags"
    second, third = join("b", "paid||sent"), join("c", "*")
    for name, raw in (("c", third), ("b", second), ("a", first)):
        raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": name, "consumerGroup": "g"})
    assert lines(folder, "e", "group", "topic", "queue", "tags") == [
        ("subscribed", "g", "T", queue, tags)
        for tags in ("paid||sent", "*", "paid||sent", "paid", "")
        for queue in range(2)
    ]


def test_the_history_names_a_lost_member_when_its_tags_count_no_more(clocked: RunningBroker, folder: Path) -> None:
    def join(name: str, tags: str) -> RawClient:
        raw = clocked.connect()
        beat(raw, name, tags)
        return raw

    def beat(raw: RawClient, name: str, tags: str) -> None:
        body = HeartbeatData.of_request(heartbeat(name, "g", {"T": tags}))
        body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
        raw.ask(RequestCode.HEART_BEAT, {}, body.encode())

    narrow = join("narrow", "paid")
    join("wide", "paid||sent").close()
    for _ in range(5):
        clocked.run_for(30_000)
        beat(narrow, "narrow", "paid")
    tags = [("paid||sent", None), ("paid", "wide")]
    assert lines(folder, "tags", "lost") == [each for each in tags for _ in range(2)]


@pytest.mark.parametrize("waits", [True, False])
def test_the_history_says_again_after_a_restart_which_tags_count(
    clocked: RunningBroker, folder: Path, waits: bool
) -> None:
    def beat(raw: RawClient, name: str, tags: str) -> None:
        body = HeartbeatData.of_request(heartbeat(name, "g", {"T": tags}))
        body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
        raw.ask(RequestCode.HEART_BEAT, {}, body.encode())

    for name, tags in (("narrow", "paid"), ("wide", "paid||sent")):
        beat(clocked.connect(), name, tags)
    clocked.restart()
    narrow = clocked.connect()
    for _ in range(5):
        if waits:
            beat(narrow, "narrow", "paid")
        clocked.run_for(30_000)
    beat(narrow, "narrow", "paid")
    again = [("paid||sent", None), ("paid", "one from before the start")] if waits else [("paid", None)]
    assert lines(folder, "tags", "lost") == [each for each in [("paid||sent", None), *again] for _ in range(2)]


def test_the_checker_accepts_a_deployment_that_adds_a_tag(run: RecordedRun) -> None:
    assert deploy_another_tag(run).verdict is Verdict.PASS


def test_the_checker_finds_messages_that_a_member_with_fewer_tags_skips(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives queues to all members, as if their tags were the same."""
    monkeypatch.setattr(Group, "waits", lambda *_: False)
    monkeypatch.setattr(PullHandler, "_check_filter", lambda *_: None)
    report = deploy_another_tag(run)
    assert report.verdict is Verdict.VIOLATION
    assert {found.invariant for found in report.violations} == {"S1"}
    assert "which another member had subscribed to before it was sent" in report.violations[0].text


def deploy_another_tag(run: RecordedRun) -> Report:
    old, new = list[int](), list[int]()
    first = run.member("first", old, "paid")
    wait_for(lambda: owned(first) == 4)
    second = run.member("second", new, "paid || sent")
    wait_for(lambda: owned(second) >= 2)
    run.send_tagged("sent", "paid")
    with Admin(run.broker.address) as admin:
        wait_for(lambda: lag(admin) == 0)
    return run.judge()
