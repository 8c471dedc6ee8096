"""The settings that the parts of the main job share."""

from pathlib import Path
from typing import Final

TOPIC: Final = "orders"
QUEUES: Final = 8
CONSUMER_GROUP: Final = "shipping"
PIPELINE_GROUP: Final = "warehouse"
CONSUMERS: Final = 3
SEED: Final = 14
EVENTS_PER_SECOND: Final = 3_000
"""A limited rate, so that there is work left when processes are killed."""
EVENTS_PER_BATCH: Final = 3_000
MASTER: Final = "local-cluster[2,1,1024]"
"""Two executors in processes of their own, one of which is killed."""


def table_folder(folder: Path) -> Path:
    """The Delta table that the pipeline fills."""
    return folder / "transitions"


def checkpoint_folder(folder: Path) -> Path:
    return folder / "checkpoint"
