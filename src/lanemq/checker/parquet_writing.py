"""Histories in Parquet: the same facts as the lines, in a tenth of the space.

Nothing is judged and nothing repaired on the way: numbers and times stay what they are, so a hole in the lines is a
hole in the rows, and the verdict about both is the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lanemq.checker.json_lines import JsonLines
from lanemq.checker.parquet_rows import field_types, needs_pyarrow
from lanemq.checker.reading import find_files

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 64 * 1024


@dataclass(slots=True)
class Converted:
    """A file that was written, how many events are in it, and what could not be read of the original."""

    path: Path
    events: int = 0
    problems: list[str] = field(default_factory=list)


def convert(source: Path, into: Path) -> Iterator[Converted]:
    """Every JSONL history under `source` as Parquet under `into`, which must be another folder.

    A file appears under its name when it is complete.
    """
    root = source if source.is_dir() else source.parent
    if root.resolve() == into.resolve():
        raise ValueError(f"{into} holds the lines themselves: choose another folder for the Parquet files")
    for path in find_files([source]):
        if path.suffix == ".jsonl":
            yield _convert_file(path, into / path.relative_to(root).with_suffix(".parquet"))


def schema() -> "pa.Schema":
    """One column for each field any event has."""
    needs_pyarrow()
    import pyarrow as pa

    return pa.schema({name: pa.int64() if kind is int else pa.string() for name, kind in field_types().items()})


def table(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Events as `History` writes them, as rows; a field an event does not have stays empty."""
    columns = schema()
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), columns)


def _convert_file(path: Path, target: Path) -> Converted:
    parquet = needs_pyarrow()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    converted = Converted(target)
    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(unfinished, schema(), compression="zstd") as writer:
        for block in JsonLines(path, converted.problems.append).blocks():
            rows += [_row(event) for event in block]
            converted.events += len(block)
            if len(rows) >= ROW_GROUP:
                writer.write_table(table(rows))
                rows = []
        writer.write_table(table(rows))
    unfinished.replace(target)
    return converted


def _row(event: msgspec.Struct) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(event)
    del facts["process"]
    return facts
