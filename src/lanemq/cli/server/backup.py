"""`lanemq backup` and `lanemq restore`: copies of a data folder, taken while its broker or coordinator runs."""

import os
from importlib.metadata import version
from pathlib import Path

import click

from lanemq.cli.output import plural, size_text, time_text
from lanemq.clock import SystemClock, wall_time
from lanemq.log.folder import backup as backups
from lanemq.log.folder.checks import coordinator_in
from lanemq.net.serving.descriptors import raise_soft_limit

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--data", type=FOLDER, required=True, envvar="LANEMQ_BROKER_DATA", help="Data folder to copy.")
@click.option(
    "--verify/--no-verify", default=True, help="Read the backup again and compare checksums.", show_default=True
)
def backup(folder: Path, data: Path, verify: bool) -> None:
    """Copy the data folder of a broker or a coordinator to FOLDER, also while it runs.

    Everything acknowledged before the command started is in the backup. FOLDER must not exist, or be empty, or hold a
    backup that was not finished.
    """
    raise_soft_limit()  # all files of the log are open at once
    manifest = backups.back_up(data, folder, made_at=SystemClock().wall(), version=version("lanemq"))
    if verify:
        backups.verify(folder)
    click.echo(
        f"backed up {data} to {folder}: {size_text(manifest.bytes)} in {plural(len(manifest.files), 'file')}, "
        f"log up to position {manifest.log_end}{', verified' if verify else ''}"
    )


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--data", type=FOLDER, required=True, help="New data folder; must not exist, or be empty.")
def restore(folder: Path, data: Path) -> None:
    """Make a data folder from the backup in FOLDER.

    The folder appears as a whole or not at all. Run this as the user of the broker or coordinator, which must own the
    files. Start it on the folder as usual; a broker reads the whole log once. Groups continue at the offsets of the
    backup, so messages that they finished later are delivered again.
    """
    manifest = backups.restore(folder, data, now=SystemClock().wall())
    click.echo(
        f"restored {data} from {folder}, which was made {time_text(wall_time(manifest.made_at))}: "
        f"{size_text(manifest.bytes)}. Start it with: lanemq {_command(data)} --data {data}"
    )
    if os.geteuid() == 0:
        click.echo(f"The files belong to root. If the server runs as another user: chown -R USER: {data}", err=True)


def _command(data: Path) -> str:
    """What runs on a data folder."""
    return "broker" if coordinator_in(data) is None else "coordinator --cluster NAME_SERVERS"
