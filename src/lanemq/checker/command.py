"""`lanemq check HISTORY…`: judge histories from the command line."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from lanemq.checker.checking import Options
from lanemq.checker.checking import check as check_files
from lanemq.checker.explain import describe
from lanemq.checker.findings import COVERAGE
from lanemq.checker.reading import find_files
from lanemq.checker.verdict import Report

F = TypeVar("F", bound=Callable[..., Any])
Judge = Callable[[Sequence[Path], Options], Report]

_ARGUMENTS = (
    click.argument("history", nargs=-1, required=True, type=click.Path(exists=True, readable=True, path_type=Path)),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
    click.option(
        "--require",
        multiple=True,
        metavar="NAME[=LEAST]",
        help=f"What the run must have exercised, or the verdict is unknown: {', '.join(COVERAGE)}.",
    ),
    click.option("--drained", is_flag=True, help="The run was meant to end with nothing left over."),
    click.option(
        "--foreign-producers",
        is_flag=True,
        help="Some producers wrote no history (as `lanemq send`): their messages are no phantoms (A2).",
    ),
    click.option("--repeats-allowed", is_flag=True, help="A message twice in the log is counted, not a violation."),
    click.option("--slack-ms", default=1.0, show_default=True, help="Lines this near to each other are one moment."),
    click.option(
        "--forgets-ms", default=500.0, show_default=True, help="How old a commit may be that a broker's crash takes."
    ),
)


def asks_for_judgement(command: F) -> F:
    """The argument and options of every way to judge, as `tell_verdict` takes them."""
    for argument in reversed(_ARGUMENTS):
        command = argument(command)
    return command


@click.command()
@asks_for_judgement
def check(**asked: Any) -> None:
    """Judge the order of a run from its HISTORY files or folders.

    Exit code 0: no promise was broken. 1: a violation, explained. 2: unknown, because history is missing or
    the run exercised too little.
    """
    tell_verdict(check_files, **asked)


def tell_verdict(
    judge: Judge,
    history: tuple[Path, ...],
    as_json: bool,
    require: tuple[str, ...],
    drained: bool,
    foreign_producers: bool,
    repeats_allowed: bool,
    slack_ms: float,
    forgets_ms: float,
) -> None:
    """Print what `judge` says, and exit with its verdict."""
    options = Options(
        require, drained, foreign_producers, not repeats_allowed, int(slack_ms * 1e6), int(forgets_ms * 1e6)
    )
    for path in history:
        if not find_files([path]):
            raise click.UsageError(f"no history files in {path}: a broker writes *.jsonl there with --history")
    try:
        report = judge(history, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        facts = msgspec.to_builtins(report) | {"verdict": report.verdict.name.lower()}
        click.echo(msgspec.json.encode(facts).decode())
    else:
        click.echo(describe(report))
    sys.exit(report.verdict.value)
