"""Large batches in PostgreSQL: tasks copy the rows, one transaction merges them; each batch once, whatever dies."""

import logging
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from pyspark.sql import types as t
from tests.pipelines.sinks import retried_copies
from tests.pipelines.sinks.targets import (
    CHANGES,
    KEYED,
    QUERY,
    WAIT,
    Change,
    Died,
    PostgresTarget,
    SteppedPostgres,
    changes,
    dies_at,
    named,
)
from tests.postgres_server import Server

from lanemq.model.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidOption,
    LaneError,
    OrderError,
    SinkFenced,
    StorageError,
    UsageError,
)
from lanemq.pipelines import LastState, PostgresSink, open_sink
from lanemq.pipelines.ports import QUEUE, FileRows, Merge, RowFile, SinkRun
from lanemq.pipelines.sinks import postgres
from lanemq.pipelines.sinks.exact_sink import LedgerEntry
from lanemq.pipelines.sinks.postgres_rows import CopyFormat
from lanemq.pipelines.sinks.postgres_session import PostgresSession
from lanemq.pipelines.sinks.postgres_staging import Copied, CopyTask, StagingTable, divide

Outcome = Copied | LaneError
SECRET = "hunter2-in-the-dsn"
STEPS = ("staged", "copied", "ledger locked", "rows in", "recorded", "committed", "staging dropped")


class StagedSink(SteppedPostgres):
    """A sink whose tasks are threads of this process, and whose batches are all large."""

    def _run_tasks(self, task: CopyTask, lists: Sequence[Sequence[RowFile]]) -> list[Outcome]:
        with ThreadPoolExecutor(len(lists)) as pool:
            return [each for found in pool.map(lambda one: [*task([one])], lists) for each in found]

    def _stage_once(self, *args: Any) -> StagingTable | None:
        staging = super()._stage_once(*args)
        if staging is not None:
            self.reached("staged")
        return staging

    def _copy_files(self, *args: Any) -> list[Copied]:
        copies = super()._copy_files(*args)
        self.reached("copied")
        return copies

    def _apply_staged(self, *args: Any) -> int:
        self.reached("ledger locked")
        stale = super()._apply_staged(*args)
        self.reached("rows in")
        return stale

    def _drop_staging(self, *args: Any) -> None:
        super()._drop_staging(*args)
        if self.opening_done:
            self.reached("staging dropped")

    opening_done = False

    def open(self, *args: Any) -> None:
        super().open(*args)
        self.opening_done = True


class RunsTwice(StagedSink):
    """Every task runs twice, as with speculation or after a lost executor; one of the results reaches the driver."""

    kept = 0

    def _run_tasks(self, task: CopyTask, lists: Sequence[Sequence[RowFile]]) -> list[Outcome]:
        runs = [super(RunsTwice, self)._run_tasks(task, lists) for _ in range(2)]
        return runs[self.kept]


class StagedTarget(PostgresTarget):
    kind: type[StagedSink] = StagedSink

    def __init__(self, folder: Path, dsn: str) -> None:
        super().__init__(folder, dsn)
        self.spark = object()

    def make(self) -> PostgresSink:
        return self.kind(self.dsn, f"{self.schema}.rows", wait=WAIT, copies=3, staged_from=1)

    def change_files(self, *shards: Sequence[Change], schema: t.StructType = CHANGES) -> FileRows:
        return change_files(self.folder, *shards, schema=schema)

    def staging_tables(self) -> list[str]:
        found = self.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}'")
        return [name for (name,) in found if name.startswith("lanemq_staging_")]


def change_files(folder: Path, *shards: Sequence[Change], schema: t.StructType = CHANGES) -> FileRows:
    """Rows to merge, one file per shard."""
    files = []
    for shard in shards:
        path = folder / f"{uuid.uuid4().hex}.parquet"
        rows = [dict(zip(schema.names, row, strict=True)) for row in shard]
        pq.write_table(pa.Table.from_pylist(rows, schema=_loose(schema)), path)
        files.append(RowFile(path.name, path, len(rows)))
    return FileRows(schema, files)


def _loose(schema: t.StructType) -> pa.Schema:
    kinds = {t.LongType(): pa.int64(), t.StringType(): pa.string(), t.BooleanType(): pa.bool_()}
    return pa.schema([(field.name, kinds[field.dataType]) for field in schema])


@pytest.fixture
def target(tmp_path: Path, postgres: Server) -> Iterator[StagedTarget]:
    made = StagedTarget(tmp_path, postgres.dsn)
    yield made
    made.close()


def test_rows_of_many_shards_are_appended_once_in_the_order_of_their_shards(target: StagedTarget) -> None:
    shards = {f"s{at}": range(at * 1_000, at * 1_000 + 700) for at in range(7)}
    sink = target.opened()
    assert sink.write(target.batch_rows(**shards), named(1, 0))
    for name, numbers in shards.items():
        assert [row["n"] for row in target.events() if row["shard"] == name] == list(numbers)
    assert not sink.write(target.batch_rows(**shards), named(1, 0))
    assert len(target.numbers()) == 4_900
    assert target.staging_tables() == []


def test_a_merge_of_many_shards_is_the_merge_of_one_table(target: StagedTarget) -> None:
    sink = target.merging()
    sink.write(target.change_files([(1, "a", 5, False), (2, "b", 5, False)], [(3, "c", 5, False)]), named(1, 0))
    second = [[(1, "older", 4, False), (2, None, 6, True)], [], [(3, "newer", 6, False), (4, "new", 1, False)]]
    assert sink.write(target.change_files(*second), named(1, 1))
    assert target.changed() == {1: "a", 3: "newer", 4: "new"}
    assert (sink.last_stale, sink.applied(QUERY, {}), target.staging_tables()) == (1, 1, [])


@pytest.mark.parametrize("offset", [4, 6])
def test_a_row_that_another_queue_has_changed_is_refused(target: StagedTarget, offset: int) -> None:
    schema = t.StructType([*CHANGES.fields, t.StructField(QUEUE, t.StringType())])

    def rows(*changes: Any) -> FileRows:
        return target.change_files(changes, schema=schema)

    sink = target.opened(1, schema=schema, how=Merge(("id",)))
    sink.write(rows((1, "a", 5, False, "t/b/0"), (2, "b", 5, False, "t/b/1")), named(1, 0))
    with pytest.raises(OrderError, match="the row id=1 was changed in queue t/b/0 and in queue t/b/1"):
        sink.write(rows((1, "other", offset, False, "t/b/1"), (2, "newer", 6, False, "t/b/1")), named(1, 1))
    assert (target.changed(), sink.applied(QUERY, {})) == ({1: "a", 2: "b"}, 0)


@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize("merges", [False, True])
def test_a_driver_killed_at_any_step_leaves_all_or_nothing_and_its_successor_completes_the_batch(
    target: StagedTarget, step: int, merges: bool
) -> None:
    opened: Callable[..., Any] = target.merging if merges else target.opened

    def rows(*numbers: int) -> FileRows:
        if merges:
            return target.change_files(*([(number, "x", 1, False)] for number in numbers))
        return target.batch_rows(**{f"s{number}": [number] for number in numbers})

    def there() -> list[int]:
        return sorted(target.changed()) if merges else target.numbers()

    opened().write(rows(0), named(1, 0))
    dying = opened()
    dies_at(dying, step)
    with pytest.raises(Died, match=STEPS[step]):
        dying.write(rows(1, 2, 3), named(1, 1))
    dying.close()
    assert there() == ([0] if step < STEPS.index("committed") else [0, 1, 2, 3])
    assert bool(target.staging_tables()) == (STEPS[step] != "staging dropped")
    after = opened(epoch=2)
    assert target.staging_tables() == [], "the tables of a dead driver are dropped at the next start"
    after.write(rows(1, 2, 3), named(2, 1))
    after.write(rows(4), named(2, 2))
    assert there() == [0, 1, 2, 3, 4]


def test_without_the_clean_up_the_table_of_a_dead_driver_would_stay(
    target: StagedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StagedSink, "_drop_staging", lambda sink, terms: None)
    dying = target.opened()
    dies_at(dying, STEPS.index("copied"))
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    target.opened(epoch=2).write(target.batch_rows(a=[1], b=[2]), named(2, 0))
    assert (target.numbers(), len(target.staging_tables())) == ([1, 2], 2), "it is not merged in any case"


@pytest.mark.parametrize("kept", [0, 1])
def test_a_task_that_ran_twice_adds_its_rows_once(target: StagedTarget, kept: int) -> None:
    target.kind = type("Kept", (RunsTwice,), {"kept": kept})
    target.opened().write(target.batch_rows(a=[1, 2], b=[3]), named(1, 0))
    assert target.numbers() == [1, 2, 3]


def test_without_the_id_of_the_copy_a_task_that_ran_twice_would_add_its_rows_twice(
    target: StagedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "only_copies", lambda copies: "true")
    target.kind = RunsTwice
    target.opened().write(target.batch_rows(a=[1, 2], b=[3]), named(1, 0))
    assert target.numbers() == [1, 1, 2, 2, 3, 3]


def test_a_copy_that_still_runs_when_the_batch_is_done_is_ended(target: StagedTarget) -> None:
    """A task that Spark gave up may hang inside its COPY; the staging table could not be dropped."""
    sink = target.opened()
    with psycopg.connect(target.dsn, autocommit=True) as hanging:

        def hang(step: str) -> None:
            if step == "copied":
                (table,) = target.staging_tables()
                hanging.execute(f"SET application_name = '{sink._session_name()} copy'")
                hanging.execute("BEGIN")
                hanging.execute(f"INSERT INTO {target.schema}.{table} (n) VALUES (99)")  # type: ignore[call-overload]

        sink.reached = hang
        sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
        assert target.staging_tables() == []
        with pytest.raises(psycopg.OperationalError):
            hanging.execute("COMMIT")
    assert target.numbers() == [1, 2]


def replaced_while_copying(target: StagedTarget) -> tuple[Any, list[Any]]:
    """A run, and the successor that opens the sink when the run has copied its rows."""
    old = target.opened(epoch=1)
    successors: list[Any] = []
    old.reached = lambda step: step == "copied" and not successors and successors.append(target.opened(epoch=2))
    return old, successors


def test_a_run_that_was_replaced_while_it_copied_is_refused(target: StagedTarget) -> None:
    old, successors = replaced_while_copying(target)
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert (successors[0].applied(QUERY, {}), target.staging_tables()) == (None, [])
    assert successors[0].write(target.batch_rows(a=[1], b=[2]), named(2, 0))
    assert target.numbers() == [1, 2]


def test_without_the_fence_a_replaced_run_would_write_too(
    target: StagedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerEntry, "admits", lambda entry, batch: True)
    old, successors = replaced_while_copying(target)
    old.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    successors[0].write(target.batch_rows(a=[1], b=[2]), named(2, 0))
    assert target.numbers() == [1, 1, 2, 2]


def test_a_run_whose_copies_a_newer_run_ended_is_refused_and_does_not_touch_the_newer_ones(
    target: StagedTarget,
) -> None:
    old, new = target.opened(epoch=1), []
    copying = old._run_tasks

    def replaced(task: CopyTask, lists: Any) -> list[Outcome]:
        new.append(target.opened(epoch=2))
        new[0]._stage_once(named(2, 0), new[0]._opened())
        return list(copying(task, lists))

    old._run_tasks = replaced
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert len(target.staging_tables()) == 1, "that of the newer run"
    old._drop_staging(old._opened())
    assert len(target.staging_tables()) == 1


def crashing_once(target: StagedTarget, sink: Any) -> None:
    """Empty the staging table after the copies, as a server does that crashes: the table is not logged."""
    crashes = iter([True])

    def crash(step: str) -> None:
        if step == "copied" and next(crashes, False):
            (table,) = target.staging_tables()
            target.ask(f"TRUNCATE {target.schema}.{table}")

    sink.reached = crash


def test_rows_that_the_server_lost_in_a_crash_are_copied_again(
    target: StagedTarget, caplog: pytest.LogCaptureFixture
) -> None:
    sink = target.opened()
    crashing_once(target, sink)
    assert sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert (target.numbers(), target.staging_tables()) == ([1, 2], [])
    assert "its rows are copied again, attempt 2: the server has lost rows" in caplog.text


def test_without_the_count_rows_that_the_server_lost_would_be_missing(
    target: StagedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "check_copies", lambda found, copies: None)
    sink = target.opened()
    crashing_once(target, sink)
    sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert target.numbers() == []


def test_a_batch_whose_copies_fail_again_and_again_ends_with_the_cause(target: StagedTarget) -> None:
    sink = target.opened()
    sink._run_tasks = lambda task, lists: [ConnectionLost("PostgreSQL: the connection is gone")]
    with pytest.raises(StorageError, match=r"copied 3 times; PostgreSQL: the connection is gone"):
        sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert (target.numbers(), sink.applied(QUERY, {})) == ([], None)


@pytest.mark.parametrize("error", [ConnectFailed("PostgreSQL: no route"), InvalidOption("the sink needs psycopg")])
def test_executors_that_cannot_copy_are_named(target: StagedTarget, error: LaneError) -> None:
    sink = target.opened()
    sink._run_tasks = lambda task, lists: [error]
    with pytest.raises(type(error), match=rf"{error}; this concerns a Spark task: .* copies=0"):
        sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))


def test_a_truncation_and_new_columns_come_with_the_batch(target: StagedTarget) -> None:
    sink = target.merging()
    sink.write(target.change_files([(1, "a", 5, False)], [(2, "b", 5, False)]), named(1, 0))
    wider = t.StructType([*CHANGES, t.StructField("more", t.StringType())])
    rows = target.change_files([(3, "c", 7, False, "new")], [(4, "d", 8, False, None)], schema=wider)  # type: ignore[list-item]
    sink.write(FileRows(wider, rows.files, emptied_below=6), named(1, 1))
    assert sorted(target.ask(f"SELECT id, text, more FROM {target.schema}.rows")) == [(3, "c", "new"), (4, "d", None)]


def test_keys_of_two_shards_that_become_equal_without_nul_keep_the_newer_row(
    target: StagedTarget, caplog: pytest.LogCaptureFixture
) -> None:
    schema = t.StructType([*(f for f in CHANGES if f.name != "id"), t.StructField("id", t.StringType(), False)])
    sink = target.opened(schema=schema, how=Merge(("id",)))
    rows: Any = ([("old", 1, False, "k\0")], [("new", 2, False, "k\ufffd")])
    sink.write(target.change_files(*rows, schema=schema), named(1, 0))
    assert target.ask(f"SELECT id, text FROM {target.schema}.rows") == [("k\ufffd", "new")]
    assert sink.last_replaced == 1
    assert "1 of column id" in caplog.text


@pytest.mark.parametrize(
    ("shards", "error", "said"),
    [
        ([[(1, "a", 1, False)], [(1, "b", 2, False)]], StorageError, "second time"),
        ([[(1, "a", None, False)], [(2, "b", 2, False)]], UsageError, "no _sequence"),
        ([[(None, "a", 1, False)]], UsageError, "'id' with null"),
    ],
)
def test_ambiguous_rows_are_refused_before_anything_is_written(
    target: StagedTarget, shards: Any, error: type[LaneError], said: str
) -> None:
    sink = target.merging()
    with pytest.raises(error, match=said):
        sink.write(target.change_files(*shards), named(1, 0))
    assert (sink.applied(QUERY, {}), target.changed()) == (None, {})


def test_a_text_that_a_trusted_column_refuses_is_named(target: StagedTarget) -> None:
    target.ask(f"CREATE TABLE {target.schema}.rows (shard text, n bigint, text varchar(7))")
    sink = StagedSink(target.dsn, f"{target.schema}.rows", staged_from=1, trust_columns=["text"])
    target.sinks.append(sink)
    sink.open(SinkRun(target.spark, QUERY, 1, target.batch_rows().schema, postgres.Append()))
    assert sink.write(target.batch_rows(a=[1]), named(1, 0))
    with pytest.raises(StorageError, match=r"COPY lanemq_staging_.* column text.*trust_columns promises"):
        sink.write(target.batch_rows(a=[2], b=[10]), named(1, 1))
    assert target.numbers() == [1]


def test_a_small_batch_makes_no_staging_table(target: StagedTarget) -> None:
    for options, staged in (({}, 0), ({"copies": 0, "staged_from": 1}, 0), ({"staged_from": 1}, 1)):
        sink: Any = StagedSink(target.dsn, f"{target.schema}.rows", **options)
        target.sinks.append(sink)
        sink.open(SinkRun(target.spark, QUERY, 1, CHANGES, KEYED))
        made: list[str] = []
        sink.reached = lambda step, made=made: made.append(step) if step == "staged" else None
        number = (sink.applied(QUERY, {}) or 0) + 1
        sink.write(target.change_files([(1, "a", number, False)], [(2, "b", number, False)]), named(1, number))
        sink.write(changes((3, "rows of the driver", number, False)), named(1, number + 1))
        assert len(made) == staged


def test_negative_options_are_refused_and_a_file_may_declare_them() -> None:
    for options in ({"copies": -1}, {"staged_from": -1}):
        with pytest.raises(InvalidOption, match="cannot be negative"):
            PostgresSink("host=x", "t", **options)  # type: ignore[arg-type]
    made: Any = open_sink("postgres", {"dsn": "host=x", "table": "t", "copies": 2, "staged_from": 5})
    assert (made._copies, made._staged_from) == (2, 5)


def test_files_are_divided_by_their_rows_and_keep_their_order() -> None:
    files = [RowFile(str(at), Path(str(at)), rows) for at, rows in enumerate([5, 90, 10, 40, 45])]
    assert [[each.shard for each in some] for some in divide(files, 2)] == [["0", "1"], ["2", "3", "4"]]
    assert divide(files[:1], 8) == [files[:1]]


def test_the_password_is_in_no_text_and_not_in_the_list_that_spark_writes_to_disk(tmp_path: Path) -> None:
    session = PostgresSession(f"host=db password={SECRET}", "orders", "lanemq x")
    task = CopyTask(session, StagingTable("s", pa.schema([])), CopyFormat("orders"), (), 0)  # type: ignore[arg-type]
    lists = divide([RowFile("a", tmp_path / "a.parquet", 1)], 4)
    assert SECRET not in f"{task!r} {task} {session}"
    assert SECRET.encode() not in pickle.dumps(lists)
    assert SECRET.encode() in pickle.dumps(task), "the code of the task has it, which stays in memory"


def changed_rows(spark: Any, count: int) -> Any:
    """Messages of two queues; each changes a row of its own."""
    return spark.range(0, count, 1, 2).selectExpr(
        "'t' topic", "'b' broker", f"cast(id >= {count // 2} as int) queue_id", f"id % {count // 2} queue_offset",
        "cast(id as string) key", """cast('{"id":' || id || ',"name":"n' || id || '"}' as binary) value""",
        "current_timestamp() store_timestamp", "'m' message_id",
    )  # fmt: skip


@pytest.fixture
def reading_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes every read of rows in this process an error. Tasks are other processes."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the driver reads rows")

    with monkeypatch.context() as driver:
        for module, name in ((pq, "ParquetFile"), (pq, "read_table"), (feather, "read_table")):
            driver.setattr(module, name, refuse)
        yield


@pytest.fixture
def secret_target(tmp_path: Path, postgres: Server) -> Iterator[PostgresTarget]:
    made = PostgresTarget(tmp_path, f"{postgres.dsn} password={SECRET}")
    yield made
    made.close()


def opened(target: PostgresTarget, table: str, spark: Any, schema: t.StructType, **options: Any) -> PostgresSink:
    sink = PostgresSink(target.dsn, f"{target.schema}.{table}", **options)
    target.sinks.append(sink)
    sink.open(SinkRun(spark, QUERY, 1, schema, KEYED))
    return sink


def test_executors_copy_and_the_driver_reads_no_row(
    tmp_path: Path,
    secret_target: PostgresTarget,
    spark: Any,
    reading_driver: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor is the password written to any file or log."""
    caplog.set_level(logging.DEBUG, "lanemq")
    rows = change_files(tmp_path, *([(at * 10 + n, f"r{n}", 1, False) for n in range(10)] for at in range(5)))
    assert opened(secret_target, "rows", spark, CHANGES, staged_from=1).write(rows, named(1, 0))
    assert secret_target.changed() == {at * 10 + n: f"r{n}" for at in range(5) for n in range(10)}
    with pytest.raises(AssertionError, match="the driver reads rows"):
        opened(secret_target, "other", spark, CHANGES, copies=0).write(rows, named(1, 0))
    temporary = Path(spark.sparkContext._temp_dir)
    written = [path for path in [*temporary.rglob("*"), *tmp_path.rglob("*")] if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in caplog.text


@pytest.mark.extended
def test_tasks_killed_after_their_commit_and_run_again_by_spark_add_their_rows_once(
    tmp_path: Path, secret_target: PostgresTarget
) -> None:
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    table = f"{secret_target.schema}.rows"
    command = [sys.executable, "-m", retried_copies.__name__, secret_target.dsn, table, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    rows = retried_copies.FILES * retried_copies.ROWS
    assert int(done.stdout.split()[-1]) == 2 * rows, "every file was copied twice"
    assert secret_target.ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(rows, rows)]
    assert len(list(tmp_path.glob("*.died"))) == retried_copies.FILES
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.extended
def test_with_default_options_changed_rows_do_not_pass_through_the_driver(
    tmp_path: Path, secret_target: PostgresTarget, spark: Any, reading_driver: None
) -> None:
    """From messages to the table."""
    count = 101_000
    stage, batch = LastState("id bigint, name string", ["id"]), named(1, 0)
    stage.open(spark, tmp_path / "stage")
    sink = opened(secret_target, "rows", spark, stage.schema)
    results = stage.process(changed_rows(spark, count), batch)
    assert sink.write(results.outputs, batch)
    assert (results.counts["keys"], sink.applied(QUERY, {}), sink.last_stale) == (count, 0, 0)
    wrong = "count(*) FILTER (WHERE name <> 'n' || id)"
    assert secret_target.ask(f"SELECT count(*), sum(id), {wrong} FROM {secret_target.schema}.rows") == [
        (count, count * (count - 1) // 2, 0)
    ]
    stage.finished(batch)
