"""Finds messages that another mirror has copied between the same two topics, so that none is copied a second time.

A mirror's name follows from its addresses as they are written. Another spelling of an address makes another name, and a
mirror does not take the copies of another one for its own. The origin in a copy names a queue and an offset: if the
message there has the same content, it is the original, whatever the other mirror called the servers.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from lanemq.client.copies import origin_of
from lanemq.client.message import Message
from lanemq.mirror.ends import Side
from lanemq.mirror.origin import user_properties
from lanemq.model.errors import OrderError
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import LANE_ORIGIN, PropertyName, find_property


class CopiedBefore(OrderError):
    """Another mirror has copied these messages between the same two topics: they would be stored twice."""


class CopiesOfAnother(NamedTuple):
    """What another mirror has copied of one queue."""

    mirror: str
    queue: MessageQueue
    """The queue of the originals."""
    messages: int


class OtherMirrors:
    """Collects the copies of other mirrors at one side; their originals may be at the other side."""

    def __init__(self, mirror: str, topic: str, originals: Side) -> None:
        self._mirror = mirror
        self._topic = topic
        self._originals = originals
        self._bounds: dict[MessageQueue, tuple[int, int]] = {}
        self._counts: dict[tuple[str, MessageQueue], int] = {}
        self._newest: dict[tuple[str, MessageQueue], tuple[int, bytes]] = {}
        self._judged: dict[tuple[str, MessageQueue], bool] = {}
        """Whether the originals of these copies are at the other side."""

    def see(self, message: Message) -> None:
        """Counts a message if it is a copy of another mirror whose original would still be at the other side."""
        if LANE_ORIGIN not in message.properties_text:
            return
        origin = origin_of(message.properties_text, self._topic)
        if origin is None or origin.mirror == self._mirror:
            return
        first, end = self._bounds_of(origin.queue)
        if first <= origin.offset < end:
            which = origin.mirror, origin.queue
            self._counts[which] = self._counts.get(which, 0) + 1
            if which not in self._judged:
                self._newest[which] = origin.offset, content_of(message)

    def found(self) -> Iterator[CopiesOfAnother]:
        """The copies whose originals are at the other side. Looks at one original for each mirror and queue."""
        for which, (offset, content) in self._newest.items():
            if which not in self._judged:
                original = self._originals.read_one(which[1], offset)
                self._judged[which] = original is not None and self._is_original(original, content)
        for which, same in self._judged.items():
            if same:
                yield CopiesOfAnother(*which, self._counts[which])

    def _is_original(self, message: Message, content: bytes) -> bool:
        """Whether the message is what was copied, and not a copy of the copy that this mirror made."""
        origin = origin_of(message.properties_text, self._topic)
        return (origin is None or origin.mirror != self._mirror) and content_of(message) == content

    def _bounds_of(self, queue: MessageQueue) -> tuple[int, int]:
        if queue not in self._bounds:
            known = self._originals.route(self._topic).subscribe
            self._bounds[queue] = self._originals.bounds(queue) if queue in known else (0, 0)
        return self._bounds[queue]


def check_not_at_target(copies: OtherMirrors) -> None:
    """Raises `CopiedBefore` if the target has copies of the source under another name."""
    for other, queue, count in copies.found():
        raise CopiedBefore(
            f"the target has {count} messages of {queue} that mirror {other!r} copied from the same source: they would "
            f"be stored twice. Another spelling of an address makes another mirror; to continue with that one, use "
            f"--name {other}"
        )


def check_not_from_target(copies: OtherMirrors) -> None:
    """Raises `CopiedBefore` if the source has copies of the target under another name."""
    for other, queue, _ in copies.found():
        raise CopiedBefore(
            f"the source has messages that mirror {other!r} copied from {queue} of this target: they would be stored "
            f"there twice. Another spelling of an address makes another mirror; on the way back, use --name {other}"
        )


def content_of(message: Message) -> bytes:
    """A hash of what a consumer sees of a message, besides its place: id, tag, search keys, user properties, body."""
    text = message.properties_text
    parts = (
        message.message_id,
        find_property(text, PropertyName.TAGS),
        find_property(text, PropertyName.KEYS),
        sorted(user_properties(text).items()),
    )
    return blake2b(repr(parts).encode() + message.body, digest_size=12).digest()
