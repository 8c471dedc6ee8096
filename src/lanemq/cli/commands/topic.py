"""`lanemq topic`: creates, lists, describes, orders and deletes topics."""

import time
from collections import Counter

import click

from lanemq.cli.options import YES, CliError, InOrder, asks_server, confirm
from lanemq.cli.output import Grid, plural, show
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.order import OrderRepair, OrderReport
from lanemq.client.admin.views import QueueBounds, TopicDescription
from lanemq.client.topics import DEFAULT_QUEUES
from lanemq.model.errors import TopicNotFound

REPLICAS_ASKED, REPLICAS_EVERY = 40, 0.5
"""How often, and in which interval in seconds, replicas are asked for a new topic. They copy topics every 10 s."""


@click.group(cls=InOrder)
def topic() -> None:
    """Create, list, describe, order and delete topics."""


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
        found = _found(admin, name)
        usual = DEFAULT_QUEUES if found is None else _queues_per_broker(found)
        count = 1 if globally else queues or usual
        if found is not None:
            _refuse_other(found, count, ordered=ordered or globally, force=force)
        admin.create_topic(name, queues=count, ordered="global" if globally else ordered)
        report = _order_at_replicas(admin, name) if ordered or globally else None
    order = ", globally ordered" if globally else ", ordered by key" if ordered else ""
    show(
        as_json,
        lambda: {
            "topic": name,
            "queues": count,
            "ordered": ordered or globally,
            "globally_ordered": globally,
            "created": found is None,
            **_order_document(report),
        },
        f"topic {name}: {plural(count, 'queue')}{_per_broker(report)}{order}"
        + ("" if found is None or (found.ordered, usual) != (ordered or globally, count) else "; it existed before"),
        *_order_lines(report),
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
        report = _order_on_cluster(admin, name)
    rows = [
        (each.queue.broker, each.queue.queue_id, each.first, each.end, each.messages, each.last_stored_at)
        for each in found.queues
    ]
    order = "ordered by key" if found.ordered else "not ordered"
    show(
        as_json,
        lambda: _summary(found) | {"bounds": list(map(_bounds, found.queues)), **_order_document(report)},
        f"topic {name}: {plural(len(found.queues), 'queue')}, {order}, {plural(_messages(found), 'message')}",
        *_order_lines(report),
        Grid(("broker", "queue", "first", "end", "messages", "last stored"), rows),
    )


@topic.command()
@click.argument("name")
@click.option(
    "--layout",
    metavar="TEXT",
    help="The layout to set, such as 'broker-a:4;broker-b:4'. Another one than before moves keys to other queues.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@YES
@asks_server
def order(name: str, layout: str | None, dry_run: bool, yes: bool, server: str, as_json: bool) -> None:
    """Repair the order of topic NAME on an Apache cluster.

    Sets its layout at every name server and the order flag at every broker, so that keys stay in their queues while a
    broker is away. Name all name servers with --server.
    """
    with Admin(server) as admin:
        _existing(admin, name)
        report = admin.topic_order(name)
        plan = admin.repair_order(name, layout=layout, dry_run=True)
        if not plan.is_needed:
            done = f"topic {name}: nothing to repair"
        elif dry_run:
            done = f"topic {name}: would be repaired{_moves(plan, report)}"
        else:
            gets = f"topic {name} will get the layout {plan.layout}{_moves(plan, report)}"
            confirm(yes, gets, *_plan_parts(plan, report))
            admin.repair_order(name, layout=layout)
            report, done = admin.topic_order(name), f"topic {name}: repaired"
    show(
        as_json,
        lambda: {
            "topic": name,
            "repaired": plan.is_needed and not dry_run,
            "set_layout_at": plan.servers,
            "set_flag_at": plan.flags,
            **_order_document(report),
        },
        done,
        *(_plan_parts(plan, report) if dry_run and plan.is_needed else _order_lines(report)),
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


def _found(admin: Admin, name: str) -> TopicDescription | None:
    """The topic, if it exists. Its number of queues stays as it is, unless another one is given."""
    try:
        return admin.describe_topic(name)
    except TopicNotFound:
        return None


def _refuse_other(found: TopicDescription, count: int, *, ordered: bool, force: bool) -> None:
    """Refuses what would change the order of an existing topic. The broker refuses most of it too, but later."""
    usual, name = _queues_per_broker(found), found.topic
    if found.ordered and not ordered:
        raise CliError(f"topic {name} exists and is ordered, which does not change; nothing was changed. Add --ordered")
    if (found.ordered or ordered) and count != usual:
        kind = "is ordered" if found.ordered else "is not ordered"
        raise CliError(
            f"topic {name} exists with {plural(usual, 'queue')} and {kind}: with {count}, keys would leave their "
            f"messages behind; nothing was changed. Leave out --queues, use another name, or delete the topic first"
        )
    if ordered and not found.ordered and not force:
        _refuse_unordered_messages(found)


def _queues_per_broker(found: TopicDescription) -> int:
    return max(Counter(each.queue.broker for each in found.queues).values(), default=DEFAULT_QUEUES)


def _refuse_unordered_messages(found: TopicDescription) -> None:
    """Messages sent without order may be in other queues than their keys select, where newer ones may overtake."""
    if messages := _messages(found):
        raise CliError(
            f"topic {found.topic} is not ordered and holds {plural(messages, 'message')}, which newer messages "
            f"could overtake; nothing was changed. Use another name, delete the topic first, or use --force"
        )


def _order_on_cluster(admin: Admin, name: str) -> OrderReport | None:
    """The topic's order at every name server and broker; None on a LaneMQ broker, where the route says all."""
    report = admin.topic_order(name)
    return None if report.on_lane_broker else report


def _order_at_replicas(admin: Admin, name: str) -> OrderReport | None:
    """As `_order_on_cluster`, once the replicas have copied the topic from their masters, or after some time."""
    report = _order_on_cluster(admin, name)
    for _ in range(REPLICAS_ASKED):
        if report is None or not report.replicas_without:
            break
        time.sleep(REPLICAS_EVERY)
        report = _order_on_cluster(admin, name)
    return report


def _per_broker(report: OrderReport | None) -> str:
    brokers = len(report.brokers) if report is not None else 1
    return f" on each of {brokers} brokers" if brokers > 1 else ""


def _order_lines(report: OrderReport | None) -> list[str]:
    """The layout, what is wrong with the order, and whether RocketMQ's own producers keep it."""
    if report is None or not report.layouts:
        return []
    names = plural(sum(each.reached and bool(each.layout) for each in report.servers), "name server")
    lines = [f"layout {layout}, at {names}" for layout in report.layouts[:1]]
    lines += [f"problem: {each}; see lanemq topic order {report.topic}" for each in report.problems]
    if not report.in_all_routes:
        lines.append(
            "RocketMQ's own producers are not protected: their keys move while a broker is away. To protect them too, "
            "set orderMessageEnable=true at every name server"
        )
    return lines


def _plan_parts(plan: OrderRepair, report: OrderReport) -> list[str | Grid]:
    """What a repair would do, line by line."""
    before = {each.server: each.layout or "none" for each in report.servers}
    rows = [("name server", each, before.get(each, ""), plan.layout) for each in plan.servers]
    rows += [("broker", each, "without order flag", "order flag") for each in plan.flags]
    return [Grid(("what", "where", "now", "becomes"), rows), *(f"problem: {each}" for each in report.problems)]


def _moves(plan: OrderRepair, report: OrderReport) -> str:
    """The warning that producers choose over other queues now; empty if they do not."""
    return "" if report.in_use == plan.layout else f". Keys will move to other queues: {report.in_use} is in use now"


def _order_document(report: OrderReport | None) -> dict[str, object]:
    if report is None:
        return {}
    return {
        "layouts": {each.server: each.layout if each.reached else None for each in report.servers},
        "brokers": [
            {"broker": each.broker, "up": each.up, "queues": each.queues, "order_flag": each.flag}
            for each in report.brokers
        ],
        "problems": report.problems,
        "stock_producers_protected": report.in_all_routes,
    }


def _existing(admin: Admin, name: str) -> TopicDescription:
    """The topic to change. The library's error would advise to create it."""
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
