"""`lanemq top`: the screen of `lanemq status`, again and again, until Ctrl-C."""

import contextlib
import itertools
import time

import click

from lanemq.cli.commands.status import screen
from lanemq.cli.options import connects, duration
from lanemq.cli.output import live_parts
from lanemq.cli.security import ConnectingCommand
from lanemq.client.admin.admin import Admin
from lanemq.model.errors import LaneError


@click.command(cls=ConnectingCommand)
@click.option(
    "--every", type=duration, default="2s", show_default=True, metavar="DURATION", help="Time between two screens."
)
@click.option("--count", "-n", type=click.IntRange(1), metavar="N", help="End after N screens.")
@connects
def top(every: float, count: int | None, server: str) -> None:
    """Show the health of the brokers and the lag of the groups, live.

    The same screen as `lanemq status`. A broker that does not answer is shown as such, and asked again.
    """
    with Admin(server) as admin, live_parts() as draw, contextlib.suppress(KeyboardInterrupt):
        for number in itertools.count(1):
            try:
                parts = [part for broker in admin.figures() for part in screen(broker)]
            except LaneError as error:
                parts = [f"no answer from {server}: {error}"]
            draw(*parts)
            if number == count:
                break
            time.sleep(every)
