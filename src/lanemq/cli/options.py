"""Options that every command shares, and how an error becomes one line and an exit code.

Exit codes: 0 success, 1 refused or failed, 2 wrong command line. Scripts depend on these numbers.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import click

from lanemq.cli.errors import CliError as CliError
from lanemq.cli.errors import WrongUsage as WrongUsage
from lanemq.cli.output import Part, print_parts, printable
from lanemq.cli.security import ConnectingCommand, as_flags, with_security_options
from lanemq.model.errors import ConnectFailed, InvalidOption, LaneError, MissingKey, UsageError
from lanemq.model.units import parse_duration
from lanemq.model.wording import shown

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER = "localhost:9876"
_ADVICE: dict[type[LaneError], str] = {
    ConnectFailed: " Start one with `lanemq broker --data DIR`, or set its address with --server or LANEMQ_SERVER.",
    MissingKey: "; on the command line use --key",
}
"""Advice for the shell, which the library's errors do not contain."""


def as_failure(error: LaneError, before: str = "") -> CliError:
    """An error of the library as a line for the shell, with its exit code."""
    kind = WrongUsage if isinstance(error, UsageError) else CliError
    return kind(f"{before}{with_advice(error, _ADVICE.get(type(error), ''))}")


def with_advice(error: LaneError, advice: str) -> str:
    """The error and the advice. Errors end without a full stop, which is added before a new sentence."""
    text = str(error)
    return text + ("." if advice.startswith(" ") and text[-1:] not in ".?!" else "") + advice


class InOrder(click.Group):
    """A group of commands whose help lists them in the order of their definition."""

    command_class = ConnectingCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; for a word of other tools (`topic rm`) it names the command of this group."""
        meant = next((each for each in SYNONYMS.get(args[0], ()) if each in self.commands), None)
        if args[0] not in self.commands and meant is not None:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant!r}?", ctx)
        return super().resolve_command(ctx, args)


SYNONYMS = {
    **dict.fromkeys(("rm", "remove", "drop"), ("delete",)),
    **dict.fromkeys(("add", "new", "make"), ("create",)),
    **dict.fromkeys(("ls", "all"), ("list",)),
    **dict.fromkeys(("info", "get", "stats", "view", "show"), ("describe", "show")),
    "start": ("run",),
    "retry": ("redrive",),
}
"""Commands of groups by the names that other tools have for them."""


class CommandGroup(InOrder):
    """A group of commands that shows every LaneMQ error as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LaneError as error:
            raise as_failure(error) from error


def connects(command: F) -> F:
    """Adds `--server`, TLS and credential options. The command runs as soon as a broker accepts connections."""

    @functools.wraps(command)
    def waiting(*args: Any, server: str, **options: Any) -> Any:
        # Imported here: `lanemq --version` needs no network code.
        from lanemq.cli.wait_for_broker import wait_for_broker
        from lanemq.net.address import parse_addresses

        with errors_name_flags():
            addresses = parse_addresses(server)
            wait_for_broker(addresses)
            if len(addresses) > 1:
                _warn_of_other_clusters(server)
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
    return cast(F, server(with_security_options(waiting)))


def _warn_of_other_clusters(server: str) -> None:
    from lanemq.client.admin.clusters import other_clusters

    if others := other_clusters(server):
        click.echo(f"Warning: {others}.", err=True)


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


def json_lines_option(what: str) -> Callable[[F], F]:
    """`--json` of a command that prints as it goes: a line for each `what`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print one line of JSON for each {what}.")


def asks_server(command: F) -> F:
    """Adds `--json` and the options of `connects`. The command runs with `server` and `as_json`."""
    return json_option(connects(command))


YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation; needed where there is no terminal.")


def confirm(yes: bool, what: str, *preview: Part) -> None:
    """Every command that destroys something calls this first: it shows what will happen, and asks.

    A script cannot answer, so it needs `--yes`. The preview goes to stderr, because stdout may be read as JSON.
    """
    if yes:
        return
    if not is_terminal():
        raise CliError(f"{what}. Nothing was changed: repeat the command with --yes")
    print_parts(*preview, err=True)
    click.confirm(printable(f"{what}. Continue?"), abort=True, err=True)


def is_terminal() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty()


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
        with contextlib.suppress(InvalidOption, OverflowError):
            return datetime.now().astimezone() - timedelta(seconds=parse_duration(span))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(
            f"{option} {shown(text)} is not a time: write 2026-01-31T12:00, 2026-01-31T12:00Z, or 10m for ten "
            f"minutes ago"
        ) from None
