"""Parked lanes over the wire: on disk before they are answered, and kept until an owner or operator removes them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import BROKER, RawClient, records
from tests.broker.running import Gate, ManualClock, RunningBroker, retire_now
from tests.chaos.members import until
from tests.chaos.mutants import pinned_log

from lanemq.broker.handlers import operator_parking
from lanemq.broker.storage.pinning import Pinning
from lanemq.core.brokering.progress_store import ProgressChange
from lanemq.core.brokering.progress_table import ProgressChanges, ProgressTable
from lanemq.core.brokering.queue_progress import LaneName
from lanemq.core.lane_status import Failure
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.errors import StorageError
from lanemq.model.steps import in_one_piece
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import MAX_LINES
from lanemq.wire.bodies import LaneLease
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import (
    LaneBody,
    NextBody,
    ParkAnswer,
    ParkBody,
    ParkedLaneBody,
    ParkedResult,
    ParkedTable,
)

NOW = Millis(1)
SMALL = {"segment_bytes": 64 * 1024, "retention_bytes": 64 * 1024}
KEY = "order 4711 \x01 ü"
"""Keys may hold anything."""


class Owner:
    """A member that owns queue 0 of T for group g."""

    def __init__(self, running: RunningBroker, client: str = "a") -> None:
        self.raw = running.connect()
        self.client = client
        self.lease: LaneLease = self.renew()

    def renew(self) -> LaneLease:
        (self.lease,) = self.raw.lane_lock(self.client, laneFinished="true").lane_leases
        return self.lease

    def _ext(self) -> dict[str, str]:
        claim = {"laneClient": self.client, "laneEpoch": str(self.lease.epoch)}
        return {"consumerGroup": "g", "topic": "T", "queueId": "0", "bname": BROKER, **claim}

    def post_park(
        self, *offsets: int, failed: bool = True, key: str | None = KEY, again: int = -1, held: bool = False
    ) -> int:
        body = ParkBody(
            key=key, offsets=list(offsets), failed=failed, held=held, reason="broken", attempts=17, again=again
        )
        return self.raw.post(RequestCode.LANE_PARK, self._ext(), body.encode())

    def ask_park(
        self, *offsets: int, failed: bool = True, key: str | None = KEY, again: int = -1, held: bool = False
    ) -> Command:
        return self.raw.answer(self.post_park(*offsets, failed=failed, key=key, again=again, held=held))

    def park(
        self, *offsets: int, failed: bool = True, key: str | None = KEY, again: int = -1, held: bool = False
    ) -> ParkAnswer:
        reply = self.ask_park(*offsets, failed=failed, key=key, again=again, held=held)
        assert reply.code == 0, reply
        return ParkAnswer.decode(reply.body)

    def next(self, done: int = -1, key: str | None = KEY, wanted: int = 1) -> Command:
        body = NextBody(key=key, done=done, wanted=wanted)
        return self.raw.ask(RequestCode.LANE_PARK_NEXT, self._ext(), body.encode())


@pytest.fixture
def running(start: Start) -> RunningBroker:
    """A broker with eight messages in queue 0 of T, whose bodies are their offsets."""
    running = start(clock=ManualClock())
    fill(running.connect())
    return running


def fill(raw: RawClient, count: int = 8) -> None:
    raw.create("T", 4)
    for number in range(count):
        raw.send("T", b"%d" % number, queue=0, properties={"__SHARDINGKEY": "k"})


def lanes(raw: RawClient, wanted: LaneBody | None = None) -> list[ParkedLaneBody]:
    return ParkedTable.decode(raw.ask(RequestCode.LANE_PARKED, {}, (wanted or LaneBody()).encode()).body).lanes


def lane(key: str | None = KEY, **more: int) -> bytes:
    return LaneBody(group="g", topic="T", any_key=False, key=key, **more).encode()  # type: ignore[arg-type]


def parked_offsets(raw: RawClient, key: str | None = KEY) -> list[int]:
    reply = raw.ask(RequestCode.LANE_PARKED_SHOW, {}, lane(key))
    return [record.queue_offset for record in records(reply)] if reply.code == 0 else []


def redrive(raw: RawClient) -> ParkedResult:
    reply = raw.ask(RequestCode.LANE_PARKED_REDRIVE, {}, lane())
    assert reply.code == 0, reply
    return ParkedResult.decode(reply.body)


def discard(raw: RawClient, through: int) -> ParkedResult:
    reply = raw.ask(RequestCode.LANE_PARKED_DISCARD, {}, lane(through=through))
    assert reply.code == 0, reply
    return ParkedResult.decode(reply.body)


def test_parked_messages_are_listed_and_shown_in_order(running: RunningBroker) -> None:
    owner = Owner(running)
    assert owner.park(2, 3) == ParkAnswer(settled=2, status="parked")
    assert owner.park(5, failed=False) == ParkAnswer(settled=1, status="parked")
    (found,) = lanes(owner.raw)
    assert (found.group, found.topic, found.queue_id, found.key) == ("g", "T", 0, KEY)
    assert (found.status, found.reason, found.attempts, found.messages) == ("parked", "broken", 17, 3)
    assert (found.first, found.last, found.through) == (2, 5, 5)
    shown = records(owner.raw.ask(RequestCode.LANE_PARKED_SHOW, {}, lane()))
    assert [(each.queue_offset, each.body) for each in shown] == [(2, b"2"), (3, b"3"), (5, b"5")]


def test_nothing_is_answered_before_it_is_on_disk(running: RunningBroker) -> None:
    owner, other = Owner(running), running.connect()
    gate = Gate(running)
    asked = owner.post_park(2)
    listing = other.post(RequestCode.LANE_PARKED, {}, LaneBody().encode())
    for raw in (owner.raw, other):
        assert raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    assert asked not in owner.raw.answered()
    assert listing not in other.answered()
    gate.open()
    assert owner.raw.answer(asked).code == 0
    assert len(ParkedTable.decode(other.answer(listing).body).lanes) == 1


def test_answered_changes_survive_a_kill(running: RunningBroker, start: Start, folder: Path) -> None:
    owner = Owner(running)
    owner.park(2, 3, 5)
    owner.park(6, key=None)
    redrive(owner.raw)
    owner.next(done=2)
    after = start(running.crash_image(folder / "image")).connect()
    assert parked_offsets(after) == [3, 5]
    assert parked_offsets(after, None) == [6]
    first, second = lanes(after)
    assert (first.key, first.status) == (None, "parked")
    assert (second.status, second.reason, second.attempts, second.through) == ("redriving", "broken", 17, 5)


def test_a_stale_owner_can_neither_park_nor_redrive(running: RunningBroker) -> None:
    """Negative control: the same requests with the current epoch are accepted."""
    stale = Owner(running, "a")
    stale.park(2, 3)
    redrive(stale.raw)
    stale.raw.unlock("a")
    current = Owner(running, "b")
    for reply in (stale.ask_park(4, failed=False), stale.ask_park(6, key="other"), stale.next(), stale.next(done=2)):
        assert reply.code == ResponseCode.LEASE_REFUSED
    assert parked_offsets(stale.raw) == [2, 3]
    assert current.next(done=2).body
    assert current.park(4, failed=False).settled == 1
    assert parked_offsets(stale.raw) == [3, 4]


def test_a_redrive_returns_one_message_after_the_other_and_ends_the_lane(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2, 3)
    assert (owner.next().body, owner.next().ext["laneParked"]) == (b"", "parked"), "it was not redriven"
    assert redrive(owner.raw) == ParkedResult(changed=1, left=2)
    assert redrive(owner.raw) == ParkedResult(changed=0, left=2)
    first = owner.next()
    assert (records(first)[0].queue_offset, first.ext["laneParked"]) == (2, "redriving")
    assert records(owner.next())[0].queue_offset == 2, "its answer may have been lost"
    assert records(owner.next(done=2))[0].queue_offset == 3
    assert records(owner.next(done=2))[0].queue_offset == 3
    last = owner.next(done=3)
    assert (last.body, last.ext["laneParked"]) == (b"", "")
    assert lanes(owner.raw) == []


def test_a_redriven_message_that_failed_ends_the_redrive(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2, 3)
    redrive(owner.raw)
    owner.next()
    assert owner.park(6, again=2) == ParkAnswer(settled=1, status="parked")
    assert parked_offsets(owner.raw) == [2, 3, 6]


def test_a_discard_keeps_messages_after_the_given_offset(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2, 3, 5)
    assert discard(owner.raw, 3) == ParkedResult(changed=2, left=1)
    assert discard(owner.raw, 3) == ParkedResult(changed=0, left=1)
    assert discard(owner.raw, 99) == ParkedResult(changed=1, left=0)
    assert owner.park(6, failed=False) == ParkAnswer(settled=0, status="", remark=owner.park(7, failed=False).remark)
    assert lanes(owner.raw) == []
    owner.park(7)
    assert parked_offsets(owner.raw) == [7], "nothing of the lane before is left on disk"


def test_a_copied_message_discarded_while_it_is_read_is_not_returned(start: Start) -> None:
    running = with_little_retention(start, max_pinned_bytes=0)
    until("the originals are gone", lambda: retire(running) > 3)
    owner, person = Owner(running), running.connect()
    redrive(person)
    gate = Gate(running)
    body = NextBody(key=KEY, done=-1).encode()
    asked = owner.raw.post(RequestCode.LANE_PARK_NEXT, owner._ext(), body)
    owner.raw.bounds("T")
    discarded = person.post(RequestCode.LANE_PARKED_DISCARD, {}, lane(through=2))
    person.bounds("T")
    gate.open()
    assert person.answer(discarded).code == 0
    assert [record.queue_offset for record in records(owner.raw.answer(asked))] == [3]


def test_the_owner_learns_of_an_operators_change_with_its_lease(running: RunningBroker) -> None:
    owner = Owner(running)
    assert owner.lease.parked == 0
    owner.park(2, 3)
    seen = [owner.renew().parked]
    assert owner.renew().parked == seen[0]
    redrive(owner.raw)
    seen.append(owner.renew().parked)
    discard(owner.raw, 99)
    seen.append(owner.renew().parked)
    assert 0 < seen[0] < seen[1] < seen[2]
    owner.park(4)
    owner.raw.unlock("a")
    assert Owner(running, "b").lease.parked > 0, "a new owner must ask"


def test_a_restart_counts_as_a_change(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2)
    before = owner.renew().parked
    assert running.clock is not None
    running.clock.passed += 10
    running.restart()
    assert Owner(running).lease.parked not in (0, before)


def with_little_retention(start: Start, max_pinned_bytes: int) -> RunningBroker:
    """Offsets 2 and 3 are parked; the log file that holds them and the one after it are due to be deleted."""
    running = start(**SMALL, max_pinned_bytes=max_pinned_bytes)
    raw = running.connect()
    fill(raw)
    Owner(running).park(2, 3)
    for _ in range(64):
        raw.send("T", b"x" * 4000, queue=0)
    return running


def retire(running: RunningBroker) -> int:
    """Lets retention look; returns the first offset that is left."""
    retire_now(running)
    return running.connect().bounds("T")[0]


def shown(running: RunningBroker) -> list[bytes]:
    return [each.body for each in records(running.connect().ask(RequestCode.LANE_PARKED_SHOW, {}, lane()))]


def test_retention_keeps_log_files_with_parked_messages_up_to_a_limit(start: Start) -> None:
    running = with_little_retention(start, max_pinned_bytes=1024 * 1024)
    assert [retire(running), retire(running)] == [0, 0]
    assert shown(running) == [b"2", b"3"]
    discard(running.connect(), 99)
    assert retire(running) > 3, "nothing needs the files any more"


def test_beyond_the_limit_parked_records_are_copied_before_their_file_is_deleted(start: Start) -> None:
    running = with_little_retention(start, max_pinned_bytes=0)
    until("the originals are gone", lambda: retire(running) > 3)
    assert shown(running) == [b"2", b"3"]
    running.restart()
    assert shown(running) == [b"2", b"3"]
    owner = Owner(running)
    redrive(owner.raw)
    given = records(owner.next(wanted=9))
    assert [each.body for each in given] == [b"2", b"3"]


def look_while_parking(start: Start, data: Path) -> int:
    """How many files retention would delete if offset 2 is parked while it looks at the lanes.

    The broker itself deletes none: it might do so before the look.
    """
    running = start(data, segment_bytes=SMALL["segment_bytes"], max_pinned_bytes=1024 * 1024)
    raw = running.connect()
    fill(raw)
    for _ in range(64):
        raw.send("T", b"x" * 4000, queue=0)
    Owner(running).park(71)
    table, pinning = running.broker.running.context.progress, running.broker.running.housekeeping._pinning

    def look() -> int:
        with table.watching() as changes:
            steps = pinning.deletable(2, changes)
            next(steps)
            running.progress("g", "T").park("meanwhile", [2], Failure("broken", 1), now=NOW)
            return in_one_piece(steps)

    return running.call(look)


def test_a_message_that_is_parked_while_retention_looks_keeps_its_file(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: if the table does not note it, its file would be deleted."""
    assert look_while_parking(start, folder / "data") == 0
    monkeypatch.setattr(ProgressTable, "watching", lambda table: contextlib.nullcontext(ProgressChanges()))
    assert look_while_parking(start, folder / "control") > 0


def test_a_broker_killed_between_the_copy_and_the_deletion_copies_again(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Pinning.deletable

    def nothing(self: Pinning, expired: int, changes: ProgressChanges) -> Iterator[None]:
        yield from real(self, expired, changes)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Pinning, "deletable", nothing)
        running = with_little_retention(start, max_pinned_bytes=0)
        rows = ProgressRows(running.broker.running.context.state)
        name = LaneName("g", running.progress("g", "T").queue, KEY)
        until("it is copied", lambda: retire(running) == 0 and len(rows.copies(name, 0, 9)) == 2)
        image = running.crash_image(folder / "image")
    after = start(image, **SMALL, max_pinned_bytes=0)
    until("the originals are gone", lambda: retire(after) > 3)
    assert shown(after) == [b"2", b"3"]


def test_without_the_copy_retention_loses_parked_messages(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    pinned_log(monkeypatch.setattr)
    running = with_little_retention(start, max_pinned_bytes=0)
    assert retire(running) > 3
    assert shown(running) == []


def test_what_is_not_in_the_log_cannot_be_parked(running: RunningBroker) -> None:
    owner = Owner(running)
    answer = owner.park(6, 7, 8, 9)
    assert (answer.settled, "deleted from the log" in answer.remark) == (2, True)
    assert parked_offsets(owner.raw) == [6, 7]


def test_a_held_lane_is_given_to_its_owner_without_an_operator(running: RunningBroker) -> None:
    owner = Owner(running)
    assert owner.park(2, 3, 5, held=True) == ParkAnswer(settled=3, status="held")
    first = owner.next(wanted=2)
    assert ([each.queue_offset for each in records(first)], first.ext["laneParked"]) == ([2, 3], "held")
    assert owner.park(again=2, held=True).status == "held"
    running.restart()
    owner = Owner(running)
    (found,) = lanes(owner.raw)
    assert (found.status, found.attempts, found.first) == ("held", 17, 2)
    then = owner.next(done=3, wanted=2)
    assert ([each.queue_offset for each in records(then)], then.ext["laneParked"]) == ([5], "redriving")
    assert owner.next(done=5).ext["laneParked"] == ""


def test_a_report_of_what_is_done_returns_no_message(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2, 3, 5, held=True)
    assert owner.next(done=2, wanted=0).body == b""
    assert parked_offsets(owner.raw) == [3, 5]


def test_a_damaged_record_is_skipped_and_the_rest_of_its_lane_goes_on(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2, 3, 5, held=True)
    place = owner.raw.read("T")[2].position
    (segment,) = (running.options.data / "log").iterdir()
    with segment.open("r+b") as file:
        file.seek(place + 60)
        file.write(b"damage")
    given = records(owner.next(wanted=1))
    assert [each.queue_offset for each in given] == [3]


def fail_writes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    real, faults = ProgressRows.save, [True] * count

    def save(self: ProgressRows, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        if faults and faults.pop():
            raise StorageError("the disk is full")
        real(self, changes, synced=synced)

    monkeypatch.setattr(ProgressRows, "save", save)


def test_a_failed_write_is_answered_with_an_error_and_repeated_by_the_next(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane is parked in memory, so later answers must not rely on missing rows."""
    owner = Owner(running)
    fail_writes(monkeypatch, 2)
    assert owner.ask_park(2, 3).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert owner.raw.ask(RequestCode.LANE_PARKED, {}, LaneBody().encode()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert owner.park(5, failed=False).settled == 1
    running.restart()
    assert parked_offsets(running.connect()) == [2, 3, 5]


def test_a_discard_that_is_written_late_is_in_the_history_once(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator was told of the error, and the next change repeats it: the history must explain the missing one."""
    running = start(history=folder / "history")
    fill(running.connect())
    owner = Owner(running)
    owner.park(2, 3)
    fail_writes(monkeypatch, 1)
    refused = owner.raw.ask(RequestCode.LANE_PARKED_DISCARD, {}, lane(through=2))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    redrive(running.connect())
    running.stop()
    events = [
        (each["e"], each["offset"])
        for line in (folder / "history" / "broker-lanemq.jsonl").read_bytes().splitlines()
        if (each := msgspec.json.decode(line))["e"] in ("parked", "discarded", "redriven")
    ]
    assert events == [("parked", 2), ("parked", 3), ("discarded", 2), ("redriven", 3)]


def test_requests_that_come_together_share_one_write(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand lanes may fail in the same second; a sync for each would take a minute."""
    owner = Owner(running)
    real, writes = ProgressRows.save, list[int]()

    def save(self: ProgressRows, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        writes.append(len(changes))
        real(self, changes, synced=synced)

    monkeypatch.setattr(ProgressRows, "save", save)
    gate = Gate(running)
    asked = [owner.post_park(number, key=f"k{number}") for number in range(6)]
    assert owner.raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    gate.open()
    assert [owner.raw.answer(opaque).code for opaque in asked] == [0] * 6
    assert writes == [1, 5]
    running.restart()
    assert len(lanes(running.connect())) == 6


def test_deleting_a_topic_deletes_its_parked_lanes(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(2)
    assert owner.raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert lanes(owner.raw) == []
    running.restart()
    assert lanes(running.connect()) == []


@pytest.mark.parametrize(("clean", "left"), [("true", 0), ("false", 1)])
def test_deleting_a_groups_offsets_deletes_its_parked_lanes(running: RunningBroker, clean: str, left: int) -> None:
    owner = Owner(running)
    owner.park(2)
    ext = {"groupName": "g", "cleanOffset": clean}
    assert owner.raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == 0
    running.restart()
    assert len(lanes(running.connect())) == left


def test_long_lists_come_in_parts(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(running)
    for number in range(6):
        owner.park(number, key=f"k{number}")
    monkeypatch.setattr(operator_parking, "MAX_LIST_CHARS", 700)
    wanted, found = LaneBody(), list[str | None]()
    while not found or wanted.after:
        table = ParkedTable.decode(owner.raw.ask(RequestCode.LANE_PARKED, {}, wanted.encode()).body)
        assert 0 < len(table.lanes) < 6
        found += [each.key for each in table.lanes]
        wanted.after = table.more
        if found == ["k0", "k1"]:
            reply = owner.raw.ask(RequestCode.LANE_PARKED_DISCARD, {}, lane("k0", through=9))
            assert ParkedResult.decode(reply.body).changed == 1
    assert found == [f"k{number}" for number in range(6)], "a lane that disappears during the listing hides no other"
    bad = LaneBody(after="nowhere").encode()
    assert owner.raw.ask(RequestCode.LANE_PARKED, {}, bad).code == ResponseCode.INVALID_PARAMETER


def test_long_lanes_are_shown_in_parts(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_parking, "MAX_SHOWN", 2)
    owner = Owner(running)
    owner.park(1, 2, 3)
    assert parked_offsets(owner.raw) == [1, 2]
    rest = owner.raw.ask(RequestCode.LANE_PARKED_SHOW, {}, lane(start=3))
    assert [record.queue_offset for record in records(rest)] == [3]


@pytest.mark.parametrize("code", [4205, 4206, 4207])
def test_a_request_for_an_unknown_or_unnamed_lane_is_refused(running: RunningBroker, code: int) -> None:
    raw = running.connect()
    reply = raw.ask(code, {}, lane("absent"))
    assert (reply.code, "no parked lane of key 'absent'" in (reply.remark or "")) == (
        ResponseCode.QUERY_NOT_FOUND,
        True,
    )
    assert "without a key" in (raw.ask(code, {}, lane(None)).remark or "")
    for wanted in (LaneBody(), LaneBody(group="g", topic="T"), LaneBody(group="g", any_key=False, key="k")):
        assert raw.ask(code, {}, wanted.encode()).code == ResponseCode.INVALID_PARAMETER


def test_a_number_that_no_row_can_hold_does_not_keep_others_from_being_saved(running: RunningBroker) -> None:
    """All progress is saved in one order, so a row that can never be written would stop the offsets, too."""
    owner = Owner(running)
    body = ParkBody(key="large", offsets=[1], failed=True, attempts=2**63).encode()
    assert owner.raw.ask(RequestCode.LANE_PARK, owner._ext(), body).code == 0
    owner.raw.commit(1, laneClient="a", laneEpoch=str(owner.lease.epoch))
    running.restart()
    assert (running.connect().committed(), len(lanes(running.connect()))) == (1, 1)


def test_invalid_requests_are_refused_and_park_nothing(running: RunningBroker) -> None:
    owner = Owner(running)
    assert owner.ask_park(-1).code == ResponseCode.INVALID_PARAMETER
    assert owner.ask_park(*range(1_001)).code == ResponseCode.INVALID_PARAMETER
    assert owner.ask_park(1, key="x" * 40_000).code == ResponseCode.INVALID_PARAMETER
    for code in (RequestCode.LANE_PARK, RequestCode.LANE_PARK_NEXT):
        for body in (b"", b"[]", b'{"offsets": "x", "done": "y"}'):
            assert owner.raw.ask(code, owner._ext(), body).code != 0
        assert owner.raw.ask(code, {"topic": "T"}, b"{}").code != 0
        assert owner.raw.ask(code, {**owner._ext(), "topic": "nowhere"}, b"{}").code == ResponseCode.TOPIC_NOT_EXIST
        for other in ({"queueId": "9"}, {"bname": "other"}):
            assert owner.raw.ask(code, {**owner._ext(), **other}, b"{}").code == ResponseCode.INVALID_PARAMETER
    assert lanes(owner.raw) == []


def test_lanes_are_found_by_the_broker_of_their_queue(running: RunningBroker) -> None:
    owner = Owner(running)
    owner.park(1)
    assert [each.broker for each in lanes(owner.raw, LaneBody(broker=BROKER))] == [BROKER]
    assert lanes(owner.raw, LaneBody(broker="other")) == []
    body = LaneBody(group="g", topic="T", broker="other", any_key=False, key=KEY).encode()
    assert owner.raw.ask(RequestCode.LANE_PARKED_REDRIVE, {}, body).code == ResponseCode.QUERY_NOT_FOUND


def test_offsets_lost_with_the_end_of_the_log_are_not_mistaken_for_parked_ones(
    running: RunningBroker, start: Start, folder: Path
) -> None:
    """In relaxed mode a power cut may lose the end of the log, but not state.db; new messages get those offsets."""
    Owner(running).park(5, 6)
    image = running.crash_image(folder / "image")
    (segment,) = (image / "log").iterdir()
    whole = segment.read_bytes()
    raw = running.connect()
    first = raw.read("T")[6].position
    segment.write_bytes(whole[:first])
    after = start(image).connect()
    assert after.bounds("T")[1] == 6
    assert parked_offsets(after) == [5]
    (found,) = lanes(after)
    assert found.through == 5


def test_a_group_that_parks_many_long_keys_writes_few_short_lines(
    running: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(running)
    posted = [owner.post_park(0, key=f"{number}" + "k" * 30_000) for number in range(MAX_LINES + 5)]
    assert {owner.raw.answer(each).code for each in posted} == {0}
    parked = [each for each in caplog.messages if each.startswith("group g: key ")]
    assert len(parked) == MAX_LINES
    assert parked[0].startswith("group g: key '0kkk")
    assert parked[0].endswith("kkk... of T/0 is parked: broken")
    assert max(map(len, parked)) < 200
    assert caplog.messages.count("group g: more of these lines are left out, for up to a minute") == 1
