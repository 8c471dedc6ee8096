"""The low-space watermark: when a broker stops accepting messages because its disk is nearly full.

Sends stop while there is still room for everything that must continue: offsets, leases, checkpoints, and the deletion
of topics and old messages, which frees space only after it has written some. They continue a little above the
watermark, so that a disk at the limit does not switch with every message.
"""

from typing import NamedTuple

MAX_SHARE = 10
"""The watermark is at most a tenth of the disk, so that small disks can be used."""


class Space(NamedTuple):
    """Bytes of the file system of a data folder; `free` is what the broker may still use."""

    free: int
    total: int


class LowSpace:
    """Whether a disk is nearly full. `watermark` is in bytes; 0: never."""

    def __init__(self, watermark: int) -> None:
        self._watermark = watermark
        self.low = False
        self.space = Space(0, 0)
        """As last seen."""

    def watermark(self) -> int:
        """The bytes below which sends stop, on a disk of this size."""
        return min(self._watermark, self.space.total // MAX_SHARE)

    def needed(self) -> int:
        """The bytes from which on sends are accepted again."""
        mark = self.watermark()
        return mark + mark // 4

    def look(self, space: Space) -> bool:
        """Note the space; returns whether the disk is nearly full."""
        self.space = space
        self.low = space.free < (self.needed() if self.low else self.watermark())
        return self.low


NO_LIMIT = 2**62


def log_limit(retention_bytes: int, segment_bytes: int, disk_bytes: int) -> int:
    """The size of the log above which its oldest files are deleted; 0 stands for three quarters of the disk.

    Some file systems say that their size is 0. Their log has no limit: of an unknown size there are no three quarters.
    """
    by_default = max(segment_bytes, disk_bytes * 3 // 4) if disk_bytes else NO_LIMIT
    return retention_bytes or by_default
