"""Is the log what the producers were told? (A2, A3, A4, B1, B6, B7)

Every message gets its place from the first evidence of it: an acknowledgement, a delivery, or the log read at
the end. So a send whose outcome nobody knows is judged too, as soon as it shows up.
"""

from bisect import bisect_left

from lanemq.checker.events import Acked, Event, Send, SendFailed, Trimmed, Turn
from lanemq.checker.events import Stored as StoredEvent
from lanemq.checker.state import GroupQueue, Queue, Sender, State, Stored
from lanemq.checker.verdict import NOBODY_SENT, Violation, violation

_KEPT_PLACES = 64
_NOTHING_SENT: dict[str, Sender] = {}


class Storing:
    """`foreign_producers`: some producers write no history. `idempotent`: a repeat in the log is a fault."""

    def __init__(self, state: State, *, foreign_producers: bool, idempotent: bool) -> None:
        self._state = state
        self._foreign = foreign_producers
        self._idempotent = idempotent

    def send(self, event: Send) -> None:
        state = self._state
        open_ids = state.sent.get(event.topic)
        if open_ids is None:
            open_ids = state.sent[event.topic] = {}
        if event.id in open_ids:
            return
        name = (event.process, event.topic, event.key)
        sender = state.senders.get(name)
        if sender is None:
            sender = state.senders[name] = Sender(name)
        sender.in_flight[event.id] = (sender.next_index, event.t)
        sender.next_index += 1
        open_ids[event.id] = sender

    def acked(self, event: Acked) -> Violation | None:
        queue = self._state.queue(event.topic, event.queue)
        if event.offset < 0:  # a repeat whose place the broker has forgotten: it must be there all the same
            if event.id in self._state.sent.get(event.topic, _NOTHING_SENT):
                queue.promised.add(event.id)
            return None
        return self._place(queue, event, event.id, delivered=False) or _committed_past(queue.groups, event)

    def failed(self, event: SendFailed) -> Violation | None:
        sender = self._state.sent.get(event.topic, _NOTHING_SENT).pop(event.id, None)
        if sender is None:
            return self._failed_but_there(event)
        index, _ = sender.in_flight.pop(event.id)
        sender.frozen = (index + 1, sender.next_index)
        if event.key and sender.placed and sender.placed[-1][0] > index:
            return violation(
                "B7",
                event,
                f"the send of {event.id} failed, but a message of key {event.key!r} that was sent behind it "
                f"is stored at offset {sender.placed[-1][1]}",
            )
        return None

    def _failed_but_there(self, event: SendFailed) -> Violation | None:
        for (topic, _), queue in self._state.queues.items():
            if topic == event.topic and event.id in queue.where:
                offset = queue.where[event.id]
                return violation("A2", event, f"the send of {event.id} failed, but it is stored at offset {offset}")
        return None

    def stored(self, event: StoredEvent) -> Violation | None:
        queue = self._state.queue(event.topic, event.queue)
        if queue.dumped is None:
            queue.dumped = set()
        if event.offset >= queue.floor:
            queue.dumped.add(event.offset)
        return self._place(queue, event, event.id, delivered=True)

    def delivered(self, event: Turn, queue: Queue) -> Violation | None:
        """Called by the delivery family with every turn that names its message."""
        open_ids = self._state.sent.get(event.topic)
        if (
            not self._foreign
            and open_ids is not None
            and event.offset >= queue.floor
            and event.id not in queue.where
            and event.id not in open_ids
        ):
            return violation("A2", event, f"{event.id} was delivered, but {NOBODY_SENT}, or every send of it failed")
        return self._place(queue, event, event.id, delivered=True)

    def trimmed(self, event: Trimmed) -> None:
        """What retention removed is nobody's loss: the groups that had not read it are excused."""
        queue = self._state.queue(event.topic, event.queue)
        queue.trimmed = max(queue.trimmed, event.offset)
        for group in queue.groups:
            for offset in queue.stored:
                if offset < event.offset:
                    group.finished.setdefault(offset, event.t)

    def _place(self, queue: Queue, event: Acked | Turn | StoredEvent, id: str, *, delivered: bool) -> Violation | None:
        if self._state.gone and id in self._state.gone.get(event.topic, ()):
            return None
        offset = event.offset
        there = queue.stored.get(offset)
        if there is not None and there.id == id:
            there.delivered |= delivered
            return None
        if there is not None:
            return _conflict(there, event, id, delivered)
        sender = self._state.sent.get(event.topic, _NOTHING_SENT).pop(id, None)
        if sender is None and offset < queue.floor:
            return None
        known = queue.where.get(id)
        queue.stored[offset] = Stored(id, event.key, sender, delivered)
        if known is not None:
            return self._repeated(event, id, known)
        queue.where[id] = offset
        return self._in_line(sender, queue, event, id) if sender is not None else None

    def _repeated(self, event: Acked | Turn | StoredEvent, id: str, known: int) -> Violation | None:
        """A topic that nobody sent to is filled by the broker, with what members sent back; perhaps twice."""
        self._state.count("log_duplicates")
        if not self._idempotent or event.topic not in self._state.sent:
            return None
        return violation("B6", event, f"{id} is in the log twice: at offset {known} and at {event.offset}")

    def _in_line(self, sender: Sender, queue: Queue, event: Acked | Turn | StoredEvent, id: str) -> Violation | None:
        index, sent_t = sender.in_flight.pop(id)
        if not sender.name[2]:
            return None
        places, offset = sender.placed, event.offset
        at = bisect_left(places, (index, 0))
        before = places[at - 1] if at else None
        after = places[at] if at < len(places) else None
        places.insert(at, (index, offset))
        if len(places) > _KEPT_PLACES:
            _shorten(sender)
        if sender.queue not in (-1, event.queue):
            return _wrong_queue(sender, event, id)
        sender.queue = event.queue
        if (
            (before is not None and before[1] >= offset)
            or (after is not None and after[1] <= offset)
            or (offset < queue.floor and sent_t > queue.floor_t)
        ):
            return _inverted(event, id, before, after)
        if sender.frozen[0] <= index < sender.frozen[1]:
            return violation(
                "B7",
                event,
                f"{id} is stored at offset {offset}, but it was sent behind a message that failed",
            )
        return None


def _shorten(sender: Sender) -> None:
    """Keep what an open send can still be compared with."""
    oldest = next(iter(sender.in_flight.values()))[0] if sender.in_flight else sender.next_index
    at = bisect_left(sender.placed, (oldest, 0))
    if at > 1:
        del sender.placed[: at - 1]


def _conflict(there: Stored, event: Acked | Turn | StoredEvent, id: str, delivered: bool) -> Violation:
    if there.delivered != delivered:
        return violation(
            "A4",
            event,
            f"offset {event.offset} was acknowledged for one message and holds another: {there.id}, {id}",
        )
    return violation("A3", event, f"offset {event.offset} holds two messages: first {there.id}, now {id}")


def _wrong_queue(sender: Sender, event: Acked | Turn | StoredEvent, id: str) -> Violation:
    return violation(
        "B1",
        event,
        f"key {event.key!r} was stored in queue {sender.queue} before, and {id} in queue {event.queue}",
    )


def _inverted(
    event: Acked | Turn | StoredEvent, id: str, before: tuple[int, int] | None, after: tuple[int, int] | None
) -> Violation:
    if before is not None and before[1] >= event.offset:
        what = f"behind the message stored at {before[1]}"
    elif after is not None and after[1] <= event.offset:
        what = f"before the message stored at {after[1]}"
    else:
        what = "after everything up to a higher offset was already committed"
    return violation("B1", event, f"{id} was sent {what}, but is stored at offset {event.offset}")


def _committed_past(groups: list[GroupQueue], event: Acked) -> Violation | None:
    for group in groups:
        if event.offset in group.holes:
            group.holes.discard(event.offset)
            return lost(event, group, event.offset, event.id)
    return None


def lost(event: Event, group: GroupQueue, offset: int, id: str) -> Violation:
    """An acknowledged message that a group committed past without ever seeing it."""
    return violation(
        "A1",
        event,
        f"{id} at offset {offset} is acknowledged, group {group.group!r} committed past it, "
        f"and no handler of the group ever saw it",
    )
