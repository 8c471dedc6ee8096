"""What a task needs to know to fold messages: a value that travels to executors, checked before anything runs.

The rule guarded here: options that could make the result wrong together are refused while the pipeline is declared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.stages.cdc.binlog_formats import BinlogFormat, CanalFormat, MaxwellFormat
from lanemq.pipelines.stages.cdc.changes import Format
from lanemq.pipelines.stages.cdc.debezium import DebeziumFormat
from lanemq.pipelines.stages.cdc.rows_format import RowFormat
from lanemq.pipelines.stages.cdc.sequence import Part, parse_parts
from lanemq.pipelines.stages.cdc.shapes import RowShape
from lanemq.pipelines.stages.cdc.table import Table

FormatName = Literal["json", "debezium", "canal", "maxwell"]
TimeUnit = Literal["s", "ms", "us", "ns"]
OnMisfit = Literal["null", "dead"]
OnLeftOut = Literal["dead", "keep"]
Decimals = Literal["text", "base64"]
UNITS: Final = ("s", "ms", "us", "ns")
FORMATS: Final = ("json", "debezium", "canal", "maxwell")
ONE_ROW: Final = ("json", "debezium")
"""Formats in which a message is about one row and its message key never changes its meaning."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How messages become changes. Explained at `LastState`, which makes it."""

    table: Table
    format: FormatName
    parts: tuple[Part, ...] = ()
    fold_first: bool | None = None
    only: str | None = None
    deleted: str | None = None
    misfits: OnMisfit = "null"
    time_unit: TimeUnit | Mapping[str, TimeUnit] = "ms"
    decimals: Decimals = "text"

    evolves: bool = False
    """Whether tasks look for fields that the table has not."""
    grown: tuple[str, ...] = ()
    """Columns that the table got so; a value that does not fit one of them never makes its message poison."""

    def unit(self, column: str) -> str:
        """Of its numbers, where the column is a timestamp."""
        return self.time_unit if isinstance(self.time_unit, str) else self.time_unit.get(column, "ms")

    def reader(self) -> tuple[Format, RowShape]:
        """The format, ready to decode, and the shape of its rows; made anew in every task."""
        if self.format == "json":
            rows = RowFormat(self.table, self.parts, self.deleted)
            return rows, rows.shape
        kinds = {"canal": CanalFormat, "maxwell": MaxwellFormat}
        kind = kinds.get(self.format, DebeziumFormat)
        events: DebeziumFormat | BinlogFormat = kind(self.table, self.parts, self.only)
        return events, events.shape


def make_plan(
    table: Table,
    format: str,
    sequence: Sequence[str],
    fold_first: bool | None,
    only: str | None,
    deleted: str | None,
    misfits: str,
    time_unit: str | Mapping[str, str],
    decimals: str,
) -> Plan:
    """The plan, or `InvalidOption` naming what does not go together."""
    parts = parse_parts(sequence)
    _choose("format", format, FORMATS)
    _choose("misfits", misfits, ("null", "dead"))
    _choose("decimals", decimals, ("text", "base64"))
    _check_units(time_unit, table)
    if fold_first and format not in ONE_ROW:
        raise InvalidOption(f"fold_first: a message of {format} may hold several rows; leave it out")
    if only is not None and format == "json":
        raise InvalidOption("table: rows as JSON do not say their table; use a topic per table, or tags")
    if deleted is not None and format != "json":
        raise InvalidOption(f"deleted: {format} has its own way to say that a row is gone; leave it out")
    if deleted is not None:
        parse_parts([deleted])
    folds = fold_first if fold_first is not None or (format in ONE_ROW and not parts) else False
    return Plan(table, format, parts, folds, only, deleted, misfits, time_unit, decimals)  # type: ignore[arg-type]


def _check_units(given: str | Mapping[str, str], table: Table) -> None:
    units = {"": given} if isinstance(given, str) else given
    if not isinstance(given, str) and (unknown := sorted(set(given) - set(table.columns))):
        raise InvalidOption(f"time_unit: there is no column {', '.join(unknown)}; there are {', '.join(table.columns)}")
    for unit in units.values():
        _choose("time_unit", unit, UNITS)


def _choose(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidOption(f"{name}: {value!r} is not one of {', '.join(choices)}")
