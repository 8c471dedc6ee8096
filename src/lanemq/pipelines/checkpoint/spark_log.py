"""What Spark's part of a checkpoint says: which batches were planned, which are done, and where they end.

Read from the files themselves, because only those are the truth after a crash, and because a batch is done for Spark
when its file is there and not when our code has returned.
"""

import json
from pathlib import Path

from lanemq.model.errors import StateLost
from lanemq.pipelines.atomic_files import sync
from lanemq.spark.offsets import Positions, from_json


class SparkLog:
    """The folders `offsets` and `commits` of a checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._commits = checkpoint / "commits"

    def planned(self) -> int | None:
        """The last batch whose end is fixed; None before the first."""
        return _last(self._offsets)

    def done(self) -> int | None:
        """The last batch that will not be repeated."""
        return _last(self._commits)

    def is_committed(self, batch: int) -> bool:
        return (self._commits / str(batch)).exists()

    def sync(self, batch: int) -> None:
        """The plan of a batch is on the disk. Spark itself does not wait for that, and would after a power cut plan
        other messages under the number of a batch that a sink has."""
        for path in (self._offsets / str(batch), self._offsets):
            sync(path)

    def end_of(self, batch: int) -> Positions:
        """Where a planned batch ends, in every queue."""
        path = self._offsets / str(batch)
        try:
            lines = path.read_text("utf-8").splitlines()
            return from_json(json.loads(lines[2])) if lines[2] != "-" else {}
        except (OSError, IndexError, ValueError) as error:
            raise StateLost(f"{path} cannot be read: {error}; restore the checkpoint from a copy") from error


def _last(folder: Path) -> int | None:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
