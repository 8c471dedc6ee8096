"""The folder of the run that may change a checkpoint's state: `lanemq/running/<epoch>`.

The rule guarded here: a run that was replaced changes no state, not even if it looked a moment before whether it was.
State is written in the run's own folder and renamed out of it; a newer run moves the folder away when it starts. Both
are single renames, one of them is first, and no lock is needed, as on a shared disk whose locks do not hold.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from lanemq.model.errors import SinkFenced
from lanemq.pipelines.atomic_files import write_durably
from lanemq.pipelines.batch import run_name

_FOLDER: Final = "running"


def take_over(ours: Path, epoch: int) -> None:
    """Makes the run's folder, and moves those of older ones away. `ours`: the pipeline's part of the checkpoint."""
    running = ours / _FOLDER
    (running / str(epoch)).mkdir(parents=True, exist_ok=True)
    for folder in running.iterdir():
        if folder.name.isdecimal() and int(folder.name) < epoch:
            with suppress(FileNotFoundError):  # moved by a run that is newer still
                folder.rename(running / f".{folder.name}-{os.urandom(4).hex()}")
    for left in running.glob(".*"):
        shutil.rmtree(left, ignore_errors=True)


def write_as(epoch: int, place: Path, path: Path, content: bytes) -> None:
    """Durably, unless the run was replaced: `SinkFenced`. `place`: the stage's; a stage without a run just writes."""
    running = place.parent / _FOLDER
    if not running.is_dir():
        write_durably(path, content)
        return
    try:
        write_durably(path, content, running / str(epoch))
    except FileNotFoundError:
        raise SinkFenced(
            f"run {run_name(epoch)} of the pipeline with state in {place} was replaced: nothing of it counts, stop it"
        ) from None
