"""Columns that a change leaves out keep the value that the table has."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.sinks.conftest import MERGING
from tests.pipelines.sinks.targets import CHANGES, KEYED, DeltaTarget, Target, named

from lanemq.pipelines import read_table
from lanemq.pipelines.ports import KEPT, TableRows
from lanemq.pipelines.sinks.delta import _quoted, _updating

ODD = """it's "a" column? 100% "text"""
"""Its JSON ends in that of another column's name."""
SCHEMA = StructType([*CHANGES.fields, StructField(ODD, StringType()), StructField(KEPT, StringType())])

merging = pytest.mark.parametrize("target", MERGING, indirect=True)


def rows(*some: tuple[int, str | None, int, bool, str | None, list[str]]) -> TableRows:
    """Rows to merge: (id, text, sequence, deleted, odd column, kept)."""
    found = [
        dict(zip(SCHEMA.names, (*row[:5], json.dumps(row[5], separators=(",", ":")) if row[5] else None), strict=True))
        for row in some
    ]
    return TableRows(SCHEMA, pa.Table.from_pylist(found, to_arrow_schema(SCHEMA, timezone="UTC")))


def opened(target: Target) -> Any:
    return target.opened(schema=SCHEMA, how=KEYED)


@merging
def test_a_newer_row_replaces_all_columns_but_those_it_keeps(target: Target) -> None:
    sink = opened(target)
    sink.write(rows(*((key, f"old {key}", 1, False, "odd", []) for key in range(6))), named(1, 0))
    kept = [[], ["text"], [ODD], ["text", ODD], ["text"], ["text"]]
    newer = [(key, f"new {key}", 0 if key == 5 else 2, key == 4, "new", kept[key]) for key in range(6)]
    sink.write(rows(*newer, (7, None, 1, False, "only", ["text"])), named(1, 1))
    assert target.changed() == {0: "new 0", 1: "old 1", 2: "new 2", 3: "old 3", 5: "old 5", 7: None}
    assert sink.last_stale == 1
    sink.write(rows(*((key, "end", 3, False, None, [ODD]) for key in range(4))), named(1, 2))
    sink.write(rows(*((key, None, 4, False, None, ["text", ODD]) for key in range(3))), named(1, 3))
    assert {key: text for key, text in target.changed().items() if key < 4} == dict.fromkeys(range(4), "end")


@merging
def test_a_column_is_replaced_although_the_kept_one_has_its_name_behind_a_quote(target: Target) -> None:
    sink = opened(target)
    sink.write(rows((1, "old", 1, False, "odd", [])), named(1, 0))
    sink.write(rows((1, "new", 2, False, None, [ODD])), named(1, 1))
    assert target.changed() == {1: "new"}


class RecordedMerge:
    """A merge of delta-rs that records its clauses."""

    def __init__(self) -> None:
        self.updates: list[dict[str, str]] = []

    def when_matched_update(self, updates: dict[str, str], predicate: str) -> "RecordedMerge":
        self.updates.append(updates)
        return self


def test_a_merge_into_delta_has_one_clause_for_all_combinations_of_kept_columns() -> None:
    """Each further clause takes 2 ms, and JSON rows may leave out any combination of columns."""
    changes = rows((1, None, 1, False, "odd", ["text"]), (2, "a", 1, False, None, [ODD]), (3, "a", 1, False, "b", []))
    (updates,) = _updating(RecordedMerge(), changes.table(), {"text"}, "").updates  # type: ignore[arg-type, attr-defined]
    assert updates['"text"'] == 's."text"', "the table has no such column yet"
    assert updates['"id"'] == 's."id"'
    assert updates[_quoted(ODD)].startswith("CASE WHEN strpos(")


def test_read_table_shows_kept_values_without_the_kept_column(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    sink = opened(target)
    sink.write(rows((1, "a", 1, False, "odd", [])), named(1, 0))
    sink.write(rows((1, "b", 2, False, None, [ODD])), named(1, 1))
    assert read_table(tmp_path / "table").to_pylist() == [{"id": 1, "text": "b", ODD: "odd"}]
    target.close()
