"""Messages that retention deletes before a group has finished them: counted when it happens, with a warning before.

What a group has not finished is known from its commits. A group that has not committed in a queue may have read its
messages or not, so nothing is counted for it: its figure is missing, and not 0. Parked messages are not lost, because
retention keeps or copies them.
"""

import logging

from lanemq.core.brokering.group_offsets import GroupOffsets
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.log.store import Store
from lanemq.model.names import DEAD_LETTER_PREFIX
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

WARN_AT_SHARE = 0.9
"""Share of the retention age at which messages count as about to be deleted. Large: a group has little time left."""
WARN_AGAIN_AFTER_MS = 3_600_000
"""A group is named again in the log after this time, once for each topic."""


class UnreadMessages:
    """What groups have lost to retention since the start. On the loop only, and only with complete indexes."""

    def __init__(self, store: Store, offsets: GroupOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._deleted: dict[tuple[str, str], int] = {}
        self._looked_at = 0
        self._warned: dict[tuple[str, str, str], Millis] = {}

    def deleted(self, group: str, topic: str) -> int:
        """Messages of a topic that were deleted before the group had finished them."""
        return self._deleted.get((group, topic), 0)

    def warn(self, now: Millis) -> None:
        """Warn about messages that have reached 90 % of their age, so that the group can catch up in time."""
        soon = self._store.start_after(self._store.retention.expired(now, WARN_AT_SHARE))
        # Looks again only when files have been added: with many groups and queues a look takes a while.
        if soon == self._looked_at:
            return
        self._looked_at = soon
        due = self._store.start_after(self._store.retention.expired(now))
        if soon == due:
            return
        lost = self._unread_below(due) if due > self._store.log_start else {}
        advice = "soon: let the group catch up, or restart the broker with a longer --retention"
        for (group, topic), count in self._unread_below(soon).items():
            if (group, topic) not in lost:  # it is late for that
                self._write(group, topic, count, advice, now)

    def count_below(self, position: int, now: Millis) -> None:
        """Count what groups lose. Called before the log is cut at this position."""
        # Without deleted groups and topics.
        self._deleted = {key: count for key, count in self._deleted.items() if self._offsets.has_topic(*key)}
        for (group, topic), count in self._unread_below(position).items():
            self._deleted[group, topic] = self.deleted(group, topic) + count
            self._write(group, topic, count, "now", now)

    def _unread_below(self, position: int) -> dict[tuple[str, str], int]:
        """Group and topic → messages below a log position that are not finished. No zeros."""
        found: dict[tuple[str, str], int] = {}
        for group in self._offsets.groups():
            if group.startswith(DEAD_LETTER_PREFIX):
                continue  # it marks discarded dead letters, and does not consume
            for (topic, queue_id), offset in self._offsets.of_group(group).items():
                unread = self._store.unread_below(topic, queue_id, offset, position)
                if unread:
                    text = self._offsets.finished_ranges(group, topic, queue_id)
                    finished = FinishedRanges.decode(text, offset).above(unread.start - 1).below(unread.stop)
                    if count := len(unread) - finished.count:
                        found[group, topic] = found.get((group, topic), 0) + count
        return found

    def _write(self, group: str, topic: str, count: int, when: str, now: Millis) -> None:
        self._warned = {key: at for key, at in self._warned.items() if now - at < WARN_AGAIN_AFTER_MS}
        if (group, topic, when) not in self._warned:
            self._warned[group, topic, when] = now
            log.warning(
                "group %s has not read %s messages of topic %s that retention deletes %s", group, count, topic, when
            )
