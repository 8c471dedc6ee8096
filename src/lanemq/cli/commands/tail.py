"""`lanemq tail`: shows messages without consuming them.

It joins no group and commits nothing, so consumers are not affected.

With `--follow` it outlives the broker's connection and the topic itself: while the broker is away, or the topic is
deleted, it waits, and says so once on stderr. A topic that was created again is shown from its first message on.
"""

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Iterator

import click

from lanemq.cli.options import connects, json_lines_option, parse_time
from lanemq.cli.output import body_for_json, cell, printable, to_json
from lanemq.cli.security import ConnectingCommand
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.admin.views import TopicDescription
from lanemq.client.consumer.tag_filter import tag_filter
from lanemq.client.message import Message
from lanemq.model.errors import BrokerBusy, TopicNotFound, TransportError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import to_millis

DEFAULT_COUNT = 10
POLL_SECONDS = 0.2

MessageFilter = Callable[[Message], bool]


@click.command(cls=ConnectingCommand)
@click.argument("topic")
@click.option("--key", "-k", help="Only messages of this key.")
@click.option("--tag", "-t", default="*", help="Only messages with this tag; separate several with '||'.")
@click.option(
    "--from",
    "start",
    default="last",
    metavar="first|last|TIME",
    help="Where to start. TIME is ISO 8601, or 10m for ten minutes ago.",
)
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1),
    metavar="N",
    help="Begin with the newest N messages; with another --from, stop after N.  [default: 10 with --from last]",
)
@click.option("--properties", "-p", is_flag=True, help="Show the properties of each message on lines of their own.")
@click.option("--follow", "-f", is_flag=True, help="Keep showing new messages until Ctrl-C.")
@json_lines_option("message")
@connects
def tail(
    topic: str,
    key: str | None,
    tag: str,
    start: str,
    count: int | None,
    properties: bool,
    follow: bool,
    server: str,
    as_json: bool,
) -> None:
    """Show messages of TOPIC: time, queue@offset, key, [tag], value.

    By default the last ten messages are shown. Messages of one queue are
    shown in their order, messages of different queues by the time when they were stored.
    """
    wanted = _wanted(key, tag)
    since = None if start in ("first", "last") else to_millis(parse_time(start, "--from").timestamp())
    with TopicReader(server, topic) as reader, contextlib.suppress(KeyboardInterrupt):
        follower = Follower(server, topic) if follow else None
        ends = {queue: reader.bounds(queue)[1] for queue in reader.queues}
        if start == "last":
            messages = _newest(reader, ends, wanted, DEFAULT_COUNT if count is None else count)
        else:
            messages = filter(wanted, _between(reader, _starts(reader, since), ends))
        if follower is not None:
            messages = itertools.chain(messages, filter(wanted, follower.arriving(ends)))
        # As `tail -n 1 -f`: the count says where to begin, and does not end what follows.
        shown = messages if follow and start == "last" else itertools.islice(messages, count)
        for message in shown:
            click.echo(_json_line(message) if as_json else _line(message, properties))


def _wanted(key: str | None, tags: str) -> MessageFilter:
    tagged = tag_filter(tags)
    return lambda message: (key is None or message.key == key) and tagged.accepts(message.tag)


def _starts(reader: TopicReader, since: int | None) -> dict[MessageQueue, int]:
    if since is None:
        return {queue: reader.bounds(queue)[0] for queue in reader.queues}
    return {queue: reader.offset_at(queue, since) for queue in reader.queues}


def _between(reader: TopicReader, starts: dict[MessageQueue, int], ends: dict[MessageQueue, int]) -> Iterator[Message]:
    runs = [reader.read(queue, start, ends[queue]) for queue, start in starts.items()]
    return heapq.merge(*runs, key=_stored)


def _newest(reader: TopicReader, ends: dict[MessageQueue, int], wanted: MessageFilter, count: int) -> Iterator[Message]:
    runs = [_last_of(reader, queue, end, wanted, count) for queue, end in ends.items()]
    return iter(list(heapq.merge(*runs, key=_stored))[-count:])


def _last_of(reader: TopicReader, queue: MessageQueue, end: int, wanted: MessageFilter, count: int) -> list[Message]:
    """Reads backwards in growing steps until there are enough, because few messages may match."""
    low, step, found = reader.bounds(queue)[0], count, list[Message]()
    while end > low and len(found) < count:
        begin = max(low, end - step)
        found = [*filter(wanted, reader.read(queue, begin, end)), *found]
        end, step = begin, step * 4
    return found[-count:]


class Follower:
    """Yields the messages that arrive, also after the broker was away or the topic was created again."""

    def __init__(self, server: str, topic: str) -> None:
        self._server = server
        self._topic = topic
        self._said = ""
        with Admin(server) as admin:
            self._created = dict(admin.describe_topic(topic).created_ms)

    def arriving(self, ends: dict[MessageQueue, int]) -> Iterator[Message]:
        """Messages from these offsets on, without an end."""
        at = dict(ends)
        while True:
            try:
                with TopicReader(self._server, self._topic) as reader, Admin(self._server) as admin:
                    while True:
                        fresh = self._fresh(admin.describe_topic(self._topic), at)
                        for message in _between(reader, {queue: at[queue] for queue in fresh}, fresh):
                            at[message.queue] = message.queue_offset + 1
                            yield message
                        at.update(fresh)
                        if not fresh:
                            time.sleep(POLL_SECONDS)
            except TopicNotFound:
                self._say(f"topic {self._topic!r} was deleted; waiting until it is created again")
            except (TransportError, BrokerBusy) as error:
                self._say(f"{error}; waiting until the broker answers again")
            time.sleep(POLL_SECONDS)

    def _fresh(self, now: TopicDescription, at: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The ends of the queues that have more than was read. Corrects `at` if the topic is another one now."""
        ends: dict[MessageQueue, int] = {each.queue: each.end for each in now.queues}
        self._said = ""
        again = {name for name, created in now.created_ms.items() if self._created.get(name, created) != created}
        self._created |= now.created_ms
        for queue, end in ends.items():
            # Apache brokers do not say when they created a topic; an end before what was read shows that it is new.
            if queue.broker in again or (end < at.get(queue, 0) and queue.broker not in now.created_ms):
                again.add(queue.broker)
                at[queue] = 0
            at[queue] = min(at.get(queue, 0), end)
        if again:
            self._say(f"topic {self._topic!r} was deleted and created again; showing it from its first message")
        return {queue: end for queue, end in ends.items() if end > at[queue]}

    def _say(self, line: str) -> None:
        """Writes a line to stderr, once until the broker has answered again."""
        if not self._said:
            click.echo(printable(line), err=True)
        self._said = line


def _stored(message: Message) -> tuple[int, int]:
    """Sort key: the time of storing, and within one millisecond the position in the log."""
    return message.record.store_timestamp, message.record.position


def _line(message: Message, properties: bool = False) -> str:
    place = f"{message.queue.queue_id}@{message.queue_offset}"
    tag = f" [{printable(message.tag)}]" if message.tag else ""
    line = f"{cell(message.stored_at)}  {place:>10}  {cell(message.key)}{tag}  {cell(message.body)}"
    if properties:
        line += "".join(f"\n    {printable(name)}: {printable(value)}" for name, value in message.properties.items())
    return line


def _json_line(message: Message) -> str:
    return to_json(
        {
            "topic": message.queue.topic,
            "broker": message.queue.broker,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "key": message.key,
            "tag": message.tag,
            "keys": message.keys,
            "stored_at": message.stored_at,
            "message_id": message.message_id,
            "properties": dict(message.properties),
            "value": body_for_json(message.body),
        }
    )
