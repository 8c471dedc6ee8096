"""A reset that a person has seen before it is done: it does what was shown, or nothing.

Between the preview and the confirmation the group may process messages, messages may arrive, and retention may delete
some. The group is moved to the offsets that were shown, whatever "last" or "ten minutes ago" would be now. Nothing is
moved if that would skip messages that were not announced, or repeat some in a queue where none were.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.group_offsets import Position
from lanemq.client.admin.views import AtOffset, OffsetChange
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.model.wording import plural


@dataclass(frozen=True, slots=True)
class ShownChange:
    """What a preview showed about one queue."""

    queue: MessageQueue
    after: QueueOffset
    repeats: int
    skips: int
    goes_back: bool
    """Whether the new offset is below the committed one."""


def shown_changes(plan: Iterable[OffsetChange]) -> tuple[ShownChange, ...]:
    return tuple(
        ShownChange(
            each.queue, each.after, each.repeats, each.skips, each.before is not None and each.after < each.before
        )
        for each in plan
    )


def reset_as_shown(
    admin: Admin,
    group: str,
    topic: str,
    shown: Sequence[ShownChange],
    *,
    to: Position,
    queues: Collection[int | MessageQueue] | None = None,
) -> tuple[tuple[OffsetChange, ...], str]:
    """Moves a group to the offsets of a preview, which `reset_offsets(..., dry_run=True)` has returned for `to`.

    Returns what was done, and an empty text; or what would be done now, and why it is not what was shown.
    """
    now = admin.reset_offsets(group, topic, to=to, queues=queues, dry_run=True)
    if {each.queue for each in now} != {each.queue for each in shown}:
        return now, f"topic {topic} has other queues than the preview showed"
    if {(each.queue, each.after) for each in now} == {(each.queue, each.after) for each in shown}:
        why = difference(shown, now)
        # An older Apache broker moves a group that is online only as a whole, to a position that has a time.
        return (now, why) if why else (admin.reset_offsets(group, topic, to=to, queues=queues), "")
    why = difference(shown, [_move(admin, group, each, dry_run=True) for each in shown])
    return (now, why) if why else (tuple(_move(admin, group, each, dry_run=False) for each in shown), "")


def _move(admin: Admin, group: str, shown: ShownChange, *, dry_run: bool) -> OffsetChange:
    to, queue = AtOffset(shown.after), shown.queue
    (change,) = admin.reset_offsets(group, queue.topic, to=to, queues=[queue], dry_run=dry_run)
    return change


def difference(shown: Iterable[ShownChange], now: Iterable[OffsetChange]) -> str:
    """Why a reset of the same queues would do more than was shown; empty if it would not.

    A queue that goes back may repeat more than was shown: what the group has finished since then.
    """
    before = {each.queue: each for each in shown}
    for each in now:
        then, name = before[each.queue], f"queue {each.queue.queue_id} on {each.queue.broker}"
        if each.after != then.after:
            return f"{name} has no offset {then.after} any more; the nearest that it has is {each.after}"
        if each.skips > then.skips:
            return f"{name} would skip {plural(each.skips, 'message')} now, and the preview showed {then.skips}"
        if each.repeats > then.repeats and not then.goes_back:
            return f"{name} would repeat {plural(each.repeats, 'message')} now, and the preview showed {then.repeats}"
    return ""
