"""`lanemq key`: where a key's messages are, who holds its queue, and what it waits for.

The question behind every call at night: "why is order 4711 not moving?" Here are the figures; `lanemq why` gives the
sentence alone.
"""

from collections.abc import Iterable

import click

from lanemq.cli.commands.locks import seconds
from lanemq.cli.key_facts import KeyFacts, facts_of
from lanemq.cli.lane_reason import GroupOfKey, span
from lanemq.cli.options import asks_server
from lanemq.cli.output import Grid, body_for_json, plural, show
from lanemq.cli.parked_views import lane_document
from lanemq.cli.reading import FOUND_MOST
from lanemq.client.admin.views import NoAnswer
from lanemq.client.message import Message
from lanemq.model.queue import MessageQueue
from lanemq.wire.lane_bodies import LaneStateAnswer

SHOWN_CHARS = 60


@click.command()
@click.argument("key")
@click.option("--topic", help="Where to look; without it, in the one topic that has messages of the key.")
@click.option("--group", help="Only this group; without it, every group that reads the topic.")
@asks_server
def key(key: str, topic: str | None, group: str | None, server: str, as_json: bool) -> None:
    """Show where the messages of KEY are, who holds its queue, and what it waits for."""
    _show(facts_of(key, topic, group, server), as_json)


def _show(facts: KeyFacts, as_json: bool) -> None:
    key, queue, hashed = facts.key, facts.queue, facts.hashed
    messages, groups = facts.messages, facts.groups
    count = f"the newest {FOUND_MOST} messages" if len(messages) == FOUND_MOST else plural(len(messages), "message")
    odd = {message.queue for message in messages} - {hashed}
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
        *(_odd_queues(odd, hashed)),
        Grid(("queue", "offset", "stored", "tag", "value"), list(map(_message_row, messages)), "no messages found"),
        Grid(_GROUP_COLUMNS, list(map(_group_row, groups)), "no group reads this topic"),
    )


def _odd_queues(odd: Iterable[MessageQueue], hashed: MessageQueue) -> list[str]:
    numbers = ", ".join(str(queue.queue_id) for queue in sorted(odd))
    if not numbers:
        return []
    return [
        f"note: by its hash the key belongs to queue {hashed.queue_id}, but messages are in {numbers}: they were sent "
        f"with a selector or as a number, or the queue count was changed"
    ]


def _message_row(message: Message) -> tuple[object, ...]:
    value = message.body[: SHOWN_CHARS * 4].decode("utf-8", "backslashreplace")
    short = value if len(value) <= SHOWN_CHARS else value[: SHOWN_CHARS - 1] + "…"
    return message.queue.queue_id, message.queue_offset, message.stored_at, message.tag, short


_GROUP_COLUMNS = (
    *("group", "offset", "done", "pending", "owner", "epoch", "lease left"),
    *("head", "failed", "next try", "blocked for", "waits for"),
)


def _group_row(each: GroupOfKey) -> tuple[object, ...]:
    at = each.progress.at
    lease = seconds(each.progress.lease_ms)
    left = each.group, at.offset, each.done, len(each.pending), at.owner, at.epoch, lease
    if not isinstance(lane := each.lane, LaneStateAnswer):
        return *left, None, None, None, None, each.waits_for
    return *left, _known(lane.head), lane.attempts, _span(lane.retry_in), _span(lane.blocked_for), each.waits_for


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _span(millis: int) -> str | None:
    return span(millis) if millis >= 0 else None


def _message_document(message: Message) -> dict[str, object]:
    return {
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "stored_at": message.stored_at,
        "tag": message.tag,
        "message_id": message.message_id,
        "value": body_for_json(message.body),
    }


def group_document(each: GroupOfKey) -> dict[str, object]:
    """One group, for programs."""
    return {
        "group": each.group,
        "members": each.members,
        **each.progress.document(),
        "done": each.done,
        "pending": each.pending,
        "parked": None if each.parked is None else lane_document(each.parked),
        "lane": _lane_document(each.lane),
        "waits_for": each.waits_for,
    }


def _lane_document(lane: LaneStateAnswer | NoAnswer | None) -> dict[str, object] | None:
    """What the owner says; times in ms."""
    if lane is None:
        return None
    if isinstance(lane, NoAnswer):
        return {"unknown": lane.why, "silent": lane.silent}
    return {
        "state": lane.state,
        "head": _known(lane.head),
        "attempts": lane.attempts,
        "next_retry_ms": _known(lane.retry_in),
        "running_ms": _known(lane.running_for),
        "blocked_ms": _known(lane.blocked_for),
        "last_error": lane.reason or None,
        "waiting": lane.waiting,
        "first_unfinished": lane.committable,
        "fetched_to": lane.next_offset,
    }
