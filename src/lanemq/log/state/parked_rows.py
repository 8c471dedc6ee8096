"""Parked lanes in the state database: their settings, their offsets in chunks, and copies of records.

A parked message is an offset of the log. Its record is copied here only when retention is about to delete it there.

Every change is one transaction and synced before the call returns, because the consumer that asked then commits past
these messages. Writing the same changes twice, in the same order, has no further effect.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from lanemq.log.state.database import State, Sync

LaneId: TypeAlias = tuple[str, str, int, str]
"""Group, topic, queue id, and key: empty for the lane without a key, else `=` and the key."""


class LaneRow(NamedTuple):
    """The settings of one parked lane."""

    group: str
    topic: str
    queue_id: int
    key: str
    reason: str
    attempts: int
    since: int
    status: str
    through: int
    first: int
    """Offsets below it have left the lane, although their chunk may still hold them."""

    @property
    def id(self) -> LaneId:
        return self[:4]


class ParkedChange(NamedTuple):
    """The new state of one lane. `lane` is None if it ended: all its rows are deleted."""

    id: LaneId
    lane: LaneRow | None
    first_chunk: int = 0
    """Chunks that started at lower offsets are deleted."""
    chunks: tuple[tuple[int, bytes], ...] = ()
    """Chunks that are new or changed: the offset that each started with, and its offsets."""
    copies: tuple[tuple[int, bytes], ...] = ()
    """Offsets and records that retention will delete from the log."""


class ForgottenLanes(NamedTuple):
    """The end of all lanes of a group, a topic, or a group in a topic. None: of any."""

    group: str | None
    topic: str | None


_TABLES = ("parked_lanes", "parked_chunks", "parked_messages")
_FORGOTTEN = "grp = coalesce(?, grp) AND topic = coalesce(?, topic)"
_OF_LANE = "grp = ? AND topic = ? AND queue_id = ? AND key = ?"


class ParkedRows:
    """The tables of parked lanes."""

    def __init__(self, state: State) -> None:
        self._state = state

    def apply(self, changes: Iterable[ParkedChange | ForgottenLanes]) -> None:
        with self._state.transaction(Sync.FULL) as db:
            for change in changes:
                if isinstance(change, ForgottenLanes):
                    for table in _TABLES:
                        db.execute(f"DELETE FROM {table} WHERE {_FORGOTTEN}", change)
                    continue
                if change.lane is None:
                    for table in _TABLES:
                        db.execute(f"DELETE FROM {table} WHERE {_OF_LANE}", change.id)
                    continue
                db.execute("REPLACE INTO parked_lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", change.lane)
                db.execute(
                    f"DELETE FROM parked_chunks WHERE {_OF_LANE} AND start < ?", (*change.id, change.first_chunk)
                )
                db.execute(
                    f"DELETE FROM parked_messages WHERE {_OF_LANE} AND value < ?", (*change.id, change.lane.first)
                )
                db.executemany(
                    "REPLACE INTO parked_chunks VALUES (?, ?, ?, ?, ?, ?)",
                    [(*change.id, start, offsets) for start, offsets in change.chunks],
                )
                db.executemany(
                    "REPLACE INTO parked_messages VALUES (?, ?, ?, ?, ?, ?)",
                    [(*change.id, offset, record) for offset, record in change.copies],
                )

    def lanes(self) -> list[LaneRow]:
        columns = "grp, topic, queue_id, key, reason, attempts, since, status, through, first"
        return [LaneRow(*row) for row in self._state.rows(f"SELECT {columns} FROM parked_lanes")]

    def chunks(self, lane: LaneId) -> list[tuple[int, bytes]]:
        """The chunks of a lane, in order."""
        query = f"SELECT start, offsets FROM parked_chunks WHERE {_OF_LANE} ORDER BY start"
        return [(start, bytes(offsets)) for start, offsets in self._state.rows(query, lane)]

    def records(self, lane: LaneId, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` copied records of a lane from an offset on, with their offsets, in order."""
        query = f"SELECT value, record FROM parked_messages WHERE {_OF_LANE} AND value >= ? ORDER BY value LIMIT ?"
        return [(offset, bytes(record)) for offset, record in self._state.rows(query, (*lane, start, limit))]
