"""`lanemq topic`: creates, lists, describes and deletes topics."""

from collections import Counter

import click

from lanemq.cli.options import YES, CliError, InOrder, asks_server, confirm
from lanemq.cli.output import Grid, plural, show
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import QueueBounds, TopicDescription
from lanemq.client.topics import DEFAULT_QUEUES
from lanemq.model.errors import TopicNotFound


@click.group(cls=InOrder)
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1),
    metavar="N",
    help=f"Number of queues; at most this many consumers of a group share the topic.  [default: {DEFAULT_QUEUES}]",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Keep messages in order by key: every message needs a key, and the number of queues is fixed.",
)
@click.option(
    "--globally-ordered",
    "globally",
    is_flag=True,
    help="Keep all messages in one order: one queue, processed one at a time.",
)
@click.option(
    "--force", is_flag=True, help="Make a topic ordered although it holds messages that were sent without order."
)
@asks_server
def create(
    name: str, queues: int | None, ordered: bool, globally: bool, force: bool, server: str, as_json: bool
) -> None:
    """Create topic NAME.

    Creating it again with the same settings changes nothing.
    """
    if globally and queues not in (None, 1):
        raise click.UsageError(f"--globally-ordered means 1 queue: leave out --queues {queues}, or use --ordered")
    with Admin(server) as admin:
        found = _unordered(admin, name) if ordered or globally else None
        if found is not None and not force:
            _refuse_unordered_messages(found)
        usual = DEFAULT_QUEUES if found is None else _queues_per_broker(found)
        count = 1 if globally else queues or usual
        admin.create_topic(name, queues=count, ordered="global" if globally else ordered)
    order = ", globally ordered" if globally else ", ordered by key" if ordered else ""
    show(
        as_json,
        lambda: {
            "topic": name,
            "queues": count,
            "ordered": ordered or globally,
            "globally_ordered": globally,
        },
        f"topic {name}: {plural(count, 'queue')}{order}",
    )


@topic.command("list")
@asks_server
def list_topics(server: str, as_json: bool) -> None:
    """List all topics with their queues and messages."""
    with Admin(server) as admin:
        found = [admin.describe_topic(name) for name in admin.topics()]
    rows = [(each.topic, len(each.queues), each.ordered, _messages(each)) for each in found]
    show(
        as_json,
        lambda: [_summary(each) for each in found],
        Grid(
            ("topic", "queues", "ordered", "messages"),
            rows,
            "no topics yet; create one with: lanemq topic create NAME --ordered",
        ),
    )


@topic.command()
@click.argument("name")
@asks_server
def describe(name: str, server: str, as_json: bool) -> None:
    """Show the queues of topic NAME.

    For each queue: which offsets it holds, and when it was last written to.
    """
    with Admin(server) as admin:
        found = admin.describe_topic(name)
    rows = [
        (each.queue.broker, each.queue.queue_id, each.first, each.end, each.messages, each.last_stored_at)
        for each in found.queues
    ]
    order = "ordered by key" if found.ordered else "not ordered"
    show(
        as_json,
        lambda: _summary(found) | {"bounds": list(map(_bounds, found.queues))},
        f"topic {name}: {plural(len(found.queues), 'queue')}, {order}, {plural(_messages(found), 'message')}",
        Grid(("broker", "queue", "first", "end", "messages", "last stored"), rows),
    )


@topic.command()
@click.argument("name")
@YES
@asks_server
def delete(name: str, yes: bool, server: str, as_json: bool) -> None:
    """Delete topic NAME.

    Its messages and all groups' offsets in it are deleted too.
    """
    with Admin(server) as admin:
        messages = _messages(_existing(admin, name))
        confirm(yes, f"topic {name} will be deleted, with {plural(messages, 'message')} and all groups' offsets in it")
        admin.delete_topic(name)
    show(
        as_json,
        lambda: {"topic": name, "deleted": True, "messages": messages},
        f"topic {name} was deleted, with {plural(messages, 'message')}",
    )


def _unordered(admin: Admin, name: str) -> TopicDescription | None:
    """The topic, if it exists and is not ordered. Its number of queues stays as it is, unless another one is given."""
    try:
        found = admin.describe_topic(name)
    except TopicNotFound:
        return None
    return None if found.ordered else found


def _queues_per_broker(found: TopicDescription) -> int:
    return max(Counter(each.queue.broker for each in found.queues).values(), default=DEFAULT_QUEUES)


def _refuse_unordered_messages(found: TopicDescription) -> None:
    """Messages sent without order may be in other queues than their keys select, where newer ones may overtake."""
    if messages := _messages(found):
        raise CliError(
            f"topic {found.topic} is not ordered and holds {plural(messages, 'message')}, which newer messages "
            f"could overtake; nothing was changed. Use another name, delete the topic first, or use --force"
        )


def _existing(admin: Admin, name: str) -> TopicDescription:
    """The topic to delete. The library's error would advise to create it."""
    try:
        return admin.describe_topic(name)
    except TopicNotFound as error:
        raise CliError(f"topic {name!r} does not exist; see lanemq topic list") from error


def _messages(found: TopicDescription) -> int:
    return sum(each.messages for each in found.queues)


def _summary(found: TopicDescription) -> dict[str, object]:
    return {
        "topic": found.topic,
        "queues": len(found.queues),
        "ordered": found.ordered,
        "messages": _messages(found),
    }


def _bounds(each: QueueBounds) -> dict[str, object]:
    return {
        "broker": each.queue.broker,
        "queue": each.queue.queue_id,
        "first": each.first,
        "end": each.end,
        "messages": each.messages,
        "last_stored_at": each.last_stored_at,
    }
