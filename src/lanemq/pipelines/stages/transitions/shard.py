"""The state of one shard: all its lanes as bytes, and what is known about its queues and producers.

One unit of work at a time changes a shard. What it changed is its `Change`; applied to the shard as it was before, it
gives the shard as it is after. State files contain nothing else.
"""

from typing import Final, NamedTuple

import msgspec

START: Final = -1
"""The version of a shard that no unit has touched."""

PARKED_AT: Final = -1
GAP_AT: Final = -2
"""Used in `Meta.waiting` in place of a time: only an operator, or the missing message, lets these lanes continue."""


class Meta(msgspec.Struct):
    """Everything about a shard but its lanes; small, and written whole with every change."""

    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    """The next offset of every queue that was seen; everything below it was applied."""
    times: dict[str, int] = msgspec.field(default_factory=dict)
    """The highest store time of every queue. A lower offset with a later time belongs to a re-created topic."""
    stamps: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """Queue, producer, epoch and last sequence of each remembered producer."""
    newest: int = 0
    """The highest store time seen: the shard's clock, the same in every replay."""
    swept: int = 0
    """The shard's clock at the last sweep for expired keys."""
    waiting: dict[str, int] = msgspec.field(default_factory=dict)
    """Lanes that are held or parked, with the wall time of their next retry, or PARKED_AT or GAP_AT."""
    chain: int = 0
    """Changes since the last snapshot."""
    chained_keys: int = 0
    """Keys in those changes. When they outnumber the lanes, a snapshot is quicker to read."""
    queues: list[str] = msgspec.field(default_factory=list)
    """Queues that keys of this shard were found in, if a key must stay in one; lanes refer to them by index."""

    def retry_at(self) -> int | None:
        """Wall time of the next retry; None if no lane is held."""
        return min((at for at in self.waiting.values() if at >= 0), default=None)


class Change(msgspec.Struct):
    """What one unit of work changed in a shard."""

    meta: Meta
    lanes: dict[str, bytes]
    gone: list[str]


class Version(NamedTuple):
    """A shard after a unit: the unit's number and a digest of its change, because two attempts of a unit may differ."""

    number: int = START
    digest: str = ""


class Shard:
    """One shard at one version."""

    __slots__ = ("lanes", "meta", "size", "version")

    def __init__(self) -> None:
        self.version = Version()
        self.meta = Meta()
        self.lanes: dict[str, bytes] = {}
        self.size: int | None = None
        """Bytes of all lanes; None if not counted since the shard was read."""

    def count_bytes(self, grown: int) -> int:
        """Bytes of all lanes after a unit of work that added `grown`; counted in full only once."""
        self.size = sum(map(len, self.lanes.values())) if self.size is None else self.size + grown
        return self.size

    def clear(self) -> None:
        """Resets the shard to what it was before the first unit."""
        self.version, self.meta, self.lanes, self.size = Version(), Meta(), {}, None

    def apply(self, change: Change, version: Version) -> None:
        """Moves to the next version by a change read from its file."""
        self.lanes.update(change.lanes)
        for name in change.gone:
            self.lanes.pop(name, None)
        self.meta = change.meta
        self.version = version
        self.size = None


def keyless(queue: str) -> str:
    """The lane of a queue's messages without a key. No key of a message can have this name."""
    return f"\x00{queue}"


def key_of(lane_name: str) -> str | None:
    """The key of a lane; None for messages without a key."""
    return None if lane_name.startswith("\x00") else lane_name
