"""The events of a Parquet file, or of a folder of Parquet files, batch by batch.

The same facts as in the lines: one column per field of the format, empty where an event has no such field. A folder
is one history in parts, read in the order of their names. Memory is one batch of one row group.

pyarrow is asked for only here and only when there is a Parquet file to read.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lanemq.checker.events import AnyEvent, Event

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
NEEDED = "histories in Parquet need pyarrow: install lanemq[spark], or give the JSONL files"

Complain = Callable[[str], None]


def field_types() -> dict[str, type]:
    """Every field of the format, text or number; the columns of a Parquet history."""
    found: dict[str, type] = {"e": str}
    for kind in AnyEvent.__args__:
        for field in msgspec.structs.fields(kind):
            if field.name != "process":
                found[field.name] = int if field.type is int else str
    return found


def needs_pyarrow() -> Any:
    """The parquet module of pyarrow, or a sentence that says what to install."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(NEEDED) from error
    return pyarrow.parquet


class ParquetRows:
    """One pass over a file or folder; `complain` gets a sentence for every defect."""

    def __init__(self, path: Path, complain: Complain) -> None:
        self._path = path
        self._complain = complain
        self._fields = {str(kind.__struct_config__.tag): (kind, _fields_of(kind)) for kind in AnyEvent.__args__}

    def blocks(self) -> Iterator[Sequence[Event]]:
        parquet = needs_pyarrow()
        parts = sorted(self._path.glob("*.parquet")) if self._path.is_dir() else [self._path]
        for part in parts:
            yield from self._part(parquet, part)

    def _part(self, parquet: Any, part: Path) -> Iterator[Sequence[Event]]:
        """A file without its end was being written when the process died, and holds nothing that can be read."""
        try:
            with parquet.ParquetFile(part) as file:
                if not {"e", "n", "t"} <= set(file.schema_arrow.names):
                    self._complain(
                        f"{part.name} is not a history: it has no columns e, n and t; give what was recorded"
                    )
                    return
                wanted = [name for name in file.schema_arrow.names if name in field_types()]
                for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
                    yield self._events(part, batch)
        except (OSError, ValueError) as error:
            self._complain(f"{part.name}: cannot be read as Parquet: {error}")

    def _events(self, part: Path, batch: "pa.RecordBatch") -> list[Event]:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        tags = columns["e"]
        events: list[Event | None] = [None] * len(tags)
        for tag in dict.fromkeys(tags):
            at = [row for row, kind in enumerate(tags) if kind == tag]
            self._of_kind(part, tag, at, columns, events)
        return [event for event in events if event is not None]

    def _of_kind(
        self, part: Path, tag: str, at: list[int], columns: dict[str, list[Any]], events: list[Event | None]
    ) -> None:
        kind, names = self._fields.get(tag, (None, ()))
        there = [(name, columns[name]) for name in names if name in columns]
        for row in at:
            facts = {name: value for name, column in there if (value := column[row]) is not None}
            try:
                if kind is None:
                    raise msgspec.ValidationError(f"Invalid value {tag!r} - at `$.e`")
                events[row] = msgspec.convert(facts, kind)
            except msgspec.ValidationError as error:
                self._complain(f"{part.name}: cannot read the row with n={columns['n'][row]}: {error}: {facts}")


def _fields_of(kind: type[Event]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.name != "process"]
