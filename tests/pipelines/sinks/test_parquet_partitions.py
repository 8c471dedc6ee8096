"""Partitions and compactions of the Parquet sink: what two kinds of readers see at every step, and after every death.

A *plain* reader lists the folder, as Spark, pandas or DuckDB do. An *exact* reader uses `read_parquet`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.files.roots import SERVER
from tests.pipelines.sinks.targets import QUERY, Died, SteppedParquet, dies_at, named

from lanemq.clock import SystemClock
from lanemq.files import arrow_source, files_below, locate
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.units import Millis
from lanemq.pipelines.ports import Append, FileRows, RowFile
from lanemq.pipelines.sinks import open_sink, parquet_files, read_parquet
from lanemq.pipelines.sinks.exact_sink import arrow_schema
from lanemq.pipelines.sinks.parquet_layout import read_name

VISITS = StructType(
    [
        StructField("n", LongType()),
        StructField("country", StringType()),
        StructField("at", TimestampType()),
    ]
)
DAY = datetime(2026, 11, 17, 12, tzinfo=UTC)
HOUR = 3600


class Later(SystemClock):
    """A clock that is ahead by `seconds`."""

    seconds = 0

    def wall(self) -> Millis:
        return Millis(super().wall() + self.seconds * 1000)

    def now(self) -> Millis:
        return Millis(super().now() + self.seconds * 1000)


class Visits:
    """A folder of visits, divided by country and day, and compacted after an hour."""

    def __init__(self, folder: Path, place: str | None = None) -> None:
        self.folder = folder
        self.place = locate(f"{place or folder}/visits")
        self.clock = Later()
        self.epoch = 0
        self.batch = 0
        self.kind: type[SteppedParquet] = SteppedParquet

    def start(self, schema: StructType = VISITS, **options: Any) -> SteppedParquet:
        """A new run of the pipeline has opened the folder."""
        self.epoch += 1
        options = {"partition_by": ["country", "day(at)"], "compact_after": HOUR, **options}
        sink = self.kind(self.place, clock=self.clock, **options)
        sink.open(None, QUERY, self.epoch, schema, Append())  # type: ignore[arg-type]
        return sink

    def write(self, sink: SteppedParquet, rows: FileRows) -> None:
        self.batch += 1
        sink.write(rows, named(self.epoch, self.batch))

    def rows(self, *numbers: int, schema: StructType = VISITS) -> FileRows:
        """Visits in two shards."""
        files = []
        for shard in range(2):
            values = [visit(number) for number in numbers if number % 2 == shard]
            path = self.folder / f"stage-{self.epoch}-{numbers[0] if numbers else ''}-{shard}.parquet"
            pq.write_table(pa.Table.from_pylist(values, schema=arrow_schema(schema)), path)
            files.append(RowFile(str(shard), path, len(values)))
        return FileRows(schema, files)

    def plain(self) -> list[int]:
        if not isinstance(self.place, Path):
            files = [arrow_source(locate(f"{self.place}/{name}")) for name in files_below(self.place)]
            return sorted(n for file in files for n in pq.ParquetFile(file).read(["n"])["n"].to_pylist())
        names = [str(self.place / name) for name in files_below(self.place)]
        found = (
            ds.dataset(names, format="parquet", partitioning="hive").to_table(["n"]) if names else {"n": pa.array([])}
        )
        return sorted(found["n"].to_pylist())

    def exact(self) -> list[int]:
        return sorted(read_parquet(self.place)["n"].to_pylist())

    def files(self) -> dict[str, int]:
        """The number of files in each partition."""
        return dict(Counter(name.rpartition("/")[0] for name in files_below(self.place)))


def visit(number: int) -> dict[str, Any]:
    """Of five visits, two are French and two are on the next day."""
    day = DAY + timedelta(days=number % 5 in (3, 4))
    return {"n": number, "country": "fr" if number % 5 in (0, 4) else "de", "at": day}


@pytest.fixture
def visits(tmp_path: Path) -> Visits:
    return Visits(tmp_path)


PARTITIONS = [f"country={country}/at_day=2026-11-{day}" for country in ("de", "fr") for day in (17, 18)]


def test_a_batch_has_one_file_in_each_partition_and_readers_get_all_columns(visits: Visits) -> None:
    sink = visits.start()
    visits.write(sink, visits.rows(*range(30)))
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)
    table = read_parquet(visits.place)
    assert table.schema.names == ["n", "country", "at", "at_day"]
    wanted = [{**visit(number), "at_day": visit(number)["at"].date()} for number in range(30)]
    assert table.sort_by("n").to_pylist() == wanted
    assert read_parquet(visits.place, ["country", "n"]).schema.names == ["country", "n"]
    with pytest.raises(UsageError, match="has no column city; there are n, country, at, at_day"):
        read_parquet(visits.place, ["city"])
    plain = ds.dataset(visits.place, format="parquet", partitioning="hive")
    assert plain.to_table(filter=ds.field("country") == "fr")["n"].to_pylist() == [
        number for shard in (0, 1) for number in range(shard, 30, 2) if number % 5 == 0
    ] + [number for shard in (0, 1) for number in range(shard, 30, 2) if number % 5 == 4], "each shard in order"


def test_an_empty_folder_has_the_columns_and_no_rows(visits: Visits, tmp_path: Path) -> None:
    visits.start()
    assert read_parquet(visits.place).num_rows == 0
    assert parquet_files(visits.place) == []
    with pytest.raises(UsageError, match="not the folder of a ParquetSink"):
        read_parquet(tmp_path / "elsewhere")


STEPS_OF_A_BATCH = 10
"""Four files staged, the commit, four files placed; and one more, which is not reached."""


@pytest.mark.parametrize("step", range(STEPS_OF_A_BATCH))
def test_a_driver_that_dies_at_any_step_of_a_batch_leaves_each_row_once(visits: Visits, step: int) -> None:
    first, second = list(range(10)), list(range(10, 30))
    visits.write(visits.start(), visits.rows(*first))
    dying = visits.start()
    dies_at(dying, step)
    try:
        visits.write(dying, visits.rows(*second))
    except Died:
        assert step < STEPS_OF_A_BATCH - 1, "more steps than are tried"
    assert set(first) <= set(visits.plain()) <= {*first, *second}
    assert len(visits.plain()) == len(set(visits.plain())), "a plain reader never sees a row twice"
    assert visits.exact() in (first, first + second), "an exact reader sees whole batches"
    again = visits.start()
    assert (again.applied() == visits.batch) == (step >= 4), "the commit is what counts"
    again.write(visits.rows(*second), named(visits.epoch, visits.batch))
    assert visits.plain() == visits.exact() == first + second


def test_without_completing_the_change_a_death_leaves_rows_out(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the next run does first."""
    dying = visits.start()
    dies_at(dying, 5)
    with pytest.raises(Died):
        visits.write(dying, visits.rows(*range(30)))
    monkeypatch.setattr(SteppedParquet, "_complete_change", lambda *_: None)
    again = visits.start()
    again.write(visits.rows(*range(30)), named(visits.epoch, visits.batch))
    assert len(visits.plain()) < 30


def with_small_files(visits: Visits, batches: Sequence[range] = (range(10), range(10, 20), range(20, 30))) -> list[int]:
    """Every partition has three files, and is closed."""
    sink = visits.start()
    for numbers in batches:
        visits.write(sink, visits.rows(*numbers))
    visits.clock.seconds += 2 * HOUR
    return [number for numbers in batches for number in numbers]


def compacts_all(visits: Visits, sink: SteppedParquet, schema: StructType = VISITS) -> None:
    """Empty batches until every partition has been compacted; each batch compacts one."""
    for _ in PARTITIONS:
        visits.write(sink, visits.rows(schema=schema))


def test_closed_partitions_get_one_file_and_keep_their_rows_in_order(visits: Visits) -> None:
    numbers = with_small_files(visits)
    before = read_parquet(visits.place)
    sink = visits.start()
    visits.write(sink, visits.rows())
    assert sorted(visits.files().values()) == [1, 3, 3, 3], "one partition per batch"
    compacts_all(visits, sink)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)
    assert visits.plain() == visits.exact() == numbers
    assert read_parquet(visits.place).equals(before), "files were read in the order of their batches"
    assert visits.start().applied() == visits.batch


def test_partitions_that_still_get_rows_are_not_compacted(visits: Visits) -> None:
    with_small_files(visits)
    sink = visits.start()
    visits.write(sink, visits.rows(1, 2))  # these are of the first partition
    compacts_all(visits, sink)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1) | {PARTITIONS[0]: 4}
    visits.clock.seconds += 2 * HOUR
    visits.write(sink, visits.rows())
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)


def test_late_rows_of_a_compacted_partition_are_compacted_again(visits: Visits) -> None:
    numbers = with_small_files(visits)
    sink = visits.start()
    compacts_all(visits, sink)
    visits.write(sink, visits.rows(31, 32))
    assert visits.files()[PARTITIONS[0]] == 2
    visits.clock.seconds += 2 * HOUR
    compacts_all(visits, sink)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)
    assert visits.plain() == visits.exact() == [*numbers, 31, 32]


def test_by_default_nothing_is_compacted(visits: Visits) -> None:
    with_small_files(visits)
    compacts_all(visits, visits.start(compact_after=None))
    assert visits.files() == dict.fromkeys(PARTITIONS, 3)


def test_files_of_half_the_size_are_left_alone(visits: Visits) -> None:
    with_small_files(visits)
    compacts_all(visits, visits.start(file_size=1_000))
    assert visits.files() == dict.fromkeys(PARTITIONS, 3)


def test_files_from_before_a_column_was_added_are_compacted(visits: Visits) -> None:
    numbers = with_small_files(visits)
    wider = StructType([*VISITS, StructField("city", StringType(), nullable=False)])
    compacts_all(visits, visits.start(wider), wider)
    table = read_parquet(visits.place)
    assert table["city"].null_count == table.num_rows == len(numbers)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)


def test_a_file_that_cannot_be_read_is_left_and_logged(visits: Visits, caplog: pytest.LogCaptureFixture) -> None:
    with_small_files(visits)
    broken = next(name for name in files_below(visits.place) if name.startswith(PARTITIONS[0]))
    (visits.folder / "visits" / broken).write_bytes(b"PAR1 not any more")
    sink = visits.start()
    compacts_all(visits, sink)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1) | {PARTITIONS[0]: 3}
    assert sum("cannot be compacted" in line for line in caplog.messages) == 1
    assert sink.applied() == visits.batch


STEPS_OF_A_COMPACTION = 6
"""Of an empty batch its commit; then one file staged, the commit, old files removed, one file placed; and one more."""


@pytest.mark.parametrize("step", range(STEPS_OF_A_COMPACTION))
def test_a_driver_that_dies_at_any_step_of_a_compaction_leaves_each_row_once(visits: Visits, step: int) -> None:
    numbers = with_small_files(visits)
    dying = visits.start()
    dies_at(dying, step)
    try:
        visits.write(dying, visits.rows())
    except Died:
        assert step < STEPS_OF_A_COMPACTION - 1, "more steps than are tried"
    assert len(visits.plain()) == len(set(visits.plain())), "a plain reader never sees a row twice"
    assert (visits.plain() == numbers) == (step != 3), "it misses rows only between the removal and the move"
    assert visits.exact() == numbers, "an exact reader misses nothing"
    again = visits.start()
    assert again.applied() == visits.batch
    assert visits.plain() == visits.exact() == numbers
    compacts_all(visits, again)
    assert visits.files() == dict.fromkeys(PARTITIONS, 1)
    assert visits.plain() == visits.exact() == numbers


def test_a_death_between_two_removals_leaves_each_row_once(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = with_small_files(visits)

    def one_then_dies(paths: Sequence[Path]) -> None:
        paths[0].unlink()
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr("lanemq.pipelines.sinks.parquet.remove_files", one_then_dies)
        sink = visits.start()
        with pytest.raises(Died):
            visits.write(sink, visits.rows())
    assert set(visits.plain()) < set(numbers)
    assert visits.exact() == numbers
    visits.start()
    assert visits.plain() == visits.exact() == numbers


class PlacesFirst(SteppedParquet):
    """A sink that places the new file of a compaction before it removes the old ones."""

    def _complete_change(self, terms: Any) -> None:
        if self._change is not None and self._change.removes:
            for name in self._change.adds:
                self._move(self._folder.staged(terms.query) / self._change.staged, name)
        super()._complete_change(terms)


class CommitsNothing(SteppedParquet):
    """A sink that exchanges files without a change that names them."""

    def _commit(self, change: Any, terms: Any) -> None:
        if change.removes:
            self._change = change
        else:
            super()._commit(change, terms)


@pytest.mark.parametrize(("kind", "sees"), [(PlacesFirst, "twice"), (CommitsNothing, "too few")])
def test_a_compaction_in_another_order_shows_wrong_rows(visits: Visits, kind: type[SteppedParquet], sees: str) -> None:
    """The controls: plain readers see rows twice, and exact ones see too few."""
    numbers = with_small_files(visits)
    visits.kind = kind
    sink = visits.start()
    seen: list[tuple[list[int], list[int]]] = []
    sink.reached = lambda step: seen.append((visits.plain(), visits.exact()))  # type: ignore[method-assign]
    visits.write(sink, visits.rows())
    if sees == "twice":
        assert any(len(plain) > len(numbers) for plain, _ in seen)
    else:
        assert any(len(exact) < len(numbers) for _, exact in seen)


def test_readers_at_every_step_of_many_batches_and_compactions(visits: Visits) -> None:
    done: list[int] = []
    coming: list[int] = []
    steps: Counter[str] = Counter()

    def look(step: str) -> None:
        steps[step] += 1
        plain, exact = visits.plain(), visits.exact()
        assert len(plain) == len(set(plain))
        assert exact in (done, done + coming)
        assert sorted(read_all(parquet_files(visits.place))) == exact

    sink = visits.start()
    sink.reached = look  # type: ignore[method-assign]
    for batch in range(4):
        coming = list(range(batch * 20, batch * 20 + 20)) if batch != 2 else []
        visits.clock.seconds += 2 * HOUR
        visits.write(sink, visits.rows(*coming))
        done += coming
        assert visits.exact() == done
    assert steps["old files removed"] >= 1, "there were compactions"


def read_all(files: Iterable[str]) -> list[int]:
    return [number for file in files for number in pq.ParquetFile(file).read(["n"])["n"].to_pylist()]


def test_a_view_is_taken_again_if_a_change_comes_in_between(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = visits.start()
    visits.write(sink, visits.rows(*range(10)))
    arrives = [lambda: visits.write(sink, visits.rows(*range(10, 20)))]
    monkeypatch.setattr("lanemq.pipelines.sinks.parquet_reading.files_below", _then(arrives))
    assert visits.exact() == list(range(20))


def test_files_that_a_compaction_removes_under_a_reader_are_read_in_their_new_place(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = with_small_files(visits)
    sink = visits.start()
    arrives = [lambda: compacts_all(visits, sink)]
    source = arrow_source

    def reading(path: Any) -> Any:
        if arrives:
            arrives.pop()()
        return source(path)

    monkeypatch.setattr("lanemq.pipelines.sinks.parquet_reading.arrow_source", reading)
    assert visits.exact() == numbers


def _then(arrives: list[Callable[[], None]]) -> Callable[[Any], dict[str, int]]:
    """`files_below`, during which something arrives once."""

    def listing(folder: Any) -> dict[str, int]:
        found = files_below(folder)
        if arrives:
            arrives.pop()()
        return found

    return listing


def test_another_partitioning_is_refused(visits: Visits) -> None:
    visits.start()
    with pytest.raises(InvalidOption, match=r"partitioned by \(country, day\(at\)\), not by \(country\)"):
        visits.start(partition_by=["country"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compact_after": "10s"}, "60 seconds at the earliest"),
        ({"file_size": 0}, "write a number of bytes"),
        ({"file_size": "big"}, "file_size = 'big': write a whole number"),
        ({"compact": 1}, "no such option; did you mean compact_after"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        open_sink("parquet", {"path": str(tmp_path), **options})
    assert open_sink("parquet", {"path": str(tmp_path), "partition_by": "day(at)", "compact_after": "6h"})


def test_a_batch_of_more_partitions_than_open_files_makes_more_files(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.pipelines.sinks.parquet.MAX_OPEN", 2)
    visits.write(visits.start(), visits.rows(*range(30)))
    assert visits.plain() == visits.exact() == list(range(30))
    assert sum(visits.files().values()) > len(PARTITIONS)


def test_spark_reads_partitions_and_lists_of_files(visits: Visits, spark: SparkSession) -> None:
    numbers = with_small_files(visits)
    dying = visits.start()
    dies_at(dying, 3)
    with pytest.raises(Died):
        visits.write(dying, visits.rows())
    visits.start()
    found = spark.read.parquet(str(visits.place))
    assert {(field.name, field.dataType.simpleString()) for field in found.schema} == {
        ("n", "bigint"), ("at", "timestamp"), ("country", "string"), ("at_day", "date"),
    }  # fmt: skip
    assert sorted(row["n"] for row in found.where("at_day < '2026-11-18'").collect()) == [
        number for number in numbers if number % 5 < 3
    ]
    exact = spark.read.option("basePath", str(visits.place)).parquet(*parquet_files(visits.place))
    assert (exact.count(), exact.columns) == (len(numbers), found.columns)
    assert any(name.compacted for name in map(read_name, parquet_files(visits.place)) if name is not None)


@pytest.mark.parametrize("store", [pytest.param(name, marks=SERVER) for name in ("s3", "hdfs")])
def test_every_step_on_other_stores(
    tmp_path: Path, store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.files.servers import BUCKET

    if store == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
    root = f"s3a://{BUCKET}" if store == "s3" else request.getfixturevalue("hdfs")
    for step in range(STEPS_OF_A_BATCH):
        (tmp_path / f"batch-{step}").mkdir()
        test_a_driver_that_dies_at_any_step_of_a_batch_leaves_each_row_once(
            Visits(tmp_path / f"batch-{step}", f"{root}{tmp_path}/batch-{step}"), step
        )
    for step in range(STEPS_OF_A_COMPACTION):
        (tmp_path / f"compaction-{step}").mkdir()
        test_a_driver_that_dies_at_any_step_of_a_compaction_leaves_each_row_once(
            Visits(tmp_path / f"compaction-{step}", f"{root}{tmp_path}/compaction-{step}"), step
        )
