"""The ports of `QueueProgress`: the store in which it survives, and what the log says about a queue.

A broker has both in its data folder: `log/state/progress_rows`, and `StoredQueues` in `broker/storage/progress_keeper`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from lanemq.core.brokering.lane_offsets import ChunkRow, LaneOffsets
from lanemq.core.brokering.queue_progress import LaneName, ParkedLane, QueueProgress, ResetState
from lanemq.core.brokering.queue_seen import QueueSeen, SavedSeen
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset


class SavedOffset(NamedTuple):
    """The offset of one group in one queue, with what is finished above it."""

    group: str
    queue: MessageQueue
    offset: QueueOffset
    reset_pending: bool = False
    finished: str = ""
    """As `FinishedRanges.encode(offset)` writes them."""
    seen: SavedSeen | None = None

    @classmethod
    def of(cls, progress: QueueProgress) -> Self:
        """Everything about the offset. What changed of `seen` counts as saved from now on."""
        assert progress.offset is not None
        pending = progress.reset is not ResetState.NONE
        seen = None if progress.seen is None else progress.seen.take_unsaved()
        return cls(progress.group, progress.queue, progress.offset, pending, progress.finished, seen)

    def restore_in(self, progress: QueueProgress) -> None:
        seen = None if self.seen is None else QueueSeen(self.seen.marks, self.seen.done, self.seen.stamps)
        progress.restore_offset(self.offset, self.finished, reset_pending=self.reset_pending, seen=seen)


class SavedLane(NamedTuple):
    """One lane, with those chunks of its offsets that are new or changed; with all of them where it is read."""

    name: LaneName
    failure: Failure
    since: Millis
    status: LaneStatus
    through: int
    first: int
    """Offsets below it have left the lane, although their chunk may still hold them."""
    overtaken: bool = False
    """As in `ParkedLane`."""
    chunks: Sequence[ChunkRow] = ()
    first_chunk: int = 0
    """Chunks that started at lower offsets are deleted."""
    copies: Sequence[tuple[int, bytes]] = ()
    """Offsets and records that retention will delete from the log."""

    @classmethod
    def of(cls, lane: ParkedLane, chunks: Sequence[ChunkRow] = (), copies: Sequence[tuple[int, bytes]] = ()) -> Self:
        first_chunk = lane.offsets.first_chunk
        at = lane.through, lane.first, lane.overtaken
        return cls(lane.name, lane.failure, lane.since, lane.status, *at, chunks, first_chunk, copies)

    def restored(self) -> ParkedLane:
        offsets = LaneOffsets.of_rows(self.chunks, self.first)
        return ParkedLane(self.name, self.failure, self.since, self.status, offsets, self.through, self.overtaken)


class EndedLane(NamedTuple):
    """The end of a lane: everything of it is deleted."""

    name: LaneName


class ForgottenProgress(NamedTuple):
    """The end of all progress of a group, or of all groups in a topic."""

    group: str | None = None
    topic: str | None = None


ProgressChange: TypeAlias = SavedOffset | SavedLane | EndedLane | ForgottenProgress


class ProgressStore(Protocol):
    """Where progress survives."""

    def save(self, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        """Write changes in their order, all or none; `synced`: not even a power cut takes them.

        To write the same changes twice, in the same order, has no further effect.
        """

    def offsets(self) -> list[SavedOffset]:
        """All offsets."""

    def lanes(self) -> list[SavedLane]:
        """All lanes, with all of their chunks."""

    def copies(self, name: LaneName, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` copied records of a lane from an offset on, with their offsets, in order."""


class QueueLog(Protocol):
    """What the log says about a queue."""

    @property
    def has_records(self) -> bool:
        """False: the messages are in the log of another process. A member that gets their offsets reads them there."""

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset that is kept, and the next one to be written."""

    def record(self, queue: MessageQueue, offset: int) -> bytes | None:
        """The record at an offset; None if there is no intact one."""

    def offset_at(self, queue: MessageQueue, time: int) -> int:
        """The first offset that was stored at this time or later; the end for a negative time."""

    def stored_before(self, queue: MessageQueue, offset: int) -> int:
        """When the last message before an offset was stored; 0 if there is none, or if that is not known."""

    def left_out(self, queue: MessageQueue, start: int, end: int, tags: frozenset[int]) -> Iterator[list[int]]:
        """The offsets from `start` to `end` whose messages have none of these tags (hash codes): ascending, some in
        each step."""

    def is_young(self, queue: MessageQueue) -> bool:
        """Whether the queue is empty, or has its first message and that is recent."""
