"""The state of one shard: all its lanes as bytes, and what is known about its queues and producers.

A shard is changed by one unit of work at a time. What the unit changed is its `Change`; applied to the shard as it
was before, it gives the shard as it is after, and that is all that state files are made of.
"""

from typing import Final, NamedTuple

import msgspec

START: Final = -1
"""The version of a shard that no unit has touched."""

PARKED_AT: Final = -1
GAP_AT: Final = -2
"""In `Meta.waiting`, instead of a time: nothing but a person, or a missing message, moves these lanes on."""


class Meta(msgspec.Struct):
    """Everything about a shard but its lanes; small, and written whole with every change."""

    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    """The next offset of every queue that was seen. What is below was applied."""
    times: dict[str, int] = msgspec.field(default_factory=dict)
    """The highest store time of every queue: an old offset with a newer time is another message."""
    stamps: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    newest: int = 0
    """The highest store time seen: the shard's own clock, the same in every replay."""
    swept: int = 0
    """The shard's clock when old keys were last looked for."""
    waiting: dict[str, int] = msgspec.field(default_factory=dict)
    """Lanes that stand still, and when they are tried again; PARKED_AT and GAP_AT: not by time."""
    chain: int = 0
    """Changes since the last snapshot."""
    chained_keys: int = 0
    """Keys in those changes: when they outnumber the lanes, a snapshot is the smaller reading."""
    homes: list[str] = msgspec.field(default_factory=list)
    """Queues that keys of this shard were found in, where a key must stay in one; lanes refer to them by place."""

    def retry_at(self) -> int | None:
        """When the next lane wants to be tried again."""
        return min((at for at in self.waiting.values() if at >= 0), default=None)


class Change(msgspec.Struct):
    """What one unit of work did to a shard."""

    meta: Meta
    lanes: dict[str, bytes]
    gone: list[str]


class Version(NamedTuple):
    """The unit that left a shard so, and a digest of what it changed: attempts of one unit may differ."""

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
        """Bytes of all lanes; None: not counted since it was read."""

    def count_bytes(self, grown: int) -> int:
        """Their bytes behind a unit of work that made them larger by this; counted in full only once."""
        self.size = sum(map(len, self.lanes.values())) if self.size is None else self.size + grown
        return self.size

    def clear(self) -> None:
        """As it was before the first unit."""
        self.version, self.meta, self.lanes, self.size = Version(), Meta(), {}, None

    def apply(self, change: Change, version: Version) -> None:
        """The next version, from its change file."""
        self.lanes.update(change.lanes)
        for name in change.gone:
            self.lanes.pop(name, None)
        self.meta = change.meta
        self.version = version
        self.size = None


def keyless(queue: str) -> str:
    """The lane of a queue's messages without a key: a name that no key can have in any message."""
    return f"\x00{queue}"


def key_of(lane_name: str) -> str | None:
    """The key, as messages carry it."""
    return None if lane_name.startswith("\x00") else lane_name
