"""A merge of files with Arrow gives what a dictionary of rows gives."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE
from lanemq.pipelines.sinks.arrow_merge import ArrowMerge

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        (SEQUENCE, pa.int64()),
        (DELETED, pa.bool_()),
        (KEPT, pa.string()),
    ]
)
KEYS = ("a", "b")


def some_rows(source: random.Random, count: int, sequences: range) -> list[dict[str, Any]]:
    keys = source.sample([(a, b) for a in range(6) for b in "xyz"], count)
    return [
        {
            "a": a,
            "b": b,
            "text": source.choice(["one", "two", None]),
            "tags": source.choice([["t"], [], None]),
            SEQUENCE: source.choice(sequences),
            DELETED: source.random() < 0.2,
            KEPT: source.choice([None, None, json.dumps(["text"]), json.dumps(["text", "tags"])]),
        }
        for a, b in keys
    ]


def merged(files: list[pa.Table], changes: pa.Table, below: int | None) -> tuple[list[pa.Table], int]:
    merge = ArrowMerge(changes, KEYS, below)
    after = []
    for file in files:
        plan = merge.plan(file.select(merge.index_columns))
        after.append(file if plan is None else merge.rewritten(file, plan))
    return [*after, merge.inserted()], merge.stale


def expected(old: list[dict[str, Any]], new: list[dict[str, Any]], below: int | None) -> tuple[Any, int]:
    """The same, one row after the other."""
    rows = {(row["a"], row["b"]): row for row in old if below is None or row[SEQUENCE] >= below}
    stale = 0
    for row in new:
        key = (row["a"], row["b"])
        before = rows.get(key)
        if before is not None and before[SEQUENCE] >= row[SEQUENCE]:
            stale += 1
            continue
        kept = json.loads(row[KEPT]) if before is not None and row[KEPT] else ()
        rows[key] = row | {name: before[name] for name in kept if before is not None}
    return rows, stale


@pytest.mark.parametrize("seed", range(40))
def test_a_merge_of_files_gives_what_a_dictionary_gives(seed: int) -> None:
    source = random.Random(seed)
    old = some_rows(source, source.randrange(15), range(1, 10))
    below = source.choice([None, 5, 20])
    new = some_rows(source, source.randrange(10), range(1, 12) if below is None else range(below, below + 6))
    cuts = sorted(source.choices(range(len(old) + 1), k=2))
    files = [
        pa.Table.from_pylist(part, SCHEMA) for part in (old[: cuts[0]], old[cuts[0] : cuts[1]], old[cuts[1] :]) if part
    ]
    tables, stale = merged(files, pa.Table.from_pylist(new, SCHEMA), below)
    found = [row for table in tables for row in table.to_pylist()]
    wanted, wanted_stale = expected(old, new, below)
    assert {(row["a"], row["b"]): row for row in found} == wanted
    assert (len(found), stale) == (len(wanted), wanted_stale)


def test_a_file_without_a_newer_change_stays_as_it_is() -> None:
    rows = some_rows(random.Random(1), 5, range(5, 6))
    table = pa.Table.from_pylist(rows, SCHEMA)
    merge = ArrowMerge(pa.Table.from_pylist([row | {SEQUENCE: 4} for row in rows], SCHEMA), KEYS, None)
    assert merge.plan(table.select(merge.index_columns)) is None
    assert (merge.stale, merge.inserted().num_rows) == (5, 0)
