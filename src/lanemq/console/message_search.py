"""Searches messages of a topic, newest first, a limited number at a time. Blocking.

A search that ends at a limit says so and returns the place where the next one goes on, so that nothing is skipped or
shown twice. Within a queue messages come strictly from the newest to the oldest. A search that reads many queues reads
the same number of messages in each, so the next one may find messages of another queue that are newer.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lanemq.client.admin.admin import FOREVER, Admin
from lanemq.client.admin.topic_reader import MAX_FOUND, TopicReader
from lanemq.client.message import Message
from lanemq.console.views.messages import FROM_THE_END, MessageRow, Older, Search, matches, message_row
from lanemq.model.queue import MessageQueue

MAX_ROWS = 50
MAX_SCANNED = 5_000
"""Messages that one search reads. More would take seconds, and load the broker."""
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
    """Where the next search goes on."""


def find(server: str, topic: str, search: Search, begin: Older = FROM_THE_END) -> FoundMessages:
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
        return _scan(reader, search, begin)


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


def _scan(reader: TopicReader, search: Search, begin: Older) -> FoundMessages:
    bounds = {queue: reader.bounds(queue) for queue in reader.queues}
    filtered = search.text or search.after is not None or search.key is not None
    budget = MAX_SCANNED if filtered else MAX_ROWS * len(bounds)
    share = max(MAX_ROWS, budget // max(1, len(bounds)))
    scanned, found, starts = 0, list[Message](), dict[MessageQueue, int]()
    is_cut = False
    for queue, (first, last) in bounds.items():
        low = first if search.after is None else max(first, reader.offset_at(queue, search.after))
        end = last if search.before is None else min(last, reader.offset_at(queue, search.before))
        end = min(end, begin.ends.get(queue, end))
        starts[queue] = min(end, max(low, end - share))
        is_cut |= starts[queue] > low
        for message in reader.read(queue, starts[queue], end):
            scanned += 1
            if matches(search, message):
                found.append(message)
    newest = heapq.nlargest(MAX_ROWS, found, key=lambda each: (each.record.store_timestamp, each.queue_offset))
    is_cut |= len(found) > MAX_ROWS
    older = Older(_left(found, newest, starts)) if is_cut else None
    kept = sum(end - first for first, end in bounds.values())
    return FoundMessages(tuple(map(message_row, newest)), scanned, kept, is_cut, older)


def _left(
    found: Sequence[Message], shown: Sequence[Message], starts: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Where the next search goes on in each queue: behind the newest match that was not shown, or before what was read.

    Matches of a queue are shown from the newest on, unless the clock was set back. Then some are shown twice.
    """
    places = {(each.queue, each.queue_offset) for each in shown}
    ends = dict(starts)
    for each in found:
        if (each.queue, each.queue_offset) not in places:
            ends[each.queue] = max(ends[each.queue], each.queue_offset + 1)
    return ends
