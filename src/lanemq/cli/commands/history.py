"""`lanemq history`: converts recorded histories."""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from lanemq.checker.parquet_writing import ConvertedFile
from lanemq.checker.parquet_writing import convert as convert_files
from lanemq.cli.output import moving_line


@click.group()
def history() -> None:
    """Work with histories, the files that `lanemq check` reads."""


def _next(converted: Iterator[ConvertedFile]) -> ConvertedFile | None:
    with moving_line("converting"):
        return next(converted, None)


@history.command()
@click.argument("source", type=click.Path(exists=True, readable=True, path_type=Path))
@click.option("--into", required=True, type=click.Path(file_okay=False, path_type=Path), help="Target folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
def convert(source: Path, into: Path, as_json: bool) -> None:
    """Convert the JSONL histories under SOURCE to Parquet.

    `lanemq check` gives the same verdict for both.
    """
    files = 0
    try:
        converted = convert_files(source, into)
        while (done := _next(converted)) is not None:
            files += 1
            for problem in done.problems:
                click.echo(problem, err=True)
            facts = {"file": str(done.path), "events": done.events, "problems": len(done.problems)}
            click.echo(json.dumps(facts) if as_json else f"{done.path}: {done.events:,} events")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not files:
        raise click.UsageError(f"no *.jsonl files in {source}; a broker writes them with --history")
