"""The progress of groups in a database: offsets, lanes with their offsets in chunks, and copies of records.

A parked message is an offset of the log. Its record is copied here only when retention is about to delete it there.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from lanemq.core.brokering.progress_store import (
    EndedLane,
    ForgottenProgress,
    ProgressChange,
    SavedLane,
    SavedOffset,
)
from lanemq.core.brokering.queue_progress import LaneName
from lanemq.core.brokering.queue_seen import SavedSeen
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.log.state.group_rows import GroupRows, Statements, Sync, upsert
from lanemq.model.log_marks import LastStamp, LogMark
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_OF_LANES = ("parked_lanes", "parked_chunks", "parked_messages")
PROGRESS_TABLES = ("offsets", "seen_stamps", *_OF_LANES)
_OF_QUEUE = "grp = ? AND topic = ? AND broker = ? AND queue_id = ?"
_OF_LANE = f"{_OF_QUEUE} AND key = ?"
_QUEUE = "grp, topic, broker, queue_id"
_LANE = f"{_QUEUE}, key"
_LANE_STATE = "reason, attempts, since, status, through, first, overtaken"
_SAVE_OFFSET = upsert("offsets", f"{_QUEUE}, value, reset_pending, gaps, marks", _QUEUE)
_SAVE_STAMP = upsert("seen_stamps", f"{_QUEUE}, producer, epoch, sequence, value", f"{_QUEUE}, producer")
_SAVE_LANE = upsert("parked_lanes", f"{_LANE}, {_LANE_STATE}", _LANE)
_SAVE_CHUNK = upsert("parked_chunks", f"{_LANE}, start, offsets", f"{_LANE}, start")
_SAVE_COPY = upsert("parked_messages", f"{_LANE}, value, record", f"{_LANE}, value")
_MARKS = msgspec.json.Decoder(tuple[int, tuple[LogMark, ...]])


class ProgressRows:
    """The `ProgressStore` of a database. Calls may come from any thread."""

    def __init__(self, state: GroupRows) -> None:
        self._state = state

    def save(self, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        with self._state.transaction(Sync.FULL if synced else Sync.NORMAL) as db:
            for change in changes:
                match change:
                    case SavedOffset():
                        _save_offset(db, change)
                    case SavedLane():
                        _save_lane(db, change)
                    case EndedLane(lane):
                        for table in _OF_LANES:
                            db.execute(f"DELETE FROM {table} WHERE {_OF_LANE}", _id(lane))
                    case ForgottenProgress(group, topic):
                        column, name = ("topic", topic) if group is None else ("grp", group)
                        for table in PROGRESS_TABLES:
                            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))

    def name_broker(self, broker: str) -> None:
        """Make everything the progress in queues of this broker, which may have had another name before."""
        with self._state.transaction(Sync.FULL) as db:
            for table in PROGRESS_TABLES:
                db.execute(f"UPDATE {table} SET broker = ? WHERE broker <> ?", (broker, broker))

    def offsets(self) -> list[SavedOffset]:
        stamps: dict[tuple[object, ...], list[LastStamp]] = defaultdict(list)
        for *place, producer, epoch, sequence, offset in self._state.rows(
            f"SELECT {_QUEUE}, producer, epoch, sequence, value FROM seen_stamps ORDER BY value"
        ):
            stamps[tuple(place)].append(LastStamp(producer, epoch, sequence, offset))
        rows = self._state.rows(f"SELECT {_QUEUE}, value, reset_pending, gaps, marks FROM offsets")
        offsets = []
        for group, *queue, offset, pending, finished, marks in rows:
            seen = _seen(marks, stamps[(group, *queue)])
            offsets.append(SavedOffset(group, MessageQueue(*queue), QueueOffset(offset), bool(pending), finished, seen))
        return offsets

    def lanes(self) -> list[SavedLane]:
        lanes = []
        for row in self._state.rows(f"SELECT {_LANE}, {_LANE_STATE} FROM parked_lanes"):
            lane, (reason, attempts, since, status, through, first, overtaken) = row[:5], row[5:]
            name = _name(*lane)
            query = f"SELECT start, offsets FROM parked_chunks WHERE {_OF_LANE} ORDER BY start"
            chunks = self._state.rows(query, lane)
            failure = Failure(reason, attempts)
            lanes.append(
                SavedLane(name, failure, Millis(since), LaneStatus(status), through, first, bool(overtaken), chunks)
            )
        return lanes

    def last_copies(self) -> list[tuple[LaneName, int]]:
        """The last copied offset of each lane that has copies."""
        rows = self._state.rows(f"SELECT {_LANE}, max(value) FROM parked_messages GROUP BY {_LANE}")
        return [(_name(*lane), last) for *lane, last in rows]

    def copied_bytes(self) -> int:
        """Size of all copies."""
        return int(self._state.rows("SELECT coalesce(sum(length(record)), 0) FROM parked_messages")[0][0])

    def copies(self, name: LaneName, start: int, limit: int) -> list[tuple[int, bytes]]:
        query = f"SELECT value, record FROM parked_messages WHERE {_OF_LANE} AND value >= ? ORDER BY value LIMIT ?"
        copies: list[tuple[int, bytes]] = self._state.rows(query, (*_id(name), start, limit))
        return copies


def _save_offset(db: Statements, row: SavedOffset) -> None:
    place, seen = (row.group, *row.queue), row.seen
    marks = "" if seen is None else msgspec.json.encode((seen.done, seen.marks)).decode()
    values = (*place, row.offset, row.reset_pending, row.finished, marks)
    db.execute(_SAVE_OFFSET, values)
    if seen is None:
        return
    if seen.discarded:
        db.execute(f"DELETE FROM seen_stamps WHERE {_OF_QUEUE}", place)
    gone = [(*place, producer) for producer in seen.gone]
    db.executemany(f"DELETE FROM seen_stamps WHERE {_OF_QUEUE} AND producer = ?", gone)
    stamps = [(*place, *stamp) for stamp in seen.stamps]
    db.executemany(_SAVE_STAMP, stamps)


def _seen(marks: str, stamps: Sequence[LastStamp]) -> SavedSeen | None:
    if not marks:
        return None
    done, known = _MARKS.decode(marks)
    return SavedSeen(known, done, tuple(stamps))


def _name(group: str, topic: str, broker: str, queue_id: int, key: str) -> LaneName:
    return LaneName(group, MessageQueue(topic, broker, queue_id), key[1:] if key else None)


def _save_lane(db: Statements, lane: SavedLane) -> None:
    id, failure = _id(lane.name), lane.failure
    state = (failure.reason, failure.attempts, lane.since, lane.status.value, lane.through, lane.first, lane.overtaken)
    db.execute(_SAVE_LANE, (*id, *state))
    db.execute(f"DELETE FROM parked_chunks WHERE {_OF_LANE} AND start < ?", (*id, lane.first_chunk))
    db.execute(f"DELETE FROM parked_messages WHERE {_OF_LANE} AND value < ?", (*id, lane.first))
    db.executemany(_SAVE_CHUNK, [(*id, *each) for each in lane.chunks])
    db.executemany(_SAVE_COPY, [(*id, *each) for each in lane.copies])


def _id(name: LaneName) -> tuple[object, ...]:
    """The columns that name a lane. The key is empty for the lane without a key, else `=` and the key."""
    return (name.group, *name.queue, "" if name.key is None else f"={name.key}")
