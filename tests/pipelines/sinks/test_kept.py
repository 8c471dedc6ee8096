"""Columns that a change left out keep what the table has, whatever else of the row is new."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.sinks.conftest import MERGING
from tests.pipelines.sinks.places import CHANGES, KEYED, DeltaPlace, Place, named

from lanemq.pipelines.ports import KEPT
from lanemq.pipelines.rows import TableRows
from lanemq.pipelines.sinks import read_table

ODD = """it's "a" column? 100%"""
SCHEMA = StructType([*CHANGES.fields, StructField(ODD, StringType()), StructField(KEPT, StringType())])

merging = pytest.mark.parametrize("place", MERGING, indirect=True)


def rows(*some: tuple[int, str | None, int, bool, str | None, list[str]]) -> TableRows:
    """(id, text, sequence, deleted, odd column, kept)"""
    found = [
        dict(zip(SCHEMA.names, (*row[:5], json.dumps(row[5], separators=(",", ":")) if row[5] else None), strict=True))
        for row in some
    ]
    return TableRows(SCHEMA, pa.Table.from_pylist(found, to_arrow_schema(SCHEMA, timezone="UTC")))


def opened(place: Place) -> Any:
    return place.opened(schema=SCHEMA, how=KEYED)


@merging
def test_a_newer_row_replaces_all_but_the_columns_that_it_keeps(place: Place) -> None:
    sink = opened(place)
    sink.write(rows(*((key, f"old {key}", 1, False, "odd", []) for key in range(6))), named(1, 0))
    kept = [[], ["text"], [ODD], ["text", ODD], ["text"], ["text"]]
    newer = [(key, f"new {key}", 0 if key == 5 else 2, key == 4, "new", kept[key]) for key in range(6)]
    sink.write(rows(*newer, (7, None, 1, False, "only", ["text"])), named(1, 1))
    assert place.changed() == {0: "new 0", 1: "old 1", 2: "new 2", 3: "old 3", 5: "old 5", 7: None}
    assert sink.last_stale == 1
    sink.write(rows(*((key, "end", 3, False, None, [ODD]) for key in range(4))), named(1, 2))
    sink.write(rows(*((key, None, 4, False, None, ["text", ODD]) for key in range(3))), named(1, 3))
    assert {key: text for key, text in place.changed().items() if key < 4} == dict.fromkeys(range(4), "end")


def test_deltas_readers_see_the_kept_values_and_not_the_marks(tmp_path: Path) -> None:
    place = DeltaPlace(tmp_path)
    sink = opened(place)
    sink.write(rows((1, "a", 1, False, "odd", [])), named(1, 0))
    sink.write(rows((1, "b", 2, False, None, [ODD])), named(1, 1))
    assert read_table(tmp_path / "table").to_pylist() == [{"id": 1, "text": "b", ODD: "odd"}]
    place.close()
