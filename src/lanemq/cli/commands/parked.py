"""`lanemq parked`: lists, shows, redrives and discards lanes whose retries are used up.

A discard names the last offset that was shown, so a message that joined the lane since then stays in it.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

import click

from lanemq.cli.commands.group import existing_group
from lanemq.cli.options import YES, CliError, InOrder, WrongUsage, asks_server, confirm
from lanemq.cli.output import PREVIEW_BYTES, Grid, Part, body_for_json, plural, printable, progress, short_text, show
from lanemq.client.admin.parked import ANY_KEY, AnyKey, ParkedAdmin, ParkedLaneView
from lanemq.client.admin.watching import HeldLaneView, UnknownMember, WatchAdmin
from lanemq.client.message import Message, body_start
from lanemq.clock import SystemClock, wall_time
from lanemq.model.errors import OffsetNotFound
from lanemq.model.units import QueueOffset, to_millis
from lanemq.wire.properties import PropertyName

PREVIEW_MESSAGES = 5
"""Messages of each lane that `--dry-run` and the question before a discard show."""

MAX_NAMED = 3
"""Members that a sentence names."""
IN_MEMBER = "in member"
ONLY_THERE = (
    "no command can redrive or discard what a member has in its memory. App.resume in the member runs it again, and so "
    "does a restart of the member"
)
STARTS = "the queue's owner starts within a second, or as soon as there is one"

_Affected: TypeAlias = tuple[ParkedLaneView, int, list[Message]]
"""A lane, how many of its messages are concerned, and the first of them."""

GROUP = click.option("--group", required=True, help="Group that the lanes belong to.")
TOPIC = click.option("--topic", help="Only lanes of this topic.")
ALL = click.option("--all", "every", is_flag=True, help="All parked lanes of the group (and topic) instead of KEY.")
KEYLESS = click.option("--keyless", is_flag=True, help="The lane of messages without a key instead of KEY.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@click.group(cls=InOrder)
def parked() -> None:
    """List, show, redrive and discard parked lanes.

    A lane is parked when its retries are used up. Its messages wait at the broker, in order, and newer messages of the
    key wait behind them. A lane in status "held" has retries left and many messages: its owner continues by itself.
    """


@parked.command("list")
@click.option("--group", help="Only lanes of this group.")
@TOPIC
@asks_server
def list_lanes(group: str | None, topic: str | None, server: str, as_json: bool) -> None:
    """List parked lanes, at brokers and in the memory of members.

    For each lane: number of messages, time of parking, and reason. Members that do not answer are named.
    """
    with ParkedAdmin(server) as admin:
        lanes = admin.lanes(group, topic)
    with WatchAdmin(server) as watching:
        here = watching.parked_in_members(group, topic)
        if group and not (lanes or here.lanes):
            existing_group(watching, group)
    grid = _lane_grid(lanes, _none_parked(group, topic, unknown=here.unknown))
    show(
        as_json,
        lambda: [*map(lane_document, lanes), *map(_member_document, here.lanes)],
        replace(grid, rows=[*grid.rows, *map(_member_row, here.lanes)]),
        *([ONLY_THERE] if here.lanes else []),
        *(
            printable(f"group {each.group}: not known which lanes {each.owner} has: {each.why}")
            for each in here.unknown
        ),
    )


@parked.command("show")
@click.argument("key", required=False)
@GROUP
@TOPIC
@KEYLESS
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Show at most this many."
)
@asks_server
def show_lane(
    key: str | None, group: str, topic: str | None, keyless: bool, limit: int, server: str, as_json: bool
) -> None:
    """Show the parked messages of KEY, in order.

    A redrive processes them in this order.
    """
    with ParkedAdmin(server) as admin:
        (lane,) = _chosen(admin, server, group, topic, _wanted_key(key, keyless, every=None))
        messages = admin.messages(lane, limit)
    show(
        as_json,
        lambda: {**lane_document(lane), "parked": list(map(_message_document, messages))},
        _sentence(lane),
        _failure(lane),
        _message_grid(messages, whole=True),
        *([f"and {lane.messages - len(messages)} more; see --limit"] if lane.messages > len(messages) else []),
    )


@parked.command()
@click.argument("key", required=False)
@GROUP
@TOPIC
@ALL
@KEYLESS
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Lanes per second; no limit by default."
)
@DRY_RUN
@asks_server
def redrive(
    key: str | None,
    group: str,
    topic: str | None,
    every: bool,
    keyless: bool,
    rate: float | None,
    dry_run: bool,
    server: str,
    as_json: bool,
) -> None:
    """Process the parked messages of KEY again.

    They are processed in order, one at a time, before newer messages of the key.
    """
    with ParkedAdmin(server) as admin:
        lanes = _chosen(admin, server, group, topic, _wanted_key(key, keyless, every))
        if dry_run:
            _preview(admin, lanes, None, "would be redriven", as_json)
            return
        begun = []
        for number, lane in enumerate(progress(lanes, "redriving")):
            if rate and number:
                time.sleep(1 / rate)
            if _redriven(admin, lane):
                begun.append(lane)
    show(
        as_json,
        lambda: {"dry_run": False, "redriven": list(map(lane_document, begun))},
        _lane_grid(begun, "nothing to do: these lanes are already being redriven, or retried by their owner"),
        *([f"{plural(len(begun), 'lane')} redriven: {STARTS}"] if begun else []),
    )


@parked.command()
@click.argument("key", required=False)
@GROUP
@TOPIC
@ALL
@KEYLESS
@click.option(
    "--messages", "how_many", required=True, metavar="N|all", help="Discard the first N messages of each lane, or all."
)
@DRY_RUN
@YES
@asks_server
def discard(
    key: str | None,
    group: str,
    topic: str | None,
    every: bool,
    keyless: bool,
    how_many: str,
    dry_run: bool,
    yes: bool,
    server: str,
    as_json: bool,
) -> None:
    """Discard the first parked messages of KEY.

    The messages after them stay parked until you redrive them.
    """
    limit = _count(how_many)
    with ParkedAdmin(server) as admin:
        lanes = _chosen(admin, server, group, topic, _wanted_key(key, keyless, every))
        if dry_run:
            _preview(admin, lanes, limit, "would be discarded", as_json)
            return
        upto = [(lane, _through(admin, lane, limit)) for lane in lanes]
        count = sum(_affected(lane, limit) for lane in lanes)
        them = "it" if count == 1 else "them"
        what = f"{plural(count, 'message')} will be discarded: the group can never process {them}"
        confirm(yes, what, *([] if yes else _preview_parts(_first_messages(admin, lanes, limit), "will be discarded")))
        gone = [(lane, admin.discard(lane, through)) for lane, through in upto]
        any_left = any(count < lane.messages for lane, count in gone)
    show(
        as_json,
        lambda: {"dry_run": False, "discarded": [{**lane_document(lane), "discarded": count} for lane, count in gone]},
        f"{plural(sum(count for _, count in gone), 'message')} of {plural(len(gone), 'lane')} discarded",
        *(["the messages after them stay parked; lanemq parked redrive processes them"] if any_left else []),
    )


def _wanted_key(key: str | None, keyless: bool, every: bool | None) -> str | AnyKey | None:
    """The selected key; `every` is None if the command has no `--all`."""
    if (key is not None) + keyless + bool(every) != 1:
        raise WrongUsage("give either KEY or --keyless" + ("" if every is None else " or --all"))
    return ANY_KEY if every else key


def _chosen(
    admin: ParkedAdmin, server: str, group: str, topic: str | None, key: str | AnyKey | None
) -> list[ParkedLaneView]:
    lanes = admin.lanes(group, topic, key)
    if not lanes:
        raise CliError(_why_none(server, group, topic, key))
    if not isinstance(key, AnyKey) and len(lanes) > 1:
        topics = ", ".join(sorted({lane.queue.topic for lane in lanes}))
        raise CliError(f"key {key!r} is parked more than once: choose a topic with --topic ({topics}), or use --all")
    return lanes


def _why_none(server: str, group: str, topic: str | None, key: str | AnyKey | None) -> str:
    """Why a broker has no such lane: it may be parked in the memory of a member."""
    with WatchAdmin(server) as watching:
        here = watching.parked_in_members(group, topic)
    lanes = [each for each in here.lanes if isinstance(key, AnyKey) or each.key == key]
    if not lanes:
        return f"{_none_parked(group, topic, key, here.unknown)}; see lanemq parked list"
    owners = ", ".join(sorted({each.owner for each in lanes}))
    which = plural(len(lanes), "lane") if isinstance(key, AnyKey) else "the lane without a key" if key is None else key
    are = "are" if len(lanes) > 1 else "is"
    return f"{which} of group {group} {are} parked in the memory of {owners}, not at a broker: {ONLY_THERE}"


def _redriven(admin: ParkedAdmin, lane: ParkedLaneView) -> bool:
    try:
        return admin.redrive(lane)
    except OffsetNotFound:
        return False  # finished or discarded since it was listed


def _through(admin: ParkedAdmin, lane: ParkedLaneView, limit: int | None) -> QueueOffset:
    if limit is None or limit >= lane.messages:
        return lane.last
    return QueueOffset(admin.messages(lane, limit)[-1].queue_offset)


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not int(text):
        raise WrongUsage(f"--messages {text!r}: write a number >= 1, or all")
    return int(text)


def _preview(admin: ParkedAdmin, lanes: Sequence[ParkedLaneView], limit: int | None, what: str, as_json: bool) -> None:
    """Shows what a command would change: the first messages of each lane, in order."""
    found = _first_messages(admin, lanes, limit)
    show(
        as_json,
        lambda: {
            "dry_run": True,
            "lanes": [
                {**lane_document(lane), "affected": count, "first_messages": list(map(_message_document, messages))}
                for lane, count, messages in found
            ],
        },
        *_preview_parts(found, what),
        "nothing was changed (--dry-run)",
    )


def _first_messages(admin: ParkedAdmin, lanes: Sequence[ParkedLaneView], limit: int | None) -> list[_Affected]:
    counts = ((lane, _affected(lane, limit)) for lane in lanes)
    return [(lane, count, admin.messages(lane, min(count, PREVIEW_MESSAGES))) for lane, count in counts]


def _preview_parts(found: Sequence[_Affected], what: str) -> list[Part]:
    parts: list[Part] = []
    for lane, count, messages in found:
        more = f", the first {len(messages)} of them" if count > len(messages) else ""
        parts += [f"{_sentence(lane)}: {plural(count, 'message')} {what}{more}", _message_grid(messages)]
    return parts


def _affected(lane: ParkedLaneView, limit: int | None) -> int:
    return lane.messages if limit is None else min(limit, lane.messages)


def _none_parked(
    group: str | None,
    topic: str | None,
    key: str | AnyKey | None = ANY_KEY,
    unknown: Sequence[UnknownMember] = (),
) -> str:
    what = (
        "no lane" if isinstance(key, AnyKey) else "no lane without a key" if key is None else f"no lane of key {key!r}"
    )
    text = f"{what}{f' of group {group}' if group else ''}{f' in topic {topic}' if topic else ''} is parked"
    if not unknown:
        return text
    owners = ", ".join(f"{each.owner} ({each.why})" for each in unknown[:MAX_NAMED])
    return f"{text} at a broker; not known: the lanes in the memory of {owners}"


def _sentence(lane: ParkedLaneView) -> str:
    queue = lane.queue
    name = "without a key" if lane.key is None else f"of key {lane.key}"
    return f"lane {name}, queue {queue.queue_id} of {queue.topic}, group {lane.group}: {lane.status.value}"


def _failure(lane: ParkedLaneView) -> str:
    tried = f"after {plural(lane.attempts, 'attempt')}" if lane.attempts else "not tried yet"
    return printable(f"{tried}: {lane.reason}")


def _lane_grid(lanes: Sequence[ParkedLaneView], empty: str) -> Grid:
    columns = ("group", "topic", "queue", "key", "status", "messages", "first offset", "attempts", "since", "reason")
    rows = [
        (
            lane.group,
            lane.queue.topic,
            lane.queue.queue_id,
            lane.key,
            lane.status.value,
            lane.messages,
            lane.first,
            lane.attempts,
            lane.parked_since,
            lane.reason,
        )
        for lane in lanes
    ]
    return Grid(columns, rows, empty)


def _member_row(lane: HeldLaneView) -> tuple[object, ...]:
    queue, state = lane.queue, lane.state
    key = None if lane.is_whole_queue else lane.key
    where = f"{IN_MEMBER} {lane.owner}"
    return (
        lane.group, queue.topic, queue.queue_id, key, where, state.waiting, state.head, state.attempts, _since(lane),
        state.reason,
    )  # fmt: skip


def _since(lane: HeldLaneView) -> datetime | None:
    blocked = lane.state.blocked_for
    return None if blocked is None else wall_time(SystemClock().wall() - to_millis(blocked))


def _message_grid(messages: Sequence[Message], *, whole: bool = False) -> Grid:
    rows = [
        (
            each.queue_offset,
            each.stored_at,
            each.properties.get(PropertyName.TAGS),
            _text(each) if whole else short_text(_text(each)),
        )
        for each in messages
    ]
    return Grid(
        ("offset", "stored", "tag", "value"), rows, "no messages: they were redriven or discarded in the meantime"
    )


def _text(record: Message) -> str:
    return body_start(record, PREVIEW_BYTES).decode("utf-8", "backslashreplace")


def lane_document(lane: ParkedLaneView) -> dict[str, object]:
    """A parked lane as JSON."""
    return {
        "group": lane.group,
        "topic": lane.queue.topic,
        "broker": lane.queue.broker,
        "queue": lane.queue.queue_id,
        "key": lane.key,
        "status": lane.status.value,
        "messages": lane.messages,
        "first_offset": lane.first,
        "last_offset": lane.last,
        "attempts": lane.attempts,
        "since": lane.parked_since,
        "reason": lane.reason,
    }


def _member_document(lane: HeldLaneView) -> dict[str, object]:
    """A lane that is parked in the memory of a member as JSON, as far as the member reports it."""
    queue, state = lane.queue, lane.state
    return {
        "group": lane.group,
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.queue_id,
        "key": lane.key,
        "status": IN_MEMBER,
        "owner": lane.owner,
        "messages": state.waiting,
        "first_offset": state.head,
        "last_offset": None,
        "attempts": state.attempts,
        "since": _since(lane),
        "reason": state.reason,
    }


def _message_document(record: Message) -> dict[str, object]:
    properties = record.properties
    return {
        "offset": record.queue_offset,
        "stored_at": record.stored_at,
        "tag": properties.get(PropertyName.TAGS),
        "message_id": properties.get(PropertyName.UNIQUE_ID),
        "value": body_for_json(record.body),
    }
