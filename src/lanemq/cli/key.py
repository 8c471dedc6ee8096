"""`lanemq key`: where a key's messages are, who holds its queue, and what it waits for.

The question behind every call at night: "why is order 4711 not moving?" The answer needs the hash, the log, the
offsets and the locks, so it is put together here. What happens inside a member's memory (a retry, a parked lane)
no broker knows, and the answer does not pretend to.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import click

from lanemq.cli.lag import Progress, progress_of
from lanemq.cli.locks import seconds
from lanemq.cli.options import Failed, asks_server
from lanemq.cli.output import Grid, body_for_json, plural, show
from lanemq.cli.reading import FOUND_MOST, Reader
from lanemq.client.admin import Admin
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.sharding import pick_queue
from lanemq.model.queue import MessageQueue

SHOWN_CHARS = 60
OWN_TURN = "its own turn: it runs, is about to be tried again, or is held after a failure"


@dataclass(frozen=True, slots=True)
class GroupOfKey:
    """How far one group is with the key."""

    group: str
    members: int
    progress: Progress
    done: int
    pending: tuple[int, ...]
    """Offsets of the key's messages that the group has not committed."""

    @property
    def waits_for(self) -> str:
        """Why the key's first pending message is not done yet, as far as the broker can know."""
        if not self.pending:
            return "nothing: every message is done" if self.done else "nothing: it has no messages"
        if not self.members:
            return "a member: nobody of the group is online; start a consumer"
        if self.progress.at.owner is None:
            return "an owner: no member holds the queue (an unordered group never does; else a hand-over is under way)"
        ahead = self.pending[0] - self.progress.at.offset
        if ahead > 0:
            return (
                f"its own turn, or at most {plural(ahead, 'message')} ahead of it in the queue: in queue order those "
                f"run first, in key order only those of its key do, the others hold back no more than its commit"
            )
        return OWN_TURN


@click.command()
@click.argument("key")
@click.option("--topic", help="Where to look; without it, in the one topic that has messages of the key.")
@click.option("--group", help="Only this group; without it, every group that reads the topic.")
@asks_server
def key(key: str, topic: str | None, group: str | None, server: str, as_json: bool) -> None:
    """Show where the messages of KEY are, who holds its queue, and what it waits for."""
    topic = topic or _topic_of(key, server)
    with Reader(server, topic) as reader:
        hashed = pick_queue(key, reader.route.publish)
        messages = reader.find(key)
    queue = messages[-1].queue if messages else hashed
    with Admin(server) as admin:
        groups = [
            found
            for name in ([group] if group else admin.groups())
            if (found := _group_of_key(admin, name, server, queue, messages)) is not None
        ]
    if group and not groups:
        raise Failed(f"group {group!r} has no offset in queue {queue.queue_id} of {topic}; see lanemq group list")
    _show(key, queue, hashed, messages, groups, as_json)


def _topic_of(key: str, server: str) -> str:
    with Admin(server) as admin:
        topics = [topic for topic in admin.topics() if admin.find_key(topic, key, limit=1)]
    if not topics:
        raise Failed(f"no topic has messages of key {key!r}; with --topic you see which queue they would go to")
    if len(topics) > 1:
        raise Failed(f"several topics have messages of key {key!r}: choose one with --topic ({', '.join(topics)})")
    return topics[0]


def _group_of_key(
    admin: Admin, name: str, server: str, queue: MessageQueue, messages: list[Message]
) -> GroupOfKey | None:
    found = admin.describe_group(name)
    leases = {lease.queue: lease for lease in admin.locks(name)}
    for progress in progress_of(found, leases, server, SystemClock().wall()):
        if progress.at.queue == queue:
            here = [message.queue_offset for message in messages if message.queue == queue]
            pending = tuple(offset for offset in here if offset >= progress.at.offset)
            return GroupOfKey(name, len(found.members), progress, len(here) - len(pending), pending)
    return None


def _show(
    key: str,
    queue: MessageQueue,
    hashed: MessageQueue,
    messages: list[Message],
    groups: list[GroupOfKey],
    as_json: bool,
) -> None:
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
            "groups": list(map(_group_document, groups)),
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


_GROUP_COLUMNS = ("group", "offset", "done", "pending", "owner", "epoch", "lease left", "waits for")


def _group_row(each: GroupOfKey) -> tuple[object, ...]:
    at = each.progress.at
    lease = seconds(each.progress.lease_ms)
    return each.group, at.offset, each.done, len(each.pending), at.owner, at.epoch, lease, each.waits_for


def _message_document(message: Message) -> dict[str, object]:
    return {
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "stored_at": message.stored_at,
        "tag": message.tag,
        "message_id": message.message_id,
        "value": body_for_json(message.body),
    }


def _group_document(each: GroupOfKey) -> dict[str, object]:
    return {
        "group": each.group,
        "members": each.members,
        **each.progress.document(),
        "done": each.done,
        "pending": each.pending,
        "waits_for": each.waits_for,
    }
