"""Converts histories from JSONL to Parquet, which needs a tenth of the space.

Nothing is judged or repaired: numbers and times stay as they are, so a gap in the lines is a gap in the rows, and both
get the same verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lanemq.checker.reading import JsonLines, field_types, find_files, import_parquet

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 64 * 1024


@dataclass(slots=True)
class ConvertedFile:
    """A file that was written, the number of its events, and what could not be read of the original."""

    path: Path
    events: int = 0
    problems: list[str] = field(default_factory=list)


def convert(source: Path, into: Path) -> Iterator[ConvertedFile]:
    """Writes every JSONL history under `source` as Parquet to `into`, which must be another folder.

    A file appears under its name when it is complete.
    """
    root = source if source.is_dir() else source.parent
    if root.resolve() == into.resolve():
        raise ValueError(f"{into} holds the JSONL files: choose another folder for the Parquet files")
    for path in find_files([source]):
        if path.suffix == ".jsonl":
            yield _convert_file(path, into / path.relative_to(root).with_suffix(".parquet"))


def schema() -> "pa.Schema":
    """One column for each field of the format."""
    import_parquet()
    import pyarrow as pa

    return pa.schema({name: pa.int64() if kind is int else pa.string() for name, kind in field_types().items()})


def table(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Events as `History` writes them, as rows. Fields that an event does not have are empty."""
    columns = schema()
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), columns)


def _convert_file(path: Path, target: Path) -> ConvertedFile:
    parquet = import_parquet()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    converted = ConvertedFile(target)
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
