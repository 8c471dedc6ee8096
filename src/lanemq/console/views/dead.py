"""Dead letters: the list over all groups, one of them, and what a redrive or a discard will do."""

from collections.abc import Sequence
from dataclasses import dataclass

from lanemq.client.admin.dead_letters import GroupDeadLetter, last_of_each_queue
from lanemq.console.snapshot import GroupDeadLetters, Snapshot


@dataclass(frozen=True, slots=True)
class DeadLettersView:
    """The list, oldest first in each group."""

    group: str
    """The only group that is shown; empty for all."""
    key: str
    rows: Sequence[GroupDeadLetter]
    total: int
    """All that are kept and not discarded, of the groups that are shown."""
    groups: tuple[GroupDeadLetters, ...]
    """All groups that have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadChange:
    """What a redrive or a discard will do, exactly: it concerns the rows and nothing that arrives later."""

    group: str
    rows: Sequence[GroupDeadLetter]
    through: tuple[str, ...]
    """The id of the last row of each queue."""
    unused: int
    """Rows that were never redriven."""
    topics: tuple[str, ...]
    readers: tuple[str, ...]
    """Other groups that will get the copies of a redrive."""
    gone: tuple[str, ...]
    """Those of the topics that do not exist any more."""


def dead_letters_view(now: Snapshot, group: str, key: str, found: Sequence[GroupDeadLetter]) -> DeadLettersView:
    groups = tuple(each for each in now.dead if each.messages)
    return DeadLettersView(
        group,
        key,
        found,
        sum(each.messages for each in groups if group in ("", each.group)),
        groups,
    )


def dead_change(now: Snapshot, group: str, found: Sequence[GroupDeadLetter]) -> DeadChange:
    topics = tuple(sorted({letter.topic for letter in found}))
    last = last_of_each_queue(found)
    return DeadChange(
        group=group,
        rows=found,
        through=tuple(f"{queue.broker}/{queue.queue_id}/{offset}" for queue, offset in last.items()),
        unused=sum(not letter.redriven for letter in found),
        topics=topics,
        readers=tuple(each.name for each in now.groups if each.name != group and set(each.topics) & set(topics)),
        gone=() if now.error else tuple(sorted(set(topics) - {each.topic for each in now.topics})),
    )
