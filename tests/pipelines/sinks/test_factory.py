"""Sinks as a TOML file declares them, and `ForeachSink`."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.sinks.targets import EVENTS, SqliteTarget, named

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import (
    Append,
    Batch,
    DeltaSink,
    ForeachSink,
    IcebergSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TopicSink,
    open_sink,
)
from lanemq.pipelines.ports import SinkRun


@pytest.mark.parametrize(
    ("kind", "options", "made"),
    [
        (
            "delta",
            {
                "path": "t",
                "partition_by": ["day"],
                "maintain_every": 0,
                "vacuum": True,
                "keep_files": 3600,
                "evolve": False,
            },
            DeltaSink,
        ),
        ("delta", {"path": "s3://b/t", "partition_by": "day, hour", "storage_options": {"region": "x"}}, DeltaSink),
        ("iceberg", {"table": "a.b", "warehouse": "w", "partition_by": ["day(at)"], "keep_files": "1h"}, IcebergSink),
        ("iceberg", {"table": "a.b", "catalog": {"type": "rest", "uri": "http://c"}, "vacuum": True}, IcebergSink),
        ("parquet", {"path": "p"}, ParquetSink),
        ("sqlite", {"path": "f.db", "table": "t", "wait": "10s"}, SqliteSink),
        ("postgres", {"dsn": "host=x", "table": "s.t", "wait": 0.5}, PostgresSink),
        ("topic", {"servers": "h:9876", "topic": "t", "key": "id", "wait": "1m"}, TopicSink),
    ],
)
def test_every_kind_can_be_declared(kind: str, options: dict[str, Any], made: type) -> None:
    assert isinstance(open_sink(kind, options), made)


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        ("csv", {}, "kind: there is no sink 'csv'"),
        ("delta", {}, "path: missing"),
        ("sqlite", {"path": "x"}, "table: missing"),
        ("parquet", {"path": "x", "partitionby": "day"}, "partitionby: a sink of kind parquet has no such option"),
        ("delta", {"path": 5}, "path = 5: write a text"),
        ("delta", {"path": "x", "keep_files": -1}, "keep_files = -1"),
        ("delta", {"path": "x", "maintain_every": True}, "maintain_every = True"),
        ("delta", {"path": "x", "evolve": "yes"}, "evolve = 'yes': write true or false"),
        ("delta", {"path": "x", "partition_by": [1]}, "partition_by"),
        ("delta", {"path": "x", "storage_options": "x"}, "storage_options"),
        ("sqlite", {"path": "x", "table": "t", "wait": "soon"}, "wait = 'soon'"),
        ("topic", {"servers": "h:1", "topic": "not a topic"}, "not a topic"),
    ],
)
def test_a_wrong_option_is_named(kind: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        open_sink(kind, options)


def test_negative_values_are_refused_in_python_too() -> None:
    with pytest.raises(InvalidOption, match="cannot be negative"):
        DeltaSink("t", keep_files=-1)


def test_a_function_gets_every_batch_once(tmp_path: Path) -> None:
    got: list[tuple[list[int], Batch]] = []
    sink = ForeachSink(lambda rows, batch: got.append((rows["n"].to_pylist(), batch)))
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    rows = SqliteTarget(tmp_path).batch_rows(a=[1, 2], b=[3])
    assert sink.write(rows, named(1, 0, "q"))
    assert not sink.write(rows, named(1, 0, "q"))
    assert got == [([1, 2, 3], named(1, 0, "q"))]


def test_a_function_that_failed_gets_its_batch_again(tmp_path: Path) -> None:
    calls: list[Batch] = []

    def fail_once(rows: Any, batch: Batch) -> None:
        calls.append(batch)
        if len(calls) == 1:
            raise RuntimeError("away")

    sink = ForeachSink(fail_once)
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    rows = SqliteTarget(tmp_path).batch_rows(a=[1])
    with pytest.raises(RuntimeError, match="away"):
        sink.write(rows, named(1, 0, "q"))
    assert sink.write(rows, named(1, 0, "q"))
    assert calls == [named(1, 0, "q")] * 2
