"""After a topic is deleted, no client continues at its old offset in a new topic of that name."""

import shutil
import threading
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, send_ext
from tests.broker.running import Gate, ManualClock, RunningBroker

from lanemq.wire.codes import RequestCode, ResponseCode

LONG = 20_000


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 1, order="true")
    return running


def delete(running: RunningBroker) -> None:
    assert running.connect().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0


def again(running: RunningBroker) -> RawClient:
    """Create the topic again, with more messages than before."""
    raw = running.connect()
    raw.create("T", 1, order="true")
    for _ in range(3):
        raw.send("T")
    return raw


def epoch(raw: RawClient, owner: str) -> int:
    return raw.lane_lock(owner, millis=LONG).lane_leases[0].epoch


def test_owner_of_a_deleted_queue_is_refused_in_the_new_one(clocked: RunningBroker) -> None:
    """It would continue at the end of the old queue and skip the messages before."""
    raw = clocked.connect()
    raw.send("T")
    old = str(epoch(raw, "a"))
    delete(clocked)
    again(clocked)
    assert raw.pull("T", 1, laneClient="a", laneEpoch=old).code == ResponseCode.LEASE_REFUSED
    assert raw.commit(1, laneClient="a", laneEpoch=old).code == ResponseCode.LEASE_REFUSED
    assert raw.committed() is None
    assert epoch(raw, "a") > int(old), "and learns from its renewal that this is another lease"


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ({"laneClient": "a", "laneEpoch": "1"}, ResponseCode.LEASE_REFUSED),
        ({}, ResponseCode.PULL_OFFSET_MOVED),
    ],
)
def test_a_held_pull_is_answered_at_once(clocked: RunningBroker, claim: dict[str, str], code: int) -> None:
    raw = clocked.connect()
    raw.send("T")
    assert epoch(raw, "a") == 1
    held = raw.post_pull("T", 1, hold=LONG, **claim)
    raw.bounds("T")
    delete(clocked)
    reply = raw.answer(held)
    assert reply.code == code
    assert reply.ext.get("nextBeginOffset", "0") == "0"


def test_a_client_that_does_not_read_its_answers_is_answered_too(clocked: RunningBroker) -> None:
    """Otherwise its held pulls end empty, at their own offset."""
    raw = clocked.connect()
    raw.send("T")
    held = raw.post_pull("T", 1, hold=LONG)
    raw.bounds("T")
    for peer in clocked.broker.running.server.peers:
        peer.reads_slowly = True
    delete(clocked)
    reply = raw.answer(held)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_a_held_pull_of_another_topic_stays_held(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("U", 1)
    held = raw.post_pull("U", 0, hold=LONG)
    raw.bounds("U")
    delete(clocked)
    raw.send("U", b"for you")
    assert raw.answer(held).code == 0


@pytest.mark.parametrize("crash", [False, True])
def test_an_epoch_of_a_deleted_topic_is_never_granted_again(start: Start, folder: Path, crash: bool) -> None:
    running = start(clock=ManualClock())
    running.connect().create("T", 1, order="true")
    for owner in ("a", "b"):
        last = epoch(running.connect(), owner)
        running.connect().unlock(owner)
    delete(running)
    assert running.broker.running.context.state.leases() == []
    if crash:
        running = start(running.crash_image(folder / "image"), clock=running.clock)
    else:
        running.restart()
    assert epoch(again(running), "c") > last


def test_a_sender_that_knew_the_topic_does_not_create_it_again(clocked: RunningBroker) -> None:
    """Without a default topic in the request: the sender relies on the queues and the order of the old topic."""
    raw = clocked.connect()
    delete(clocked)
    refused = raw.ask(RequestCode.SEND_MESSAGE_V2, {**send_ext("T"), "c": ""}, b"x")
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert clocked.broker.running.context.topics.get("T") is None
    assert raw.send("T").code == 0, "a stock producer names the template, and gets a topic as from RocketMQ"


def test_loop_does_not_wait_for_the_disk(clocked: RunningBroker) -> None:
    context = clocked.broker.running.context
    wrote: list[threading.Thread] = []
    works = context.state.drop_topic

    def noting(topic: str, position: int) -> None:
        wrote.append(threading.current_thread())
        works(topic, position)

    context.state.drop_topic = noting  # type: ignore[method-assign]
    delete(clocked)
    assert wrote == [clocked.broker.running.context.row_thread._thread]


def test_crash_halfway_leaves_an_empty_topic_and_no_old_messages(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    raw = clocked.connect()
    raw.send("T", b"old")
    context = clocked.broker.running.context
    works = context.state.delete_topic
    images: list[Path] = []

    def copying(name: str) -> None:
        images.append(folder / "halfway")
        shutil.copytree(clocked.options.data, images[0])
        works(name)

    context.state.delete_topic = copying  # type: ignore[method-assign]
    delete(clocked)
    after = start(images[0], clock=clocked.clock).connect()
    assert after.bounds("T") == (0, 0)
    assert after.create("T", 1, order="true").code == 0
    after.send("T", b"new")
    assert bodies(after.read("T")) == [b"new"]


def test_a_topic_created_again_during_its_deletion_is_kept(clocked: RunningBroker) -> None:
    """Both writes go through the log thread, and the row of the new topic is the later one."""
    raw = clocked.connect()
    gate = Gate(clocked)
    deleted = raw.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    ext = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "order": "true"}
    created = raw.post(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    raw.bounds("T")
    assert not {deleted, created} & set(raw.answered())
    gate.open()
    assert raw.answer(deleted).code == raw.answer(created).code == 0
    clocked.restart()
    topic = clocked.broker.running.context.topics.get("T")
    assert topic is not None
    assert topic.write_queues == 2
