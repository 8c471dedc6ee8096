"""Messages that retention deletes before a group has finished them: counted when it happens, with a warning before.

What a group has not finished is known from its commits. A group that has not committed in a queue may have read its
messages or not, so nothing is counted for it: its figure is missing, and not 0. Parked messages are not lost, because
retention keeps or copies them.

Thousands of groups with hundreds of queues each take seconds to count, so it is done in steps. Groups commit between
two of them: what changes after it was counted is counted again, for the last time in the step in which the log is cut.
"""

import logging
from collections.abc import Container, Generator, Iterable, Iterator, Mapping
from itertools import chain

from lanemq.clock import Clock
from lanemq.core.brokering.progress_table import ProgressKey, ProgressTable
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.log.store import Store
from lanemq.model.names import DEAD_LETTER_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import FewLines

log = logging.getLogger(__name__)

WARN_AT_SHARE = 0.9
"""Share of the retention age at which messages count as about to be deleted. Large: a group has little time left."""
WARN_AGAIN_AFTER_MS = 3_600_000
"""A group is named again in the log after this time, once for each topic."""
AT_ONCE, CHARS_AT_ONCE = 32, 100_000
"""Queues, and characters of their finished ranges, that are counted again in the step in which the log is cut."""
MAX_ROUNDS = 10
"""How often changed queues are counted again. Each round is shorter than the one before, because a commit takes longer
than to count its queue. If commits are too many nevertheless, a figure may include what was finished just in time."""


class Unread:
    """What groups have not finished."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        """Group and topic → messages. No zeros."""
        self.known: set[tuple[str, str]] = set()
        """Groups and topics with commits."""
        self._by_queue: dict[tuple[str, str], dict[MessageQueue, int]] = {}
        """Group and topic → queue → messages. No zeros."""
        self._dropped: list[dict[MessageQueue, int]] = []

    def put(self, group: str, queue: MessageQueue, count: int) -> None:
        """Set the count of one group in one queue."""
        pair = (group, queue.topic)
        queues = self._by_queue.setdefault(pair, {})
        more = count - queues.pop(queue, 0)
        if count:
            queues[queue] = count
        if more:
            total = self.counts.get(pair, 0) + more
            if total:
                self.counts[pair] = total
            else:
                del self.counts[pair]

    def drop(self, group: str, topic: str) -> None:
        """Count nothing for a group in a topic, because one of them was deleted."""
        self.counts.pop((group, topic), None)
        self._dropped.append(self._by_queue.pop((group, topic), {}))

    def emptied(self) -> Iterator[None]:
        """Free the memory in steps; to free a million entries at once would hold the loop."""
        for queues in chain(self._dropped, self._by_queue.values()):
            while queues:
                queues.popitem()
                yield
        for counts in (self._by_queue, self.counts):
            while counts:
                counts.popitem()
                yield
        while self.known:
            self.known.pop()
            yield


class UnreadMessages:
    """What groups have lost to retention since the start. On the loop only, and only with complete indexes."""

    def __init__(self, store: Store, progress: ProgressTable, clock: Clock) -> None:
        self._store = store
        self._progress = progress
        self._lines = FewLines(log, clock)
        self._deleted: dict[tuple[str, str], int] = {}
        self._looked_at = 0
        self._warned: dict[tuple[str, str, str], Millis] = {}

    def deleted(self, group: str, topic: str) -> int:
        """Messages of a topic that were deleted before the group had finished them."""
        return self._deleted.get((group, topic), 0)

    def warn(self, now: Millis) -> Generator[None, None, None]:
        """Warn about messages that have reached 90 % of their age, so that the group can catch up in time."""
        soon = self._store.start_after(self._store.retention.expired(now, WARN_AT_SHARE))
        # Looks again only when files have been added: with many groups and queues a look takes a while.
        if soon == self._looked_at:
            return
        self._looked_at = soon
        due = self._store.start_after(self._store.retention.expired(now))
        if soon == due:
            return
        late = (yield from self.below(due)) if due > self._store.log_start else Unread()
        unread = yield from self.below(soon)
        advice = "soon: let the group catch up, or restart the broker with a longer --retention"
        yield from self._write(unread.counts, advice, now, but=late.counts)
        yield from late.emptied()
        yield from unread.emptied()

    def below(self, position: int) -> Generator[None, None, Unread]:
        """What groups have not finished below a log position. Exact until something else happens on the loop."""
        unread = Unread()
        with self._progress.watching() as changes:
            for group in self._progress.groups():
                if group.startswith(DEAD_LETTER_PREFIX):
                    continue  # it marks discarded dead letters, and does not consume
                for progress in self._progress.of_group(group):
                    unread.known.add((group, progress.queue.topic))
                    unread.put(group, progress.queue, self._count(group, progress.queue, position))
                    yield
            for _ in range(MAX_ROUNDS):
                for pair in changes.forgotten:
                    unread.drop(*pair)
                again = tuple(changes.offsets)
                at_once = len(again) <= AT_ONCE and self._chars(again) <= CHARS_AT_ONCE
                changes.offsets.clear()
                changes.forgotten.clear()
                for key in again:
                    unread.put(*key, self._count(*key, position))
                    if not at_once:
                        yield
                if at_once:
                    break
        return unread

    def lose(self, lost: Unread, now: Millis) -> Generator[None, None, None]:
        """Count what groups have lost. Called after the log was cut where `below` has counted."""
        for key in tuple(self._deleted):
            if key not in lost.known:
                del self._deleted[key]  # the group or the topic was deleted
            yield
        for key, count in lost.counts.items():
            self._deleted[key] = self._deleted.get(key, 0) + count
            yield
        yield from self._write(lost.counts, "now", now)
        yield from lost.emptied()

    def _count(self, group: str, queue: MessageQueue, position: int) -> int:
        """What one group has not finished of one queue."""
        progress = self._progress.at(group, queue)
        offset = progress.offset
        if offset is None or group.startswith(DEAD_LETTER_PREFIX):
            return 0
        unread = self._store.unread_below(queue.topic, queue.queue_id, offset, position)
        if not unread:
            return 0
        finished = FinishedRanges.decode(progress.finished, offset).above(unread.start - 1).below(unread.stop)
        return len(unread) - finished.count

    def _chars(self, keys: Iterable[ProgressKey]) -> int:
        return sum(len(self._progress.at(*key).finished) for key in keys)

    def _write(
        self, counts: Mapping[tuple[str, str], int], when: str, now: Millis, *, but: Container[tuple[str, str]] = ()
    ) -> Iterator[None]:
        """Log what groups have not read, except for those of `but`."""
        for each in tuple(self._warned):
            if now - self._warned[each] >= WARN_AGAIN_AFTER_MS:
                del self._warned[each]
            yield
        for (group, topic), count in counts.items():
            if (group, topic) not in but and (group, topic, when) not in self._warned:
                self._warned[group, topic, when] = now
                text = f"group {group} has not read {count} messages of topic {topic} that retention deletes {when}"
                self._lines.write(logging.WARNING, "messages that retention deletes unread", text)
            yield
