"""`lanemq check HISTORY…`: checks histories from the command line."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from lanemq.checker.checking import CheckOptions
from lanemq.checker.checking import check as check_files
from lanemq.checker.explain import describe
from lanemq.checker.reading import find_files
from lanemq.checker.verdict import COVERAGE, Report, Verdict

F = TypeVar("F", bound=Callable[..., Any])
Judge = Callable[[Sequence[Path], CheckOptions], Report]

_ARGUMENTS = (
    click.argument("history", nargs=-1, required=True, type=click.Path(exists=True, readable=True, path_type=Path)),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
    click.option(
        "--require",
        multiple=True,
        metavar="NAME[=COUNT]",
        help=f"What the run must contain, else the verdict is unknown: {', '.join(COVERAGE)}.",
    ),
    click.option("--drained", is_flag=True, help="Expect that every message was processed at the end of the run."),
    click.option(
        "--foreign-producers",
        is_flag=True,
        help="Some producers wrote no history (such as `lanemq send`); accept their messages.",
    ),
    click.option(
        "--foreign-members",
        is_flag=True,
        help="Some members of groups wrote no history (such as those of pipelines); judge the others.",
    ),
    click.option(
        "--repeats-allowed",
        is_flag=True,
        help="Count messages that are stored twice, instead of reporting a violation.",
    ),
    click.option(
        "--slack",
        default=0.001,
        show_default=True,
        metavar="SECONDS",
        help="Events of two processes this close together count as simultaneous.",
    ),
    click.option(
        "--forgets",
        default=0.5,
        show_default=True,
        metavar="SECONDS",
        help="A broker's crash may lose commits of at most this age.",
    ),
)


class VerdictNotShown(click.ClickException):
    """The report cannot be written. The exit code is not that of a verdict which was not read."""

    exit_code = Verdict.UNKNOWN.value


def with_check_options(command: F) -> F:
    """Adds the argument and options of `print_verdict` to a command."""
    for argument in reversed(_ARGUMENTS):
        command = argument(command)
    return command


@click.command()
@with_check_options
def check(**asked: Any) -> None:
    """Check the order of a recorded run from its HISTORY files or folders.

    Exit codes: 0 no violation was found; 1 a violation, which is explained; 2 unknown, because history is missing or
    the run did too little.
    """
    print_verdict(check_files, **asked)


def print_verdict(
    judge: Judge,
    history: tuple[Path, ...],
    as_json: bool,
    require: tuple[str, ...],
    drained: bool,
    foreign_producers: bool,
    foreign_members: bool,
    repeats_allowed: bool,
    slack: float,
    forgets: float,
) -> None:
    """Prints the report of `judge`, and exits with its verdict."""
    options = CheckOptions(
        require,
        drained,
        foreign_producers,
        not repeats_allowed,
        round(slack * 1e9),
        round(forgets * 1e9),
        foreign_members,
    )
    for path in history:
        if not find_files([path]):
            raise click.UsageError(f"no history files in {path}; a broker writes *.jsonl files with --history")
    try:
        report = judge(history, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    facts = msgspec.to_builtins(report) | {"verdict": report.verdict.name.lower()}
    text = msgspec.json.encode(facts).decode() if as_json else describe(report)
    try:
        click.echo(text)
    except OSError as error:
        raise VerdictNotShown(f"the report cannot be written: {error.strerror}") from error
    sys.exit(report.verdict.value)
