"""`lanemq broker`: runs a broker until SIGTERM or Ctrl-C.

Problems with the machine (folder, port, a second broker) are found before the first client connects, and reported in
one line.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from lanemq.broker.access.users import read_users
from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.cli.listening import BIND_ERRORS, UNKNOWN_HOST, cannot_listen, check_can_listen
from lanemq.cli.options import CliError, duration
from lanemq.cli.output import LogFormat, announce, log_audit_to, log_to_stderr
from lanemq.cli.server.supervised_front import SupervisedFront
from lanemq.cli.settings import PREFIX, SettingsCommand, config_option, origins_of
from lanemq.model.errors import DiskFull, StorageError
from lanemq.model.names import DEFAULT_BROKER_NAME
from lanemq.net.address import is_loopback, parse_address
from lanemq.net.descriptors import raise_soft_limit
from lanemq.net.fast_loop import fast_loop
from lanemq.net.freed_memory import keep_freed_memory
from lanemq.net.security import key_problem
from lanemq.net.server_tls import ServerTls, TlsMode

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MONITOR_PORT = 9880
DEFAULT_MONITOR = f"127.0.0.1:{DEFAULT_MONITOR_PORT}"

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_FIELDS = {"relaxed": "durable", "no_auto_create": "auto_create_topics", "tls_cert": "tls"}
"""Options of the command line that have another name in `BrokerOptions`."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

SWITCH_SECONDS = 0.0001
"""How long the log thread waits for the interpreter, which the event loop holds, before the event loop must hand it
over. The wait starts again each time the event loop lets go of the interpreter and takes it back, as it does for every
read of a file. So it must be shorter than the answer to one pull (0.3 to 0.5 ms): otherwise the log thread gets no
turn while pulls are answered, and sends wait for up to 90 ms. Much shorter: threads change more often than they work.
"""


TLS_OPTIONS = ("tls_cert", "tls_key", "tls_client_ca", "tls_mode")


def _tls(cert: Path | None, key: Path | None, ca: Path | None, mode: str | None) -> ServerTls | None:
    if cert is None and (key or ca or mode):
        raise click.UsageError("--tls-key, --tls-client-ca and --tls-mode need --tls-cert")
    return None if cert is None else ServerTls(cert, key, ca, TlsMode(mode or TlsMode.ENFORCING.value))


def _tls_options(command: F) -> F:
    """Adds `--tls-*` and `--users`; the command gets `tls` and `users`."""

    @functools.wraps(command)
    def with_tls(*args: Any, **options: Any) -> Any:
        tls = _tls(*(options.pop(name) for name in TLS_OPTIONS))
        return command(*args, tls=tls, **options)

    file = click.Path(path_type=Path, dir_okay=False)
    modes = click.Choice([mode.value for mode in TlsMode])
    decorated: Any = with_tls
    for option in (
        click.option("--users", type=file, help="File with users and permissions (TOML); default: everything allowed."),
        click.option(
            "--tls-mode", type=modes, help="Accept clients without TLS (permissive) or not.  [default: enforcing]"
        ),
        click.option("--tls-client-ca", type=file, help="Require client certificates of these authorities (PEM)."),
        click.option("--tls-key", type=file, help="Private key of --tls-cert (PEM), if it is in a separate file."),
        click.option("--tls-cert", type=file, help="Serve TLS with this certificate or chain (PEM)."),
    ):
        decorated = option(decorated)
    return cast(F, decorated)


_MORE = {
    "cluster": "Cluster name for RocketMQ's tools.",
    "default_queues": "Upper limit for the queues of a topic created by a send; RocketMQ's producers ask for 4.",
    "max_connections": "Connections at once; fewer if the process may not open that many files.",
    "max_connections_per_address": "Connections of one address; 0 means half of --max-connections.",
    "max_pinned_bytes": "Limit of log files that are kept longer because they hold parked messages.",
    "segment_bytes": "Size of one log file; retention deletes whole files.",
    "min_free_bytes": "Sends are refused while less is free on the disk.",
    "max_body_bytes": "Largest message body.",
    "first_request_timeout": "A connection without a request is closed after this time.",
    "max_pending_bytes": "Bytes accepted and not on disk; beyond it senders are answered busy.",
    "checkpoint_every": "Time between two writes of indexes and producer stamps.",
}
"""Options that few brokers change, and that `--help` leaves out: fields of `BrokerOptions`, which say what goes wrong
at either end."""


def _more_options(command: F) -> F:
    """Adds an option for each of `_MORE`, with the default of its field."""
    defaults = {each.name: each.default for each in fields(BrokerOptions)}
    decorated: Any = command
    for name, text in reversed(_MORE.items()):
        default = defaults[name]
        kind: Any = duration if isinstance(default, float) else type(default)
        shown = f"{default:.12g}s" if isinstance(default, float) else default
        flag = f"--{name.replace('_', '-')}"
        decorated = click.option(flag, type=kind, default=shown, show_default=True, help=text, hidden=True)(decorated)
    return cast(F, decorated)


@click.command(cls=SettingsCommand, context_settings={"auto_envvar_prefix": PREFIX})
@config_option
@click.option(
    "--listen", default="127.0.0.1:9876", show_default=True, metavar="HOST:PORT", help="Address to listen on."
)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Data folder; created if it is missing.")
@click.option("--advertise", metavar="HOST", help="Host name that clients use, if it differs from --listen.")
@click.option(
    "--name",
    default=DEFAULT_BROKER_NAME,
    show_default=True,
    help="Broker name. Changing it changes every queue's name.",
)
@click.option(
    "--recover",
    is_flag=True,
    help="Start although state.db was lost (topics and epochs come from recovery.json), or files of the log.",
)
@click.option(
    "--relaxed", is_flag=True, help="Acknowledge before fdatasync: faster, but a power cut can lose messages."
)
@click.option("--no-auto-create", is_flag=True, help="Refuse messages to topics that do not exist.")
@click.option(
    "--retention",
    type=duration,
    default="72h",
    show_default=True,
    metavar="DURATION",
    help="How long messages are kept: seconds, or a number with a unit, such as 72h or 3d.",
)
@click.option(
    "--retention-bytes", type=int, default=0, help="Size limit of the log; 0 means three quarters of the disk."
)
@_tls_options
@click.option(
    "--monitor",
    default=DEFAULT_MONITOR,
    show_default=True,
    metavar="HOST:PORT|off",
    help="Address for health checks and metrics over HTTP. If the default is in use, the broker runs without them.",
)
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="Also serve RocketMQ 5's gRPC clients there, by a process of its own (lanemq grpc).",
)
@click.option("--history", type=click.Path(path_type=Path), help="Folder for a history of events, for lanemq check.")
@click.option(
    "--audit",
    metavar="FILE|off",
    help="File for the log of administrative requests.  [default: audit.log in the data folder]",
)
@_more_options
@click.option(
    "--log-format",
    default=LogFormat.TEXT.value,
    show_default=True,
    type=click.Choice([each.value for each in LogFormat]),
    help="Lines for people, or one JSON object per event.",
)
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level that is logged to stderr.",
)
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

    SIGTERM or Ctrl-C stops it cleanly; a second signal ends it at once. Every option can come from a file (--config)
    or from the environment (LANEMQ_BROKER_LISTEN, and so on). `lanemq config show` lists them, with some more that few
    brokers need, and says what would be used.
    """
    click.get_current_context().with_resource(_without_hangups())
    form = LogFormat(log_format)
    log_to_stderr(log_level.upper(), form)
    options = _options(
        data=data,
        listen=listen,
        relaxed=relaxed,
        no_auto_create=no_auto_create,
        monitor=monitor,
        monitor_required=_is_chosen("monitor"),
        origins={_FIELDS.get(name, name): where for name, where in origins_of(click.get_current_context()).items()},
        **settings,
    )
    for text in _warnings(options):
        announce(logging.WARNING, text if form is LogFormat.JSON else f"warning: {text}", form)
    check_start(options)
    front = None if grpc is None else SupervisedFront(grpc, options)
    _make_folder(data)
    if audit != "off":
        log_audit_to(options.data / "audit.log" if audit is None else Path(audit))
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(serve(options, form, front))


def _options(*, listen: str, relaxed: bool, no_auto_create: bool, monitor: str, **settings: Any) -> BrokerOptions:
    return BrokerOptions(
        listen=parse_address(listen),
        durable=not relaxed,
        auto_create_topics=not no_auto_create,
        monitor=None if monitor == "off" else parse_address(monitor, DEFAULT_MONITOR_PORT),
        **settings,
    )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises an error if a broker refuses these values of its command line; looks at no file."""
    others = (*TLS_OPTIONS, "log_format", "log_level", "audit", "grpc")
    _options(**{name: value for name, value in settings.items() if name not in others})
    _tls(*(settings[name] for name in TLS_OPTIONS))


def check_start(options: BrokerOptions) -> None:
    """Refuses here what the start would refuse after it has created the data folder."""
    check_can_listen(options.listen)
    if options.monitor is not None and options.monitor_required:
        check_can_listen(options.monitor, "--monitor")
    if options.users is not None:
        read_users(options.users)
    if options.tls is not None:
        options.tls.context()


def count_users(file: Path) -> int:
    """How many users a file of `--users` has; raises `InvalidOption` if a broker would not start with it."""
    return len(read_users(file))


def _is_chosen(option: str) -> bool:
    """Whether the user gave the option, and it is not its default."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def _warnings(options: BrokerOptions) -> Iterator[str]:
    """Warnings about missing protection if other machines can connect, and about readable files of secrets."""
    unprotected = [
        text
        for text, wrong in (
            ("every client may do everything (see --users)", options.users is None),
            ("connections are not encrypted (see --tls-cert)", options.tls is None),
        )
        if wrong
    ]
    if unprotected and not is_loopback(options.listen.host):
        yield (
            f"{options.listen} can be reached from other machines, and {' and '.join(unprotected)}: "
            f"keep it behind a firewall, or use --listen 127.0.0.1:{options.listen.port}"
        )
    if options.users is not None and options.users.is_file() and options.users.stat().st_mode & 0o077:
        yield (
            f"{options.users} holds secrets and can be read by other users of this machine: chmod 600 {options.users}"
        )
    if options.tls is not None and (problem := key_problem(options.tls.cert, options.tls.key)) is not None:
        yield problem


async def serve(options: BrokerOptions, form: LogFormat, front: SupervisedFront | None = None) -> None:
    """Runs the broker until SIGTERM or SIGINT; a second signal ends the process at once. The front ends before it."""
    running = Broker(options)
    raise_soft_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()
    with _stop_signal() as stop:
        await _start(running, options)
        # What the start made stays for good. Otherwise every full collection would walk it, while no client is served.
        gc.freeze()
        with _reload_signal(running):
            safety = "durable" if options.durable else "relaxed"
            first = f"LaneMQ {version('lanemq')} on {running.address}, {safety}, data in {options.data}"
            announce(logging.INFO, f"{first}, {_monitor_text(running, options)}", form)
            if front is None:
                await stop.wait()
            else:
                await front.run(str(running.address), stop)
        await running.stop()


def _monitor_text(running: Broker, options: BrokerOptions) -> str:
    if running.monitor_address is not None:
        return f"monitor on http://{running.monitor_address}"
    return "no monitor" if options.monitor is None else f"no monitor: {options.monitor} is in use"


@contextlib.contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that signals set. At the end the handlers from before are set again, which a loop does not do."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, _on_signal, stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: installed by C code, which Python cannot set again
                signal.signal(number, handler)


@contextlib.contextmanager
def _without_hangups() -> Iterator[None]:
    """Ignores SIGHUP until the broker can read its files again; by default it would end a broker that starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _reload_signal(running: Broker) -> Iterator[None]:
    """SIGHUP reads users and certificates again."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, running.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if before is not None:
            signal.signal(signal.SIGHUP, before)


async def _start(running: Broker, options: BrokerOptions) -> None:
    try:
        await running.start()
    except OSError as error:
        raise _start_failed(error, options) from error
    except StorageError as error:
        if isinstance(error, DiskFull) or getattr(error.__cause__, "errno", None) in NO_SPACE:
            raise _disk_full(options) from error
        raise


def _make_folder(path: Path) -> None:
    """Creates the folder if needed. Checked here, because later the same problem would look like a damaged log."""
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--data {path} cannot be created: {error.strerror}; choose another folder") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise CliError(f"--data {path} is not writable for this user: change its owner, or choose another folder")


def _start_failed(error: OSError, options: BrokerOptions) -> CliError:
    if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CliError(
            f"cannot start with data in {options.data}: {error.filename}: {error.strerror}; the user of the broker "
            f"must be able to write all of its files, see lanemq doctor --data {options.data}"
        )
    if isinstance(error, socket.gaierror) or error.errno in UNKNOWN_HOST | BIND_ERRORS.keys():
        return cannot_listen(options.listen, error)
    if error.errno in NO_SPACE:
        return _disk_full(options)
    return CliError(f"cannot start on {options.listen} with data in {options.data}: {error}")


def _disk_full(options: BrokerOptions) -> CliError:
    return CliError(f"the disk of {options.data} is full: free some space, then start again; nothing is damaged")


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        sys.exit(1)
    stop.set()
