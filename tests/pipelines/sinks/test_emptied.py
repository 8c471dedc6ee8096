"""A truncation of the source deletes all older rows of the sink's table, in the commit of its batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.checkpoint.test_units import END, units
from tests.pipelines.sinks.conftest import MERGING
from tests.pipelines.sinks.targets import CHANGES, KEYED, QUERY, Change, Died, Target, changes, dies_at, named
from tests.pipelines.sinks.test_kept import SCHEMA, rows

from lanemq.pipelines import ForeachSink, ParquetSink, TopicSink
from lanemq.pipelines.ports import SEQUENCE, Results, TableRows

merging = pytest.mark.parametrize("target", MERGING, indirect=True)
OLD: tuple[Change, ...] = ((1, "a", 1, False), (2, "b", 2, False), (3, "c", 9, False), (4, None, 4, True))


def emptied(below: int | str, *some: Change) -> TableRows:
    return replace(changes(*some), emptied_below=below)


@merging
def test_older_rows_are_deleted_and_the_batch_follows(target: Target) -> None:
    sink = target.merging()
    assert sink.empties
    sink.write(changes(*OLD), named(1, 0))
    assert sink.write(emptied(5, (2, "again", 6, False), (5, "new", 7, False), (6, None, 8, True)), named(1, 1))
    assert target.changed() == {2: "again", 3: "c", 5: "new"}
    assert sink.last_stale == 0
    assert sink.purge_tombstones(100) == 1, "deletions from before the truncation are gone"
    assert not sink.write(emptied(100), named(1, 1)), "a repeated batch changes nothing"
    assert sink.write(emptied(100), named(1, 2))
    assert target.changed() == {}
    assert sink.write(emptied(200), named(1, 3))
    assert (sink.applied(QUERY, {}), target.changed()) == (3, {})


@merging
@pytest.mark.parametrize("step", range(5))
def test_a_driver_that_dies_leaves_all_of_the_batch_or_nothing(target: Target, step: int) -> None:
    sink = target.merging()
    sink.write(changes(*OLD), named(1, 0))
    dies_at(sink, step)
    after = {3: "c", 5: "new"}
    try:
        sink.write(emptied(5, (5, "new", 7, False)), named(1, 1))
    except Died:
        found = target.changed()
        assert found == (
            after if target.opened(2, schema=CHANGES, how=KEYED).applied(QUERY, {}) == 1 else {1: "a", 2: "b", 3: "c"}
        )
    again = target.merging(3)
    again.write(emptied(5, (5, "new", 7, False)), named(3, 1))
    assert target.changed() == after


@merging
def test_a_row_after_the_truncation_keeps_nothing_of_the_row_before(target: Target) -> None:
    sink = target.opened(schema=SCHEMA, how=KEYED)
    sink.write(rows((1, "old", 1, False, "odd", []), (2, "old", 6, False, "odd", [])), named(1, 0))
    sink.write(replace(rows(*((key, None, 7, False, "new", ["text"]) for key in (1, 2))), emptied_below=5), named(1, 1))
    assert target.changed() == {1: None, 2: "old"}


@merging
def test_sequences_of_the_source_are_compared_as_text(target: Target) -> None:
    schema = StructType([*CHANGES.fields[:2], StructField(SEQUENCE, StringType()), CHANGES.fields[3]])

    def sequenced(*some: tuple[int, str]) -> TableRows:
        found = [{"id": key, "text": "x", SEQUENCE: sequence, "_deleted": False} for key, sequence in some]
        return TableRows(schema, pa.Table.from_pylist(found, to_arrow_schema(schema, timezone="UTC")))

    sink = target.opened(schema=schema, how=KEYED)
    sink.write(sequenced((1, "05 10"), (2, "06 01"), (3, "0A"), (4, "0a")), named(1, 0))
    sink.write(replace(sequenced(), emptied_below="06 00"), named(1, 1))
    assert sorted(target.changed()) == [2, 3, 4]
    sink.write(replace(sequenced(), emptied_below="0Z"), named(1, 2))
    assert sorted(target.changed()) == [4]


def test_a_decided_batch_still_empties_the_table(tmp_path: Path) -> None:
    run, batch = units(tmp_path), named(3 << 32, 0)
    decided = run.record(batch, Results(emptied(5, (1, "a", 6, False))), END, decide=True, whole=False)
    found: Any = units(tmp_path).decided(batch, CHANGES, END)
    assert decided.outputs.emptied_below == found.outputs.emptied_below == 5


def test_sinks_without_a_table_to_merge_cannot_empty_it() -> None:
    assert not any(kind.empties for kind in (ForeachSink, ParquetSink, TopicSink))
