"""Parked lanes from end to end: real sockets, real files, and the checker's verdict on every run."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.members import PATIENCE, owns, until
from tests.client.yard import GROUP, QUICK, TOPIC, Yard

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.handler import ToDeadLetter
from lanemq.client.consumer.parking import LaneParker
from lanemq.client.message import Message
from lanemq.core.consuming.parked_lanes import LocalParkedLanes
from lanemq.core.consuming.retry_policy import HoldKey, Park
from lanemq.core.parked_lane import LaneStatus


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.close()


def park_bad(yard: Yard) -> None:
    """Key "bad" has offsets 0, 2 and 4, all parked; "good" has 1, 3 and 5."""
    yard.failing.add("bad")
    yard.send("bad", "good", "bad", "good", "bad", "good")
    yard.wait_parked("bad", [0, 2, 4])


def test_a_parked_key_lets_others_go_on_and_the_commit_pass(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    until("the good key is through", lambda: yard.of("good") == [1, 3, 5])
    yard.wait_committed(6)
    lane = yard.lane("bad")
    assert lane is not None
    assert (lane.reason, lane.attempts, lane.messages) == ("ValueError('bad fails')", 2, 3)
    assert yard.calls["bad"] == 2, "its successors were never tried"
    report = yard.judge("parked=3", "commits")
    assert report.verdict is Verdict.PASS, report


def test_a_body_that_cannot_be_decoded_is_parked_at_its_first_attempt(yard: Yard) -> None:
    """Sixteen attempts with growing waits would tell nothing new, minutes later."""
    yard.before = lambda message: message.value(int) if message.key == "bad" else None
    yard.member(policy=HoldKey())
    yard.send("bad", "good", "bad")
    yard.wait_parked("bad", [0, 2])
    until("the good key is through", lambda: yard.of("good") == [1])
    lane = yard.lane("bad")
    assert lane is not None
    assert (lane.attempts, yard.calls["bad"]) == (1, 1)
    assert "Undecodable" in lane.reason
    report = yard.judge("parked=2")
    assert report.verdict is Verdict.PASS, report


def test_a_redriven_lane_runs_in_order_before_newer_messages(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.failing.clear()
    yard.send("bad", "good")
    until("the newer one is parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6])
    assert yard.redrive("bad")
    yard.send("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6, 8])
    until("the lane is gone", lambda: yard.lane("bad") is None)
    yard.send("bad")
    until("the key is an ordinary one again", lambda: yard.of("bad")[-1] == 9)
    assert yard.lane("bad") is None
    yard.wait_committed(10)
    report = yard.judge("parked=4", "redriven=1")
    assert report.verdict is Verdict.PASS, report


def test_a_lane_that_fails_again_is_parked_again_with_what_came_meanwhile(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.send("bad")
    until("the newer one is parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6])
    before = yard.calls["bad"]
    yard.redrive("bad")
    until("it was tried again", lambda: yard.calls["bad"] == before + 2)
    yard.wait_parked("bad", [0, 2, 4, 6])
    assert yard.of("bad") == []
    yard.failing.clear()
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6])
    assert yard.judge("redriven=2").verdict is Verdict.PASS


def test_parked_lanes_survive_a_restart_of_the_broker(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.wait_committed(6)
    yard.restart()
    lane = yard.lane("bad")
    assert lane is not None
    assert (lane.messages, lane.attempts, lane.status) == (3, 2, LaneStatus.PARKED)
    yard.send("bad", "good")
    until("the newer one is parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6])
    yard.failing.clear()
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6])
    assert yard.judge("redriven=1").verdict is Verdict.PASS


def test_a_redrive_that_nobody_could_run_waits_for_the_next_owner(yard: Yard) -> None:
    first = yard.member("a")
    park_bad(yard)
    yard.wait_committed(6)
    first.stop()
    yard.failing.clear()
    yard.redrive("bad")
    yard.restart()
    yard.send("bad")
    yard.member("b")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6])
    assert yard.judge("redriven=1").verdict is Verdict.PASS


def test_a_new_owner_parks_newer_messages_behind_and_runs_none(yard: Yard) -> None:
    first = yard.member("a")
    park_bad(yard)
    yard.wait_committed(6)
    yard.failing.clear()
    first.stop()
    before = yard.calls["bad"]
    yard.send("bad", "good", "bad")
    yard.member("b")
    until("the good key is through", lambda: yard.of("good") == [1, 3, 5, 7])
    until("the newer ones are parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6, 8])
    assert yard.calls["bad"] == before
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6, 8])
    report = yard.judge("redriven=1", "rebalance")
    assert report.verdict is Verdict.PASS, report


def test_an_owner_killed_before_its_commit_leaves_a_lane_that_is_neither_run_nor_parked_twice(yard: Yard) -> None:
    """The broker has the lane, but neither offset nor gaps: the next owner pulls the messages once more."""
    first = yard.member("a", commit_every=600)
    park_bad(yard)
    until("the good key is through", lambda: yard.of("good") == [1, 3, 5])
    first.stop(now=True)
    assert yard.committed() is None
    yard.failing.clear()
    before = yard.calls["bad"]
    yard.member("b")
    yard.wait_committed(6)
    assert (yard.calls["bad"], yard.parked("bad")) == (before, [0, 2, 4])
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4])
    assert yard.judge("rebalance").verdict is Verdict.PASS


def test_an_owner_killed_in_a_redrive_is_continued_and_repeats_one_message_at_most(yard: Yard) -> None:
    first = yard.member("a", commit_every=600)
    park_bad(yard)
    until("the good key is through", lambda: yard.of("good") == [1, 3, 5])
    yard.failing.clear()
    inside, go_on = threading.Event(), threading.Event()

    def hold_second(message: Message) -> None:
        if message.queue_offset == 2 and not go_on.is_set():
            inside.set()
            assert go_on.wait(PATIENCE)
            raise ValueError("its process is dead")

    yard.before = hold_second
    yard.redrive("bad")
    assert inside.wait(PATIENCE)
    assert yard.parked("bad") == [2, 4], "the first one is done and taken off the list"
    first.stop(now=True)
    go_on.set()
    yard.send("bad")
    yard.member("b")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6])
    report = yard.judge("rebalance")
    assert report.verdict is Verdict.PASS, report


def test_a_graceful_hand_over_in_a_redrive_repeats_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has not heard that the sixth message is done when its owner is asked to leave."""
    late = threading.Event()
    begin = LaneParker._begin
    monkeypatch.setattr(LaneParker, "_begin", lambda *args: None if late.is_set() else begin(*args))
    yard.before = lambda message: late.set() if message.queue_offset == 5 else None
    first = yard.member("a")
    yard.failing.add("bad")
    yard.send(*["bad"] * 30)
    yard.wait_parked("bad", list(range(30)))
    yard.failing.clear()
    yard.redrive("bad")
    until("some are through", lambda: len(yard.of("bad")) == 6)
    first.stop()
    late.clear()
    yard.before = lambda message: None
    yard.member("b")
    until("all are through", lambda: len(yard.of("bad")) >= 30)
    assert yard.of("bad") == list(range(30))
    assert len({name for name, _, _ in yard.by_member}) == 2
    assert yard.judge("rebalance").verdict is Verdict.PASS


def test_a_queue_that_moves_to_another_member_takes_its_parked_lanes_along(yard: Yard) -> None:
    one = yard.member("b")
    park_bad(yard)
    yard.wait_committed(6)
    other = yard.member("a")
    until("the queue moved", lambda: owns(other, 0) and not owns(one, 0))
    yard.failing.clear()
    yard.send("bad")
    until("the newer one is parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6])
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4, 6])
    assert {name for name, key, _ in yard.by_member if key == "bad"} == {"a"}
    assert yard.judge("rebalance").verdict is Verdict.PASS


def test_a_redrive_works_after_retention_deleted_the_originals(tmp_path: Path) -> None:
    yard = Yard(tmp_path, segment_bytes=64 * 1024, retention_bytes=64 * 1024)
    yard.member()
    park_bad(yard)
    with_body = "x" * 4000
    yard.send(*[with_body] * 40)
    until("all others are through", lambda: len(yard.of(with_body)) == 40)
    yard.broker.call(yard.broker.broker._housekeeping._retire)
    first = yard.broker.call(lambda: yard.broker.broker._parts.store.bounds(TOPIC, 0)[0])
    assert first > 4, "the originals are gone"
    yard.failing.clear()
    yard.redrive("bad")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4])
    yard.close()


def test_discarding_the_first_lets_the_rest_be_redriven(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    assert yard.discard("bad", 1) == 1
    assert yard.parked("bad") == [2, 4]
    yard.failing.clear()
    yard.redrive("bad")
    until("the rest is through", lambda: yard.of("bad") == [2, 4])
    assert yard.judge("discarded=1").verdict is Verdict.PASS


def test_discarding_all_lets_newer_messages_run(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.failing.clear()
    yard.send("bad")
    until("the newer one is parked behind", lambda: yard.parked("bad") == [0, 2, 4, 6])
    assert yard.discard("bad") == 4
    yard.send("bad")
    until("the newer one runs", lambda: yard.of("bad") == [7])
    assert yard.lane("bad") is None
    yard.restart()
    assert yard.lanes() == []
    assert yard.judge("discarded=4").verdict is Verdict.PASS


def test_a_message_discarded_while_it_is_tried_again_does_not_come_back(yard: Yard) -> None:
    """Its failure must neither park it anew nor shut the lane for what is newer."""
    yard.member(policy=HoldKey(retries=3, backoff=QUICK.backoff))
    park_bad(yard)
    inside, go_on = threading.Event(), threading.Event()

    def hold(message: Message) -> None:
        if message.key == "bad" and not go_on.is_set():
            inside.set()
            assert go_on.wait(PATIENCE)

    yard.before = hold
    yard.redrive("bad")
    assert inside.wait(PATIENCE)
    assert yard.discard("bad") == 3
    go_on.set()
    yard.send("good")
    until("the good key is through", lambda: len(yard.of("good")) == 4)
    yard.failing.clear()
    yard.send("bad")
    until("the newer one runs", lambda: yard.of("bad")[-1:] == [7])
    assert set(yard.of("bad")) <= {0, 7}
    assert yard.lane("bad") is None


def test_what_the_broker_has_no_room_for_stays_in_memory_and_holds_the_commit(tmp_path: Path) -> None:
    yard = Yard(tmp_path, max_parked_lane=2)
    yard.member()
    yard.failing.add("bad")
    yard.send("bad", "good", "bad", "good", "bad", "good")
    yard.wait_parked("bad", [0, 2])
    until("the good key is through", lambda: yard.of("good") == [1, 3, 5])
    yard.wait_committed(4)
    assert yard.of("bad") == []
    yard.failing.clear()
    yard.redrive("bad")
    until("all are through, in order", lambda: yard.of("bad") == [0, 2, 4])
    yard.wait_committed(6)
    assert yard.judge("redriven=1").verdict is Verdict.PASS


def test_a_policy_that_parks_in_memory_asks_no_broker(yard: Yard) -> None:
    app = yard.member(policy=HoldKey(retries=1, backoff=QUICK.backoff, then=Park(at_broker=False)))
    yard.failing.add("bad")
    yard.send("bad", "good", "bad")
    until("it is parked", lambda: any(each.lanes.parked for each in app.snapshot().queues.values()))
    until("the good key is through", lambda: yard.of("good") == [1])
    assert (yard.lanes(), yard.committed() or 0) == ([], 0)
    yard.failing.clear()
    assert app.resume(TOPIC, "bad")
    until("all are through", lambda: yard.of("bad") == [0, 2])


def test_resume_at_the_member_is_a_redrive(yard: Yard) -> None:
    app = yard.member()
    park_bad(yard)
    yard.failing.clear()
    assert app.resume(TOPIC, "bad")
    assert not app.resume(TOPIC, "good")
    until("all are through", lambda: yard.of("bad") == [0, 2, 4])


def test_a_reset_leaves_parked_lanes_parked(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.wait_committed(6)
    before = yard.calls["bad"]
    with Admin(yard.broker.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to="earliest")
    until("the good key ran again", lambda: yard.of("good") == [1, 3, 5, 1, 3, 5])
    yard.wait_committed(6)
    assert (yard.calls["bad"], yard.parked("bad")) == (before, [0, 2, 4])


def test_messages_without_a_key_are_parked_as_one_lane(tmp_path: Path) -> None:
    yard = Yard(tmp_path, ordered=False)
    yard.member()
    yard.failing.add("")
    yard.send("", "good", "")
    until("they are parked", lambda: yard.parked(None) == [0, 2])
    until("the good key is through", lambda: yard.of("good") == [1])
    yard.restart()
    assert [lane.key for lane in yard.lanes()] == [None]
    yard.failing.clear()
    with ParkedAdmin(yard.broker.address) as admin:
        (lane,) = admin.lanes(GROUP, TOPIC, None)
        admin.redrive(lane)
    until("all are through", lambda: yard.of("") == [0, 2])
    yard.close()


def test_a_redriven_message_may_become_a_dead_letter_and_the_lane_goes_on(yard: Yard) -> None:
    yard.member()
    park_bad(yard)
    yard.failing.clear()

    def bury_first(message: Message) -> None:
        if message.queue_offset == 0:
            raise ToDeadLetter("nobody wants it")

    yard.before = bury_first
    yard.redrive("bad")
    until("the rest is through", lambda: yard.of("bad") == [2, 4])
    until("the lane is gone", lambda: yard.lane("bad") is None)
    report = yard.judge("redriven=1", "dead_letter=1")
    assert report.verdict is Verdict.PASS, report


def test_without_the_broker_s_word_successors_would_overtake(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a new owner that does not keep parked lanes shut is found by the checker."""
    first = yard.member("a")
    park_bad(yard)
    yard.wait_committed(6)
    first.stop()
    yard.failing.clear()
    monkeypatch.setattr(LocalParkedLanes, "restore", _opened)
    yard.send("bad")
    yard.member("b")
    until("the newer one ran", lambda: yard.of("bad") == [6])
    report = yard.judge("rebalance")
    assert set(report.counts) == {"B4"}, report


def _opened(self: Any, lane: Any, kept: Any) -> None:
    self._queue.remove_lane(lane)
