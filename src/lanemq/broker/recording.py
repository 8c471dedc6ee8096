"""Writes the history of a broker for the checker: lease changes, and offsets as they are accepted.

A line is written right after the lock table or the offset table decided and before the answer is sent, so the broker's
account of a lease is exact. Callers check `on` first, so a broker without a history pays nothing else; what happens to
lanes is rarer, and is checked here.

A reset is recorded here only while the group has no members. A member in operation finishes its running turns before it
moves, and only the member knows when that is.
"""

from collections.abc import Iterable, Mapping

from lanemq.broker.group_queues import GroupQueues
from lanemq.core.brokering.lock_table import Lease, SavedLease
from lanemq.core.brokering.members.lost_members import LostFilter
from lanemq.core.brokering.members.membership import WidestFilter
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.queue_progress import (
    Commit,
    Committed,
    Ignored,
    LaneName,
    ParkedLane,
    WhyIgnored,
)
from lanemq.core.lane_status import MAX_GIVEN
from lanemq.history import History, Place
from lanemq.history import RecordedLease as LeaseLine
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch

NANOS = 1_000_000
"""Nanoseconds per millisecond."""
_FIRST = Committed(None)


class Recording:
    """The history of the broker called `name`. `alive` is the time of the last line before this start, or 0."""

    def __init__(self, history: History, name: str, alive: int = 0) -> None:
        self.on = history.on
        self._name = name
        self._history = history
        self._alive = alive
        self._clean = True
        self._known: set[tuple[str, MessageQueue]] = set()
        """Group and queue whose recovered offset was recorded since the start."""
        self._selected: dict[tuple[str, str], str | None] = {}
        """Group and topic whose members have, or had, different tags → the widest filter that was recorded; None if
        that was before this start."""
        self._first: dict[tuple[str, int], int] = {}
        """Topic and queue to the first offset that was recorded as left by retention."""

    def close(self) -> None:
        """Record nothing any more. Work that is done in slices may still continue."""
        self.on = False
        self._history.close()

    def locked(self, group: str, leases: Iterable[Lease]) -> None:
        """Record granted or renewed leases, and leases whose end was moved for another reason."""
        for lease in leases:
            write = self._history.lease_granted if lease.changed else self._history.lease_renewed
            write(self._line(group, lease.queue, lease.owner, lease.epoch), until=lease.expires_at * NANOS)

    def selected(
        self,
        group: str,
        selections: Mapping[str, WidestFilter],
        queues: GroupQueues,
        given_up: Mapping[str, LostFilter],
    ) -> None:
        """Record which tags of a topic the members of a group select: once they differ, and when that changes later.

        `given_up`: topic → a lost member, whose tags count no more although it did not say that it leaves.
        """
        differ = {topic for topic, each in selections.items() if each.differ}
        for topic in sorted(differ.union(topic for name, topic in self._selected if name == group)):
            widest, known = selections[topic].widest if topic in selections else None, queues.of_topic(topic)
            text = "" if widest is None else "||".join(sorted(widest)) or "*"
            if known and self._selected.get((group, topic)) != text:
                self._selected[group, topic] = text
                lost = given_up[topic].member or "one from before the start" if topic in given_up else ""
                for queue in known:
                    self._history.subscribed(group, topic, queue.queue_id, text, lost=lost, broker=queue.broker)

    def filters_restored(self, filters: Iterable[tuple[str, str]]) -> None:
        """Groups and topics whose widest filter counts again after a start."""
        self._selected.update((key, None) for key in filters)

    def unlocked(self, rows: Iterable[SavedLease], owner: str) -> None:
        for row in rows:
            self._history.lease_released(self._line(row.group, row.queue, owner, row.epoch))

    def withdrawn(self, rows: Iterable[SavedLease]) -> None:
        """Record the end of the leases of a deleted topic, which their owners did not release."""
        for row in rows:
            self._history.lease_expired(self._line(row.group, row.queue, row.owner, row.epoch))

    def deleted(self, topic: str) -> None:
        """Record the deletion of a topic, after its leases: from here on the name may belong to another topic."""
        self._history.topic_deleted(topic)
        self._first = {queue: offset for queue, offset in self._first.items() if queue[0] != topic}

    def trimmed(self, firsts: Mapping[tuple[str, int], int]) -> None:
        """Record the first offset that retention leaves of each queue, before files are deleted."""
        for (topic, queue_id), offset in firsts.items():
            if offset > self._first.get((topic, queue_id), 0):
                self._first[topic, queue_id] = offset
                self._history.trimmed(topic, queue_id, offset, broker=self._name)

    def expired(self, leases: Iterable[tuple[str, Lease]]) -> None:
        for group, lease in leases:
            self._history.lease_expired(self._line(group, lease.queue, lease.owner, lease.epoch))

    def commit(
        self, group: str, queue: MessageQueue, offset: int, epoch: int | None, outcome: Commit, *, owned: bool = True
    ) -> None:
        """Record a commit that changed an offset or was refused. A stock client that goes back counts as a reset.

        `owned` is whether the queue has an owner. Without one, several members may commit different offsets.
        """
        place = self._at(group, queue, offset)
        if outcome == _FIRST:
            self.nothing_found(group, queue)
        match outcome:
            case Committed(before) if before is not None and place.offset < before:
                self._history.reset(place, f"a stock client went back from {before}", kept=not owned)
            case Committed():
                self._history.committed(place, epoch=epoch or 0)
            case Ignored(WhyIgnored.FENCED):
                self._history.commit_refused(place, WhyIgnored.FENCED.value, epoch=epoch or 0)

    def parked(self, name: LaneName, offsets: Iterable[int]) -> None:
        """Record parked messages, once they are on disk and before the answer."""
        for offset in offsets if self.on else ():
            self._history.parked(self._at(name.group, name.queue, offset), name.key or "")

    def lanes_restored(self, lanes: Iterable[ParkedLane]) -> None:
        """Record the lanes again after a restart, because a crash may have lost some of their lines."""
        for lane in sorted(lanes if self.on else (), key=lambda lane: (*lane.name[:2], lane.name.key or "")):
            self.parked(lane.name, lane.offsets)
            if lane.status.runs:
                self.redriven(lane.name, lane.first, lane.offsets.from_offset(lane.first, MAX_GIVEN)[-1])

    def redriven(self, name: LaneName, first: int, last: int) -> None:
        """Record that the messages of a lane from `first` to `last` may run."""
        if self.on:
            self._history.redriven(self._at(name.group, name.queue, first), name.key or "", last)

    def discarded(self, name: LaneName, offsets: Iterable[int]) -> None:
        for offset in offsets if self.on else ():
            self._history.discarded(self._at(name.group, name.queue, offset), name.key or "")

    def moved(self, group: str, queues: Mapping[MessageQueue, int]) -> None:
        """Record a reset of a group without members."""
        for queue, offset in queues.items():
            self._history.reset(self._at(group, queue, offset), "reset by name")

    def arrived(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record that a member pulls from the offset of a reset: no turn of an earlier offset starts after this."""
        self._history.reset(self._at(group, queue, offset), "reset by name, and obeyed")

    def crashed(self, queues: Iterable[tuple[str, int]]) -> None:
        """Record for every queue that the last run was not stopped. Some groups of it may be unknown until they ask."""
        for topic, queue_id in queues if self._alive else ():
            self._history.crashed(topic, queue_id, self._alive, broker=self._name)

    def restarted(self, leases: Mapping[str, Iterable[Lease]], offsets: Iterable[SavedOffset], *, clean: bool) -> None:
        """Record the state after a restart.

        Leases have their full length again. Offsets survive a clean stop, but a crash may lose the newest, so the
        checker must know that it was a crash and which offsets are left. For owned queues this includes that there is
        none, because their owner does not query its offset again.
        """
        owned = {group: tuple(held) for group, held in leases.items()}
        for group, held in owned.items():
            self.locked(group, held)
        self._clean = clean
        for row in offsets:
            self._known.add(row[:2])
            if row.reset_pending:
                continue  # a pending reset is on disk, and is recorded when a member obeys it
            place = self._at(row.group, row.queue, row.offset)
            self._history.recovered(place, clean=clean, alive=self._alive)
        for group, held in owned.items():
            for lease in held:
                self.nothing_found(group, lease.queue)

    def nothing_found(self, group: str, queue: MessageQueue) -> None:
        """Record that a queried offset does not exist: a crash may have lost every commit.

        Also after a clean stop: the group may not have asked between the crash and that stop.
        """
        if self._alive and (group, queue) not in self._known:
            self._known.add((group, queue))
            self._history.recovered(self._at(group, queue, -1), clean=self._clean, alive=self._alive)

    def _at(self, group: str, queue: MessageQueue, offset: int) -> Place:
        return Place(group, queue.topic, queue.queue_id, offset, queue.broker)

    def _line(self, group: str, queue: MessageQueue, owner: str, epoch: Epoch) -> LeaseLine:
        return LeaseLine(group, queue.topic, queue.queue_id, owner, epoch, queue.broker)
