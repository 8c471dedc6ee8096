"""What every command takes, and how an error becomes one line and an exit code.

0: done. 1: refused or failed. 2: the command line itself is wrong. Scripts depend on these numbers.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar, cast

import click

from lanemq.cli.output import harmless
from lanemq.cli.security import as_options, asks_securely
from lanemq.clock import SystemClock
from lanemq.model.errors import ConnectFailed, LaneError, MissingKey, UsageError
from lanemq.model.units import Millis

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER = "localhost:9876"
_FIXES: dict[type[LaneError], str] = {
    ConnectFailed: " Start one with `lanemq broker --data DIR`, or say where it is with --server or LANEMQ_SERVER.",
    MissingKey: "; on the command line that is --key",
}
"""What the library cannot know: how its errors are put right from a shell."""

FIRST = frozenset({"first", "earliest"})
LAST = frozenset({"last", "latest"})
"""Both pairs are in use: the library's `StartFrom` has one, RocketMQ's tools the other. Every command takes either."""

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Failed(click.ClickException):
    """One line on stderr, never a traceback."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(harmless(message))

    def said(self, otherwise: Callable[[str], str]) -> "Failed":
        """The same in other words."""
        return type(self)(otherwise(self.message))


class Misused(Failed):
    """The same for what is wrong with the command line or its input."""

    exit_code = 2


def told(error: LaneError, before: str = "") -> Failed:
    """An error of ours as a line for people, with the exit code it deserves."""
    kind = Misused if isinstance(error, UsageError) else Failed
    return kind(f"{before}{followed_by(error, _FIXES.get(type(error), ''))}")


def followed_by(error: LaneError, more: str) -> str:
    """An error and what to do about it; errors end without a full stop, which a second sentence needs."""
    said = str(error)
    return said + ("." if more.startswith(" ") and said[-1:] not in ".?!" else "") + more


class Nouns(click.Group):
    """A group of commands; whatever LaneMQ raises inside is told in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LaneError as error:
            raise told(error) from error


def asks_server(command: F) -> F:
    """Adds `--server`, `--json` and what protects the connection; the command gets `server` and `as_json`, once a
    broker can be reached."""

    @functools.wraps(command)
    def patient(*args: Any, server: str, **options: Any) -> Any:
        # Here and not above: `lanemq --version` needs no network.
        from lanemq.cli.wait_for_broker import wait_for_broker
        from lanemq.net.address import parse_addresses

        with told_by_options():
            wait_for_broker(parse_addresses(server))
            return command(*args, server=server, **options)

    server = click.option(
        "--server",
        default=DEFAULT_SERVER,
        envvar="LANEMQ_SERVER",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="A LaneMQ broker or RocketMQ name servers; several joined by ';'.",
    )
    return cast(F, json_option(server(asks_securely(patient))))


@contextlib.contextmanager
def told_by_options() -> Iterator[None]:
    """Errors of a command that asks a broker, with what they speak of as it is called on its command line."""
    try:
        yield
    except LaneError as error:
        raise told(error).said(as_options) from error
    except Failed as error:
        raise error.said(as_options) from error.__cause__


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def moment(text: str, option: str) -> Millis:
    """A time as people write it: ISO 8601 (local unless it says otherwise), or `10m`, `2h ago`."""
    if ago := _AGO.fullmatch(text):
        return Millis(SystemClock().wall() - int(float(ago[1]) * _SECONDS[ago[2]] * 1000))
    try:
        return Millis(int(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r} is no time: write 2026-01-31T12:00, 2026-01-31T12:00Z, or 10m for ten minutes ago"
        ) from None
