"""`lanemq broker`: runs a broker until SIGTERM or Ctrl-C."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lanemq.broker.access.users import read_users
from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.cli.options import duration
from lanemq.cli.server.serving import (
    TLS_OPTIONS,
    begin,
    first_options,
    is_chosen,
    last_options,
    monitor_of,
    prepare,
    serve,
    tls_of,
)
from lanemq.cli.server.supervised_front import SupervisedFront
from lanemq.cli.settings import SettingsCommand, origins_of, settings_from
from lanemq.model.names import DEFAULT_BROKER_NAME
from lanemq.net.address import parse_address
from lanemq.net.fast_loop import fast_loop

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MONITOR_PORT = 9880

_FIELDS = {"relaxed": "durable", "no_auto_create": "auto_create_topics", "tls_cert": "tls"}
"""Options of the command line that have another name in `BrokerOptions`."""

_MORE = {
    "cluster": "Cluster name for RocketMQ's tools.",
    "default_queues": "Upper limit for the queues of a topic created by a send; RocketMQ's producers ask for 4.",
    "max_connections": "Connections at once; fewer if the process may not open that many files.",
    "max_pinned_bytes": "Limit of log files that are kept longer because they hold parked messages.",
    "segment_bytes": "Size of one log file; retention deletes whole files.",
    "min_free_bytes": "Sends are refused while less is free on the disk.",
    "max_body_bytes": "Largest message body.",
}
"""Options that few brokers change, and that `--help` leaves out: fields of `BrokerOptions`, which say what goes wrong
at either end."""


def _more_options(command: F) -> F:
    """Adds an option for each of `_MORE`, with the default of its field."""
    defaults = {each.name: each.default for each in fields(BrokerOptions)}
    decorated: Any = command
    for name, text in reversed(_MORE.items()):
        default = defaults[name]
        flag = f"--{name.replace('_', '-')}"
        decorated = click.option(flag, type=type(default), default=default, show_default=True, help=text, hidden=True)(
            decorated
        )
    return cast(F, decorated)


@click.command(cls=SettingsCommand, context_settings=settings_from("broker"))
@first_options("broker", 9876)
@click.option(
    "--name",
    default=DEFAULT_BROKER_NAME,
    show_default=True,
    metavar="NAME",
    help="Part of every queue's name.",
)
@click.option(
    "--recover",
    is_flag=True,
    help="Start although state.db or log files were lost.",
)
@click.option(
    "--relaxed", is_flag=True, help="Acknowledge before fdatasync: faster, but a power cut may lose messages."
)
@click.option("--no-auto-create", is_flag=True, help="Refuse messages to topics that do not exist.")
@click.option(
    "--retention",
    type=duration,
    default="72h",
    show_default=True,
    metavar="TIME",
    help="How long to keep messages, such as 3d.",
)
@click.option("--retention-bytes", type=int, default=0, metavar="N", help="Size limit of the log; 0: 3/4 of the disk.")
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="Serve RocketMQ 5's gRPC clients there, too.",
)
@last_options(DEFAULT_MONITOR_PORT)
@_more_options
def broker(
    listen: str,
    data: Path,
    relaxed: bool,
    no_auto_create: bool,
    monitor: str,
    log_level: str,
    log_format: str,
    audit: str | None,
    grpc: str | None,
    **settings: Any,
) -> None:
    """Run a broker, which is its own name server, on one port.

    SIGTERM or Ctrl-C stops it; a second signal ends it at once. Options can come from a file or from the environment
    (LANEMQ_BROKER_LISTEN). `lanemq config show` lists them, with some that few brokers need.
    """
    form = begin(log_level, log_format)
    options = _options(
        data=data,
        listen=listen,
        relaxed=relaxed,
        no_auto_create=no_auto_create,
        monitor=monitor,
        monitor_required=is_chosen("monitor"),
        origins={_FIELDS.get(name, name): where for name, where in origins_of(click.get_current_context()).items()},
        **settings,
    )
    front = None if grpc is None else SupervisedFront(grpc, options)
    prepare(options, form, audit)
    safety = "durable" if options.durable else "relaxed"
    running = Broker(options)
    until = None if front is None else lambda stop: front.run(str(running.address), stop)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(serve(running, options, form, lambda at: f"LaneMQ {version('lanemq')} on {at}, {safety}", until))


def _options(*, listen: str, relaxed: bool, no_auto_create: bool, monitor: str, **settings: Any) -> BrokerOptions:
    return BrokerOptions(
        listen=parse_address(listen),
        durable=not relaxed,
        auto_create_topics=not no_auto_create,
        monitor=monitor_of(monitor, DEFAULT_MONITOR_PORT),
        **settings,
    )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises an error if a broker refuses these values of its command line; looks at no file."""
    others = (*TLS_OPTIONS, "log_format", "log_level", "audit", "grpc")
    _options(**{name: value for name, value in settings.items() if name not in others})
    tls_of(*(settings[name] for name in TLS_OPTIONS))


def count_users(file: Path) -> int:
    """How many users a file of `--users` has; raises `InvalidOption` if a broker would not start with it."""
    return len(read_users(file))
