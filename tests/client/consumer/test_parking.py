"""Parked lanes end to end: sockets, files, and the checker's verdict on every run."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.chaos.members import TIMEOUT, owns, until
from tests.client.consumer.parking_fixture import GROUP, QUICK, TOPIC, ParkingFixture

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.consumer.turns.handler import ToDeadLetter
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.lanes_aside import LanesAside
from lanemq.core.consuming.retry_policy import KEPT_MESSAGES, HoldKey, Park
from lanemq.core.lane_status import MAX_GIVEN, LaneStatus
from lanemq.model.units import Millis

pytestmark = pytest.mark.slow  # keys fail and are retried for a second


@pytest.fixture
def parking(tmp_path: Path) -> Iterator[ParkingFixture]:
    made = ParkingFixture(tmp_path)
    yield made
    made.close()


def is_moving(app: App) -> bool:
    return any(each.moving_to is not None for each in app._require_engine().assignment)


def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reported about lanes until the member forgets them: neither before a reset nor in passing."""
    requests, forget = LanesAside.requests, LanesAside.forget
    forgotten = threading.Event()

    def forget_and_go_on(self: LanesAside[Any]) -> None:
        forget(self)
        forgotten.set()

    def no_requests(self: LanesAside[Any], *, now: Millis) -> list[Any]:
        return requests(self, now=now) if forgotten.is_set() else []

    monkeypatch.setattr(LanesAside, "last_reports", lambda *_: [])
    monkeypatch.setattr(LanesAside, "requests", no_requests)
    monkeypatch.setattr(LanesAside, "forget", forget_and_go_on)


def park_bad(parking: ParkingFixture) -> None:
    """Key "bad" has offsets 0, 2 and 4, all parked; "good" has 1, 3 and 5."""
    parking.failing.add("bad")
    parking.send("bad", "good", "bad", "good", "bad", "good")
    parking.wait_parked("bad", [0, 2, 4])


def test_a_parked_key_holds_neither_other_keys_nor_the_commit(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    until("the good key is through", lambda: parking.of("good") == [1, 3, 5])
    parking.wait_committed(6)
    lane = parking.lane("bad")
    assert lane is not None
    assert (lane.reason.split(" at ")[0], lane.attempts, lane.messages) == ("ValueError('bad fails')", 2, 3)
    assert parking.calls["bad"] == 2, "its successors were never tried"
    report = parking.judge("parked=3", "commits")
    assert report.verdict is Verdict.PASS, report


def test_a_body_that_cannot_be_decoded_is_parked_at_its_first_attempt(parking: ParkingFixture) -> None:
    """Further attempts would fail in the same way."""
    parking.before = lambda message: message.value(int) if message.key == "bad" else None
    parking.member(policy=HoldKey())
    parking.send("bad", "good", "bad")
    parking.wait_parked("bad", [0, 2])
    until("the good key is through", lambda: parking.of("good") == [1])
    lane = parking.lane("bad")
    assert lane is not None
    assert (lane.attempts, parking.calls["bad"]) == (1, 1)
    assert "Undecodable" in lane.reason
    report = parking.judge("parked=2")
    assert report.verdict is Verdict.PASS, report


def test_a_redriven_lane_runs_in_order_before_newer_messages(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.failing.clear()
    parking.send("bad", "good")
    until("the newer one is parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6])
    assert parking.redrive("bad")
    parking.send("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6, 8])
    until("the lane is gone", lambda: parking.lane("bad") is None)
    parking.send("bad")
    until("the key is an ordinary one again", lambda: parking.of("bad")[-1] == 9)
    assert parking.lane("bad") is None
    parking.wait_committed(10)
    report = parking.judge("parked=4", "redriven=1")
    assert report.verdict is Verdict.PASS, report


def test_a_lane_that_fails_again_is_parked_again_with_newer_messages(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.send("bad")
    until("the newer one is parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6])
    before = parking.calls["bad"]
    parking.redrive("bad")
    until("it was tried again", lambda: parking.calls["bad"] == before + 2)
    parking.wait_parked("bad", [0, 2, 4, 6])
    assert parking.of("bad") == []
    parking.failing.clear()
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6])
    assert parking.judge("redriven=2").verdict is Verdict.PASS


def test_parked_lanes_survive_a_restart_of_the_broker(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.wait_committed(6)
    parking.restart()
    lane = parking.lane("bad")
    assert lane is not None
    assert (lane.messages, lane.attempts, lane.status) == (3, 2, LaneStatus.PARKED)
    parking.send("bad", "good")
    until("the newer one is parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6])
    parking.failing.clear()
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6])
    assert parking.judge("redriven=1").verdict is Verdict.PASS


def test_a_redrive_without_a_member_waits_for_the_next_owner(parking: ParkingFixture) -> None:
    first = parking.member("a")
    park_bad(parking)
    parking.wait_committed(6)
    first.stop()
    parking.failing.clear()
    parking.redrive("bad")
    parking.restart()
    parking.send("bad")
    parking.member("b")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6])
    assert parking.judge("redriven=1").verdict is Verdict.PASS


def test_a_new_owner_parks_newer_messages_behind_and_runs_none(parking: ParkingFixture) -> None:
    first = parking.member("a")
    park_bad(parking)
    parking.wait_committed(6)
    parking.failing.clear()
    first.stop()
    before = parking.calls["bad"]
    parking.send("bad", "good", "bad")
    parking.member("b")
    until("the good key is through", lambda: parking.of("good") == [1, 3, 5, 7])
    until("the newer ones are parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6, 8])
    assert parking.calls["bad"] == before
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6, 8])
    report = parking.judge("redriven=1", "rebalance")
    assert report.verdict is Verdict.PASS, report


def test_an_owner_killed_before_its_commit_leaves_a_lane_that_is_neither_run_nor_parked_twice(
    parking: ParkingFixture,
) -> None:
    """The broker has the lane, but neither offset nor finished ranges, so the next owner pulls the messages again."""
    first = parking.member("a", commit_every=600)
    park_bad(parking)
    until("the good key is through", lambda: parking.of("good") == [1, 3, 5])
    first.stop(now=True)
    assert parking.committed() is None
    parking.failing.clear()
    before = parking.calls["bad"]
    parking.member("b")
    parking.wait_committed(6)
    assert (parking.calls["bad"], parking.parked("bad")) == (before, [0, 2, 4])
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4])
    assert parking.judge("rebalance").verdict is Verdict.PASS


def test_an_owner_killed_in_a_redrive_is_continued_where_it_last_reported(parking: ParkingFixture) -> None:
    """It reports every second what is done, also while a message runs."""
    first = parking.member("a")
    park_bad(parking)
    until("the good key is through", lambda: parking.of("good") == [1, 3, 5])
    parking.failing.clear()
    inside, go_on = threading.Event(), threading.Event()

    def hold_second(message: Message) -> None:
        if message.queue_offset == 2 and not go_on.is_set():
            inside.set()
            assert go_on.wait(TIMEOUT)
            raise ValueError("its process is dead")

    parking.before = hold_second
    parking.redrive("bad")
    assert inside.wait(TIMEOUT)
    until("the first one is done and taken off the list", lambda: parking.parked("bad") == [2, 4])
    first.stop(now=True)
    go_on.set()
    parking.send("bad")
    parking.member("b")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6])
    report = parking.judge("rebalance")
    assert report.verdict is Verdict.PASS, report


def test_a_graceful_hand_over_in_a_redrive_repeats_nothing(
    parking: ParkingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not know yet that any message is done when its owner is stopped."""
    late = threading.Event()
    work = QueueReporter._lane_work
    monkeypatch.setattr(QueueReporter, "_lane_work", lambda *args: [] if late.is_set() else work(*args))
    parking.before = lambda message: late.set() if message.queue_offset == 5 else None
    first = parking.member("a")
    parking.failing.add("bad")
    parking.send(*["bad"] * 60)
    parking.wait_parked("bad", list(range(60)))
    parking.failing.clear()
    parking.redrive("bad")
    until("those fetched at once are through", lambda: len(parking.of("bad")) == MAX_GIVEN)
    first.stop()
    late.clear()
    parking.before = lambda message: None
    parking.member("b")
    until("all are through", lambda: len(parking.of("bad")) >= 60)
    assert parking.of("bad") == list(range(60))
    assert len({name for name, _, _ in parking.by_member}) == 2
    assert parking.judge("rebalance").verdict is Verdict.PASS


def test_a_queue_that_moves_to_another_member_takes_its_parked_lanes_along(parking: ParkingFixture) -> None:
    one = parking.member("b")
    park_bad(parking)
    parking.wait_committed(6)
    other = parking.member("a")
    until("the queue moved", lambda: owns(other, 0) and not owns(one, 0))
    parking.failing.clear()
    parking.send("bad")
    until("the newer one is parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6])
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4, 6])
    assert {name for name, key, _ in parking.by_member if key == "bad"} == {"a"}
    assert parking.judge("rebalance").verdict is Verdict.PASS


@pytest.mark.parametrize("max_pinned_bytes", [0, 1_000_000], ids=["copied", "pinned"])
def test_a_redrive_works_after_retention_is_due_for_the_originals(tmp_path: Path, max_pinned_bytes: int) -> None:
    small = 64 * 1024
    parking = ParkingFixture(tmp_path, segment_bytes=small, retention_bytes=small, max_pinned_bytes=max_pinned_bytes)
    parking.member()
    park_bad(parking)
    with_body = "x" * 4000
    parking.send(*[with_body] * 40)
    until("all others are through", lambda: len(parking.of(with_body)) == 40)

    def first_after_retention() -> int:
        housekeeping = parking.broker.broker.running.housekeeping
        parking.broker.call(housekeeping._retire)
        until("retention has looked", lambda: not housekeeping.retiring)
        return parking.broker.call(lambda: parking.broker.broker.running.context.store.bounds(TOPIC, 0)[0])

    if max_pinned_bytes:
        assert first_after_retention() == 0, "their file is kept"
    else:
        until("the originals are gone", lambda: first_after_retention() > 4)
    parking.failing.clear()
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4])
    parking.close()


MANY = KEPT_MESSAGES + 10


def hold_many(parking: ParkingFixture, name: str, retries: int = 1_000) -> App:
    """Key "bad" fails at offset 0 with `MANY` messages behind it, and has retries left."""
    parking.failing.add("bad")
    if not parking.calls["bad"]:
        parking.send(*["bad"] * (MANY + 1), "good")
    return parking.member(name, policy=HoldKey(retries=retries, backoff=Backoff(0.05, 1.0, 0.05)))


def attempts(parking: ParkingFixture) -> int:
    lane = parking.lane("bad")
    return 0 if lane is None else lane.attempts


def test_a_held_lane_keeps_its_attempts_through_a_change_of_owner(parking: ParkingFixture) -> None:
    first = hold_many(parking, "a", retries=30)
    until("it was tried a few times", lambda: attempts(parking) > 5)
    parking.wait_committed(MANY + 2)
    first.stop(now=True)
    tried = attempts(parking)
    hold_many(parking, "b", retries=30)
    until("it is parked", lambda: (lane := parking.lane("bad")) is not None and lane.status is LaneStatus.PARKED)
    assert attempts(parking) == 31
    assert parking.calls["bad"] < 31 + tried, "only attempts that were not reported are repeated"
    assert parking.of("good") == [MANY + 1]
    parking.failing.clear()
    parking.redrive("bad")
    until("all are through", lambda: parking.of("bad") == list(range(MANY + 1)))
    assert parking.judge("parked", "redriven", "rebalance").verdict is Verdict.PASS


def test_a_held_lane_survives_a_restart_of_the_broker_and_takes_newer_messages(parking: ParkingFixture) -> None:
    hold_many(parking, "a")
    parking.wait_committed(MANY + 2)
    parking.restart()
    parking.send("bad", "good")
    until("the good key is through", lambda: parking.of("good") == [MANY + 1, MANY + 3])
    parking.failing.clear()
    until("all are through", lambda: parking.of("bad") == [*range(MANY + 1), MANY + 2])
    until("the lane is gone", lambda: parking.lane("bad") is None)
    parking.send("bad")
    until("the key is an ordinary one again", lambda: parking.of("bad")[-1] == MANY + 4)
    assert parking.judge("parked", "redriven").verdict is Verdict.PASS


def test_the_first_message_of_a_held_lane_can_be_discarded(parking: ParkingFixture) -> None:
    def first_fails(message: Message) -> None:
        if message.queue_offset == 0:
            raise ValueError("poison")

    parking.before = first_fails
    parking.send(*["bad"] * (MANY + 1))
    parking.member(policy=HoldKey(retries=1_000, backoff=Backoff(0.05, 1.0, 0.05)))
    parking.wait_committed(MANY + 1)
    assert parking.discard("bad", 1) == 1
    until("the rest is through", lambda: parking.of("bad") == list(range(1, MANY + 1)))
    until("the lane is gone", lambda: parking.lane("bad") is None)
    assert parking.judge("discarded=1").verdict is Verdict.PASS


def test_discarding_the_first_lets_the_rest_be_redriven(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    assert parking.discard("bad", 1) == 1
    assert parking.parked("bad") == [2, 4]
    parking.failing.clear()
    parking.redrive("bad")
    until("the rest is through", lambda: parking.of("bad") == [2, 4])
    assert parking.judge("discarded=1").verdict is Verdict.PASS


def test_discarding_all_lets_newer_messages_run(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.failing.clear()
    parking.send("bad")
    until("the newer one is parked behind", lambda: parking.parked("bad") == [0, 2, 4, 6])
    assert parking.discard("bad") == 4
    parking.send("bad")
    until("the newer one runs", lambda: parking.of("bad") == [7])
    assert parking.lane("bad") is None
    parking.restart()
    assert parking.lanes() == []
    assert parking.judge("discarded=4").verdict is Verdict.PASS


def test_a_message_discarded_while_it_is_tried_again_does_not_come_back(parking: ParkingFixture) -> None:
    """Its failure must neither park it again nor park the lane for newer messages."""
    parking.member(policy=HoldKey(retries=3, backoff=QUICK.backoff))
    park_bad(parking)
    inside, go_on = threading.Event(), threading.Event()

    def hold(message: Message) -> None:
        if message.key == "bad" and not go_on.is_set():
            inside.set()
            assert go_on.wait(TIMEOUT)

    parking.before = hold
    parking.redrive("bad")
    assert inside.wait(TIMEOUT)
    assert parking.discard("bad") == 3
    go_on.set()
    parking.send("good")
    until("the good key is through", lambda: len(parking.of("good")) == 4)
    parking.failing.clear()
    parking.send("bad")
    until("the newer one runs", lambda: parking.of("bad")[-1:] == [7])
    assert set(parking.of("bad")) <= {0, 7}
    assert parking.lane("bad") is None


def test_a_policy_that_parks_in_memory_sends_nothing_to_the_broker(parking: ParkingFixture) -> None:
    app = parking.member(policy=HoldKey(retries=1, backoff=QUICK.backoff, then=Park(at_broker=False)))
    parking.failing.add("bad")
    parking.send("bad", "good", "bad")
    until("it is parked", lambda: any(each.lanes.parked for each in app.snapshot().queues.values()))
    until("the good key is through", lambda: parking.of("good") == [1])
    assert (parking.lanes(), parking.committed() or 0) == ([], 0)
    parking.failing.clear()
    assert app.resume(TOPIC, "bad")
    until("all are through", lambda: parking.of("bad") == [0, 2])


def test_resume_in_the_member_is_a_redrive(parking: ParkingFixture) -> None:
    app = parking.member()
    park_bad(parking)
    parking.failing.clear()
    assert app.resume(TOPIC, "bad")
    assert not app.resume(TOPIC, "good")
    until("all are through", lambda: parking.of("bad") == [0, 2, 4])


def test_a_reset_leaves_parked_lanes_parked(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.wait_committed(6)
    before = parking.calls["bad"]
    with Admin(parking.broker.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to="first")
    until("the good key ran again", lambda: parking.of("good") == [1, 3, 5, 1, 3, 5])
    parking.wait_committed(6)
    assert (parking.calls["bad"], parking.parked("bad")) == (before, [0, 2, 4])


@pytest.mark.parametrize(
    ("to", "reported", "handled"),
    [("last", True, [0, 2, 4]), ("last", False, [0, 0, 2, 4]), ("first", True, [0, 0, 2, 4])],
)
def test_a_reset_in_a_redrive_repeats_only_what_comes_after_it(
    parking: ParkingFixture,
    monkeypatch: pytest.MonkeyPatch,
    to: Literal["first", "last"],
    reported: bool,
    handled: list[int],
) -> None:
    """The member forgets its lanes with the reset, so it reports first. Without the report the message runs again."""
    app = parking.member()
    park_bad(parking)
    parking.wait_committed(6)
    parking.failing.clear()
    inside, go_on = threading.Event(), threading.Event()

    def wait_inside(message: Message) -> None:
        if message.key == "bad" and not go_on.is_set():
            inside.set()
            assert go_on.wait(TIMEOUT)

    parking.before = wait_inside
    parking.redrive("bad")
    assert inside.wait(TIMEOUT)
    with Admin(parking.broker.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to=to)
    until("the member waits for its handler", lambda: is_moving(app))
    if not reported:
        without_reports(monkeypatch)
    go_on.set()
    until("the lane is through", lambda: parking.of("bad")[-1:] == [4])
    until("the good key is where the reset put it", lambda: len(parking.of("good")) == (6 if to == "first" else 3))
    assert parking.of("bad") == handled
    report = parking.judge()
    assert report.verdict is Verdict.PASS, report


def test_messages_without_a_key_are_parked_as_one_lane(tmp_path: Path) -> None:
    parking = ParkingFixture(tmp_path, ordered=False)
    parking.member()
    parking.failing.add("")
    parking.send("", "good", "")
    until("they are parked", lambda: parking.parked(None) == [0, 2])
    until("the good key is through", lambda: parking.of("good") == [1])
    parking.restart()
    assert [lane.key for lane in parking.lanes()] == [None]
    parking.failing.clear()
    with ParkedAdmin(parking.broker.address) as admin:
        (lane,) = admin.lanes(GROUP, TOPIC, None)
        admin.redrive(lane)
    until("all are through", lambda: parking.of("") == [0, 2])
    parking.close()


def test_a_redriven_message_may_become_a_dead_letter_and_the_lane_goes_on(parking: ParkingFixture) -> None:
    parking.member()
    park_bad(parking)
    parking.failing.clear()

    def bury_first(message: Message) -> None:
        if message.queue_offset == 0:
            raise ToDeadLetter("not wanted")

    parking.before = bury_first
    parking.redrive("bad")
    until("the rest is through", lambda: parking.of("bad") == [2, 4])
    until("the lane is gone", lambda: parking.lane("bad") is None)
    report = parking.judge("redriven=1", "dead_letter=1")
    assert report.verdict is Verdict.PASS, report


def test_an_owner_that_ignores_parked_lanes_lets_newer_messages_overtake(
    parking: ParkingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the checker finds a new owner that does not restore parked lanes."""
    first = parking.member("a")
    park_bad(parking)
    parking.wait_committed(6)
    first.stop()
    parking.failing.clear()
    monkeypatch.setattr(LanesAside, "restore", _opened)
    parking.send("bad")
    parking.member("b")
    until("the newer one ran", lambda: parking.of("bad") == [6])
    report = parking.judge("rebalance")
    assert set(report.counts) == {"B4"}, report


def _opened(self: Any, lane: Any, kept: Any) -> None:
    self._queue.remove_lane(lane)
