"""`lanemq history`: what to do with recorded runs, apart from judging them."""

import json
from pathlib import Path

import click

from lanemq.checker.parquet_writing import convert as convert_files


@click.group()
def history() -> None:
    """Recorded runs: files for `lanemq check`."""


@history.command()
@click.argument("source", type=click.Path(exists=True, readable=True, path_type=Path))
@click.option("--to", "form", type=click.Choice(["parquet"]), default="parquet", show_default=True, help="The format.")
@click.option("--into", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the result.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file.")
def convert(source: Path, form: str, into: Path, as_json: bool) -> None:
    """Write the JSONL histories under SOURCE once more, as Parquet; the verdict about both is the same."""
    files = 0
    try:
        for done in convert_files(source, into):
            files += 1
            for problem in done.problems:
                click.echo(problem, err=True)
            facts = {"file": str(done.path), "events": done.events, "problems": len(done.problems)}
            click.echo(json.dumps(facts) if as_json else f"{done.path}: {done.events:,} events")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not files:
        raise click.UsageError(f"no *.jsonl in {source}: a broker writes them there with --history")
