"""`lanemq spark pack`: what executors of a cluster need, in one archive."""

import json
from pathlib import Path

import click

from lanemq.cli.options import CliError, CommandGroup
from lanemq.model.environment import install_extra


@click.group(cls=CommandGroup)
def spark() -> None:
    """Prepare what a Spark cluster needs to run pipelines."""


@spark.command()
@click.option(
    "--output",
    "-o",
    default="lanemq-pack.zip",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive. An existing one is replaced.",
)
@click.option(
    "--add",
    "own",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A module or package of your own that executors import, such as the one with your step. Repeatable.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="NAME",
    help="A distribution that executors have already, in the same version, such as pyarrow. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pack(output: Path, own: tuple[Path, ...], leave_out: tuple[str, ...], as_json: bool) -> None:
    """Write one archive with LaneMQ and its dependencies for `spark.archives`.

    Executors then need only a Python of the same version. PySpark is left out: Spark has its own.
    """
    try:
        from lanemq.spark.packing import pack as write_pack
    except ImportError as error:
        raise CliError(f"`lanemq spark pack` needs pyspark and pyarrow ({error}): {install_extra('spark')}") from error
    packed = write_pack(output, own, leave_out)
    if as_json:
        facts = {"file": str(packed.path), "bytes": packed.size, "python": packed.contents.python}
        facts |= {"distributions": packed.contents.distributions, "settings": packed.settings}
        click.echo(json.dumps(facts))
        return
    count = len(packed.contents.distributions)
    click.echo(f"{packed.path}: {count} distributions, {packed.size / 1_000_000:.0f} MB, {packed.contents.python}")
    click.echo("Put this into the pipeline's file, or give each line with --conf:\n\n[spark]")
    for name, value in packed.settings.items():
        click.echo(f'"{name}" = "{value}"')
