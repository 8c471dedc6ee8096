"""One target of every kind: makes sinks for it and reads its content as a user would.

The sinks are subclasses that call `reached` between the steps of a commit, so that a test can let the process die, or
another run start, exactly there.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType
from tests.spark.spark_driver import Query

from lanemq.files import arrow_source, files_below, locate, remove_tree
from lanemq.pipelines import (
    DeltaSink,
    IcebergSink,
    ParquetSink,
    PostgresSink,
    SqliteSink,
    TopicSink,
    read_iceberg,
    read_table,
)
from lanemq.pipelines.batches import Batch, Runs
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.ports import DELETED, SEQUENCE, Append, FileRows, Merge, RowFile, SinkRun, TableRows
from lanemq.pipelines.sinks.iceberg_table import open_catalog
from lanemq.pipelines.sinks.sql import SqlSink

QUERY = "3f1c-query"
WAIT = 3.0

EVENTS = StructType(
    [StructField("shard", StringType()), StructField("n", LongType()), StructField("text", StringType())]
)
CHANGES = StructType(
    [
        StructField("id", LongType(), False),
        StructField("text", StringType()),
        StructField(SEQUENCE, LongType()),
        StructField(DELETED, BooleanType()),
    ]
)
KEYED = Merge(("id",))

Change = tuple[int, str | None, int, bool]


class Died(BaseException):
    """The process ended here, so no code that handles errors runs."""


class Steps:
    """A hook between the steps of a commit."""

    def reached(self, step: str) -> None:
        """Called with the name of the step that was just done; tests replace it."""


class SteppedDelta(Steps, DeltaSink):
    def _prepare(self, *args: Any) -> Any:
        commit = super()._prepare(*args)
        self.reached("files placed")
        return commit

    def _commit(self, *args: Any) -> bool:
        new = super()._commit(*args)
        self.reached("committed")
        return new


class SteppedParquet(Steps, ParquetSink):
    def _stage(self, *args: Any) -> None:
        super()._stage(*args)
        self.reached("staged")

    def _commit(self, *args: Any) -> None:
        super()._commit(*args)
        self.reached("committed")

    def _place(self, *args: Any) -> None:
        last = self._committed
        moves = last is not None and bool(last.file) and (self._staged(args[0].query) / last.file).exists()
        super()._place(*args)
        if moves:
            self.reached("placed")

    def _begin_run(self, *args: Any) -> RunLog:
        self.reached("about to begin")
        log = super()._begin_run(*args)
        self.reached("begun")
        return log


class SteppedIceberg(Steps, IcebergSink):
    def _prepare(self, *args: Any) -> Any:
        fill = super()._prepare(*args)

        def stepped(change: Any) -> None:
            fill(change)
            self.reached("files placed")

        return stepped

    def _publish(self, change: Any) -> None:
        self.reached("staged")
        catalog = self._place.catalog()
        if not hasattr(catalog, "_write_metadata"):  # a server writes the metadata
            super()._publish(change)
            self.reached("committed")
            return
        written = type(catalog)._write_metadata

        def write_metadata(*args: Any, **named: Any) -> None:
            written(*args, **named)
            self.reached("metadata written")

        catalog._write_metadata = write_metadata
        try:
            super()._publish(change)
        finally:
            del catalog._write_metadata
        self.reached("committed")


class SteppedSql(Steps, SqlSink):
    def _apply(self, *args: Any) -> int:
        self.reached("ledger locked")
        stale = super()._apply(*args)
        self.reached("rows in")
        return stale

    def _note(self, connection: Any, terms: Any, number: int | None) -> None:
        super()._note(connection, terms, number)
        if number is not None:
            self.reached("recorded")

    def _count_stale(self, *args: Any) -> None:
        super()._count_stale(*args)
        self.reached("committed")

    def _prepare_table(self, *args: Any) -> None:
        super()._prepare_table(*args)
        self.reached("table prepared")


class SteppedSqlite(SteppedSql, SqliteSink):
    pass


class SteppedPostgres(SteppedSql, PostgresSink):
    pass


class SteppedTopic(Steps, TopicSink):
    def _send(self, *args: Any) -> list[str]:
        refusals = super()._send(*args)
        if not refusals:
            self.reached("sent")
        return refusals


class Target:
    """The target that the sinks of one test write to; rows come from files, as from a stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sinks: list[Any] = []
        self.spark: Any = None

    def make(self) -> Any:
        raise NotImplementedError

    def events(self) -> list[dict[str, Any]]:
        """The rows in the target; rows of one shard and batch are in order."""
        raise NotImplementedError

    def changed(self) -> dict[int, str | None]:
        """The rows that are not deleted, by key."""
        raise NotImplementedError

    def known(self, number: int) -> int | None:
        """What `applied` returns after the batch with this number."""
        return number

    def opened(
        self,
        epoch: int = 1,
        query: str = QUERY,
        schema: StructType = EVENTS,
        how: Any = None,
        runs: Runs | None = None,
    ) -> Any:
        """A sink that a run of the pipeline has opened."""
        sink = self.make()
        self.sinks.append(sink)
        sink.open(SinkRun(self.spark, query, epoch, schema, how or Append(), runs))
        return sink

    def merging(self, epoch: int = 1, query: str = QUERY) -> Any:
        return self.opened(epoch, query, CHANGES, KEYED)

    def batch_rows(self, **shards: Iterable[int]) -> FileRows:
        """Numbered events, one file per shard."""
        folder = self.folder / f"stage-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        files = []
        for shard, numbers in shards.items():
            rows = [{"shard": shard, "n": n, "text": f"event {n}"} for n in numbers]
            path = folder / f"{len(files)}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=_arrow(EVENTS)), path)
            files.append(RowFile(shard, path, len(rows)))
        return FileRows(EVENTS, files)

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.events())

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


class DeltaTarget(Target):
    def __init__(self, folder: Path, place: str | None = None) -> None:
        """`place`: the address of a folder on another file system, for the table."""
        super().__init__(folder)
        self.place = locate(f"{place or folder}/table")

    def make(self) -> DeltaSink:
        return SteppedDelta(self.place)

    def events(self) -> list[dict[str, Any]]:
        return list(read_table(self.place).to_pylist())

    def changed(self) -> dict[int, str | None]:
        return {row["id"]: row["text"] for row in read_table(self.place).to_pylist()}


class IcebergTarget(Target):
    def __init__(self, folder: Path, catalog: Mapping[str, str] | None = None) -> None:
        """`catalog`: properties of a catalog, in place of a folder with a catalog of its own."""
        super().__init__(folder)
        self.name = "shop.rows" if catalog is None else f"s{uuid.uuid4().hex[:10]}.rows"
        self.place: dict[str, Any] = {"warehouse": folder / "warehouse"} if catalog is None else {"catalog": catalog}

    def make(self) -> IcebergSink:
        return SteppedIceberg(self.name, **self.place)

    def drop(self) -> None:
        """Delete the folder with its catalog, or have the catalog of a server forget the table."""
        if "warehouse" in self.place:
            remove_tree(self.place["warehouse"])
        else:
            with open_catalog(self.place["catalog"]) as catalog:
                catalog.drop_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        return list(read_iceberg(self.name, **self.place).to_pylist())

    def events(self) -> list[dict[str, Any]]:
        return self.rows()

    def changed(self) -> dict[int, str | None]:
        return {row["id"]: row["text"] for row in self.rows()}


class ParquetTarget(Target):
    def __init__(self, folder: Path, place: str | None = None) -> None:
        """`place`: the address of a folder on another file system, for the files."""
        super().__init__(folder)
        self.place = locate(f"{place or folder}/files")

    def make(self) -> ParquetSink:
        return SteppedParquet(self.place)

    def events(self) -> list[dict[str, Any]]:
        """As a program sees them that lists the folder."""
        if not isinstance(self.place, Path):
            files = [locate(f"{self.place}/{name}") for name in files_below(self.place)]
            return [row for file in files for row in pq.ParquetFile(arrow_source(file)).read(EVENTS.names).to_pylist()]
        found = ds.dataset(self.place, format="parquet", partitioning="hive").to_table(use_threads=False)
        return list(found.select(EVENTS.names).to_pylist()) if found.num_rows else []


class SqliteTarget(Target):
    def make(self) -> SqliteSink:
        return SteppedSqlite(self.folder / "rows.db", "rows", wait=WAIT)

    def ask(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.folder / "rows.db")
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def events(self) -> list[dict[str, Any]]:
        return [dict(zip(EVENTS.names, row, strict=True)) for row in self.ask("SELECT * FROM rows ORDER BY rowid")]

    def changed(self) -> dict[int, str | None]:
        return dict(self.ask("SELECT id, text FROM rows WHERE NOT _deleted"))


class PostgresTarget(Target):
    def __init__(self, folder: Path, dsn: str) -> None:
        super().__init__(folder)
        self.dsn = dsn
        self.schema = f"s{uuid.uuid4().hex[:10]}"
        self.ask(f"CREATE SCHEMA {self.schema}")

    def make(self) -> PostgresSink:
        return SteppedPostgres(self.dsn, f"{self.schema}.rows", wait=WAIT)

    def ask(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def events(self) -> list[dict[str, Any]]:
        found = self.ask(f"SELECT * FROM {self.schema}.rows ORDER BY ctid")
        return [dict(zip(EVENTS.names, row, strict=True)) for row in found]

    def changed(self) -> dict[int, str | None]:
        return dict(self.ask(f"SELECT id, text FROM {self.schema}.rows WHERE NOT _deleted"))


class TopicTarget(Target):
    def __init__(self, folder: Path, address: str, topic: str, spark: Any) -> None:
        super().__init__(folder)
        self.address = address
        self.topic = topic
        self.spark = spark

    def make(self) -> TopicSink:
        return SteppedTopic(self.address, self.topic, key="shard", wait=WAIT)

    def events(self) -> list[dict[str, Any]]:
        with Query(servers=self.address, topic=self.topic, startingOffsets="earliest") as query:
            return [json.loads(row["value"]) for row in query.everything()]

    def known(self, number: int) -> int | None:
        """A topic has no ledger."""
        return None


def named(sink_epoch: int, number: int, query: str = QUERY) -> Batch:
    return Batch(query, number, sink_epoch)


def changes(*rows: Change) -> TableRows:
    """Rows to merge: (id, text, sequence, deleted)."""
    table = pa.Table.from_pylist([dict(zip(CHANGES.names, row, strict=True)) for row in rows], schema=_arrow(CHANGES))
    return TableRows(CHANGES, table)


def dies_at(sink: Any, step: int) -> None:
    """Let the sink raise `Died` at its step with this number."""
    passed = iter(range(1_000))

    def reached(name: str) -> None:
        if next(passed) == step:
            raise Died(name)

    sink.reached = reached


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
