"""Searches messages of a topic, newest first, a limited number and for a limited time. Blocking.

A search that ends at a limit says so and returns the place where the next one continues, so that nothing is skipped or
shown twice. Within a queue messages come strictly from the newest to the oldest. A search that reads many queues reads
the same number of messages in each, so the next one may find messages of another queue that are newer.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.message_search import FOREVER
from lanemq.client.admin.topic_reader import MAX_FOUND, TopicReader
from lanemq.client.message import Message
from lanemq.clock import Clock, SystemClock
from lanemq.console.views.messages import FROM_THE_END, MessageRow, Older, Search, matches, message_row
from lanemq.model.queue import MessageQueue

MAX_ROWS = 50
MAX_SCANNED = 5_000
"""Messages that one search reads. More would take seconds, and load the broker."""
SEARCH_SECONDS = 5.0
"""How long one search reads. Short: large messages are searched in many small parts. Long: few people can search at a
time, and one who waits does not know why."""
STEP = 32
"""Messages of a queue that are read and held at a time."""
MAX_BY_ID = 32
"""Messages with the same id that a broker returns."""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The result of a search, newest first, and what it cost."""

    rows: tuple[MessageRow, ...]
    scanned: int
    kept: int | None
    """Messages of the topic; None if the index was asked."""
    is_cut: bool
    """Whether older messages were not looked at."""
    older: Older | None = None
    """Where the next search continues."""
    late: bool = False
    """Whether it ended because it took too long."""


def find(
    server: str, topic: str, search: Search, begin: Older = FROM_THE_END, *, clock: Clock | None = None
) -> FoundMessages:
    """Asks the index for a key or an id; otherwise reads backwards, from the end of every queue or from `begin`.

    An Apache broker indexes only search keys. If it finds no message with such a key, the queues are read.
    """
    if search.id is not None:
        with Admin(server) as admin:
            messages = admin.find_id(topic, search.id)
        kept = [message for message in messages if matches(search, message)]
        rows = tuple(map(message_row, reversed(kept)))
        return FoundMessages(rows, len(messages), None, len(messages) >= MAX_BY_ID)
    found = None
    if search.key is not None:
        found = _by_key(server, topic, search.key, search, begin)
        if found is not None and found.rows:
            return found
    with TopicReader(server, topic) as reader:
        if found is not None and reader.indexes_keys:
            return found
        return _scan(reader, search, begin, clock or SystemClock())


def _by_key(server: str, topic: str, key: str, search: Search, begin: Older) -> FoundMessages | None:
    """The index's answer. None if it has only messages that were shown before: they were all stored in one ms."""
    until = min(
        FOREVER if search.before is None else search.before - 1, FOREVER if begin.until is None else begin.until
    )
    with Admin(server) as admin:
        messages = admin.find_key(topic, key, limit=MAX_FOUND, since=search.after or 0, until=until)
    is_full = len(messages) >= MAX_FOUND
    unseen = [each for each in messages if each.queue_offset < begin.ends.get(each.queue, FOREVER)]
    if is_full and not unseen:
        return None
    rows = tuple(message_row(each) for each in reversed(unseen) if matches(search, each))
    return FoundMessages(rows, len(unseen), None, is_full, _after(unseen, begin) if is_full else None)


def _after(messages: Sequence[Message], begin: Older) -> Older:
    ends = dict(begin.ends)
    for each in messages:
        ends[each.queue] = min(ends.get(each.queue, FOREVER), each.queue_offset)
    return Older(ends, min(each.record.store_timestamp for each in messages))


@dataclass(frozen=True, slots=True)
class _Match:
    """A message that was found. It is kept as its row: thousands of bodies would fill the memory."""

    stored: int
    offset: int
    queue: MessageQueue
    row: MessageRow


@dataclass(slots=True)
class _Span:
    """What a search reads of one queue, backwards."""

    low: int
    """The first offset that can match."""
    stop: int
    """The first offset that this search reads."""
    at: int
    """Everything from here on was read."""


def _spans(
    reader: TopicReader, bounds: Mapping[MessageQueue, tuple[int, int]], search: Search, begin: Older
) -> dict[MessageQueue, _Span]:
    filtered = search.text or search.after is not None or search.key is not None
    budget = MAX_SCANNED if filtered else MAX_ROWS * len(bounds)
    share = max(MAX_ROWS, budget // max(1, len(bounds)))
    found = {}
    for queue, (first, last) in bounds.items():
        low = first if search.after is None else max(first, reader.offset_at(queue, search.after))
        end = last if search.before is None else min(last, reader.offset_at(queue, search.before))
        end = min(end, begin.ends.get(queue, end))
        found[queue] = _Span(low, min(end, max(low, end - share)), end)
    return found


def _scan(reader: TopicReader, search: Search, begin: Older, clock: Clock) -> FoundMessages:
    """Reads the queues in turns, a few messages at a time, until a limit or the deadline."""
    deadline = clock.now() + SEARCH_SECONDS * 1000
    bounds = {queue: reader.bounds(queue) for queue in reader.queues}
    spans = _spans(reader, bounds, search, begin)
    scanned, found, is_late = 0, list[_Match](), False
    turns = deque(queue for queue, span in spans.items() if span.at > span.stop)
    while turns and not is_late:
        queue = turns.popleft()
        span = spans[queue]
        start = max(span.stop, span.at - STEP)
        for message in reversed([*reader.read(queue, start, span.at)]):
            scanned += 1
            if matches(search, message):
                stored_at = message.record.store_timestamp
                found.append(_Match(stored_at, message.queue_offset, queue, message_row(message)))
            if is_late := clock.now() >= deadline:
                start = message.queue_offset
                break
        span.at = start
        if span.at > span.stop:
            turns.append(queue)
    newest = heapq.nlargest(MAX_ROWS, found, key=lambda each: (each.stored, each.offset))
    is_cut = len(found) > MAX_ROWS or any(span.at > span.low for span in spans.values())
    older = Older(_left(found, newest, spans)) if is_cut else None
    kept = sum(last - first for first, last in bounds.values())
    return FoundMessages(tuple(each.row for each in newest), scanned, kept, is_cut, older, is_late and is_cut)


def _left(
    found: Sequence[_Match], shown: Sequence[_Match], spans: Mapping[MessageQueue, _Span]
) -> dict[MessageQueue, int]:
    """Where the next search continues in each queue: behind the newest match that was not shown, or before what was
    read.

    Matches of a queue are shown from the newest on, unless the clock was set back. Then some are shown twice.
    """
    places = {(each.queue, each.offset) for each in shown}
    ends = {queue: span.at for queue, span in spans.items()}
    for each in found:
        if (each.queue, each.offset) not in places:
            ends[each.queue] = max(ends[each.queue], each.offset + 1)
    return ends
