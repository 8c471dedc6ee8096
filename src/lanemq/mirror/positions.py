"""Positions of groups: where a group continues at the target.

Invariant: no message is skipped that the group has not finished at the source. Messages that it has finished may be
delivered again, in order, if a target queue contains several source queues.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.copies import origin_of
from lanemq.mirror.copying import MirrorOptions
from lanemq.mirror.delayed import delayed_messages
from lanemq.mirror.ends import Side
from lanemq.mirror.origin import Watermarks, watermarks_of
from lanemq.mirror.queue_mapping import QueueMapping, mapping_of
from lanemq.model.errors import UsageError
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import PropertyName, find_property

SCAN = 2_000
"""Messages that are read one by one instead of bisecting further."""

Read = Callable[[int, int], Iterable[tuple[int, str]]]
"""Offsets and properties of the messages of a target queue, from the first number up to the second."""


class NotMovable(UsageError):
    """A group has messages at the source that its offsets do not show, or members that would overwrite them."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A group's offset in one queue of the target."""

    group: str
    queue: MessageQueue
    before: int | None
    after: int
    end: int

    @property
    def left(self) -> int:
        """Messages that the group will get."""
        return self.end - self.after


def translate(
    options: MirrorOptions, groups: Collection[str] = (), *, dry_run: bool = False, online: bool = False
) -> list[Moved]:
    """Moves groups to where they are at the source, all that have offsets there if none are named.

    Raises `NotMovable` before anything is changed. `online` allows members at the source: what they still finish there
    is delivered again.
    """
    with options.open_source() as source, options.open_target() as target:
        positions = [each for topic in options.topics for each in _of_topic(options, source, target, topic, groups)]
        delayed = {each.topic for each in delayed_messages(source, options.topics)}
        for group in sorted({each.group for each in positions}):
            if RETRY_PREFIX + group in delayed:
                raise NotMovable(f"group {group!r} has retries at the source that are not due yet: let it finish them")
            _check_movable(options, source, target, group, online=online)
        if not dry_run:
            for each in positions:
                target.admin.commit(each.group, each.queue, each.after)
        return positions


def groups_of(side: Side, topic: str, own: Collection[str]) -> dict[str, dict[MessageQueue, int]]:
    """The groups with offsets in a topic, and those offsets. A queue without one is not begun."""
    found: dict[str, dict[MessageQueue, int]] = {}
    for group in side.admin.groups():
        queues = side.admin.describe_group(group).queues
        offsets = {each.queue: int(each.offset) for each in queues if each.queue.topic == topic}
        if offsets and group not in own:
            found[group] = offsets
    return found


def first_unfinished(
    read: Read,
    first: int,
    end: int,
    finished: Mapping[MessageQueue, int],
    mirror: str,
    topic: str,
    own_finished: Callable[[int, str], bool] = lambda _, __: False,
) -> int:
    """The first offset of a target queue whose message is not finished; `end` if there is none.

    `finished` has the group's offset in each source queue. `own_finished` decides about a message that is not a copy of
    this mirror, by its offset and properties.
    """
    low = first
    if _holds_only_copies(read, first, end, mirror):
        high = end
        while high - low > SCAN:
            middle = (low + high) // 2
            at, marks = _next_watermarks(read, middle, high, mirror)
            if marks is None or _exceeds(marks, finished, topic):
                high = middle
            else:
                low = at + 1
    for offset, text in read(low, end):
        origin = origin_of(text, topic)
        if origin is None or origin.mirror != mirror:
            if not own_finished(offset, text):
                return offset
        elif origin.offset >= finished.get(origin.queue, 0):
            return offset
    return end


def copied_below(read: Read, first: int, end: int, mirror: str, topic: str) -> dict[MessageQueue, int]:
    """How far this mirror had copied each queue of the other side into a queue when it reached offset `end`.

    Reads backwards to the last watermarks, which name every queue that has copies in this one.
    """
    reached: dict[MessageQueue, int] = {}
    marked = False
    while end > first and not marked:
        start = max(first, end - SCAN)
        for _, text in read(start, end):
            origin, marks = origin_of(text, topic), watermarks_of(text, mirror)
            origins = [(origin.queue, origin.offset + 1)] if origin is not None and origin.mirror == mirror else []
            if marks is not None:
                marked = True
                origins += [(queue, next_offset) for queue, next_offset in _reached(marks, topic)]
            for queue, next_offset in origins:
                reached[queue] = max(reached.get(queue, 0), next_offset)
        end = start
    return reached


class OwnMessages:
    """The messages that were in the target first, and that this mirror copied in the other direction.

    After a move there and back, a group's offsets at the source cover the copies of these messages. An original is
    finished if its copy is. What the source has no copy of any more counts as not finished.
    """

    def __init__(self, source: Side, topic: str, back: QueueMapping, offsets: Mapping[MessageQueue, int], mirror: str):
        """`back` says where the messages of each target queue are at the source, `offsets` are those of the group."""
        self._source = source
        self._topic = topic
        self._back = back
        self._offsets = offsets
        self._mirror = mirror
        self._reached: dict[MessageQueue, dict[MessageQueue, int]] = {}

    def finished(self, queue: MessageQueue, offset: int, text: str) -> bool:
        """Whether the group has finished the copy of this message of a target queue."""
        where = self._back.queue_for(queue, find_property(text, PropertyName.KEY))
        if where not in self._reached:
            first, end = self._source.bounds(where)
            end = min(self._offsets.get(where, 0), end)
            self._reached[where] = copied_below(_reading(self._source, where), first, end, self._mirror, self._topic)
        return offset < self._reached[where].get(queue, 0)


def _of_topic(
    options: MirrorOptions, source: Side, target: Side, topic: str, wanted: Collection[str]
) -> Iterable[Moved]:
    here, there = source.full_route(topic), target.full_route(topic)
    known = groups_of(source, topic, (source.group, target.group))
    if missing := sorted(set(wanted) - known.keys()):
        raise NotMovable(f"group {missing[0]!r} has no offsets in topic {topic!r} at {options.source}")
    for group in sorted(wanted or known):
        own = OwnMessages(source, topic, mapping_of(there, here), known[group], options.mirror)
        for queue in there.publish or there.subscribe:
            first, end = target.bounds(queue)
            found = first_unfinished(
                _reading(target, queue), first, end, known[group], options.mirror, topic,
                lambda offset, text, own=own, queue=queue: own.finished(queue, offset, text),  # type: ignore[misc]
            )  # fmt: skip
            yield Moved(group, queue, target.admin.committed(group, queue), found, end)


def _reading(side: Side, queue: MessageQueue) -> Read:
    return lambda start, stop: (
        (message.queue_offset, message.properties_text) for message in side.read_range(queue, start, stop)
    )


def _check_movable(options: MirrorOptions, source: Side, target: Side, group: str, *, online: bool) -> None:
    with ParkedAdmin(options.source, **source.protection) as parked:
        lanes = [lane for lane in parked.lanes(group) if lane.queue.topic in options.topics]
    if lanes:
        raise NotMovable(
            f"group {group!r} has {len(lanes)} parked or held lanes at the source, which its offsets have passed: "
            f"redrive or discard them first (lanemq parked list --group {group})"
        )
    here = source.admin.describe_group(group)
    retried = sum(each.lag for each in here.queues if each.queue.topic.startswith(RETRY_PREFIX))
    if retried:
        raise NotMovable(f"group {group!r} has {retried} messages in its retry topic at the source: let it finish them")
    if here.members and not online:
        raise NotMovable(f"group {group!r} has {len(here.members)} members at the source: stop them first")
    if members := target.admin.describe_group(group).members:
        raise NotMovable(f"group {group!r} has {len(members)} members at the target: stop them first")


def _holds_only_copies(read: Read, first: int, end: int, mirror: str) -> bool:
    """Whether the newest watermarks account for every message of the queue: then bisecting overlooks nothing."""
    if first > 0:
        return False
    total = 0
    for offset, text in read(max(first, end - 1), end):
        marks = watermarks_of(text, mirror)
        if marks is not None:
            every = [at for queues in marks.reached.values() for at in queues.values()]
            total = sum(sequence for _, _, sequence in every) if len({epoch for _, epoch, _ in every}) == 1 else 0
            return total == offset + 1
    return False


def _next_watermarks(read: Read, start: int, end: int, mirror: str) -> tuple[int, Watermarks | None]:
    for offset, text in read(start, end):
        marks = watermarks_of(text, mirror)
        if marks is not None:
            return offset, marks
    return end, None


def _exceeds(marks: Watermarks, finished: Mapping[MessageQueue, int], topic: str) -> bool:
    """Whether the queue may contain a message up to here that is not finished."""
    return any(next_offset > finished.get(queue, 0) for queue, next_offset in _reached(marks, topic))


def _reached(marks: Watermarks, topic: str) -> Iterator[tuple[MessageQueue, int]]:
    for broker, queues in marks.reached.items():
        for queue_id, (next_offset, _, _) in queues.items():
            yield MessageQueue(topic, broker, queue_id), next_offset
