"""Options that every command shares, and how an error becomes one line and an exit code.

Exit codes: 0 success, 1 refused or failed, 2 wrong command line. Scripts depend on these numbers.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import click

from lanemq.cli.output import printable
from lanemq.cli.security import as_flags, with_security_options
from lanemq.model.errors import ConnectFailed, InvalidOption, LaneError, MissingKey, UsageError
from lanemq.model.units import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER = "localhost:9876"
_ADVICE: dict[type[LaneError], str] = {
    ConnectFailed: " Start one with `lanemq broker --data DIR`, or set its address with --server or LANEMQ_SERVER.",
    MissingKey: "; on the command line use --key",
}
"""Advice for the shell, which the library's errors do not contain."""

FIRST = frozenset({"first", "earliest"})
LAST = frozenset({"last", "latest"})
"""Synonyms: the library's `StartFrom` has one pair, Kafka's and RocketMQ's tools the other. Commands accept both."""


class CliError(click.ClickException):
    """An error that is shown as one line on stderr, with exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))

    def reworded(self, rewrite: Callable[[str], str]) -> "CliError":
        """The same error with a rewritten message."""
        return type(self)(rewrite(self.message))


class WrongUsage(CliError):
    """An error in the command line or its input; exit code 2."""

    exit_code = 2


def as_failure(error: LaneError, before: str = "") -> CliError:
    """An error of the library as a line for the shell, with its exit code."""
    kind = WrongUsage if isinstance(error, UsageError) else CliError
    return kind(f"{before}{with_advice(error, _ADVICE.get(type(error), ''))}")


def with_advice(error: LaneError, advice: str) -> str:
    """The error and the advice. Errors end without a full stop, which is added before a new sentence."""
    text = str(error)
    return text + ("." if advice.startswith(" ") and text[-1:] not in ".?!" else "") + advice


class CommandGroup(click.Group):
    """A group of commands that shows every LaneMQ error as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LaneError as error:
            raise as_failure(error) from error


def asks_server(command: F) -> F:
    """Adds `--server`, `--json`, TLS and credential options.

    The command runs with `server` and `as_json`, as soon as a broker accepts connections.
    """

    @functools.wraps(command)
    def waiting(*args: Any, server: str, **options: Any) -> Any:
        # Imported here: `lanemq --version` needs no network code.
        from lanemq.cli.wait_for_broker import wait_for_broker
        from lanemq.net.address import parse_addresses

        with errors_name_flags():
            wait_for_broker(parse_addresses(server))
            return command(*args, server=server, **options)

    server = click.option(
        "--server",
        default=DEFAULT_SERVER,
        envvar="LANEMQ_SERVER",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Address of a LaneMQ broker or of RocketMQ name servers; separate several with ';'.",
    )
    return cast(F, json_option(server(with_security_options(waiting))))


@contextlib.contextmanager
def errors_name_flags() -> Iterator[None]:
    """Rewrites errors about TLS and credentials so that they name the flags of the command line."""
    try:
        yield
    except LaneError as error:
        raise as_failure(error).reworded(as_flags) from error
    except CliError as error:
        raise error.reworded(as_flags) from error.__cause__


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def duration(text: str) -> float:
    """The type of an option that is a duration; its value is in seconds."""
    try:
        return parse_duration(text)
    except InvalidOption as error:
        raise click.BadParameter(str(error)) from None


def parse_time(text: str, option: str) -> datetime:
    """A point in time: ISO 8601 (local time unless it has a zone), or a span before now: `10m`, `2h ago`."""
    span = text.removesuffix("ago").rstrip()
    if not span[-1:].isdigit():
        with contextlib.suppress(InvalidOption):
            return datetime.now().astimezone() - timedelta(seconds=parse_duration(span))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r} is not a time: write 2026-01-31T12:00, 2026-01-31T12:00Z, or 10m for ten minutes ago"
        ) from None
