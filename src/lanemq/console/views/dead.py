"""Dead letters: the list over all groups, one of them, and what a redrive or a discard will do."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lanemq.client.admin.dead_letters import GroupDeadLetter, last_of_each_queue
from lanemq.client.message import body_start
from lanemq.console.links import dead_letter_link, key_link
from lanemq.console.snapshot import GroupDeadLetters, Snapshot
from lanemq.console.views.messages import MessageView, message_view
from lanemq.console.views.steps import NO_REASON
from lanemq.console.wording import PREVIEW_BYTES, preview

DeadState = Literal["open", "redriven"]


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter in a list."""

    id: str
    group: str
    topic: str
    key: str | None
    state: DeadState
    attempts: int
    since: datetime
    reason: str
    text: str
    link: str
    key_link: str


@dataclass(frozen=True, slots=True)
class DeadLettersView:
    """The list, oldest first in each group."""

    group: str
    """The only group that is shown; empty for all."""
    key: str
    rows: tuple[DeadLetterRow, ...]
    total: int
    """All that are kept and not discarded, of the groups that are shown."""
    groups: tuple[GroupDeadLetters, ...]
    """All groups that have any."""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """One dead letter with its message."""

    row: DeadLetterRow
    message: MessageView


@dataclass(frozen=True, slots=True)
class DeadChange:
    """What a redrive or a discard will do, exactly: it concerns the rows and nothing that arrives later."""

    group: str
    rows: tuple[DeadLetterRow, ...]
    through: tuple[str, ...]
    """The id of the last row of each queue."""
    unused: int
    """Rows that were never redriven."""
    topics: tuple[str, ...]
    readers: tuple[str, ...]
    """Other groups that will get the copies of a redrive."""
    gone: tuple[str, ...]
    """Those of the topics that do not exist any more."""


def dead_row(letter: GroupDeadLetter, redriven: bool) -> DeadLetterRow:
    message = letter.message
    return DeadLetterRow(
        letter.id,
        letter.group,
        letter.topic,
        message.key,
        "redriven" if redriven else "open",
        letter.attempts,
        letter.since,
        letter.why or NO_REASON,
        preview(body_start(message, PREVIEW_BYTES)),
        dead_letter_link(letter.group, letter.id),
        key_link(letter.topic, message.key) if letter.topic else "",
    )


def dead_letters_view(
    now: Snapshot, group: str, key: str, found: Sequence[tuple[GroupDeadLetter, bool]]
) -> DeadLettersView:
    groups = tuple(each for each in now.dead if each.messages)
    return DeadLettersView(
        group,
        key,
        tuple(dead_row(letter, redriven) for letter, redriven in found),
        sum(each.messages for each in groups if group in ("", each.group)),
        groups,
    )


def dead_letter_view(letter: GroupDeadLetter, redriven: bool) -> DeadLetterView:
    return DeadLetterView(dead_row(letter, redriven), message_view(letter.message))


def dead_change(now: Snapshot, group: str, found: Collection[tuple[GroupDeadLetter, bool]]) -> DeadChange:
    letters = [letter for letter, _ in found]
    topics = tuple(sorted({letter.topic for letter in letters}))
    last = last_of_each_queue(letters)
    return DeadChange(
        group,
        tuple(dead_row(letter, redriven) for letter, redriven in found),
        tuple(f"{queue.broker}/{queue.queue_id}/{offset}" for queue, offset in last.items()),
        sum(not redriven for _, redriven in found),
        topics,
        tuple(each.name for each in now.groups if each.name != group and set(each.topics) & set(topics)),
        () if now.error else tuple(sorted(set(topics) - {each.topic for each in now.topics})),
    )
