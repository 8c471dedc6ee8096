"""`lanemq locks`: which member owns which queue."""

from collections.abc import Sequence

import click

from lanemq.cli.options import asks_server
from lanemq.cli.output import Grid, duration_text, show
from lanemq.cli.security import ConnectingCommand
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import LeaseView
from lanemq.model.units import to_millis


@click.command(cls=ConnectingCommand)
@click.option("--group", help="Only queues of this group.")
@click.option("--topic", help="Only queues of this topic.")
@asks_server
def locks(group: str | None, topic: str | None, server: str, as_json: bool) -> None:
    """Show which member owns which queue.

    For each queue: the owner, the epoch, and the time left of the lease.
    """
    with Admin(server) as admin:
        leases, silent = admin.leases(group)
    held = [each for each in leases if topic in (None, each.queue.topic)]
    held.sort(key=lambda each: (each.group, each.queue))
    rows = [
        (
            each.group,
            each.queue.topic,
            each.queue.queue_id,
            each.owner,
            each.epoch,
            duration_text(each.remaining * 1000),
        )
        for each in held
    ]
    show(
        as_json,
        lambda: list(map(_document, held)),
        Grid(
            ("group", "topic", "queue", "owner", "epoch", "lease left"),
            rows,
            _not_reported(silent) if silent else _none_owned(group, topic),
        ),
        *([_not_reported(silent)] if silent and rows else []),
    )


def _not_reported(brokers: Sequence[str]) -> str:
    """Of Apache brokers."""
    which = f"broker {brokers[0]} reports" if len(brokers) == 1 else f"brokers {', '.join(brokers)} report"
    return f"{which} no leases: lanemq group describe NAME shows the owners that members report"


def _none_owned(group: str | None, topic: str | None) -> str:
    """Only about the given group and topic: other groups may be online, and other topics owned."""
    where = f"no queue of topic {topic} is owned" if topic else "no queue is owned"
    if group is None:
        return f"{where}: no member of an ordered group {'that reads it ' if topic else ''}is online"
    online = "reads it" if topic else "is online"
    return f"{where} by group {group}: none of its members {online}, or it is not ordered; see lanemq group list"


def _document(lease: LeaseView) -> dict[str, object]:
    return {
        "group": lease.group,
        "topic": lease.queue.topic,
        "broker": lease.queue.broker,
        "queue": lease.queue.queue_id,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "remaining_ms": to_millis(lease.remaining),
        "stock": lease.stock,
    }
