"""How messages become changes: the options of `LastState`, checked before anything runs and sent to executors.

Invariants: options that together could make the result wrong are refused when the pipeline is declared. Rows are
compared only with rows that were made in the same way, so keys and sequence cannot change while a checkpoint exists
(`table.json`): with other keys the existing rows are not found and stay beside the new ones; with another sequence all
newer changes may lose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from lanemq.files import StorePath, read_json, write_json
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.stages.cdc.changes import Format
from lanemq.pipelines.stages.cdc.formats.binlog import CanalFormat, MaxwellFormat
from lanemq.pipelines.stages.cdc.formats.debezium import DebeziumFormat
from lanemq.pipelines.stages.cdc.formats.rows import RowFormat
from lanemq.pipelines.stages.cdc.meanings import Meaning
from lanemq.pipelines.stages.cdc.sequence import Part, parse_parts, sequence_type
from lanemq.pipelines.stages.cdc.table import ReplicaTable
from lanemq.pipelines.text_limits import TextLimit

FormatName = Literal["json", "debezium", "canal", "maxwell"]
TimeUnit = Literal["s", "ms", "us", "ns"]
OnMisfit = Literal["null", "dead_letter"]
OnLeftOut = Literal["dead_letter", "keep"]
Decimals = Literal["text", "base64"]
UNITS: Final = ("s", "ms", "us", "ns")
FORMATS: Final = ("json", "debezium", "canal", "maxwell")
ONE_ROW: Final = ("json", "debezium")
"""Formats in which a message concerns one row, and a message key always stands for the same row."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """What a task needs to know. `LastState` explains the options."""

    table: ReplicaTable
    format: FormatName
    parts: tuple[Part, ...] = ()
    fold_first: bool | None = None
    only_table: str | None = None
    deleted: str | None = None
    misfits: OnMisfit = "null"
    time_unit: TimeUnit | Mapping[str, TimeUnit] = "ms"
    decimals: Decimals = "text"
    one_queue: bool = False
    empties: bool = True
    """Whether the sink can delete all rows that are older than a truncation."""
    text_limits: tuple[TextLimit, ...] = ()
    """How long texts may be in the sink."""
    evolves: bool = False
    """Whether tasks look for fields that the table does not have."""
    added: tuple[str, ...] = ()
    """Columns that the table got in this way; a value that does not fit one of them never makes its message poison."""

    def meaning(self, column: str, wanted: pa.DataType) -> Meaning:
        """What values of a column mean if their message does not say it."""
        unit = self.time_unit if isinstance(self.time_unit, str) else self.time_unit.get(column, "ms")
        is_base64 = self.decimals == "base64" and pa.types.is_decimal(wanted)
        return Meaning(unit, wanted.scale if is_base64 else None)

    @property
    def merged_schema(self) -> StructType:
        """The columns that a sink merges."""
        return self.table.merged(sequence_type(self.parts), in_queues=bool(self.parts) or not self.one_queue)

    @property
    def why_not_emptied(self) -> str:
        """Why a truncation cannot be applied; empty if it can."""
        if not self.empties:
            return "the sink cannot delete rows that no change names"
        if not self.parts and not self.one_queue:
            return (
                "queue offsets cannot order it against changes in other queues: declare a sequence of the source, or "
                "one_queue if the topic has only one"
            )
        return ""

    def make_format(self) -> Format:
        """The format, ready to decode. Each task makes its own, because its types cannot be pickled."""
        if self.format == "json":
            return RowFormat(self.table, self.parts, self.deleted)
        if self.format == "debezium":
            return DebeziumFormat(self.table, self.parts, self.only_table)
        binlog = CanalFormat if self.format == "canal" else MaxwellFormat
        return binlog(self.table, self.parts, self.only_table)


def check_options(
    table: ReplicaTable,
    format: str,
    sequence: Sequence[str],
    fold_first: bool | None,
    only_table: str | None,
    deleted: str | None,
    misfits: str,
    time_unit: str | Mapping[str, str],
    decimals: str,
) -> ReplicaOptions:
    """The options; raises `InvalidOption` for values that are unknown or contradict each other."""
    parts = parse_parts(sequence)
    _choose("format", format, FORMATS)
    _choose("misfits", misfits, ("null", "dead_letter"))
    _choose("decimals", decimals, ("text", "base64"))
    _check_units(time_unit, table)
    if fold_first and format not in ONE_ROW:
        raise InvalidOption(f"fold_first: a message of {format} may hold several rows; leave it out")
    if only_table is not None and format == "json":
        raise InvalidOption("table: rows as JSON do not name their table; use a topic per table, or tags")
    if deleted is not None and format != "json":
        raise InvalidOption(f"deleted: {format} marks deleted rows in its own way; leave it out")
    if deleted is not None:
        parse_parts([deleted])
    folds = fold_first if fold_first is not None or (format in ONE_ROW and not parts) else False
    return ReplicaOptions(table, format, parts, folds, only_table, deleted, misfits, time_unit, decimals)  # type: ignore[arg-type]


def _check_units(given: str | Mapping[str, str], table: ReplicaTable) -> None:
    units = {"": given} if isinstance(given, str) else given
    if not isinstance(given, str) and (unknown := sorted(set(given) - set(table.columns))):
        raise InvalidOption(f"time_unit: there is no column {', '.join(unknown)}; there are {', '.join(table.columns)}")
    for unit in units.values():
        _choose("time_unit", unit, UNITS)


def _choose(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidOption(f"{name}: {value!r} is not one of {', '.join(choices)}")


class FrozenTable(msgspec.Struct, frozen=True):
    """Options that must not change while rows exist, as the run that made the first batch recorded them."""

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    """Its parts with their kinds; empty: queue offsets."""

    @classmethod
    def of(cls, options: ReplicaOptions) -> "FrozenTable":
        """Those among the options of a stage."""
        parts = tuple(f"{part.path}:{part.kind}" for part in options.parts)
        return cls(tuple(sorted(options.table.keys)), parts)

    def freeze(self, stage_folder: StorePath) -> None:
        """Records the options. Called before the first rows leave the stage; a start without a batch freezes none."""
        path = stage_folder / "table.json"
        if not path.exists():
            write_json(path, self)

    def check(self, stage_folder: StorePath) -> None:
        """Raises `InvalidOption` if the rows of the checkpoint were made with other options."""
        path = stage_folder / "table.json"
        if not path.exists():
            return
        found: Any = read_json(path, FrozenTable)
        if found.keys != self.keys:
            raise InvalidOption(
                f"keys is {', '.join(self.keys)}, but the rows of the checkpoint {stage_folder} have the key "
                f"{', '.join(found.keys)}: the table would keep them beside the new ones. Keep keys=, or begin with an "
                f"empty table and an empty checkpoint"
            )
        if found.sequence != self.sequence:
            raise InvalidOption(
                f"sequence is {_described(self)}, but the rows of the checkpoint {stage_folder} have "
                f"{_described(found)}: old and new ones cannot be compared, and newer changes would lose. Keep "
                f"sequence=, or begin with an empty table and an empty checkpoint"
            )


def _described(table: FrozenTable) -> str:
    return ", ".join(table.sequence) or "none (queue offsets)"
