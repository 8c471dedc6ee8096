"""The record of a unit of work in the run log of a checkpoint. Without PySpark, so that commands read it too."""

from collections.abc import Mapping
from typing import Final

import msgspec

from lanemq.files import StorePath
from lanemq.pipelines.checkpoint.run_log import read_log

UNIT: Final = "unit"
"""The record's name in the log."""


class DecidedFile(msgspec.Struct, frozen=True):
    """One file with rows."""

    shard: str
    name: str
    rows: int


class DecidedRows(msgspec.Struct, frozen=True):
    """What the sinks get of a decided unit."""

    folder: str
    columns: str
    """The columns of the outputs, as Spark's JSON."""
    outputs: tuple[DecidedFile, ...]
    dead: tuple[DecidedFile, ...]
    counts: dict[str, int]
    late: frozenset[tuple[str, str, int, int]] = frozenset()
    emptied_below: int | str | None = None


class UnitRecord(msgspec.Struct, frozen=True):
    """A batch or a retry pass."""

    number: int
    epoch: int
    """The run that recorded it. A later run completes a decided unit under its own epoch."""
    before: str
    """The stage's state before the unit."""
    state: str
    """The stage's state after it."""
    previous: int | None = None
    """The number of the last unit before it that counts; None if none was recorded."""
    end: dict[str, dict[str, int]] = {}
    """Where the batch ended, as Spark planned it; empty for a retry pass."""
    decided: DecidedRows | None = None
    """The rows, if the sinks may have only part of them."""
    whole: bool = False
    """Whether no commit follows."""

    @property
    def counts(self) -> bool:
        """Whether the state after the unit counts, whatever the sink has."""
        return self.whole or self.decided is not None


pack_unit: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(UnitRecord).decode


def unit_in(records: Mapping[str, bytes]) -> UnitRecord | None:
    """The last unit in the records of a log; None if none was recorded."""
    content = records.get(UNIT)
    return None if content is None else _unpack(content)


def state_after_last_unit(log_folder: StorePath) -> str:
    """The stage's state after the last unit that was recorded, whether or not a sink has it; empty if there is none."""
    unit = unit_in(read_log(log_folder).records)
    return "" if unit is None else unit.state
