"""Does the log hold what was acknowledged, once and in the order of the send calls? (S2, S3, S4, S5, B1, B6, B7)

The offset of a message comes from the first event that shows it: an acknowledgement, a delivery, or the log read at the
end. So a send with an unknown outcome is judged as well, as soon as it is seen.

A delayed message is stored when its delay is over, so its acknowledgement names no offset of its queue, and it has no
place in the order of its key. It is still delivered with its key, and once.
"""

from bisect import bisect_left

from lanemq.checker.events import Acked, HistoryEvent, LogRecord, Send, SendFailed, Trimmed, Turn
from lanemq.checker.state import CheckerState, GroupProgress, QueueContents, Sender, StoredMessage
from lanemq.checker.verdict import NEVER_SENT, Violation, queue_text, violation

Sighting = Acked | Turn | LogRecord
"""An event that shows the offset of a message."""

_KEPT_OFFSETS = 64
_NOTHING_SENT: dict[str, Sender] = {}
_NOTHING: dict[str, str] = {}
_UNKNOWN_SEND: tuple[int, int, str | None] = (0, 0, None)


class StoringRules:
    """Rules about sends and the log.

    `foreign_producers`: some producers write no history. `idempotent`: a repeat in the log is a violation.
    """

    def __init__(self, state: CheckerState, *, foreign_producers: bool, idempotent: bool) -> None:
        self._state = state
        self._foreign = foreign_producers
        self._idempotent = idempotent

    def send(self, event: Send) -> None:
        state = self._state
        open_ids = state.sent.get(event.topic)
        if open_ids is None:
            open_ids = state.sent[event.topic] = {}
        if event.delay:
            state.delayed.setdefault(event.topic, {}).setdefault(event.id, event.key)
            return
        if event.id in open_ids:
            return
        name = (event.process, event.topic, event.key)
        sender = state.senders.get(name)
        if sender is None:
            sender = state.senders[name] = Sender(name)
        sender.in_flight[event.id] = (sender.next_index, event.t, event.tag)
        sender.next_index += 1
        open_ids[event.id] = sender

    def acked(self, event: Acked) -> Violation | None:
        queue = self._state.queue(event)
        if self._state.delayed and event.id in self._state.delayed.get(event.topic, _NOTHING):
            return None
        if event.offset < 0:  # a repeat whose offset the broker no longer knows; it must still be stored
            if event.id in self._state.sent.get(event.topic, _NOTHING_SENT):
                queue.acked_without_offset.add(event.id)
            return None
        return self._locate(queue, event, event.id, delivered=False) or _committed_past(queue.groups, event)

    def failed(self, event: SendFailed) -> Violation | None:
        sender = self._state.sent.get(event.topic, _NOTHING_SENT).pop(event.id, None)
        if self._state.delayed.get(event.topic, _NOTHING).pop(event.id, None) is not None:
            return None
        if sender is None:
            return self._failed_but_stored(event)
        index, *_ = sender.in_flight.pop(event.id)
        sender.frozen = (index + 1, sender.next_index)
        if event.key and sender.stored and sender.stored[-1][0] > index:
            return violation(
                "B7",
                event,
                f"the send of {event.id} failed, but a message of key {event.key!r} that was sent after it "
                f"is stored at offset {sender.stored[-1][1]}",
            )
        return None

    def _failed_but_stored(self, event: SendFailed) -> Violation | None:
        for (topic, *_), queue in self._state.queues.items():
            if topic == event.topic and event.id in queue.offsets:
                offset = queue.offsets[event.id]
                return violation("S2", event, f"the send of {event.id} failed, but it is stored at offset {offset}")
        return None

    def stored(self, event: LogRecord) -> Violation | None:
        queue = self._state.queue(event)
        if queue.log_offsets is None:
            queue.log_offsets = set()
        if event.offset >= queue.forgotten:
            queue.log_offsets.add(event.offset)
        return self._locate(queue, event, event.id, delivered=True)

    def delivered(self, event: Turn, queue: QueueContents) -> Violation | None:
        """Called by `DeliveryRules` with every turn that names its message."""
        open_ids = self._state.sent.get(event.topic)
        if (
            not (self._foreign or event.copy)
            and open_ids is not None
            and event.offset >= queue.forgotten
            and event.id not in queue.offsets
            and event.id not in open_ids
            and event.id not in self._state.delayed.get(event.topic, _NOTHING)
        ):
            return violation("S2", event, f"{event.id} was delivered, but {NEVER_SENT}, or every send of it failed")
        return self._locate(queue, event, event.id, delivered=True)

    def trimmed(self, event: Trimmed) -> None:
        """Messages that retention deleted are not lost: groups that had not read them may commit past them."""
        queue = self._state.queue(event)
        queue.trimmed = max(queue.trimmed, event.offset)

    def _locate(self, queue: QueueContents, event: Sighting, id: str, *, delivered: bool) -> Violation | None:
        if self._state.deleted and id in self._state.deleted.get(event.topic, ()):
            return None
        offset = event.offset
        there = queue.stored.get(offset)
        if there is not None and there.id == id:
            there.delivered |= delivered
            return _other_key(there.key, event, id) if event.key != there.key else None
        if there is not None:
            return _conflict(there, event, id, delivered)
        sender = self._state.sent.get(event.topic, _NOTHING_SENT).pop(id, None)
        key = self._sent_key(event, id) if sender is None else sender.name[2]
        if sender is None and offset < queue.forgotten:
            return None
        known = queue.offsets.get(id)
        _, sent_t, tag = sender.in_flight[id] if sender is not None else _UNKNOWN_SEND
        queue.stored[offset] = StoredMessage(id, key, sender, delivered, sent_t, tag)
        if known is not None:
            return self._repeated(event, id, known)
        queue.offsets[id] = offset
        breach = self._in_line(sender, queue, event, id) if sender is not None else None
        return breach or (_other_key(key, event, id) if event.key != key else None)

    def _sent_key(self, event: Sighting, id: str) -> str:
        """The key of a delayed message; of one whose send is not known, the key that it is first seen with."""
        return self._state.delayed.get(event.topic, _NOTHING).pop(id, event.key) if self._state.delayed else event.key

    def _repeated(self, event: Sighting, id: str, known: int) -> Violation | None:
        """A topic without sends is filled by the broker with what members sent back, which may be twice."""
        self._state.count("log_duplicates")
        if not self._idempotent or event.topic not in self._state.sent:
            return None
        return violation("B6", event, f"{id} is in the log twice: at offset {known} and at {event.offset}")

    def _in_line(self, sender: Sender, queue: QueueContents, event: Sighting, id: str) -> Violation | None:
        index, sent_t, _ = sender.in_flight.pop(id)
        if not sender.name[2]:
            return None
        known, offset = sender.stored, event.offset
        at = bisect_left(known, (index, 0))
        before = known[at - 1] if at else None
        after = known[at] if at < len(known) else None
        known.insert(at, (index, offset))
        if len(known) > _KEPT_OFFSETS:
            _shorten(sender)
        if sender.queue not in (None, (event.broker, event.queue)):
            return _wrong_queue(sender, event, id)
        sender.queue = (event.broker, event.queue)
        if (
            (before is not None and before[1] >= offset)
            or (after is not None and after[1] <= offset)
            or (offset < queue.forgotten and sent_t > queue.forgotten_t)
        ):
            return _inverted(event, id, before, after)
        if sender.frozen[0] <= index < sender.frozen[1]:
            return violation(
                "B7",
                event,
                f"{id} is stored at offset {offset}, but it was sent after a message of its key that failed",
            )
        return None


def _other_key(key: str, event: Sighting, id: str) -> Violation | None:
    """Groups without order record no keys."""
    if not event.key:
        return None
    return violation("S5", event, f"{id} was sent with key {key!r}, and appears with key {event.key!r}")


def _shorten(sender: Sender) -> None:
    """Keeps the offsets that an open send can still be compared with."""
    oldest = next(iter(sender.in_flight.values()))[0] if sender.in_flight else sender.next_index
    at = bisect_left(sender.stored, (oldest, 0))
    if at > 1:
        del sender.stored[: at - 1]


def _conflict(there: StoredMessage, event: Sighting, id: str, delivered: bool) -> Violation:
    if there.delivered != delivered:
        return violation(
            "S4",
            event,
            f"offset {event.offset} was acknowledged for one message and holds another: {there.id}, {id}",
        )
    return violation("S3", event, f"offset {event.offset} holds two messages: first {there.id}, now {id}")


def _wrong_queue(sender: Sender, event: Sighting, id: str) -> Violation:
    return violation(
        "B1",
        event,
        f"key {event.key!r} was stored in queue {_text(sender.queue)} before, and {id} in queue "
        f"{_text((event.broker, event.queue))}",
    )


def _text(queue: tuple[str, int] | None) -> str:
    return "?" if queue is None else queue_text(*queue)


def _inverted(event: Sighting, id: str, before: tuple[int, int] | None, after: tuple[int, int] | None) -> Violation:
    if before is not None and before[1] >= event.offset:
        what = f"after the message stored at {before[1]}"
    elif after is not None and after[1] <= event.offset:
        what = f"before the message stored at {after[1]}"
    else:
        what = "after everything up to a higher offset was already committed"
    return violation("B1", event, f"{id} was sent {what}, but is stored at offset {event.offset}")


def _committed_past(groups: list[GroupProgress], event: Acked) -> Violation | None:
    for group in groups:
        if group.unconfirmed is not None and event.offset in group.unconfirmed.unknown:
            group.unconfirmed.unknown.discard(event.offset)
            if group.leaves_out(event.offset):
                continue
            group.unconfirmed.acked[event.offset] = event.id
            group.account.undecided += 1
        if event.offset in group.passed_unknown:
            group.passed_unknown.discard(event.offset)
            if group.leaves_out(event.offset):
                continue
            if not group.may_be_done_unrecorded(event.offset):
                return lost(event, group, event.offset, event.id)
            group.account.undecided += 1
    return None


def lost(event: HistoryEvent, group: GroupProgress, offset: int, id: str) -> Violation:
    """The violation for an acknowledged message that a group committed past without running it."""
    return violation(
        "S1",
        event,
        f"{id} at offset {offset} is acknowledged, group {group.group!r} committed past it, "
        f"and no handler of the group saw it",
    )
