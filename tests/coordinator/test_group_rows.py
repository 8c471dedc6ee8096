"""One suite for both stores of a coordinator: SQLite, and PostgreSQL of every release that is installed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests import postgres_server

from lanemq.clock import SystemClock
from lanemq.coordinator.postgres_rows import PostgresRows
from lanemq.core.brokering.cluster.leadership import claim
from lanemq.core.brokering.progress_store import EndedLane, ForgottenProgress, SavedLane, SavedOffset
from lanemq.core.brokering.queue_progress import LaneName
from lanemq.core.brokering.queue_seen import SavedSeen
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.log.state.database import State
from lanemq.log.state.group_rows import GroupRows, LeaseRow
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.errors import StorageError
from lanemq.model.log_marks import LastStamp, LogMark
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q, Q2 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 3)
LANE = LaneName("billing", Q, "order-\0 \uf8ff'\\%s")
LEASE = LeaseRow("billing", *Q, "one", 7, 5_000, False)
Reopen = Callable[[], GroupRows]


def leading(url: str) -> PostgresRows:
    """The rows with a term of this process."""
    rows = PostgresRows(url, SystemClock())
    rows.connect()
    sight = rows.look()
    assert rows.claim(sight, claim(sight.row, "test", "localhost:1"))
    return rows


@pytest.fixture(scope="module", params=["SQLite", "PostgreSQL, installed", "PostgreSQL, newest"])
def server(request: pytest.FixtureRequest) -> Iterator[postgres_server.Server | None]:
    if request.param == "SQLite":
        yield None
        return
    folder = postgres_server.newest() if "newest" in request.param else postgres_server.programs()
    if folder is None or postgres_server.reason_to_skip():
        pytest.skip(f"{request.param}: no programs of PostgreSQL ({postgres_server.reason_to_skip()})")
    with postgres_server.running_server(folder) as running:
        yield running


@pytest.fixture
def reopen(server: postgres_server.Server | None, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the rows, which are empty at first; each time as after a restart."""
    opened: list[GroupRows] = []
    if server is not None:
        with psycopg.connect(server.dsn, autocommit=True) as db:
            db.execute("DROP SCHEMA IF EXISTS lanemq CASCADE")

    def again() -> GroupRows:
        for each in opened:
            each.close()
        opened.append(State(tmp_path / "state.db") if server is None else leading(server.dsn))
        return opened[-1]

    yield again
    for each in opened:
        each.close()


def test_groups_and_values_survive(reopen: Reopen) -> None:
    rows = reopen()
    rows.save_group("billing", "{}")
    rows.save_group("billing", '{"a": 1}')
    rows.save_group("gone", "{}")
    rows.delete_group("gone")
    rows.put("name", "first")
    rows.put("name", "it's \\ second; DROP TABLE kv")
    rows = reopen()
    assert rows.groups() == {"billing": '{"a": 1}'}
    assert rows.get("name") == "it's \\ second; DROP TABLE kv"
    assert rows.get("other") is None


def test_an_older_epoch_never_replaces_a_newer_one(reopen: Reopen) -> None:
    rows = reopen()
    rows.save_leases([LEASE, LEASE._replace(queue_id=1)])
    rows.save_leases([LEASE._replace(owner="late", epoch=6)])
    rows.save_leases([LEASE._replace(owner="", queue_id=1), LEASE._replace(owner="two", queue_id=1, epoch=8)])
    expected = [LEASE, LEASE._replace(owner="two", queue_id=1, epoch=8)]
    assert sorted(reopen().leases()) == expected


def test_forgotten_leases_leave_their_epoch_as_the_floor(reopen: Reopen) -> None:
    rows = reopen()
    rows.save_leases([LEASE, LEASE._replace(group="shipping")])
    rows.forget_group_leases("billing", 7)
    assert rows.epoch_floor() == 7
    rows.forget_leases("orders", 9)
    rows = reopen()
    assert (rows.leases(), rows.epoch_floor()) == ([], 9)


def test_filters_survive(reopen: Reopen) -> None:
    rows = reopen()
    rows.save_filters([("billing", "orders", '["a"]'), ("billing", "other", "[]")])
    rows.save_filters([("billing", "orders", '["a","b"]'), ("billing", "other", None)])
    assert reopen().filters() == [("billing", "orders", '["a","b"]')]


def saved_lane(**changes: object) -> SavedLane:
    base = SavedLane(LANE, Failure("it failed", 3), Millis(17), LaneStatus.PARKED, 9, 4, False, ((0, b"\0\1"),))
    return base._replace(**changes)


def test_offsets_survive_with_ranges_marks_and_stamps(reopen: Reopen) -> None:
    mark, stamp = LogMark(5, 500, 1700, "key"), LastStamp("producer", 1, 2, 5)
    seen = SavedSeen((mark,), 6, (stamp, LastStamp("other", 1, 9, 4)))
    progress = ProgressRows(reopen())
    progress.save([SavedOffset("billing", Q, QueueOffset(5), True, "1-2", seen)], synced=False)
    progress.save([SavedOffset("billing", Q2, QueueOffset(1))], synced=False)
    later = SavedSeen((mark,), 7, (stamp._replace(sequence=3),), gone=("other",))
    progress.save([SavedOffset("billing", Q, QueueOffset(6), False, "", later)], synced=False)
    offsets = {each.queue: each for each in ProgressRows(reopen()).offsets()}
    assert offsets[Q2] == SavedOffset("billing", Q2, QueueOffset(1))
    assert (offsets[Q].offset, offsets[Q].reset_pending, offsets[Q].finished) == (6, False, "")
    assert offsets[Q].seen == SavedSeen((mark,), 7, (stamp._replace(sequence=3),))


def test_lanes_survive_with_any_key_and_end_completely(reopen: Reopen) -> None:
    progress = ProgressRows(reopen())
    progress.save([saved_lane(copies=((4, b"record \0"), (5, b"second")))], synced=True)
    progress = ProgressRows(reopen())
    assert progress.lanes() == [saved_lane(chunks=[(0, b"\0\1")])]
    assert progress.copies(LANE, 5, 10) == [(5, b"second")]
    assert progress.last_copies() == [(LANE, 5)]
    assert progress.copied_bytes() == 14
    # In the order of the changes: the lane ends, and begins again.
    progress.save([EndedLane(LANE), saved_lane(first=9, chunks=((8, b"x"),), first_chunk=8)], synced=True)
    progress = ProgressRows(reopen())
    assert [each.chunks for each in progress.lanes()] == [[(8, b"x")]]
    assert progress.copies(LANE, 0, 10) == []


def test_a_forgotten_group_leaves_nothing(reopen: Reopen) -> None:
    progress = ProgressRows(reopen())
    other = saved_lane(name=LANE._replace(group="shipping"))
    progress.save([saved_lane(), other, SavedOffset("billing", Q, QueueOffset(5))], synced=True)
    progress.save([ForgottenProgress(group="billing")], synced=True)
    progress = ProgressRows(reopen())
    assert [each.name.group for each in progress.lanes()] == ["shipping"]
    assert progress.offsets() == []
    progress.save([ForgottenProgress(topic="orders")], synced=True)
    assert ProgressRows(reopen()).lanes() == []


def test_changes_together_are_all_kept_or_none(reopen: Reopen) -> None:
    rows = reopen()
    with contextlib.suppress(StorageError), rows.together():
        rows.put("name", "lost")
        rows.save_leases([LEASE._replace(epoch=None)])  # type: ignore[arg-type]
    with rows.together():
        rows.save_leases([LEASE])
        rows.put("other", "kept")
    rows = reopen()
    assert (rows.get("name"), rows.get("other"), rows.leases()) == (None, "kept", [LEASE])
