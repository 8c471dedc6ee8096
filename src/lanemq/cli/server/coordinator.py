"""`lanemq coordinator`: runs a coordinator beside an Apache RocketMQ cluster until SIGTERM or Ctrl-C."""

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from lanemq.cli.server.serving import begin, first_options, is_chosen, last_options, monitor_of, prepare, serve
from lanemq.cli.settings import SettingsCommand, settings_from
from lanemq.client.coordination import COORDINATOR_PORT
from lanemq.client.security import security_of
from lanemq.coordinator.app import Coordinator
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.net.address import parse_address, parse_addresses
from lanemq.net.fast_loop import fast_loop

DEFAULT_MONITOR_PORT = 9881


@click.command(cls=SettingsCommand, context_settings=settings_from("coordinator"))
@click.option("--cluster", required=True, metavar="HOST:PORT;…", help="All name servers of the cluster.")
@first_options("coordinator", COORDINATOR_PORT, data_required=False)
@click.option(
    "--state",
    metavar="POSTGRESQL-URL",
    help="PostgreSQL database in place of --data; two or more coordinators share it, and one leads.",
)
@click.option("--replace", is_flag=True, help="Take the place of coordinators whose state is lost.")
@last_options(DEFAULT_MONITOR_PORT)
def coordinator(
    cluster: str,
    data: Path | None,
    state: str | None,
    listen: str,
    advertise: str | None,
    replace: bool,
    monitor: str,
    history: Path | None,
    log_level: str,
    log_format: str,
    audit: str | None,
    **protection: Any,
) -> None:
    """Run a coordinator of groups beside an Apache RocketMQ cluster.

    It gives leases with epochs to the groups that `lanemq group coordinate` moves to it, and keeps their offsets and
    lanes, in a folder (--data) or in PostgreSQL (--state). Messages stay at the brokers. TLS and credentials of its own
    connections to the cluster come from the environment, as for every client (LANEMQ_TLS, LANEMQ_ACCESS_KEY, …).
    """
    if (data is None) == (state is None):
        raise click.UsageError("give either --data, a folder, or --state, a PostgreSQL database that several may share")
    form = begin(log_level, log_format)
    options = CoordinatorOptions(
        cluster=parse_addresses(cluster),
        data=data,
        state=state,
        listen=parse_address(listen, COORDINATOR_PORT),
        advertise=advertise,
        monitor=monitor_of(monitor, DEFAULT_MONITOR_PORT),
        monitor_required=is_chosen("monitor"),
        history=history,
        security=security_of(),
        **protection,
    )
    prepare(options, form, audit)
    running = Coordinator(options, replace=replace)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        first = f"LaneMQ {version('lanemq')}, coordinator on"
        runner.run(serve(running, options, form, lambda at: f"{first} {at}", running.watched))
