"""Verification: compares what both sides hold, key by key, and names the first difference.

It trusts nothing that the copying code computed: it reads both sides and compares the sequences of messages (id, body,
tag, search keys, user properties) of each key. Only origins are used, to tell copies from messages that were sent to
the target.

Two readings: the first keeps a count and a hash for each key; the second keeps the messages of the keys that differ.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from lanemq.client.copies import origin_of
from lanemq.client.message import Message
from lanemq.mirror.copying import MirrorOptions
from lanemq.mirror.ends import Side
from lanemq.mirror.others import OtherMirrors, content_of
from lanemq.mirror.queue_mapping import mapping_of
from lanemq.model.queue import MessageQueue

MAX_DIFFERENCES = 10
TELL_EVERY = 10_000

Unit: TypeAlias = tuple[MessageQueue, str | None]
"""A source queue and a key: what must be in the same order on both sides."""


class Seen(NamedTuple):
    """One message of a unit, on either side."""

    offset: int
    """At the source."""
    content: bytes
    place: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a verification."""

    messages: int
    """Messages that were compared."""
    keys: int
    not_copied: int
    """Messages at the end of the source that the target does not have yet."""
    not_copies: int
    """Messages at the target that the source does not have: this mirror did not copy them, in either direction."""
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """The target has every message of the source, once and in order.

        Messages that were sent to the target do not count. Copies of the same messages by another mirror do: they are
        `differences`.
        """
        return not self.differences and not self.not_copied


class Sums:
    """Count and hash of each unit."""

    def __init__(self) -> None:
        self.by_unit: dict[Unit, tuple[int, bytes, MessageQueue]] = {}
        self.scattered: set[Unit] = set()
        """Units found in more than one queue."""
        self.messages = 0

    def add(self, unit: Unit, content: bytes, queue: MessageQueue) -> None:
        count, sum_, where = self.by_unit.get(unit, (0, b"", queue))
        if where != queue:
            self.scattered.add(unit)
        self.by_unit[unit] = count + 1, blake2b(sum_ + content, digest_size=12).digest(), where
        self.messages += 1

    def differing(self, other: "Sums") -> Iterator[Unit]:
        for unit in {**self.by_unit, **other.by_unit}:
            if self.by_unit.get(unit, _NONE)[:2] != other.by_unit.get(unit, _NONE)[:2]:
                yield unit


_NONE = (0, b"")


def compare(options: MirrorOptions, *, report: Callable[[int], object] = lambda _: None) -> Comparison:
    """Reads both sides completely. Messages that retention has removed on one side are not compared."""
    results = [_Topic(options, topic, report).compare() for topic in options.topics]
    return Comparison(
        sum(each.messages for each in results),
        sum(each.keys for each in results),
        sum(each.not_copied for each in results),
        sum(each.not_copies for each in results),
        tuple(text for each in results for text in each.differences),
    )


class _Topic:
    def __init__(self, options: MirrorOptions, topic: str, report: Callable[[int], object]) -> None:
        self._options = options
        self._topic = topic
        self._report = report
        self._read = 0
        self._spans: dict[tuple[MessageQueue, MessageQueue], tuple[int, int]] = {}
        """First and last offset of a source queue in a target queue."""
        self._expired: set[MessageQueue] = set()
        """Target queues whose first messages are gone."""
        self._first: dict[MessageQueue, int] = {}
        """The first offset that each target queue still has."""
        self._not_copied = 0
        self._own: Counter[MessageQueue] = Counter()
        """Messages that this mirror did not copy to the target, by queue there."""
        self._returned: Counter[MessageQueue] = Counter()
        """Those of them that the source has, as copies that this mirror made in the other direction."""

    def compare(self) -> Comparison:
        with self._options.open_source() as source, self._options.open_target() as target:
            self._source, self._target = source, target
            here, there = source.full_route(self._topic), target.full_route(self._topic)
            self._mapping = mapping_of(here, there)
            self._bounds = {queue: source.bounds(queue) for queue in here.subscribe}
            self._again = OtherMirrors(self._options.mirror, self._topic, source)
            self._from_target = OtherMirrors(self._options.mirror, self._topic, target)
            originals, copies = Sums(), Sums()
            for unit, seen, queue in self._copies(count=True):
                copies.add(unit, seen.content, queue)
            for unit, seen, queue in self._originals(count=True):
                originals.add(unit, seen.content, queue)
            differing = list(originals.differing(copies))
            texts = [*self._copied_by_others()]
            texts += [
                f"the target has copies of {queue}, which the source does not list: is its broker away?"
                for queue in sorted({queue for queue, _ in self._spans} - self._bounds.keys())
            ]
            texts += [f"{_name(unit)} is in more than one queue of the target" for unit in copies.scattered]
            texts += self._explain(differing[:MAX_DIFFERENCES]) if differing else []
            if len(differing) > MAX_DIFFERENCES:
                texts.append(f"{len(differing) - MAX_DIFFERENCES} more keys of {self._topic} differ")
            own = (self._own - self._returned).total()
            return Comparison(originals.messages, len(originals.by_unit), self._not_copied, own, tuple(texts))

    def _copied_by_others(self) -> Iterator[str]:
        for other, queue, count in self._again.found():
            yield f"the target also has {count} messages of {queue} as copies of mirror {other!r}"
        for other, queue, count in self._from_target.found():
            yield f"the source has {count} messages that mirror {other!r} copied from {queue} of the target"

    def _copies(self, *, count: bool = False) -> Iterator[tuple[Unit, Seen, MessageQueue]]:
        """The copies at the target of what the source still has."""
        self._spans.clear()
        self._own.clear()
        for queue in self._target.route(self._topic).subscribe:
            first, end = self._target.bounds(queue)
            self._first[queue] = first
            if first > 0:
                self._expired.add(queue)
            for message in self._counted(self._target, queue, first, end):
                origin = origin_of(message.properties_text, self._topic)
                if origin is None or origin.mirror != self._options.mirror:
                    self._own[queue] += 1
                    if count:
                        self._again.see(message)
                    continue
                low, _ = self._spans.get((origin.queue, queue), (origin.offset, 0))
                self._spans[origin.queue, queue] = low, origin.offset
                kept, until = self._bounds.get(origin.queue, (0, 0))
                if kept <= origin.offset < until:
                    seen = Seen(origin.offset, content_of(message), f"{queue} offset {message.queue_offset}")
                    yield (origin.queue, message.key), seen, queue

    def _originals(self, *, count: bool = False) -> Iterator[tuple[Unit, Seen, MessageQueue]]:
        """The messages of the source that should be at the target: as far as it was copied, and not expired there."""
        for queue, (first, end) in self._bounds.items():
            for message in self._counted(self._source, queue, first, end):
                origin = origin_of(message.properties_text, self._topic)
                if origin is not None and origin.mirror == self._options.mirror:
                    if origin.offset >= self._first.get(origin.queue, 0):
                        self._returned[origin.queue] += count
                    continue  # it came from the target
                if count:
                    self._from_target.see(message)
                target = self._mapping.queue_for(queue, message.key)
                low, high = self._spans.get((queue, target), (0, -1))
                if message.queue_offset > high:
                    self._not_copied += count
                elif message.queue_offset >= low or target not in self._expired:
                    seen = Seen(message.queue_offset, content_of(message), f"{queue} offset {message.queue_offset}")
                    yield (queue, message.key), seen, queue

    def _counted(self, side: Side, queue: MessageQueue, first: int, end: int) -> Iterator[Message]:
        for message in side.read_range(queue, first, end):
            self._read += 1
            if self._read % TELL_EVERY == 0:
                self._report(self._read)
            yield message

    def _explain(self, units: list[Unit]) -> list[str]:
        copies = _collected(self._copies(), units)
        originals = _collected(self._originals(), units)
        return [f"{_name(unit)}: {first_difference(originals[unit], copies[unit])}" for unit in units]


def first_difference(originals: list[Seen], copies: list[Seen]) -> str:
    """The first difference between the messages of a unit and their copies, as text."""
    offsets = [each.offset for each in originals]
    for number, original in enumerate(originals):
        if number == len(copies):
            return f"the copy of {original.place} is missing"
        copy = copies[number]
        if copy.offset == original.offset:
            if copy.content != original.content:
                return f"{copy.place} has another content than {original.place}"
        elif copy.offset in offsets[:number]:
            return f"{copy.place} repeats the copy of source offset {copy.offset}"
        elif any(each.offset == original.offset for each in copies[number:]):
            return f"{copy.place} comes before the copy of {original.place}"
        else:
            return f"the copy of {original.place} is missing before {copy.place}"
    if len(copies) > len(originals):
        extra = copies[len(originals)]
        what = "repeats" if extra.offset in offsets else "has no original at"
        return f"{extra.place} {what} source offset {extra.offset}"
    return "no difference at a second look: it was still being copied"


def _collected(found: Iterator[tuple[Unit, Seen, MessageQueue]], units: list[Unit]) -> Mapping[Unit, list[Seen]]:
    wanted: dict[Unit, list[Seen]] = {unit: [] for unit in units}
    for unit, seen, _ in found:
        if unit in wanted:
            wanted[unit].append(seen)
    return wanted


def _name(unit: Unit) -> str:
    queue, key = unit
    return f"key {key!r} of {queue}" if key is not None else f"messages without a key of {queue}"
