"""`lanemq key` and `lanemq why`: where the messages of a key are, and what it waits for.

`key` shows the figures, `why` one sentence per group. Both answer within a tenth of a second: they read only the key's
own queue, and wait at most 50 ms for the queue's owner. Through an Apache broker they wait half a second for a member.
"""

import shlex
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from lanemq.cli.commands.group import existing_group
from lanemq.cli.commands.parked import lane_document
from lanemq.cli.options import CliError, asks_server
from lanemq.cli.output import PREVIEW_BYTES, Grid, body_for_json, duration_text, plural, printable, short_text, show
from lanemq.cli.security import ConnectingCommand
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.key_progress import KeyFacts, KeyProgress, key_facts
from lanemq.client.admin.topic_reader import MAX_FOUND
from lanemq.client.admin.views import LaneStateView, NoAnswer
from lanemq.client.message import Message, body_start
from lanemq.core.consuming.runs import Order
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import Undecodable
from lanemq.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import to_millis

ONLY_GROUPS = (
    "this command sees groups only: lanemq pipeline parked list --held CHECKPOINT lists the keys that a pipeline holds"
)

F = TypeVar("F", bound=Callable[..., Any])


def _selects_key(command: F) -> F:
    topic = click.option("--topic", help="Topic to search; by default the only topic with messages of the key.")
    group = click.option("--group", help="Only this group; by default every group that reads the topic.")
    decorated: F = click.argument("key")(topic(group(command)))
    return decorated


@click.command(cls=ConnectingCommand)
@_selects_key
@asks_server
def key(key: str, topic: str | None, group: str | None, server: str, as_json: bool) -> None:
    """Show the messages of KEY, and each group's progress with it.

    The last lines say what the key waits for; `lanemq why` prints only that.
    """
    _show(_facts(key, topic, group, server), as_json)


@click.command(cls=ConnectingCommand)
@_selects_key
@asks_server
def why(key: str, topic: str | None, group: str | None, server: str, as_json: bool) -> None:
    """Say in one sentence what KEY waits for, for each group."""
    facts = _facts(key, topic, group, server)
    where = f"key {key}, queue {facts.queue.queue_id} of {facts.queue.topic}"
    show(
        as_json,
        lambda: {each.group: group_document(each) for each in facts.groups},
        *(
            line
            for each in facts.groups
            for line in (printable(f"{where}, group {each.group}: {each.sentence}"), *_redrive(each))
        ),
        *([] if facts.groups else [printable(f"{where}: no group reads this topic"), ONLY_GROUPS]),
        *([facts.not_searched] if facts.not_searched else []),
    )


def _facts(key: str, topic: str | None, group: str | None, server: str) -> KeyFacts:
    topic = topic or _topic_of(key, server)
    facts = key_facts(key, topic, group, server)
    if group and not facts.groups:
        with Admin(server) as admin:
            existing_group(admin, group)
        raise CliError(
            f"group {group!r} has no offset in queue {facts.queue.queue_id} of {topic}; see lanemq group list"
        )
    return facts


def _topic_of(key: str, server: str) -> str:
    with Admin(server) as admin:
        # Dead letters keep their key: it is in the topic that they were sent to as well.
        own = [topic for topic in admin.topics() if not topic.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX))]
        topics = [topic for topic in own if admin.find_key(topic, key, limit=1)]
        if not topics and not all(broker.lane for broker in admin.figures()):
            raise CliError(f"an Apache broker does not index keys: name the topic of {key!r} with --topic TOPIC")
    if not topics:
        raise CliError(f"no topic has messages of key {key!r}; --topic TOPIC shows the queue that they would go to")
    if len(topics) > 1:
        raise CliError(f"several topics have messages of key {key!r}: choose one with --topic ({', '.join(topics)})")
    return topics[0]


def _show(facts: KeyFacts, as_json: bool) -> None:
    key, queue, hashed = facts.key, facts.queue, facts.hashed
    messages, groups = facts.messages, facts.groups
    count = f"the newest {MAX_FOUND} messages" if len(messages) == MAX_FOUND else plural(len(messages), "message")
    show(
        as_json,
        lambda: {
            "key": key,
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "queue_by_hash": hashed.queue_id,
            "messages": list(map(_message_document, messages)),
            "groups": list(map(group_document, groups)),
        },
        f"key {key}: queue {queue.queue_id} of {queue.topic} on {queue.broker}, {count}",
        *([facts.not_searched] if facts.not_searched else []),
        *_other_queues({message.queue for message in messages} - {hashed}, hashed),
        Grid(("queue", "offset", "stored", "tag", "value"), list(map(_message_row, messages)), "no messages found"),
        _group_grid(groups),
        *(line for each in groups for line in (printable(f"group {each.group} {each.sentence}"), *_redrive(each))),
    )


def _redrive(each: KeyProgress) -> list[str]:
    """The command that processes a parked key again, to be copied into a shell; for a body that cannot be decoded also
    the one that drops it, unless it is dropped already: the messages after it have not been tried."""
    lane = each.parked
    if lane is None or lane.status is not LaneStatus.PARKED:
        return []
    where = ["--group", lane.group, "--topic", lane.queue.topic, *_given_server()]
    if lane.key is None:
        where = ["--keyless", *where]
    else:  # a key that looks like an option comes last
        where = [*where, "--", lane.key] if lane.key.startswith("-") else [lane.key, *where]
    words = shlex.join(where)
    lines = [f"  once the cause is fixed: lanemq parked redrive {words}"]
    if lane.attempts and Undecodable.__name__ in lane.reason:
        lines.append(
            f"  if the body will never fit, drop that message first: lanemq parked discard --messages 1 {words}"
        )
    return list(map(printable, lines))


def _given_server() -> list[str]:
    """`--server` as it was given on the command line; otherwise the next command finds the same server by itself."""
    context = click.get_current_context()
    is_given = context.get_parameter_source("server") is ParameterSource.COMMANDLINE
    return ["--server", str(context.params["server"])] if is_given else []


def _other_queues(others: Iterable[MessageQueue], hashed: MessageQueue) -> list[str]:
    numbers = ", ".join(str(queue.queue_id) for queue in sorted(others))
    if not numbers:
        return []
    return [
        f"note: the key's hash selects queue {hashed.queue_id}, but messages are in {numbers}: the producer chose the "
        f"queue itself, or the number of queues was changed"
    ]


def _message_row(message: Message) -> tuple[object, ...]:
    value = body_start(message, PREVIEW_BYTES).decode("utf-8", "backslashreplace")
    return message.queue.queue_id, message.queue_offset, message.stored_at, message.tag, short_text(value)


_GROUP_COLUMNS = ("group", "offset", "done", "pending", "held", "parked", "dead", "owner", "epoch", "lease left")
_LANE_COLUMNS = ("head", "failed", "next retry", "blocked for")
"""Shown only if an owner reported the lane, so that the table fits a terminal."""


def _group_grid(groups: list[KeyProgress]) -> Grid:
    columns: tuple[str, ...] = _GROUP_COLUMNS
    if any(isinstance(each.lane, LaneStateView) for each in groups):
        columns += _LANE_COLUMNS
    return Grid(columns, [_group_row(each)[: len(columns)] for each in groups], "no group reads this topic")


def _group_row(each: KeyProgress) -> tuple[object, ...]:
    at, lease = each.progress.at, duration_text(each.progress.lease_ms)
    held, parked = _set_aside(each)
    counts = each.done, len(each.pending), held + len(each.retries), parked, len(each.dead)
    left = each.group, at.offset, *counts, at.owner, at.epoch, lease
    if not isinstance(lane := each.lane, LaneStateView):
        return *left, None, None, None, None
    retry, blocked = duration_text(_millis(lane.retry_in)), duration_text(_millis(lane.blocked_for))
    return *left, lane.head, lane.attempts, retry, blocked


def _set_aside(each: KeyProgress) -> tuple[int, int]:
    """The messages of the key that wait for a retry, and those that are parked."""
    if each.parked is not None:
        is_parked = each.parked.status is LaneStatus.PARKED
        return (0, each.parked.messages) if is_parked else (each.parked.messages, 0)
    state = each.lane.state if isinstance(each.lane, LaneStateView) else ""
    count = len(each.pending)
    if isinstance(each.lane, LaneStateView) and each.lane.order == Order.KEY.value:
        count = max(count, each.lane.waiting)  # the search may have found fewer
    return (count if state in ("held", "queue held") else 0), (count if state == "parked" else 0)


def _millis(span: float | None) -> int | None:
    return None if span is None else to_millis(span)


def _message_document(message: Message) -> dict[str, object]:
    return {
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "stored_at": message.stored_at,
        "tag": message.tag,
        "message_id": message.message_id,
        "value": body_for_json(message.body),
    }


def group_document(each: KeyProgress) -> dict[str, object]:
    """One group as JSON."""
    return {
        "group": each.group,
        "members": each.members,
        **each.progress.document(),
        "done": each.done,
        "pending": each.pending,
        "parked": None if each.parked is None else lane_document(each.parked),
        "dead": sorted(each.dead),
        "retries": {
            str(offset): {"attempts": retry.attempts, "due": retry.due}
            for offset, retry in sorted(each.retries.items())
        },
        "lane": _lane_document(each.lane),
        "waits_for": each.waits_for,
    }


def _lane_document(lane: LaneStateView | NoAnswer | None) -> dict[str, object] | None:
    """The owner's view of the lane; durations in ms."""
    if lane is None:
        return None
    if isinstance(lane, NoAnswer):
        return {"unknown": lane.why, "silent": lane.silent}
    return {
        "state": lane.state,
        "head": lane.head,
        "attempts": lane.attempts,
        "next_retry_ms": _millis(lane.retry_in),
        "running_ms": _millis(lane.running_for),
        "blocked_ms": _millis(lane.blocked_for),
        "last_error": lane.reason or None,
        "waiting": lane.waiting,
        "first_unfinished": lane.committable,
        "fetched_to": lane.next_offset,
    }
