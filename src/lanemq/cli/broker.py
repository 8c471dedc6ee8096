"""`lanemq broker`: runs a broker until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

import click

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.model.errors import LaneError
from lanemq.net.address import parse_address


@click.command()
@click.option(
    "--listen", default="127.0.0.1:9876", show_default=True, metavar="HOST:PORT", help="Where to accept."
)
@click.option(
    "--data", type=click.Path(path_type=Path), required=True, help="Folder of the log; made if missing."
)
@click.option(
    "--advertise", metavar="HOST", help="Host that clients are told, if it is not the listening one."
)
@click.option("--relaxed", is_flag=True, help="Acknowledge after write, not after fdatasync.")
@click.option("--no-auto-create", is_flag=True, help="Refuse sends to topics that do not exist.")
@click.option(
    "--retention-hours", type=float, default=72.0, show_default=True, help="Keep messages this long."
)
@click.option("--retention-bytes", type=int, default=0, help="Keep at most this much log; 0 = no limit.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def broker(
    listen: str,
    data: Path,
    advertise: str | None,
    relaxed: bool,
    no_auto_create: bool,
    retention_hours: float,
    retention_bytes: int,
    log_level: str,
) -> None:
    """Run a broker: name server and broker on one port."""
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    options = BrokerOptions(
        data=data,
        listen=parse_address(listen),
        advertise=advertise,
        durable=not relaxed,
        auto_create_topics=not no_auto_create,
        retention_hours=retention_hours,
        retention_bytes=retention_bytes,
    )
    use_uvloop()
    asyncio.run(serve(options))


async def serve(options: BrokerOptions) -> None:
    """Until SIGTERM or SIGINT; a second signal ends the process at once."""
    running = Broker(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    try:
        await running.start()
    except OSError as error:
        raise LaneError(f"cannot listen on {options.listen}: {error}; choose another --listen") from error
    click.echo(f"LaneMQ broker on {running.address}, data in {options.data}", err=True)
    await stop.wait()
    await running.stop()


def use_uvloop() -> None:
    """A faster event loop where it is installed (`pip install lanemq[fast]`)."""
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        sys.exit(1)
    stop.set()
