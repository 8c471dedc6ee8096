"""What is finished above a committed offset, over the wire: kept with the offset, told to the next owner only."""

import json
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.running import HandClock, Running
from tests.broker.talk import Talk

from lanemq.broker.handlers import locks
from lanemq.wire.bodies import LaneLease, LaneProgress
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

STORED = 12


@pytest.fixture
def running(start: Start) -> Running:
    """Twelve messages in queue 0 of T."""
    running = start(clock=HandClock())
    talk = running.talk()
    talk.create("T", 4)
    for _ in range(STORED):
        talk.send("T", queue=0)
    return running


def progress(talk: Talk, offset: int, finished: str, *, client: str = "a", epoch: int = 1, queue: int = 0) -> Command:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": str(queue), "commitOffset": str(offset)}
    ext |= {"laneClient": client, "laneEpoch": str(epoch)}
    return talk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, LaneProgress(lane_finished=finished).encode())


def take(talk: Talk, client: str, **more: str) -> LaneLease:
    return talk.lane_lock(client, laneFinished="true", **more).lane_leases[0]


def owned_with_finished(running: Running) -> Talk:
    """`a` owns the queue and has finished 4, 5 and 8 above offset 3."""
    talk = running.talk()
    take(talk, "a")
    assert progress(talk, 3, "1,2,2,1").code == 0
    return talk


def test_the_next_owner_is_told_what_is_finished_above_its_start(running: Running) -> None:
    talk = owned_with_finished(running)
    talk.unlock("a")
    lease = take(talk, "b")
    assert (lease.epoch, lease.offset, lease.finished) == (2, 3, "1,2,2,1")
    assert take(talk, "b").finished == "1,2,2,1", "its first answer may have been lost"


def test_a_renewal_is_not_told_and_takes_nothing_away(running: Running) -> None:
    talk = owned_with_finished(running)
    (renewed,) = talk.lane_lock("a", laneFinished="false").lane_leases
    assert (renewed.epoch, renewed.finished) == (1, "")
    (renewed,) = talk.lane_lock("a").lane_leases
    assert take(talk, "a").finished == "1,2,2,1"


def test_a_renewal_that_came_too_late_takes_nothing_away(running: Running) -> None:
    """It is a new grant, and the member that sent it will ask again."""
    talk = owned_with_finished(running)
    running.advance(60_000)
    take(talk, "b")
    progress(talk, 3, "1,5", client="b", epoch=2)
    talk.unlock("b")
    (renewed,) = talk.lane_lock("a", laneFinished="false").lane_leases
    assert renewed.epoch == 3
    assert take(talk, "a").finished == "1,5"


@pytest.mark.parametrize("lease", [{"laneLeaseMillis": "5000"}, {}])
def test_an_owner_that_knows_no_finished_ranges_voids_them(running: Running, lease: dict[str, str]) -> None:
    """It repeats what they cover; the owner after it may not pass a repeat that was begun and not ended."""
    talk = owned_with_finished(running)
    talk.unlock("a")
    assert talk.lock("spark", **lease).lock_ok_mq_set
    talk.unlock("spark")
    assert take(talk, "b").finished == ""


def test_finished_ranges_of_a_stale_owner_are_refused_with_its_offset(running: Running) -> None:
    talk = owned_with_finished(running)
    running.advance(60_000)
    take(talk, "b")
    assert progress(talk, 3, "1,8").code == ResponseCode.LEASE_REFUSED
    assert take(talk, "b").finished == "1,2,2,1"


def test_a_commit_that_moves_on_replaces_the_finished_ranges(running: Running) -> None:
    talk = owned_with_finished(running)
    assert progress(talk, 6, "2,1").code == 0
    lease = take(talk, "a")
    assert (lease.offset, lease.finished) == (6, "2,1")
    assert progress(talk, 5, "1,6").code == 0
    assert take(talk, "a").finished == "2,1", "what lies behind is not stored, nor is what comes with it"


@pytest.mark.parametrize(("offset", "left"), [(3, "1,2,2,1"), (2, ""), (9, "")])
def test_a_stock_commit_clears_the_finished_ranges_unless_it_names_the_same_offset(
    running: Running, offset: int, left: str
) -> None:
    talk = owned_with_finished(running)
    talk.unlock("a")
    assert talk.commit(offset).code == 0
    assert take(talk, "b").finished == left


def test_finished_ranges_of_a_stock_commit_do_not_exist(running: Running) -> None:
    talk = owned_with_finished(running)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "4"}
    assert talk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, LaneProgress(lane_finished="1,1").encode()).code == 0
    assert take(talk, "a").finished == ""


def test_finished_ranges_never_cover_what_is_not_stored_yet(running: Running) -> None:
    talk = owned_with_finished(running)
    progress(talk, 3, "1,2,2,100,1,5")
    assert take(talk, "a").finished == f"1,2,2,{STORED - 8}"


def test_a_reset_clears_the_finished_ranges(running: Running) -> None:
    talk = owned_with_finished(running)
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "offset": "3", "queueId": "0", "isForce": "true"}
    assert talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    lease = take(talk, "a")
    assert (lease.offset, lease.finished) == (3, "")


@pytest.mark.parametrize("body", [b"{", json.dumps({"laneFinished": "1,0"}).encode(), b'{"laneFinished": "1"}'])
def test_finished_ranges_that_make_no_sense_are_refused_with_their_offset(running: Running, body: bytes) -> None:
    talk = owned_with_finished(running)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "5", "laneEpoch": "1"}
    reply = talk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "laneClient": "a"}, body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert take(talk, "a").offset == 3


@pytest.mark.parametrize("crash", [False, True])
def test_finished_ranges_survive_a_restart_together_with_their_offset(
    running: Running, start: Start, folder: Path, crash: bool
) -> None:
    owned_with_finished(running)
    if crash:
        running.advance(200)
        running = start(running.crash_image(folder / "after"), clock=HandClock())
    else:
        running.restart()
    lease = take(running.talk(), "a")
    assert (lease.offset, lease.finished) == (3, "1,2,2,1")


def test_finished_ranges_beyond_the_end_of_a_restarted_log_are_cut(running: Running) -> None:
    """In relaxed mode a power cut takes messages back that were consumed already."""
    owned_with_finished(running)
    offsets = running.broker._parts.offsets
    running.call(lambda: offsets._put(("g", "T", 0), offsets.committed("g", "T", 0), "1,2,2,50"))  # type: ignore[arg-type]
    running.restart()
    assert take(running.talk(), "a").finished == f"1,2,2,{STORED - 8}"


def test_an_answer_that_would_grow_too_large_leaves_finished_ranges_out_for_good(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MAX_FINISHED_CHARS", 10)
    talk = owned_with_finished(running)
    for _ in range(STORED):
        talk.send("T", queue=1)
    take(talk, "a", queues=(1,))  # type: ignore[arg-type]
    progress(talk, 3, "1,2,2,1", queue=1)
    assert [take(talk, "a", queues=(n,)).finished for n in (0, 1)] == ["1,2,2,1"] * 2  # type: ignore[arg-type]
    both = talk.lane_lock("a", laneFinished="true", queues=(0, 1)).lane_leases
    assert sorted(lease.finished for lease in both) == ["", "1,2,2,1"]
    left = [take(talk, "a", queues=(n,)).finished for n in (0, 1)]  # type: ignore[arg-type]
    assert left == [lease.finished for lease in sorted(both, key=lambda lease: lease.queue_id)]
