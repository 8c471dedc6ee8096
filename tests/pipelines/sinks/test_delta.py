"""The Delta sink: races between commits to a table's log, files, columns and maintenance."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, QUERY, DeltaTarget, Died, changes, dies_at, named

from lanemq.files import locate
from lanemq.model.errors import InvalidOption, SinkFenced, StorageError, UsageError
from lanemq.pipelines import DeltaSink, read_table
from lanemq.pipelines.ports import Append, Merge, SinkRun, TableRows
from lanemq.pipelines.sinks import delta
from lanemq.pipelines.sinks.exact_sink import arrow_schema


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(tmp_path)


def before(sink: DeltaSink, method: str, act: Callable[[], object]) -> None:
    """Call `act` once, after the sink has checked its batch and just before it commits."""
    real, acted = getattr(sink, method), threading.Event()

    def raced(*arguments: Any) -> Any:
        if not acted.is_set():
            acted.set()
            act()
        return real(*arguments)

    setattr(sink, method, raced)


def test_a_run_replaced_between_its_check_and_its_commit_is_refused(target: DeltaTarget) -> None:
    """The successor has only opened the table; its epoch alone makes the commits collide."""
    old = target.opened(epoch=1)
    before(old, "_append_files", lambda: target.opened(epoch=2))
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.numbers() == []


def test_a_merge_replaced_between_its_check_and_its_commit_is_refused(target: DeltaTarget) -> None:
    old = target.merging(epoch=1)
    before(old, "_merge", lambda: target.merging(epoch=2))
    with pytest.raises(SinkFenced):
        old.write(changes((1, "old run", 1, False)), named(1, 0))
    assert target.changed() == {}


def test_a_merge_without_effect_by_a_replaced_run_is_refused_too(target: DeltaTarget) -> None:
    """Delta commits nothing for it, so the sink commits the batch number alone; that must collide as well."""
    old = target.merging(epoch=1)
    old.write(changes((1, "there", 9, False)), named(1, 0))
    before(old, "_commit_nothing", lambda: target.merging(epoch=2))
    with pytest.raises(SinkFenced):
        old.write(changes((1, "older", 1, False)), named(1, 1))
    assert target.merging(epoch=2).applied(QUERY, {}) == 0


def test_two_runs_that_apply_the_same_batch_at_once_apply_it_once(target: DeltaTarget) -> None:
    """Both have one epoch, as if a driver retries a write that it believes has failed."""
    one, other = target.opened(), target.opened()
    before(one, "_append_files", lambda: other.write(target.batch_rows(a=[1]), named(1, 0)))
    assert not one.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.numbers() == [1]


def test_a_run_that_loses_the_race_to_open_is_refused(target: DeltaTarget) -> None:
    target.opened(epoch=1)
    late = DeltaSink(target.folder / "table")
    before(late, "_commit_nothing", lambda: target.opened(epoch=3))
    with pytest.raises(SinkFenced):
        late.open(SinkRun(None, "3f1c-query", 2, EVENTS, Append()))  # type: ignore[arg-type]


def test_merges_of_two_pipelines_into_one_table_do_not_lose_each_other(target: DeltaTarget) -> None:
    one, other = target.merging(query="one"), target.merging(query="other")
    before(
        one,
        "_merge",
        lambda: other.write(changes((1, "other", 2, False), (2, "other", 2, False)), named(1, 0, "other")),
    )
    assert one.write(changes((1, "one", 3, False), (2, "one", 1, False)), named(1, 0, "one"))
    assert target.changed() == {1: "one", 2: "other"}


def test_a_table_that_never_stops_changing_fails_the_batch(
    target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target.opened()

    def collide(*_: object) -> bool:
        raise CommitFailedError("another writer was faster")

    monkeypatch.setattr(sink, "_append_files", collide)
    with pytest.raises(StorageError, match="faster than it can be written"):
        sink.write(target.batch_rows(a=[1]), named(1, 0))


def test_files_are_on_the_disk_before_the_log_names_them(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut leaves a batch that counts as applied without readable rows."""
    happened: list[str] = []
    monkeypatch.setattr(delta, "sync", lambda path: happened.append(path.name))
    sink = target.opened()
    before(sink, "_append_files", lambda: happened.append("commit"))
    sink.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    files = sorted(file.name for file in (target.folder / "table").glob("*.parquet"))
    assert sorted(happened[:2]) == files
    assert happened[2:] == ["table", "commit"]


def test_files_of_a_crashed_batch_are_invisible_and_vacuumed(target: DeltaTarget) -> None:
    dying = target.opened()
    dies_at(dying, 0)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[1]), named(1, 0))
    orphans = list((target.folder / "table").glob("*.parquet"))
    assert orphans
    assert target.numbers() == []
    sink = DeltaSink(target.folder / "table", maintain_every=1, keep_files=0)
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    sink.write(target.batch_rows(a=[2]), named(1, 0, "q"))
    assert target.numbers() == [2]
    assert not any(orphan.exists() for orphan in orphans)


def leftover(target: DeltaTarget, hours: int) -> Path:
    """A file of the table's folder that no version names, so old."""
    path = target.folder / "table" / "leftover.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    then = time.time() - hours * 3600
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize(
    ("owned", "vacuum", "property_", "hours", "deleted"),
    [
        (True, None, None, 8 * 24, True),
        (True, None, None, 6 * 24, False),  # Delta's default is a week
        (True, None, "interval 12 hours", 13, True),
        (True, None, "interval 30 days", 8 * 24, False),
        (True, False, None, 8 * 24, False),
        (False, None, None, 8 * 24, False),  # a table of another program
        (False, True, None, 8 * 24, True),
    ],
)
def test_vacuum_follows_the_tables_own_retention_and_spares_tables_of_others(
    target: DeltaTarget, owned: bool, vacuum: bool | None, property_: str | None, hours: int, deleted: bool
) -> None:
    if not owned:
        DeltaTable.create(str(target.folder / "table"), arrow_schema(EVENTS))
    sink = DeltaSink(target.folder / "table", maintain_every=1, vacuum=vacuum)
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    if property_ is not None:
        table = DeltaTable(target.folder / "table")
        table.alter.set_table_properties({"delta.deletedFileRetentionDuration": property_})
    old = leftover(target, hours)
    sink.write(target.batch_rows(a=[1]), named(1, 0, "q"))
    assert old.exists() != deleted
    assert target.numbers() == [1]


def test_a_stage_that_rewrites_its_files_does_not_change_committed_rows(target: DeltaTarget) -> None:
    rows = target.batch_rows(a=[1, 2])
    target.opened().write(rows, named(1, 0))
    for file in rows.files:
        file.path.write_bytes(b"torn")
    assert target.numbers() == [1, 2]


def test_compaction_keeps_rows_and_batch_numbers(target: DeltaTarget) -> None:
    sink = DeltaSink(target.folder / "table", maintain_every=5, keep_files=0)
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    for number in range(11):
        sink.write(target.batch_rows(a=[number], b=[100 + number]), named(1, number, "q"))
    table = DeltaTable(target.folder / "table")
    assert len(table.file_uris()) < 5
    assert len(list((target.folder / "table").glob("*.parquet"))) < 12
    assert target.numbers() == [*range(11), *range(100, 111)]
    assert sink.applied("q", {}) == 10


def test_batch_numbers_survive_the_deletion_of_old_log_entries(target: DeltaTarget) -> None:
    """A checkpoint of the log contains the numbers, so the single commits may be deleted."""
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 77))
    target.opened(query="another")
    DeltaTable(target.folder / "table").create_checkpoint()
    for commit in sorted((target.folder / "table" / "_delta_log").glob("0*.json"))[:-1]:
        commit.unlink()
    assert not target.opened(epoch=2).write(target.batch_rows(a=[1]), named(2, 77))
    assert target.numbers() == [1]


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_partitioned_tables_hold_the_same_rows(tmp_path: Path, address: str) -> None:
    target = DeltaTarget(tmp_path)
    schema = StructType([*EVENTS, StructField("day", StringType())])
    rows = [
        {"shard": "a", "n": n, "text": None, "day": day} for n, day in enumerate(["mon", "tue", None, "mon", "tue"])
    ]
    sink = DeltaSink(address.format(tmp_path / "table"), ["day"])
    sink.open(SinkRun(None, "q", 1, schema, Append()))  # type: ignore[arg-type]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    sink.write(TableRows(schema, table), named(1, 0, "q"))
    assert sorted(target.events(), key=lambda row: row["n"]) == rows
    files = pa.table(DeltaTable(tmp_path / "table").get_add_actions(flatten=True)).to_pylist()
    assert {file["partition.day"]: file["num_records"] for file in files} == {"mon": 2, "tue": 2, None: 1}


def test_readers_can_skip_files_by_their_bounds(target: DeltaTarget) -> None:
    sink = target.opened()
    for number in range(3):
        sink.write(target.batch_rows(a=range(number * 100, number * 100 + 100)), named(1, number))
    bounds = pa.table(DeltaTable(target.folder / "table").get_add_actions(flatten=True)).to_pylist()
    assert sorted((row["min.n"], row["max.n"], row["num_records"]) for row in bounds) == [
        (0, 99, 100), (100, 199, 100), (200, 299, 100)
    ]  # fmt: skip


def test_a_new_column_is_added_and_null_in_old_rows(target: DeltaTarget) -> None:
    target.opened().write(target.batch_rows(a=[1]), named(1, 0))
    wider = StructType([*EVENTS, StructField("extra", LongType())])
    row = {"shard": "a", "n": 2, "text": "t", "extra": 5}
    sink = target.opened(epoch=2, schema=wider)
    sink.write(TableRows(wider, pa.Table.from_pylist([row], schema=arrow_schema(wider))), named(2, 1))
    assert sorted((row["n"], row["extra"]) for row in target.events()) == [(1, None), (2, 5)]
    target.opened(epoch=3).write(target.batch_rows(a=[3]), named(3, 2))
    assert target.numbers() == [1, 2, 3]
    strict = DeltaSink(target.folder / "table", evolve=False)
    with pytest.raises(InvalidOption, match="column more is not in the table"):
        strict.open(SinkRun(None, "q", 1, StructType([*wider, StructField("more", LongType())]), Append()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "how", "said"),
    [
        (StructType([StructField("n", StringType())]), Append(), "column n is long .* would become string"),
        (CHANGES, KEYED, "holds plain rows .* merges by key"),
        (StructType([StructField("id", LongType())]), Merge(("id",)), "_sequence is missing"),
        (CHANGES, Merge(("key",)), "column key is missing"),
        (CHANGES, Merge(()), "at least one column"),
    ],
)
def test_columns_that_do_not_fit_the_table_are_refused_at_open(
    target: DeltaTarget, schema: StructType, how: Any, said: str
) -> None:
    target.opened()
    with pytest.raises(InvalidOption, match=said):
        target.opened(epoch=2, schema=schema, how=how)


def test_rows_are_not_appended_to_a_table_that_is_merged(target: DeltaTarget) -> None:
    target.merging()
    with pytest.raises(InvalidOption, match="is merged by key"):
        target.opened(epoch=2)


def test_nullable_rows_for_a_required_column_are_refused(target: DeltaTarget) -> None:
    """Files that are copied as they are could contain nulls."""
    target.opened(schema=StructType([StructField("n", LongType(), nullable=False)]))
    with pytest.raises(InvalidOption, match=r"column n .* must not be null"):
        target.opened(epoch=2)


def test_a_table_that_would_forget_its_batches_is_refused(target: DeltaTarget) -> None:
    DeltaTable.create(
        target.folder / "table", arrow_schema(EVENTS),
        configuration={"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_key_not_exists=False,
    )  # fmt: skip
    with pytest.raises(InvalidOption, match="forget which batches"):
        target.opened()


def test_rows_for_a_table_with_constraints_are_checked_by_delta(target: DeltaTarget) -> None:
    """Such a table cannot take files as they are."""
    target.opened()
    DeltaTable(target.folder / "table").alter.add_constraint({"positive": "n > 0"})
    sink = target.opened(epoch=2)
    assert sink.write(target.batch_rows(a=[1]), named(2, 0))
    with pytest.raises(StorageError, match="Invalid data"):
        sink.write(target.batch_rows(a=[-1]), named(2, 1))
    assert target.numbers() == [1]


def test_a_constraint_that_another_program_adds_before_the_commit_is_checked(target: DeltaTarget) -> None:
    for epoch, numbers in enumerate([[-1], [1]], 1):
        sink, path = target.opened(epoch=epoch), target.folder / "table"
        before(sink, "_append_files", lambda path=path: DeltaTable(path).alter.add_constraint({"positive": "n > 0"}))  # type: ignore[misc]
        if numbers == [1]:
            assert sink.write(target.batch_rows(a=numbers), named(epoch, 0))
            continue
        with pytest.raises(StorageError, match="Invalid data"):
            sink.write(target.batch_rows(a=numbers), named(epoch, 0))
        DeltaTable(path).alter.drop_constraint("positive")
    assert target.numbers() == [1]


def test_rows_of_other_types_are_cast_or_refused(target: DeltaTarget) -> None:
    rows = target.batch_rows(a=[1])
    path = rows.files[0].path
    sink = target.opened()
    pq.write_table(
        pa.table({"n": pa.array([5], pa.int32()), "shard": ["a"], "text": pa.array(["t"], pa.large_string())}), path
    )
    sink.write(rows, named(1, 0))
    assert target.events() == [{"shard": "a", "n": 5, "text": "t"}]
    pq.write_table(pa.table({"n": ["five"], "shard": ["a"], "text": ["t"]}), path)
    with pytest.raises(UsageError, match="do not fit"):
        sink.write(rows, named(1, 1))
    pq.write_table(pa.table({"n": [5], "shard": ["a"]}), path)
    with pytest.raises(UsageError, match="no column text"):
        sink.write(rows, named(1, 1))


def test_a_merge_by_several_oddly_named_keys_and_text_sequences(tmp_path: Path) -> None:
    schema = StructType(
        [StructField("Order Id", LongType()), StructField('a "b"', StringType()), StructField("Text", StringType()),
         *(field for field in CHANGES if field.name == "_deleted"), StructField("_sequence", StringType())]
    )  # fmt: skip
    sink = DeltaSink(tmp_path / "table")
    sink.open(SinkRun(None, "q", 1, schema, Merge(("Order Id", 'a "b"'))))  # type: ignore[arg-type]
    for number, (text, sequence) in enumerate([("first", "0009"), ("newer", "0010"), ("late", "0008")]):
        row = {"Order Id": 1, 'a "b"': "x", "Text": text, "_sequence": sequence, "_deleted": False}
        sink.write(TableRows(schema, pa.Table.from_pylist([row], schema=arrow_schema(schema))), named(1, number, "q"))
    assert read_table(tmp_path / "table").to_pylist() == [{"Order Id": 1, 'a "b"': "x", "Text": "newer"}]
    assert sink.purge_tombstones("9") == 0


def test_a_purge_that_collides_with_a_merge_is_retried(target: DeltaTarget) -> None:
    sink = target.merging()
    sink.write(changes((1, None, 5, True), (2, "there", 5, False)), named(1, 0))
    real, merged = sink._purge, []

    def raced(bound: str) -> int:
        if not merged:
            merged.append(sink.write(changes((2, "newer", 6, False)), named(1, 1)))
            raise CommitFailedError("the table was changed")
        return real(bound)

    sink._purge = raced
    assert sink.purge_tombstones(6) == 1
    assert target.changed() == {2: "newer"}


def test_a_table_of_another_writer_can_be_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"x": [1]}))
    assert read_table(tmp_path / "table").to_pylist() == [{"x": 1}]


def test_empty_text_is_null_in_a_partition_column_and_refused_for_keys(tmp_path: Path) -> None:
    """Delta partitions store empty text as null, and a null key makes the table unreadable."""
    schema = StructType([StructField("region", StringType()), StructField("n", LongType())])
    sink = DeltaSink(tmp_path / "rows", ["region"])
    sink.open(SinkRun(None, QUERY, 1, schema, Append()))  # type: ignore[arg-type]
    table = pa.table({"region": ["", None, "eu"], "n": pa.array([1, 2, 3], pa.int64())})
    sink.write(TableRows(schema, table), named(1, 0))
    sink.close()
    found = {row["n"]: row["region"] for row in read_table(tmp_path / "rows").to_pylist()}
    assert found == {1: None, 2: None, 3: "eu"}
    keyed = StructType([*(field for field in CHANGES if field.name != "id"), StructField("id", StringType())])
    with pytest.raises(InvalidOption, match="partition_by: id is text that must not be null"):
        DeltaSink(tmp_path / "other", ["id"]).open(SinkRun(None, QUERY, 1, keyed, KEYED))  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "allow_unsafe_rename"])
def test_options_with_which_two_commits_of_a_version_succeed_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidOption, match=r"lets two runs commit the same version of the table"):
        DeltaSink("s3a://bucket/table", storage_options={name: "true"})
    DeltaSink("s3a://bucket/table", storage_options={name: "false"})
    DeltaSink("table", storage_options={name: "true"})
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(InvalidOption, match=r"AWS_CONDITIONAL_PUT=disabled"):
        DeltaSink("s3://bucket/table")


def test_a_table_in_s3_is_reached_with_the_settings_of_spark() -> None:
    settings = {"spark.hadoop.fs.s3a.endpoint": "http://minio:9000", "spark.hadoop.fs.s3a.access.key": "me"}
    expected = {"AWS_ACCESS_KEY_ID": "me", "AWS_ENDPOINT_URL": "http://minio:9000", "AWS_ALLOW_HTTP": "true"}
    assert delta.delta_options(locate("s3a://bucket/table", settings)) == expected
    assert delta.delta_options(locate("/tables/orders", settings)) == {}


def test_a_column_that_differs_only_in_case_is_refused(target: DeltaTarget) -> None:
    target.opened()
    upper = StructType([StructField("N", LongType())])
    sink = DeltaSink(target.folder / "table")
    with pytest.raises(InvalidOption, match=r"column N differs from n of the table .* only in case.*: rename it"):
        sink.open(SinkRun(None, "q", 1, upper, Append()))  # type: ignore[arg-type]
    both = StructType([StructField("n", LongType()), StructField("N", LongType())])
    with pytest.raises(InvalidOption, match="column n differs from N of the rows only in case"):
        DeltaSink(target.folder / "new").open(SinkRun(None, "q", 1, both, Append()))  # type: ignore[arg-type]


def rewritten(path: Path, **columns: pa.DataType) -> None:
    """What another program does that replaces the rows of a table and its columns."""
    there = pa.table({name: pa.nulls(1, kind) for name, kind in columns.items()})
    write_deltalake(path, there, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("when", ["_prepare", "_append_files"])
def test_columns_that_another_program_changes_during_a_run_are_refused(target: DeltaTarget, when: str) -> None:
    """Delta names the files of rows in its log whatever is in them: values would be lost, or the table unreadable."""
    path = target.folder / "table"
    columns = {name: kind for name, kind in zip(EVENTS.names, arrow_schema(EVENTS).types, strict=True)}
    other = {**columns, "n": pa.string()}
    fewer = {name: kind for name, kind in columns.items() if name != "n"}
    for epoch, (changed, problem) in enumerate([(other, "n is string"), (fewer, "n was removed")], 1):
        rewritten(path, **columns) if path.exists() else None
        sink = target.opened(epoch=epoch)
        before(sink, when, lambda changed=changed: rewritten(path, **changed))  # type: ignore[misc]
        with pytest.raises(InvalidOption, match=problem):
            sink.write(target.batch_rows(a=[1]), named(epoch, 0))
        assert DeltaTable(path).to_pyarrow_table().num_rows == 1


def test_a_partitioning_that_another_program_changes_during_a_run_is_refused(target: DeltaTarget) -> None:
    sink, path = target.opened(), target.folder / "table"
    rows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite", partition_by=[EVENTS.names[0]])
    with pytest.raises(InvalidOption, match="is partitioned by"):
        sink.write(target.batch_rows(a=[1]), named(1, 0))


def test_a_column_that_another_program_adds_during_a_run_is_null(target: DeltaTarget) -> None:
    sink, path = target.opened(), target.folder / "table"
    write_deltalake(path, pa.table({"extra": ["x"]}), mode="append", schema_mode="merge")
    assert sink.write(target.batch_rows(a=[1]), named(1, 0))
    assert sink.write(target.batch_rows(a=[2]), named(1, 1))
    assert sorted(map(str, DeltaTable(path).to_pyarrow_table()["extra"].to_pylist())) == ["None", "None", "x"]


def test_a_merge_into_a_table_that_only_takes_new_rows_is_refused(target: DeltaTarget) -> None:
    sink = target.merging()
    DeltaTable(target.folder / "table").alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidOption, match="appendOnly, and this pipeline merges"):
        sink.write(changes((1, "a", 1, False)), named(1, 0))
    with pytest.raises(InvalidOption, match="appendOnly, and this pipeline merges"):
        target.merging(epoch=2)
