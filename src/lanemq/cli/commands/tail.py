"""`lanemq tail`: shows messages without consuming them.

It joins no group and commits nothing, so consumers are not affected.
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
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.consumer.tag_filter import tag_filter
from lanemq.client.message import Message
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
        ends = {queue: reader.bounds(queue)[1] for queue in reader.queues}
        if start == "last":
            messages = _newest(reader, ends, wanted, DEFAULT_COUNT if count is None else count)
        else:
            messages = filter(wanted, _between(reader, _starts(reader, since), ends))
        if follow:
            messages = itertools.chain(messages, filter(wanted, _arriving(reader, ends)))
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


def _arriving(reader: TopicReader, ends: dict[MessageQueue, int]) -> Iterator[Message]:
    at = dict(ends)
    while True:
        fresh = {queue: end for queue in at if (end := reader.bounds(queue)[1]) > at[queue]}
        yield from _between(reader, {queue: at[queue] for queue in fresh}, fresh)
        at.update(fresh)
        if not fresh:
            time.sleep(POLL_SECONDS)


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
