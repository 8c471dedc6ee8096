"""`lanemq check HISTORY…`: judge histories from the command line."""

import sys
from pathlib import Path

import click
import msgspec

from lanemq.checker.checking import COVERAGE, Options
from lanemq.checker.checking import check as check_files
from lanemq.checker.explain import describe
from lanemq.checker.reading import find_files


@click.command()
@click.argument("history", nargs=-1, required=True, type=click.Path(exists=True, readable=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option(
    "--require",
    multiple=True,
    metavar="NAME[=LEAST]",
    help=f"What the run must have exercised, or the verdict is unknown: {', '.join(COVERAGE)}.",
)
@click.option("--drained", is_flag=True, help="The run was meant to end with nothing left over.")
@click.option("--foreign-producers", is_flag=True, help="Some producers wrote no history.")
@click.option("--repeats-allowed", is_flag=True, help="A message twice in the log is counted, not a violation.")
@click.option("--slack-ms", default=1.0, show_default=True, help="Lines this near to each other are one moment.")
def check(
    history: tuple[Path, ...],
    as_json: bool,
    require: tuple[str, ...],
    drained: bool,
    foreign_producers: bool,
    repeats_allowed: bool,
    slack_ms: float,
) -> None:
    """Judge the order of a run from its HISTORY files or folders.

    Exit code 0: no promise was broken. 1: a violation, explained. 2: unknown, because history is missing or
    the run exercised too little.
    """
    options = Options(require, drained, foreign_producers, not repeats_allowed, int(slack_ms * 1e6))
    for path in history:
        if not find_files([path]):
            raise click.UsageError(f"no history files in {path}: a broker writes *.jsonl there with --history")
    try:
        report = check_files(history, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        facts = msgspec.to_builtins(report) | {"verdict": report.verdict.name.lower()}
        click.echo(msgspec.json.encode(facts).decode())
    else:
        click.echo(describe(report))
    sys.exit(report.verdict.value)
