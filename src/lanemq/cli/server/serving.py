"""What `lanemq broker` and `lanemq coordinator` share: their options, the checks before a start, signals, the end.

Problems with the machine (folder, port, a second server) are found before the first client connects, and reported in
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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import click
from click.core import ParameterSource

from lanemq.broker.access.users import read_users
from lanemq.cli.listening import BIND_ERRORS, UNKNOWN_HOST, cannot_listen, check_can_listen
from lanemq.cli.options import CliError
from lanemq.cli.output import LogFormat, announce, log_audit_to, log_to_stderr
from lanemq.cli.settings import config_option
from lanemq.model.errors import DiskFull, StorageError
from lanemq.net.address import Address, is_loopback, parse_address
from lanemq.net.security import key_problem
from lanemq.net.serving.descriptors import raise_soft_limit
from lanemq.net.serving.freed_memory import keep_freed_memory
from lanemq.net.serving.server_tls import ServerTls, TlsMode

F = TypeVar("F", bound=Callable[..., Any])

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

SWITCH_SECONDS = 0.0001
"""How long the log thread waits for the interpreter, which the event loop holds, before the event loop must hand it
over. The wait starts again each time the event loop lets go of the interpreter and takes it back, as it does for every
read of a file. So it must be shorter than the answer to one pull (0.3 to 0.5 ms): otherwise the log thread gets no
turn while pulls are answered, and sends wait for up to 90 ms. Much shorter: threads change more often than they work.
"""

TLS_OPTIONS = ("tls_cert", "tls_key", "tls_client_ca", "tls_mode")


class ServedOptions(Protocol):
    """What the options of both servers have."""

    @property
    def data(self) -> Path | None:
        """The data folder; None if the state is elsewhere."""

    @property
    def listen(self) -> Address: ...
    @property
    def tls(self) -> ServerTls | None: ...
    @property
    def users(self) -> Path | None: ...
    @property
    def monitor(self) -> Address | None: ...
    @property
    def monitor_required(self) -> bool: ...


class Served(Protocol):
    """A server."""

    address: Address

    @property
    def monitor_address(self) -> Address | None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def reload(self) -> None: ...


def _with(command: F, options: list[Callable[[Any], Any]]) -> F:
    """Adds options, in the order of the help."""
    decorated: Any = command
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)


def first_options(name: str, port: int, *, data_required: bool = True) -> Callable[[F], F]:
    """Adds `--config`, `--listen`, `--data` and `--advertise`."""
    listen = f"127.0.0.1:{port}"
    return lambda command: _with(
        command,
        [
            config_option(name),
            click.option(
                "--listen", default=listen, show_default=True, metavar="HOST:PORT", help="Address to listen on."
            ),
            click.option(
                "--data",
                type=click.Path(path_type=Path),
                required=data_required,
                help="Data folder; created if missing.",
            ),
            click.option("--advertise", metavar="HOST", help="Host that clients use, if not that of --listen."),
        ],
    )


def last_options(monitor_port: int) -> Callable[[F], F]:
    """Adds TLS, users, monitor, history, audit and log. `begin` takes those of the log, `prepare` that of the audit."""
    monitor = f"127.0.0.1:{monitor_port}"
    return lambda command: _with(
        command,
        [
            _tls_options,
            click.option(
                "--monitor",
                default=monitor,
                show_default=True,
                metavar="HOST:PORT|off",
                help="Health checks and metrics over HTTP; none if the default port is in use.",
            ),
            click.option(
                "--history", type=click.Path(path_type=Path), help="Folder for a history of events (lanemq check)."
            ),
            click.option(
                "--audit",
                metavar="FILE|off",
                help="Log of administrative requests.  [default: audit.log in the data folder]",
            ),
            click.option(
                "--log-format",
                default=LogFormat.TEXT.value,
                show_default=True,
                type=click.Choice([each.value for each in LogFormat]),
                metavar="FORMAT",
                help="text (for people) or json.",
            ),
            click.option(
                "--log-level",
                default="warning",
                show_default=True,
                type=click.Choice(["debug", "info", "warning", "error"]),
                metavar="LEVEL",
                help="debug, info, warning or error.",
            ),
        ],
    )


def monitor_of(text: str, port: int) -> Address | None:
    """The address of `--monitor`; None if it is off."""
    return None if text == "off" else parse_address(text, port)


def begin(log_level: str, log_format: str) -> LogFormat:
    """Starts the log, and leaves hang-ups until the server can read its files again."""
    click.get_current_context().with_resource(_without_hangups())
    form = LogFormat(log_format)
    log_to_stderr(log_level.upper(), form)
    return form


def prepare(options: ServedOptions, form: LogFormat, audit: str | None) -> None:
    """Warns of missing protection, refuses what the start would refuse, and makes the data folder."""
    for text in _warnings(options):
        announce(logging.WARNING, text if form is LogFormat.JSON else f"warning: {text}", form)
    check_start(options)
    if options.data is not None:
        _make_folder(options.data)
    if audit is None and options.data is not None:
        log_audit_to(options.data / "audit.log")
    elif audit not in (None, "off"):
        log_audit_to(Path(str(audit)))


def tls_of(cert: Path | None, key: Path | None, ca: Path | None, mode: str | None) -> ServerTls | None:
    if cert is None and (key or ca or mode):
        raise click.UsageError("--tls-key, --tls-client-ca and --tls-mode need --tls-cert")
    return None if cert is None else ServerTls(cert, key, ca, TlsMode(mode or TlsMode.ENFORCING.value))


def _tls_options(command: F) -> F:
    """Adds `--tls-*` and `--users`; the command gets `tls` and `users`."""

    @functools.wraps(command)
    def with_tls(*args: Any, **options: Any) -> Any:
        tls = tls_of(*(options.pop(name) for name in TLS_OPTIONS))
        return command(*args, tls=tls, **options)

    file = click.Path(path_type=Path, dir_okay=False)
    modes = click.Choice([mode.value for mode in TlsMode])
    decorated: Any = with_tls
    for option in (
        click.option("--users", type=file, help="Users and permissions (TOML); else all is allowed."),
        click.option(
            "--tls-mode", type=modes, metavar="MODE", help="enforcing (default), or permissive: also without TLS."
        ),
        click.option("--tls-client-ca", type=file, help="Require certificates of these authorities (PEM)."),
        click.option("--tls-key", type=file, help="Its private key (PEM), if in a separate file."),
        click.option("--tls-cert", type=file, help="Serve TLS with this certificate or chain (PEM)."),
    ):
        decorated = option(decorated)
    return cast(F, decorated)


def is_chosen(option: str) -> bool:
    """Whether the user gave the option, and it is not its default."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def check_start(options: ServedOptions) -> None:
    """Refuses here what the start would refuse after it has created the data folder."""
    check_can_listen(options.listen)
    if options.monitor is not None and options.monitor_required:
        check_can_listen(options.monitor, "--monitor")
    if options.users is not None:
        read_users(options.users)
    if options.tls is not None:
        options.tls.context()


def _warnings(options: ServedOptions) -> Iterator[str]:
    """Warnings about missing protection if other machines can connect, and about files that others can read."""
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
    yield from readable_secrets(options.users, options.tls)


def readable_secrets(users: Path | None, tls: ServerTls | None) -> Iterator[str]:
    """Warnings about files of secrets that other users of the machine can read."""
    if users is not None and users.is_file() and users.stat().st_mode & 0o077:
        yield f"{users} holds secrets and can be read by other users of this machine: chmod 600 {users}"
    if tls is not None and (problem := key_problem(tls.cert, tls.key)) is not None:
        yield problem


async def serve(
    running: Served,
    options: ServedOptions,
    form: LogFormat,
    first: Callable[[Address], str],
    until: Callable[[asyncio.Event], Awaitable[None]] | None = None,
) -> None:
    """Runs a server until SIGTERM or SIGINT; a second signal ends the process at once.

    `first` begins the line that says that it serves. `until` runs beside it, and returns when the event of the signals
    is set; an error of it ends the server.
    """
    raise_soft_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()
    with _stop_signal() as stop:
        await start(running, options)
        # What the start made stays for good. Otherwise every full collection would walk it, while no client is served.
        gc.freeze()
        try:
            with _reload_signal(running):
                monitor = _monitor_text(running, options)
                place = "state in PostgreSQL" if options.data is None else f"data in {options.data}"
                announce(logging.INFO, f"{first(running.address)}, {place}, {monitor}", form)
                await (stop.wait() if until is None else until(stop))
        finally:
            await running.stop()


def _monitor_text(running: Served, options: ServedOptions) -> str:
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
def _reload_signal(running: Served) -> Iterator[None]:
    """SIGHUP reads users and certificates again."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, running.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if before is not None:
            signal.signal(signal.SIGHUP, before)


async def start(running: Served, options: ServedOptions) -> None:
    try:
        await running.start()
    except OSError as error:
        raise start_failed(error, options) from error
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


def start_failed(error: OSError, options: ServedOptions) -> CliError:
    if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CliError(
            f"cannot start with data in {options.data}: {error.filename}: {error.strerror}; this user must "
            f"be able to write all of its files, see lanemq doctor --data {options.data}"
        )
    if isinstance(error, socket.gaierror) or error.errno in UNKNOWN_HOST | BIND_ERRORS.keys():
        return cannot_listen(options.listen, error)
    if error.errno in NO_SPACE:
        return _disk_full(options)
    return CliError(f"cannot start on {options.listen} with data in {options.data}: {error}")


def _disk_full(options: ServedOptions) -> CliError:
    return CliError(f"the disk of {options.data} is full: free some space, then start again; nothing is damaged")


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        sys.exit(1)
    stop.set()
