"""The progress of all groups in all queues: who is entered, what must be saved, and what it takes.

A deleted group or topic may have a hundred thousand offsets and lanes. It is forgotten at once, by taking away what
leads to them; what they occupy is freed in steps. Until then, `_unsaved` and `_parked` may still have them.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from lanemq.core.brokering.progress_store import SavedLane, SavedOffset
from lanemq.core.brokering.queue_progress import QueueProgress
from lanemq.model.queue import MessageQueue

ProgressKey: TypeAlias = tuple[str, MessageQueue]
"""Group and queue."""


@dataclass(slots=True)
class ProgressChanges:
    """What has changed. Its reader handles `forgotten` first: the same queues may have new offsets, in `offsets`."""

    offsets: set[ProgressKey] = field(default_factory=set)
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    """Groups and topics whose progress was forgotten."""
    parked_from: dict[ProgressKey, int] = field(default_factory=dict)
    """The first offset that was parked."""


class Forgotten(NamedTuple):
    """What a deletion has removed from the table."""

    groups: tuple[str, ...]
    """The groups that had anything."""
    steps: Iterator[None]
    """Frees the memory, a little in each step. The table may change in between."""


@dataclass(slots=True)
class _InTopic:
    """The progress of one group in one topic."""

    queues: dict[MessageQueue, QueueProgress] = field(default_factory=dict)
    offset_bytes: int = 0
    lane_bytes: int = 0


@dataclass(slots=True)
class _OfGroup:
    topics: dict[str, _InTopic] = field(default_factory=dict)
    offset_bytes: int = 0
    lane_bytes: int = 0


_NO_GROUP = _OfGroup()


class ProgressTable:
    """The progress of all groups: it is entered with its first change, and stays until it is forgotten."""

    def __init__(self, *, serial: int) -> None:
        """`serial` must be above all serials of earlier starts; wall time is."""
        self.serial = serial
        """Of the last change of a lane by an operator."""
        self.queues = 0
        """How many queues of all groups are entered."""
        self._groups: dict[str, _OfGroup] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic → the groups with progress in it, so that its deletion costs by what it had. While a forgotten group is
        being freed, it may still be here."""
        self._parked: dict[QueueProgress, None] = {}
        """The queues with lanes."""
        self._unsaved: dict[QueueProgress, None] = {}
        """Whose offsets changed, the longest unsaved first."""
        self._watching: list[ProgressChanges] = []

    def at(self, group: str, queue: MessageQueue) -> QueueProgress:
        """The progress of a group in a queue; an empty one if there is none yet."""
        topic = self._groups.get(group, _NO_GROUP).topics.get(queue.topic)
        known = None if topic is None else topic.queues.get(queue)
        return QueueProgress(self, group, queue) if known is None else known

    def offset_bytes(self, group: str) -> int:
        """About how much memory the offsets and finished ranges of a group take."""
        return self._groups.get(group, _NO_GROUP).offset_bytes

    def lane_bytes(self, group: str) -> int:
        """About how much memory the lanes of a group take."""
        return self._groups.get(group, _NO_GROUP).lane_bytes

    def groups(self) -> tuple[str, ...]:
        """The groups with progress, sorted."""
        return tuple(sorted(self._groups))

    def has_group(self, group: str) -> bool:
        return group in self._groups

    def topics(self, group: str) -> tuple[str, ...]:
        """The topics in which a group has progress."""
        return tuple(self._groups.get(group, _NO_GROUP).topics)

    def has_topic(self, group: str, topic: str) -> bool:
        return topic in self._groups.get(group, _NO_GROUP).topics

    def of_group(self, group: str) -> Iterator[QueueProgress]:
        """Where a group has committed, one queue in each step. The table may change in between."""
        for name in self.topics(group):
            topic = self._groups.get(group, _NO_GROUP).topics.get(name)
            for progress in () if topic is None else tuple(topic.queues.values()):
                if progress.offset is not None:
                    yield progress

    def __iter__(self) -> Iterator[QueueProgress]:
        """Everything that is entered; the table must not change in between."""
        for group in self._groups.values():
            for topic in group.topics.values():
                yield from topic.queues.values()

    def parked(self) -> list[QueueProgress]:
        """The queues with lanes, in no particular order."""
        return [progress for progress in self._parked if self._has(progress)]

    # called by progress that changes

    def offset_changed(self, progress: QueueProgress, more: int) -> None:
        self._enter(progress, offset_bytes=more)
        self._unsaved[progress] = None
        for changes in self._watching:
            changes.offsets.add((progress.group, progress.queue))

    def lanes_changed(self, progress: QueueProgress, more: int, parked_from: int | None) -> None:
        self._enter(progress, lane_bytes=more)
        if progress.lanes:
            self._parked[progress] = None
        else:
            self._parked.pop(progress, None)
        if parked_from is not None:
            key = (progress.group, progress.queue)
            for changes in self._watching:
                changes.parked_from[key] = min(parked_from, changes.parked_from.get(key, parked_from))

    @contextmanager
    def watching(self) -> Iterator[ProgressChanges]:
        """What changes until the end of the block. Its reader may remove what it has handled."""
        changes = ProgressChanges()
        self._watching.append(changes)
        try:
            yield changes
        finally:
            self._watching = [each for each in self._watching if each is not changes]

    # saving and restoring

    def take_unsaved(self, limit: int | None = None) -> list[SavedOffset]:
        """Offsets that changed since they were taken, or up to `limit` of them, the longest unsaved first."""
        taken = list(islice(self._unsaved, limit))
        for progress in taken:
            del self._unsaved[progress]
        return [SavedOffset.of(progress) for progress in taken if self._has(progress)]

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def not_saved(self, rows: Iterable[SavedOffset]) -> None:
        """Offsets that were taken could not be written."""
        for row in rows:
            progress = self.at(row.group, row.queue)
            if progress.offset is not None:
                self._unsaved[progress] = None
            if row.seen is not None and progress.seen is not None:
                progress.seen.not_saved(row.seen)

    def restore(self, offsets: Iterable[SavedOffset], lanes: Iterable[SavedLane] = ()) -> None:
        for row in offsets:
            row.restore_in(self.at(row.group, row.queue))
        for lane in lanes:
            self.at(lane.name.group, lane.name.queue).restore_lane(lane.restored())
        self._unsaved.clear()

    # deletion

    def forget_group(self, group: str) -> Forgotten:
        """Remove a deleted group."""
        gone = self._groups.pop(group, None)
        if gone is None:
            return Forgotten((), iter(()))
        self.queues -= sum(len(topic.queues) for topic in gone.topics.values())
        for changes in self._watching:
            changes.forgotten.update((group, topic) for topic in gone.topics)
        return Forgotten((group,), self._free_group(group, gone))

    def forget_topic(self, topic: str) -> Forgotten:
        """Remove what all groups have in a deleted topic."""
        gone: dict[str, _InTopic] = {}
        for group in self._groups_of.pop(topic, ()):
            known = self._groups.get(group, _NO_GROUP)
            if topic in known.topics:
                gone[group] = left = known.topics.pop(topic)
                known.offset_bytes -= left.offset_bytes
                known.lane_bytes -= left.lane_bytes
                self.queues -= len(left.queues)
                if not known.topics:
                    del self._groups[group]
        for changes in self._watching:
            changes.forgotten.update((group, topic) for group in gone)
        return Forgotten(tuple(gone), self._free_topics(gone))

    def _free_group(self, group: str, gone: _OfGroup) -> Iterator[None]:
        for topic in gone.topics:
            if not self.has_topic(group, topic):
                groups = self._groups_of.get(topic, {})
                groups.pop(group, None)
                if not groups:
                    self._groups_of.pop(topic, None)
            yield
        yield from self._free_topics(gone.topics)

    def _free_topics(self, topics: dict[str, _InTopic]) -> Iterator[None]:
        while topics:
            _, topic = topics.popitem()
            while topic.queues:
                _, progress = topic.queues.popitem()
                self._parked.pop(progress, None)
                self._unsaved.pop(progress, None)
                yield
                yield from progress.freed()

    # entries

    def _has(self, progress: QueueProgress) -> bool:
        return self.at(progress.group, progress.queue) is progress

    def _enter(self, progress: QueueProgress, *, offset_bytes: int = 0, lane_bytes: int = 0) -> None:
        name = progress.queue.topic
        group = self._groups.get(progress.group)
        if group is None:
            group = self._groups[progress.group] = _OfGroup()
        topic = group.topics.get(name)
        if topic is None:
            topic = group.topics[sys.intern(name)] = _InTopic()
            self._groups_of.setdefault(name, {})[progress.group] = None
        if progress.queue not in topic.queues:
            topic_name, broker, number = progress.queue
            # A request's own copies of the names would stay.
            progress.queue = MessageQueue(sys.intern(topic_name), sys.intern(broker), number)
            topic.queues[progress.queue] = progress
            self.queues += 1
        for each in (group, topic):
            each.offset_bytes += offset_bytes
            each.lane_bytes += lane_bytes
