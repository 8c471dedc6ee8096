"""What `LastState` knows between batches. A checkpoint keeps it as a text, in the record of the batch.

Without PySpark, so that a status reads it.
"""

from typing import Final

import msgspec

from lanemq.files import StorePath
from lanemq.pipelines.checkpoint.checkpoint import run_log_of_stage
from lanemq.pipelines.checkpoint.unit_record import state_after_last_unit
from lanemq.pipelines.stages.cdc.misfits import ColumnMisfits


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far a queue was read."""

    last: int
    stored: int


class ReplicaState(msgspec.Struct, frozen=True, tag_field="stage", tag="last_state", omit_defaults=True):
    """The state after a batch."""

    queues: dict[str, QueueEnd] = {}
    """Empty if a sequence of the source says what is newer."""
    columns: dict[str, str] = {}
    """Columns that were added to the table, with their types."""
    emptied_below: int | str | None = None
    """The sequence of the newest truncation."""
    skipped: tuple[str, ...] | None = None
    """Fields that the rows had and the table does not; None before the first batch."""
    misfits: dict[str, ColumnMisfits] = {}


_decode: Final = msgspec.json.Decoder(ReplicaState).decode
_encode: Final = msgspec.json.Encoder().encode
_BEGINS: Final = '{"stage":"last_state"'


def pack_replica_state(state: ReplicaState) -> str:
    return _encode(state).decode()


def read_replica_state(state: str) -> ReplicaState:
    """The state; an empty one if there is none, or if it is another stage's."""
    return _decode(state) if state.startswith(_BEGINS) else ReplicaState()


def read_misfits(stage_folder: StorePath) -> dict[str, ColumnMisfits]:
    """The misfits that a stage has recorded, by column; empty for stages without any."""
    return read_replica_state(state_after_last_unit(run_log_of_stage(stage_folder))).misfits
