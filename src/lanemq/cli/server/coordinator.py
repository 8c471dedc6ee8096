"""`lanemq coordinator`: runs a coordinator beside an Apache RocketMQ cluster until SIGTERM or Ctrl-C."""

import asyncio
import logging
import signal
from pathlib import Path

import click

from lanemq.cli.listening import cannot_listen, check_can_listen
from lanemq.cli.output import LogFormat, announce, log_to_stderr
from lanemq.client.coordination import COORDINATOR_PORT
from lanemq.client.security import security_of
from lanemq.coordinator.app import Coordinator
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.net.address import parse_address, parse_addresses
from lanemq.net.fast_loop import fast_loop


@click.command()
@click.option("--cluster", required=True, metavar="HOST:PORT;…", help="All name servers of the cluster.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Data folder; created if it is missing.")
@click.option(
    "--listen",
    default=f"127.0.0.1:{COORDINATOR_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on.",
)
@click.option("--advertise", metavar="HOST", help="Host name under which members find it, if it differs from --listen.")
@click.option("--history", type=click.Path(path_type=Path), help="Folder for a history of events, for lanemq check.")
@click.option("--replace", is_flag=True, help="Take the place of a coordinator whose data folder is lost.")
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level that is logged to stderr.",
)
def coordinator(
    cluster: str, data: Path, listen: str, advertise: str | None, history: Path | None, replace: bool, log_level: str
) -> None:
    """Run a coordinator of groups beside an Apache RocketMQ cluster.

    It gives leases with epochs to the groups that `lanemq group coordinate` moves to it, and keeps their offsets and
    lanes. Messages stay at the brokers. It serves every client that reaches it, without encryption: keep it in a
    private network.
    """
    log_to_stderr(log_level.upper(), LogFormat.TEXT)
    address = parse_address(listen, COORDINATOR_PORT)
    options = CoordinatorOptions(parse_addresses(cluster), data, address, advertise, history, security_of())
    check_can_listen(address)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(_serve(Coordinator(options, replace=replace)))


async def _serve(running: Coordinator) -> None:
    """Runs the coordinator until a signal, or until another one has taken over the cluster."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await running.start()
    except OSError as error:
        raise cannot_listen(running.options.listen, error) from error
    announce(logging.INFO, f"LaneMQ coordinator on {running.address}, data in {running.options.data}", LogFormat.TEXT)
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(running.failed())
    await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    failure = failed.exception() if failed.done() else None
    failed.cancel()
    await running.stop()
    if failure is not None:
        raise failure
