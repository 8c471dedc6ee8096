"""Deleting a topic under those who use it: nobody goes on at the old place in a new topic of that name."""

import shutil
import threading
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.running import Gate, HandClock, Running
from tests.broker.talk import Talk, bodies, send_ext

from lanemq.wire.codes import RequestCode, ResponseCode

LONG = 20_000


@pytest.fixture
def hand(start: Start) -> Running:
    running = start(clock=HandClock())
    running.talk().create("T", 1, order="true")
    return running


def delete(running: Running) -> None:
    assert running.talk().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0


def again(running: Running) -> Talk:
    """The topic anew, with more messages than the old one had."""
    talk = running.talk()
    talk.create("T", 1, order="true")
    for _ in range(3):
        talk.send("T")
    return talk


def epoch(talk: Talk, owner: str) -> int:
    return talk.lane_lock(owner, millis=LONG).lane_leases[0].epoch


def test_owner_of_a_deleted_queue_is_refused_in_the_new_one(hand: Running) -> None:
    """It stands where the old queue ended, and would pass over what the new one got before."""
    talk = hand.talk()
    talk.send("T")
    old = str(epoch(talk, "a"))
    delete(hand)
    again(hand)
    assert talk.pull("T", 1, laneClient="a", laneEpoch=old).code == ResponseCode.LEASE_REFUSED
    assert talk.commit(1, laneClient="a", laneEpoch=old).code == ResponseCode.LEASE_REFUSED
    assert talk.committed() is None
    assert epoch(talk, "a") > int(old), "and learns from its renewal that this is another lease"


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ({"laneClient": "a", "laneEpoch": "1"}, ResponseCode.LEASE_REFUSED),
        ({}, ResponseCode.PULL_OFFSET_MOVED),
    ],
)
def test_pull_that_waits_is_told_at_once(hand: Running, claim: dict[str, str], code: int) -> None:
    talk = hand.talk()
    talk.send("T")
    assert epoch(talk, "a") == 1
    held = talk.post_pull("T", 1, hold=LONG, **claim)
    talk.bounds("T")
    delete(hand)
    reply = talk.answer(held)
    assert reply.code == code
    assert reply.ext.get("nextBeginOffset", "0") == "0"


def test_reader_that_lags_behind_is_told_too(hand: Running) -> None:
    """To others that do not read their answers a pull ends empty, at the place where they are."""
    talk = hand.talk()
    talk.send("T")
    held = talk.post_pull("T", 1, hold=LONG)
    talk.bounds("T")
    for peer in hand.broker._server.peers:
        peer.choked = True
    delete(hand)
    reply = talk.answer(held)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_pull_of_another_topic_goes_on_waiting(hand: Running) -> None:
    talk = hand.talk()
    talk.create("U", 1)
    held = talk.post_pull("U", 0, hold=LONG)
    talk.bounds("U")
    delete(hand)
    talk.send("U", b"for you")
    assert talk.answer(held).code == 0


@pytest.mark.parametrize("crash", [False, True])
def test_epoch_of_a_deleted_topic_is_never_given_out_again(start: Start, folder: Path, crash: bool) -> None:
    running = start(clock=HandClock())
    running.talk().create("T", 1, order="true")
    for owner in ("a", "b"):
        last = epoch(running.talk(), owner)
        running.talk().unlock(owner)
    delete(running)
    assert running.broker._parts.state.leases() == []
    if crash:
        running = start(running.crash_image(folder / "image"), clock=running.clock)
    else:
        running.restart()
    assert epoch(again(running), "c") > last


def test_sender_that_knows_the_topic_does_not_make_another_of_that_name(hand: Running) -> None:
    """An empty default topic: its route is a real one, so the queues and the order it counts on are gone."""
    talk = hand.talk()
    delete(hand)
    refused = talk.ask(RequestCode.SEND_MESSAGE_V2, {**send_ext("T"), "c": ""}, b"x")
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert hand.broker._parts.topics.get("T") is None
    assert talk.send("T").code == 0, "a stock producer names the template, and gets a topic as from RocketMQ"


def test_loop_does_not_wait_for_the_disk(hand: Running) -> None:
    parts = hand.broker._parts
    wrote: list[threading.Thread] = []
    works = parts.state.drop_topic

    def noting(topic: str, position: int) -> None:
        wrote.append(threading.current_thread())
        works(topic, position)

    parts.state.drop_topic = noting  # type: ignore[method-assign]
    delete(hand)
    assert wrote == [hand.broker._thread._thread]


def test_crash_halfway_leaves_an_empty_topic_and_no_old_messages(hand: Running, start: Start, folder: Path) -> None:
    talk = hand.talk()
    talk.send("T", b"old")
    parts = hand.broker._parts
    works = parts.state.delete_topic
    images: list[Path] = []

    def copying(name: str) -> None:
        images.append(folder / "halfway")
        shutil.copytree(hand.options.data, images[0])
        works(name)

    parts.state.delete_topic = copying  # type: ignore[method-assign]
    delete(hand)
    after = start(images[0], clock=hand.clock).talk()
    assert after.bounds("T") == (0, 0)
    assert after.create("T", 1, order="true").code == 0
    after.send("T", b"new")
    assert bodies(after.read("T")) == [b"new"]


def test_topic_made_anew_while_the_old_one_goes_is_kept(hand: Running) -> None:
    """Both writes go through the log thread: the row of the new topic must be the later one."""
    talk = hand.talk()
    gate = Gate(hand)
    deleted = talk.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    ext = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "order": "true"}
    created = talk.post(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    talk.bounds("T")
    assert not {deleted, created} & set(talk.answered())
    gate.open()
    assert talk.answer(deleted).code == talk.answer(created).code == 0
    hand.restart()
    topic = hand.broker._parts.topics.get("T")
    assert topic is not None
    assert topic.write_queues == 2
