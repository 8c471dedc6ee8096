"""`lanemq grpc`: runs a front for RocketMQ 5's gRPC clients until SIGTERM or Ctrl-C."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.listening import cannot_listen, check_can_listen
from lanemq.cli.options import CliError, connects
from lanemq.cli.output import LogFormat, announce, log_to_stderr
from lanemq.cli.server.serving import readable_secrets
from lanemq.grpc_front.options import DEFAULT_PORT
from lanemq.model.environment import install_extra
from lanemq.net.address import Address, is_loopback, parse_address
from lanemq.net.serving.server_tls import ServerTls

if TYPE_CHECKING:
    from lanemq.grpc_front.app import Front

DEFAULT_MONITOR_PORT = 9882
DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"


@click.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address to listen on.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Address of this front for clients, if several fronts share one; default: the one that a client asked.",
)
@click.option(
    "--retries",
    type=click.IntRange(-1),
    default=16,
    show_default=True,
    help="Attempts after the first one, before a key is parked; -1 never parks it.",
)
@click.option(
    "--dead-letter",
    "dead_letter",
    multiple=True,
    metavar="GROUP",
    help="A group whose failed messages become dead letters, so that later ones of the key pass; may be repeated.",
)
@click.option(
    "--users",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with users and permissions (TOML), as of lanemq broker; default: everything allowed.",
)
@click.option("--cert", type=click.Path(path_type=Path, dir_okay=False), help="Serve TLS with this certificate (PEM).")
@click.option("--key", type=click.Path(path_type=Path, dir_okay=False), help="Private key of --cert (PEM).")
@click.option("--monitor", metavar="HOST:PORT", help="Address for health checks and metrics over HTTP.")
@click.option("--history", type=click.Path(path_type=Path), help="Folder for a history of events, for lanemq check.")
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level that is logged to stderr.",
)
@connects
def grpc(
    listen: str,
    server: str,
    advertise: str | None,
    retries: int,
    dead_letter: Sequence[str],
    users: Path | None,
    cert: Path | None,
    key: Path | None,
    monitor: str | None,
    history: Path | None,
    log_level: str,
) -> None:
    """Serve RocketMQ 5's gRPC clients: Java, Python, Go, Node and others.

    It is a member of each group whose clients are here, and hands them the lanes of its queues. To the broker it is an
    ordinary client, which signs in by --access-key.
    """
    log_to_stderr(log_level.upper(), LogFormat.TEXT)
    check_grpc_packages()
    from lanemq.grpc_front.app import Front
    from lanemq.grpc_front.options import FrontOptions

    address = front_address(listen)
    tls = None if cert is None else ServerTls(cert, key)
    check_protection(address, users=users is not None, tls=tls is not None)
    for text in readable_secrets(users, tls):
        announce(logging.WARNING, f"warning: {text}", LogFormat.TEXT)
    check_can_listen(address)
    options = FrontOptions(
        servers=server,
        listen=address,
        advertise=None if advertise is None else front_address(advertise),
        retries=retries,
        dead_letter_groups=frozenset(dead_letter),
        monitor=None if monitor is None else parse_address(monitor, DEFAULT_MONITOR_PORT),
        users=users,
        tls=tls,
        history=history,
    )
    with asyncio.Runner() as runner:
        runner.run(_serve(Front(options)))


def front_address(text: str) -> Address:
    """`HOST` or `HOST:PORT` of a front."""
    return parse_address(text, DEFAULT_PORT)


def check_grpc_packages() -> None:
    """Raises `CliError` if the package of the extra `grpc` is missing; does not import it."""
    if find_spec("grpc") is None:
        raise CliError(f"gRPC clients need the package grpcio: {install_extra('grpc')}")


def check_protection(listen: Address, *, users: bool, tls: bool) -> None:
    """Refuses users without TLS on a network: anyone who sees their signature can use it again."""
    if is_loopback(listen.host):
        return
    if users and not tls:
        raise CliError(
            f"{listen} can be reached from other machines, and anyone who sees the signature of a gRPC client can use "
            f"it again: serve TLS (--cert), or listen on 127.0.0.1"
        )
    if not users:
        announce(
            logging.WARNING,
            f"warning: {listen} can be reached from other machines, and every client may do everything (see --users)",
            LogFormat.TEXT,
        )


async def _serve(front: "Front") -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, front.reload)
    try:
        await front.start()
    except OSError as error:
        raise cannot_listen(front.options.listen, error) from error
    announce(logging.INFO, f"LaneMQ gRPC on {front.address} for {front.options.servers}", LogFormat.TEXT)
    await stop.wait()
    await front.stop()
