"""`lanemq topic`: create, list, describe, delete."""

import click

from lanemq.cli.options import Failed, asks_server
from lanemq.cli.output import Grid, plural, show, wall_time
from lanemq.client.admin.admin import DEFAULT_QUEUES, Admin
from lanemq.client.admin.views import QueueBounds, TopicDescription
from lanemq.model.errors import TopicNotFound


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--queues", type=click.IntRange(1), help=f"Most consumers that can share it; {DEFAULT_QUEUES} unless told."
)
@click.option("--ordered", is_flag=True, help="Every message needs a key; the queue count is fixed for good.")
@click.option("--globally-ordered", "as_a_whole", is_flag=True, help="All keys in one line: 1 queue, one at a time.")
@click.option("--force", is_flag=True, help="Order a topic that holds messages sent without order.")
@asks_server
def create(
    name: str, queues: int | None, ordered: bool, as_a_whole: bool, force: bool, server: str, as_json: bool
) -> None:
    """Create topic NAME. Creating it again with the same settings changes nothing."""
    if as_a_whole and queues not in (None, 1):
        raise click.UsageError(f"--globally-ordered means 1 queue: leave --queues {queues} out, or use --ordered")
    count = 1 if as_a_whole else queues or DEFAULT_QUEUES
    with Admin(server) as admin:
        if (ordered or as_a_whole) and not force:
            _refuse_to_mix(admin, name)
        admin.create_topic(name, queues=count, ordered="global" if as_a_whole else ordered)
    order = ", globally ordered" if as_a_whole else ", ordered by key" if ordered else ""
    show(
        as_json,
        lambda: {
            "topic": name,
            "queues": count,
            "ordered": ordered or as_a_whole,
            "globally_ordered": as_a_whole,
        },
        f"topic {name}: {plural(count, 'queue')}{order}",
    )


@topic.command("list")
@asks_server
def list_topics(server: str, as_json: bool) -> None:
    """List topics with their queues and messages."""
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
    """Show each queue of topic NAME: which offsets it holds and when it was last written."""
    with Admin(server) as admin:
        found = admin.describe_topic(name)
    rows = [
        (each.queue.broker, each.queue.queue_id, each.first, each.end, each.messages, wall_time(each.last_stored_ms))
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
@click.option("--yes", is_flag=True, help="Do not ask.")
@asks_server
def delete(name: str, yes: bool, server: str, as_json: bool) -> None:
    """Delete topic NAME with all its messages and every group's offsets in it."""
    with Admin(server) as admin:
        messages = _messages(_existing(admin, name))
        if not yes:
            click.confirm(
                f"Delete topic {name} with {plural(messages, 'message')}? (--yes does not ask)", abort=True, err=True
            )
        admin.delete_topic(name)
    show(
        as_json,
        lambda: {"topic": name, "deleted": True, "messages": messages},
        f"topic {name} is deleted, {plural(messages, 'message')} with it",
    )


def _refuse_to_mix(admin: Admin, name: str) -> None:
    """What was sent without order may lie in other queues than its keys' from now on, and would be overtaken."""
    try:
        found = admin.describe_topic(name)
    except TopicNotFound:
        return
    if messages := 0 if found.ordered else _messages(found):
        raise Failed(
            f"topic {name} is not ordered and holds {plural(messages, 'message')}, which newer ones of their keys "
            f"could overtake; nothing was changed. Use another name, delete the topic first, or pass --force"
        )


def _existing(admin: Admin, name: str) -> TopicDescription:
    """The topic to be deleted. That one can be created is no advice for who wants it gone."""
    try:
        return admin.describe_topic(name)
    except TopicNotFound as error:
        raise Failed(f"topic {name!r} does not exist, nothing was deleted; see lanemq topic list") from error


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
        "last_stored": wall_time(each.last_stored_ms),
    }
