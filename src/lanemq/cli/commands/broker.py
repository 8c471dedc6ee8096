"""`lanemq broker`: runs a broker until it is told to stop.

Everything that can be wrong with the machine (folder, port, a second broker) is found before the first client
connects, and said in one line.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.cli.broker_security import serves_securely
from lanemq.cli.options import Failed
from lanemq.net.address import parse_address
from lanemq.net.freed_memory import keep_freed_memory

BIND_ERRORS = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: use one of its own, or 127.0.0.1",
    errno.EACCES: "the system reserves this port: choose one above 1023",
}

SIGNALS = (signal.SIGTERM, signal.SIGINT)
UNKNOWN_HOST = frozenset({socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL})
"""The faster event loop tells these as plain numbers of an OSError."""


@click.command()
@click.option("--listen", default="127.0.0.1:9876", show_default=True, metavar="HOST:PORT", help="Where to accept.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder of the log; made if missing.")
@click.option("--advertise", metavar="HOST", help="Host that clients are told, if it is not the listening one.")
@click.option("--name", default="lanemq", show_default=True, help="Broker name in routes; renaming moves every queue.")
@click.option("--relaxed", is_flag=True, help="Acknowledge after write, not after fdatasync.")
@click.option("--no-auto-create", is_flag=True, help="Refuse sends to topics that do not exist.")
@click.option(
    "--default-queues",
    type=int,
    default=8,
    show_default=True,
    help="Most queues of a topic made by a send; senders ask for 4.",
)
@click.option(
    "--retention-hours", type=click.FloatRange(min=0), default=72.0, show_default=True, help="Keep messages this long."
)
@click.option("--retention-bytes", type=int, default=0, help="Keep at most this much log; 0 = no limit.")
@click.option("--max-parked-lane", type=int, default=10_000, show_default=True, help="Most messages in a parked lane.")
@click.option("--max-parked-messages", type=int, default=200_000, show_default=True, help="Most parked by one group.")
@click.option("--max-parked-bytes", type=int, default=2**30, show_default=True, help="Most bytes parked by one group.")
@serves_securely
@click.option("--history", type=click.Path(path_type=Path), help="Folder for what happened, for lanemq check.")
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What to say on stderr.",
)
def broker(
    listen: str,
    data: Path,
    relaxed: bool,
    no_auto_create: bool,
    log_level: str,
    retention_hours: float,
    **settings: Any,
) -> None:
    """Run a broker: name server and broker on one port.

    Stops cleanly on SIGTERM or Ctrl-C; a second one ends it at once.
    """
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    options = BrokerOptions(
        data=_usable_folder(data),
        listen=parse_address(listen),
        durable=not relaxed,
        auto_create_topics=not no_auto_create,
        retention=retention_hours * 3600,
        **settings,
    )
    _warn(options)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(serve(options))


def _warn(options: BrokerOptions) -> None:
    """About what strangers can do, if they can get here at all."""
    open_to_all = [
        text
        for text, wrong in (
            ("everybody may do everything (--users)", options.users is None),
            ("everybody on the way may read along (--tls-cert)", options.tls is None),
        )
        if wrong
    ]
    if open_to_all and not _is_loopback(options.listen.host):
        click.echo(
            f"warning: {options.listen} can be reached from other machines and {' and '.join(open_to_all)}: "
            f"keep it behind a firewall, or use --listen 127.0.0.1:{options.listen.port}",
            err=True,
        )

    if options.users is not None and options.users.is_file() and options.users.stat().st_mode & 0o077:
        click.echo(
            f"warning: {options.users} holds secrets and can be read by other users of this machine: "
            f"chmod 600 {options.users}",
            err=True,
        )


async def serve(options: BrokerOptions) -> None:
    """Until SIGTERM or SIGINT; a second signal ends the process at once."""
    running = Broker(options)
    # The log thread comes back from the disk to a busy loop; with the default of 5 ms it would wait that long.
    sys.setswitchinterval(0.0005)
    keep_freed_memory()
    with _told_to_stop() as stop:
        await _start(running, options)
        safety = "durable" if options.durable else "relaxed"
        click.echo(f"LaneMQ {version('lanemq')} on {running.address}, {safety}, data in {options.data}", err=True)
        await stop.wait()
        await running.stop()


@contextlib.contextmanager
def _told_to_stop() -> Iterator[asyncio.Event]:
    """Set by a signal. A loop that is closed leaves its handlers behind, so they are taken away here."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _on_signal, stop)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _start(running: Broker, options: BrokerOptions) -> None:
    try:
        await running.start()
    except OSError as error:
        raise _start_failed(error, options) from error


def _usable_folder(path: Path) -> Path:
    """The folder, made if need be. Asked here because later the same trouble would look like a broken log."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"--data {path} cannot be a folder: {error.strerror}; choose another one") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise Failed(f"--data {path} cannot be written by this user: change its owner, or choose another folder")
    return path


def _start_failed(error: OSError, options: BrokerOptions) -> Failed:
    if isinstance(error, socket.gaierror) or error.errno in UNKNOWN_HOST:
        return Failed(f"--listen {options.listen}: the host is not known; use an address of this machine")
    if error.errno in BIND_ERRORS:
        return Failed(f"cannot listen on {options.listen}: {BIND_ERRORS[error.errno]}")
    return Failed(f"cannot start on {options.listen} with data in {options.data}: {error}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A faster event loop where it is installed (`pip install lanemq[fast]`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        sys.exit(1)
    stop.set()
