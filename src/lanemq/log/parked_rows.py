"""Parked lanes in the state database: their settings, and a copy of every record, out of reach of retention.

Every change is one transaction and synced before the call returns, because the consumer that asked then commits past
these messages. Writing the same changes twice, in the same order, has no further effect.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from lanemq.log.state import State, Sync

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

    @property
    def id(self) -> LaneId:
        return self[:4]


class ParkedChange(NamedTuple):
    """The new state of one lane. `lane` is None if it ended: all its rows are deleted."""

    id: LaneId
    lane: LaneRow | None
    added: tuple[tuple[int, bytes], ...] = ()
    removed: tuple[int, ...] = ()


_OF_LANE = "grp = ? AND topic = ? AND queue_id = ? AND key = ?"


class ParkedRows:
    """The two tables of parked lanes."""

    def __init__(self, state: State) -> None:
        self._state = state

    def apply(self, changes: Iterable[ParkedChange]) -> None:
        with self._state.transaction(Sync.FULL) as db:
            for change in changes:
                if change.lane is None:
                    db.execute(f"DELETE FROM parked_lanes WHERE {_OF_LANE}", change.id)
                    db.execute(f"DELETE FROM parked_messages WHERE {_OF_LANE}", change.id)
                    continue
                db.execute("REPLACE INTO parked_lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", change.lane)
                db.executemany(
                    "REPLACE INTO parked_messages VALUES (?, ?, ?, ?, ?, ?)",
                    [(*change.id, offset, record) for offset, record in change.added],
                )
                db.executemany(
                    f"DELETE FROM parked_messages WHERE {_OF_LANE} AND value = ?",
                    [(*change.id, offset) for offset in change.removed],
                )

    def lanes(self) -> list[LaneRow]:
        columns = "grp, topic, queue_id, key, reason, attempts, since, status, through"
        return [LaneRow(*row) for row in self._state.rows(f"SELECT {columns} FROM parked_lanes")]

    def sizes(self) -> dict[LaneId, dict[int, int]]:
        """Offset → size in bytes of every message, by lane."""
        found: dict[LaneId, dict[int, int]] = {}
        query = "SELECT grp, topic, queue_id, key, value, length(record) FROM parked_messages"
        for group, topic, queue_id, key, offset, size in self._state.rows(query):
            found.setdefault((group, topic, queue_id, key), {})[offset] = size
        return found

    def records(self, lane: LaneId, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` offsets and records of a lane from an offset on, in order."""
        query = f"SELECT value, record FROM parked_messages WHERE {_OF_LANE} AND value >= ? ORDER BY value LIMIT ?"
        return [(offset, bytes(record)) for offset, record in self._state.rows(query, (*lane, start, limit))]
