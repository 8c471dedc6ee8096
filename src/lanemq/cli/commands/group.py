"""`lanemq group`: who consumes, how far they are, and putting a group somewhere else."""

from collections.abc import Sequence

import click

from lanemq.cli.commands.locks import seconds
from lanemq.cli.commands.reset import reset
from lanemq.cli.lag import Progress, known_group, progress_of
from lanemq.cli.options import asks_server
from lanemq.cli.output import Grid, plural, show
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.admin.views import GroupDescription
from lanemq.clock import SystemClock


@click.group()
def group() -> None:
    """List and describe groups, reset their offsets."""


group.add_command(reset)


@group.command("list")
@asks_server
def list_groups(server: str, as_json: bool) -> None:
    """List groups with their members and lag."""
    with Admin(server) as admin:
        found = [admin.describe_group(name) for name in admin.groups()]
    rows = [(each.group, len(each.members), ", ".join(_topics(each)), each.lag) for each in found]
    show(
        as_json,
        lambda: [
            {"group": each.group, "members": len(each.members), "topics": _topics(each), "lag": each.lag}
            for each in found
        ],
        Grid(("group", "members", "topics", "lag"), rows, "no groups yet; a consumer creates its group when it starts"),
    )


@group.command()
@click.argument("name")
@asks_server
def describe(name: str, server: str, as_json: bool) -> None:
    """Show each queue of group NAME: offset, lag, owner, epoch, what is left of the lease; and the members.

    The lag in seconds is the age of the oldest message that is not done.
    """
    with Admin(server) as admin:
        found = known_group(admin, name)
        leases = {lease.queue: lease for lease in admin.locks(name)}
    with ParkedAdmin(server) as parked_admin:
        parked = parked_admin.lanes(name)
    queues = [each for each in progress_of(found, leases, server, SystemClock().wall()) if each.worth_showing]
    oldest = max((each.lag_ms for each in queues if each.lag_ms is not None), default=None)
    show(
        as_json,
        lambda: {
            "group": name,
            "lag": found.lag,
            "lag_ms": oldest,
            "parked": {"lanes": len(parked), "messages": sum(lane.messages for lane in parked)},
            "members": found.members,
            "subscriptions": dict(found.subscriptions),
            "queues": [each.document() for each in queues],
            "note": found.note,
        },
        f"group {name}: {plural(len(found.members), 'member')}, lag {plural(found.lag, 'message')}"
        + (f", the oldest {seconds(oldest)} old" if oldest is not None else ""),
        Grid(_COLUMNS, [_row(each) for each in queues], "it has no offsets yet"),
        Grid(
            ("member", "address", "language"),
            [(each.client_id, each.address, each.language) for each in found.members],
            "nobody is online",
        ),
        *([_parked(parked)] if parked else []),
        *([found.note] if found.note else []),
    )


_COLUMNS = ("topic", "queue", "offset", "end", "lag", "lag time", "owner", "epoch", "lease left")


def _row(each: Progress) -> tuple[object, ...]:
    at = each.at
    return (
        at.queue.topic,
        at.queue.queue_id,
        at.offset,
        at.end,
        at.lag,
        seconds(each.lag_ms),
        at.owner,
        at.epoch,
        seconds(each.lease_ms),
    )


def _parked(lanes: Sequence[ParkedLaneView]) -> str:
    """What no lag shows: the commit has passed them, and nobody has done them."""
    count = sum(lane.messages for lane in lanes)
    return f"{plural(count, 'message')} in {plural(len(lanes), 'parked lane')}; see lanemq parked list"


def _topics(found: GroupDescription) -> list[str]:
    return sorted({each.queue.topic for each in found.queues} | set(found.subscriptions))
