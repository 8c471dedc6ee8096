"""Finished ranges over the wire: stored with their offset, and sent to the next owner only."""

import json
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.handlers import locks
from lanemq.core.brokering.queue_progress import CommitKind
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.wire.bodies import LaneLease, LaneProgress
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

STORED = 12


@pytest.fixture
def running(start: Start) -> RunningBroker:
    """Twelve messages in queue 0 of T."""
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T", 4)
    for _ in range(STORED):
        raw.send("T", queue=0)
    return running


def progress(
    raw: RawClient, offset: int, finished: str, *, client: str = "a", epoch: int = 1, queue: int = 0
) -> Command:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": str(queue), "commitOffset": str(offset)}
    ext |= {"laneClient": client, "laneEpoch": str(epoch)}
    return raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, LaneProgress(lane_finished=finished).encode())


def take(raw: RawClient, client: str, **more: str) -> LaneLease:
    return raw.lane_lock(client, laneFinished="true", **more).lane_leases[0]


def owned_with_finished(running: RunningBroker) -> RawClient:
    """`a` owns the queue and has finished 4, 5 and 8 above offset 3."""
    raw = running.connect()
    take(raw, "a")
    assert progress(raw, 3, "1,2,2,1").code == 0
    return raw


def test_the_next_owner_receives_the_finished_ranges(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    raw.unlock("a")
    lease = take(raw, "b")
    assert (lease.epoch, lease.offset, lease.finished) == (2, 3, "1,2,2,1")
    assert take(raw, "b").finished == "1,2,2,1", "its first answer may have been lost"


def test_a_renewal_neither_receives_nor_deletes_finished_ranges(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    (renewed,) = raw.lane_lock("a", laneFinished="false").lane_leases
    assert (renewed.epoch, renewed.finished) == (1, "")
    (renewed,) = raw.lane_lock("a").lane_leases
    assert take(raw, "a").finished == "1,2,2,1"


def test_a_late_renewal_does_not_delete_finished_ranges(running: RunningBroker) -> None:
    """It is a new grant, and the member will ask again."""
    raw = owned_with_finished(running)
    running.advance(60_000)
    take(raw, "b")
    progress(raw, 3, "1,5", client="b", epoch=2)
    raw.unlock("b")
    (renewed,) = raw.lane_lock("a", laneFinished="false").lane_leases
    assert renewed.epoch == 3
    assert take(raw, "a").finished == "1,5"


@pytest.mark.parametrize("lease", [{"laneLeaseMillis": "5000"}, {}])
def test_an_owner_that_does_not_ask_for_finished_ranges_deletes_them(
    running: RunningBroker, lease: dict[str, str]
) -> None:
    """It repeats what they cover, and the next owner must not skip a repeat that was started and not finished."""
    raw = owned_with_finished(running)
    raw.unlock("a")
    assert raw.lock("spark", **lease).lock_ok_mq_set
    raw.unlock("spark")
    assert take(raw, "b").finished == ""


def test_finished_ranges_of_a_stale_owner_are_refused_with_its_offset(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    running.advance(60_000)
    take(raw, "b")
    assert progress(raw, 3, "1,8").code == ResponseCode.LEASE_REFUSED
    assert take(raw, "b").finished == "1,2,2,1"


def test_a_commit_that_moves_on_replaces_the_finished_ranges(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    assert progress(raw, 6, "2,1").code == 0
    lease = take(raw, "a")
    assert (lease.offset, lease.finished) == (6, "2,1")
    assert progress(raw, 5, "1,6").code == 0
    assert take(raw, "a").finished == "2,1", "what lies behind is not stored, nor is what comes with it"


@pytest.mark.parametrize(("offset", "left"), [(3, "1,2,2,1"), (2, ""), (9, "")])
def test_a_stock_commit_clears_the_finished_ranges_unless_it_names_the_same_offset(
    running: RunningBroker, offset: int, left: str
) -> None:
    raw = owned_with_finished(running)
    raw.unlock("a")
    assert raw.commit(offset).code == 0
    assert take(raw, "b").finished == left


def test_finished_ranges_in_a_stock_commit_are_ignored(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "4"}
    assert raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, LaneProgress(lane_finished="1,1").encode()).code == 0
    assert take(raw, "a").finished == ""


def test_finished_ranges_never_cover_what_is_not_stored_yet(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    progress(raw, 3, "1,2,2,100,1,5")
    assert take(raw, "a").finished == f"1,2,2,{STORED - 8}"


def test_a_reset_clears_the_finished_ranges(running: RunningBroker) -> None:
    raw = owned_with_finished(running)
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "offset": "3", "queueId": "0", "isForce": "true"}
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    lease = take(raw, "a")
    assert (lease.offset, lease.finished) == (3, "")


@pytest.mark.parametrize("body", [b"{", json.dumps({"laneFinished": "1,0"}).encode(), b'{"laneFinished": "1"}'])
def test_invalid_finished_ranges_are_refused_with_their_offset(running: RunningBroker, body: bytes) -> None:
    raw = owned_with_finished(running)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "5", "laneEpoch": "1"}
    reply = raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "laneClient": "a"}, body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert take(raw, "a").offset == 3


@pytest.mark.parametrize("crash", [False, True])
def test_finished_ranges_survive_a_restart_together_with_their_offset(
    running: RunningBroker, start: Start, folder: Path, crash: bool
) -> None:
    owned_with_finished(running)
    if crash:
        running.advance(200)
        running = start(running.crash_image(folder / "after"), clock=ManualClock())
    else:
        running.restart()
    lease = take(running.connect(), "a")
    assert (lease.offset, lease.finished) == (3, "1,2,2,1")


def test_finished_ranges_beyond_the_end_of_a_restarted_log_are_cut(running: RunningBroker) -> None:
    """In relaxed mode a power cut may lose messages that were already consumed."""
    owned_with_finished(running)
    progress = running.progress("g", "T")
    beyond = FinishedRanges.decode("1,2,2,50", progress.offset or 0)
    running.call(lambda: progress.commit(progress.offset, kind=CommitKind.FORWARD, finished=beyond))
    running.restart()
    assert take(running.connect(), "a").finished == f"1,2,2,{STORED - 8}"


def test_finished_ranges_that_do_not_fit_into_the_answer_are_deleted(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MAX_FINISHED_CHARS", 10)
    raw = owned_with_finished(running)
    for _ in range(STORED):
        raw.send("T", queue=1)
    take(raw, "a", queues=(1,))  # type: ignore[arg-type]
    progress(raw, 3, "1,2,2,1", queue=1)
    assert [take(raw, "a", queues=(n,)).finished for n in (0, 1)] == ["1,2,2,1"] * 2  # type: ignore[arg-type]
    both = raw.lane_lock("a", laneFinished="true", queues=(0, 1)).lane_leases
    assert sorted(lease.finished for lease in both) == ["", "1,2,2,1"]
    left = [take(raw, "a", queues=(n,)).finished for n in (0, 1)]  # type: ignore[arg-type]
    assert left == [lease.finished for lease in sorted(both, key=lambda lease: lease.queue_id)]
