"""`lanemq group reset`: puts a group at another place, after showing what that means.

Going back repeats messages and going forward skips them, so nothing is moved that was not shown first, and a
group with members at work is moved only when the caller insists. A group that nobody knows is a typing error: moved,
it would exist from then on, and the one that was meant would stay where it is.
"""

import click

from lanemq.cli.lag import known_group
from lanemq.cli.options import FIRST, LAST, Failed, Misused, asks_server, moment
from lanemq.cli.output import Grid, plural, show
from lanemq.client.admin.admin import Admin, Position
from lanemq.client.admin.views import AtOffset, AtTime, OffsetChange
from lanemq.model.units import QueueOffset


@click.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    required=True,
    metavar="first|last|TIME|OFFSET",
    help="Where to go, also earliest|latest; TIME is ISO 8601, or 10m for ten minutes ago.",
)
@click.option("--queue", "number", type=click.IntRange(0), help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Move the group although members are at work.")
@asks_server
def reset(
    group: str, topic: str, to: str, number: int | None, dry_run: bool, yes: bool, server: str, as_json: bool
) -> None:
    """Put GROUP at another place in TOPIC. Going back repeats messages, going forward skips them."""
    place, queues = _place(to), None if number is None else [number]
    with Admin(server) as admin:
        members = len(known_group(admin, group).members)
        plan = admin.reset_offsets(group, topic, to=place, queues=queues, dry_run=True)
        if not plan:
            raise Misused(f"topic {topic} has no queue {number}; see lanemq topic describe {topic}")
        if members and not dry_run and not yes:
            raise Failed(
                f"group {group} has {plural(members, 'member')} at work, whose messages may be done twice: stop them "
                f"first, or repeat with --yes (--dry-run shows what would change)"
            )
        if not dry_run:
            plan = admin.reset_offsets(group, topic, to=place, queues=queues)
    _show(plan, dry_run, as_json)


def _place(text: str) -> Position:
    if text in FIRST:
        return "earliest"
    if text in LAST:
        return "latest"
    if text.isdecimal():
        return AtOffset(QueueOffset(int(text)))
    return AtTime(moment(text, "--to") / 1000)


def _show(plan: tuple[OffsetChange, ...], dry_run: bool, as_json: bool) -> None:
    rows = [(each.queue.topic, each.queue.queue_id, each.before, each.after, _effect(each)) for each in plan]
    show(
        as_json,
        lambda: {
            "dry_run": dry_run,
            "changes": [
                {
                    "topic": each.queue.topic,
                    "broker": each.queue.broker,
                    "queue": each.queue.queue_id,
                    "before": each.before,
                    "after": each.after,
                }
                for each in plan
            ],
        },
        Grid(("topic", "queue", "offset", "new offset", "effect"), rows),
        "nothing was changed (--dry-run)" if dry_run else "moved",
    )


def _effect(change: OffsetChange) -> str:
    difference = change.after - (change.before or 0)
    if change.before is None or difference == 0:
        return "starts there" if change.before is None else "stays"
    return f"skips {plural(difference, 'message')}" if difference > 0 else f"repeats {plural(-difference, 'message')}"
