"""The rules of a Parquet folder, without files."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.sinks.parquet_compaction import merged_name
from lanemq.pipelines.sinks.parquet_layout import (
    FileName,
    FolderChange,
    Partitioning,
    ShownFile,
    compaction_groups,
    exact_view,
    partitioning,
    query_mark,
    read_name,
)

ROWS = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("country", pa.string()),
        pa.field("created", pa.timestamp("us", "UTC")),
        pa.field("due", pa.date32()),
        pa.field("paid", pa.bool_()),
        pa.field("price", pa.float64()),
        pa.field("due_day", pa.string()),
        pa.field("_hidden", pa.string()),
    ]
)
NIGHT = datetime(2026, 11, 17, 23, 30, tzinfo=UTC)


def rows(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{"n": n, **value} for n, value in enumerate(values)], schema=ROWS)


def split(by: Sequence[str], *values: dict[str, Any]) -> dict[str, list[int]]:
    return {name: part["n"].to_pylist() for name, part in partitioning(by, ROWS).split(rows(*values))}


def file(batch: int, wall: int, folder: str = "day=1", query: str = "q", *, compacted: bool = False) -> str:
    return f"{folder}/{FileName(query_mark(query), batch, wall, f'{batch:08x}', compacted)}"


def test_a_name_says_who_wrote_the_file_and_when() -> None:
    name = FileName(query_mark("q"), 3 << 20, 1_794_000_000, "0123abcd", compacted=True)
    assert read_name(f"day=2026-11-17/{name}") == name
    assert read_name("day=2026-11-17/of-another-program.parquet") is None


def test_a_compacted_file_is_listed_before_those_it_replaces() -> None:
    """A program that lists page by page while files are exchanged then never gets rows under both names."""
    sources = [file(1, 100), file(2, 160), file(9, 130)]
    merged = merged_name(sources, "ffffffff")
    assert merged < min(sources)
    name = read_name(merged)
    assert name is not None
    assert (name.batch, name.wall, name.compacted) == (9, 160, True)


def test_days_are_those_of_utc_and_rows_keep_their_order() -> None:
    morning = NIGHT.replace(hour=1)
    later = datetime(2026, 11, 18, 0, 0, 0, tzinfo=UTC)
    found = split(["day(created)"], *({"created": at} for at in (NIGHT, later, morning, None, later)))
    assert found == {
        "created_day=2026-11-17": [0, 2],
        "created_day=2026-11-18": [1, 4],
        "created_day=__HIVE_DEFAULT_PARTITION__": [3],
    }


@pytest.mark.parametrize(
    ("by", "folder"),
    [
        ("year(created)", "created_year=2026"),
        ("month(created)", "created_month=2026-11"),
        ("hour(created)", "created_hour=2026-11-17-23"),
        ("month(due)", "due_month=2026-01"),
        ("due", "due=2026-01-31"),
        ("paid", "paid=true"),
        ("n", "n=0"),
    ],
)
def test_a_folder_is_named_as_hive_does(by: str, folder: str) -> None:
    row = rows({"created": NIGHT, "due": date(2026, 1, 31), "paid": True})
    assert [name for name, _ in partitioning([by], ROWS).split(row)] == [folder]


def test_two_columns_make_two_levels() -> None:
    values = [{"country": "de", "created": NIGHT}, {"country": "fr", "created": NIGHT}, {"country": "de"}]
    assert split(["country", "day(created)"], *values, values[1]) == {
        "country=de/created_day=2026-11-17": [0],
        "country=fr/created_day=2026-11-17": [1, 3],
        "country=de/created_day=__HIVE_DEFAULT_PARTITION__": [2],
    }


def test_values_of_folders_are_read_back() -> None:
    by = partitioning(["country", "day(created)", "n", "paid"], ROWS)
    texts = ["a/b=c", 'quote"s', "100 %", "Zürich", "back\\slash", "{x}[y]^", "tab\there", "__x"]
    for text in texts:
        [(folder, part)] = by.split(rows({"country": text, "created": NIGHT, "paid": False}))
        assert folder.count("/") == 3
        found = by.values(f"{folder}/part.parquet", ROWS)
        assert {name: each.as_py() for name, each in found.items()} == {
            "country": text,
            "created_day": date(2026, 11, 17),
            "n": 0,
            "paid": False,
        }
        assert "created" in part.schema.names, "a time stays in the file"
        assert not {"country", "n", "paid"} & set(part.schema.names), "a value is in the folder's name only"


def test_empty_text_and_null_are_one_folder_as_in_hive() -> None:
    assert split(["country"], {"country": ""}, {"country": None}, {"country": ""}) == {
        "country=__HIVE_DEFAULT_PARTITION__": [0, 1, 2]
    }


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        (["price"], "column of type double"),
        (["day(country)"], "column of type string"),
        (["hour(due)"], "column of type date32"),
        (["week(created)"], "use a column of text"),
        (["missing"], "there is no column missing"),
        (["day(due)"], "makes a column due_day, which the rows have"),
        (["n", "n"], "names a column twice"),
        (["_hidden"], "readers skip folders"),
        (list(set(ROWS.names) - {"_hidden", "price", "created"}), None),
    ],
)
def test_columns_that_cannot_divide_rows_are_refused(by: list[str], reason: str | None) -> None:
    if reason is None:
        assert partitioning(by, ROWS).in_files(ROWS).names == ["created", "price", "_hidden"]
        with pytest.raises(InvalidOption, match="leave one for the files"):
            partitioning(["n"], pa.schema([ROWS.field("n")]))
        return
    with pytest.raises(InvalidOption, match=reason):
        partitioning(by, ROWS)


def test_without_partitions_there_is_one_part() -> None:
    table = rows({}, {})
    assert list(Partitioning().split(table)) == [("", table)]


# What readers see.

OLD, ONE, TWO = file(1, 100), file(2, 200), file(2, 200, "day=2")
BATCH = FolderChange(2, "s", (ONE, TWO))


@pytest.mark.parametrize(
    ("listed", "waiting", "shown"),
    [
        ([OLD], [ONE, TWO], [OLD]),
        ([OLD, ONE], [TWO], [OLD]),
        ([OLD, ONE, TWO], [], [OLD, ONE, TWO]),
        ([OLD, ONE], [], [OLD, ONE]),
    ],
    ids=["nothing placed", "one file placed", "complete", "complete, and a file deleted since"],
)
def test_the_exact_view_has_all_files_of_a_batch_or_none(
    listed: list[str], waiting: list[str], shown: list[str]
) -> None:
    found = exact_view(listed, {("s", name) for name in waiting}, [BATCH])
    assert found == [ShownFile(name) for name in sorted(shown)]


MERGED = file(2, 200, compacted=True)
EXCHANGE = FolderChange(2, "c", (MERGED,), (OLD, ONE))


@pytest.mark.parametrize(
    ("listed", "waiting", "shown"),
    [
        ([OLD, ONE, TWO], [MERGED], [ShownFile(MERGED, "c"), ShownFile(TWO)]),
        ([ONE, TWO], [MERGED], [ShownFile(MERGED, "c"), ShownFile(TWO)]),
        ([TWO], [MERGED], [ShownFile(MERGED, "c"), ShownFile(TWO)]),
        ([MERGED, TWO], [], [ShownFile(MERGED), ShownFile(TWO)]),
        ([MERGED, TWO], [MERGED], [ShownFile(MERGED), ShownFile(TWO)]),
        ([OLD, ONE, MERGED], [], [ShownFile(MERGED)]),
    ],
    ids=["committed", "one removed", "all removed", "placed", "placed while it was listed", "old page of a listing"],
)
def test_the_exact_view_has_either_the_old_files_or_the_new_one(
    listed: list[str], waiting: list[str], shown: list[ShownFile]
) -> None:
    assert exact_view(listed, {("c", name) for name in waiting}, [EXCHANGE]) == shown


def test_the_exact_view_leaves_out_files_of_others() -> None:
    assert exact_view(["day=1/mine.parquet", "notes.txt", OLD], (), ()) == [ShownFile(OLD)]


# What is compacted.


def groups(files: dict[str, int], wall: int = 1_000, after: int = 100, size: int = 100) -> list[list[str]]:
    return compaction_groups(files, "q", wall, after, size)


def test_only_closed_partitions_are_compacted() -> None:
    closed = {file(1, 800): 10, file(2, 900): 10}
    still_written = {file(1, 800, "day=2"): 10, file(3, 901, "day=2"): 10}
    assert groups(closed | still_written) == [[file(1, 800), file(2, 900)]]


def test_files_of_other_queries_and_other_programs_are_left_alone() -> None:
    assert groups({file(1, 1): 10, file(2, 2, query="other"): 10, "day=1/mine.parquet": 10}) == []


def test_files_are_grouped_in_the_order_of_their_batches_up_to_the_size() -> None:
    files = {file(batch, 1): 45 for batch in (12, 3, 7, 1, 9)} | {file(5, 1): 50}
    assert groups(files) == [[file(batch, 1) for batch in (1, 3, 7)], [file(9, 1), file(12, 1)]]


def test_compactions_come_to_an_end() -> None:
    """Even if a merged file is much smaller than its sources, or late rows arrive."""
    files = {file(batch, 1): 30 for batch in range(50)}
    for step in range(100):
        found = groups(files)
        if not found:
            break
        merged = merged_name(found[0], f"{step:08x}")
        size = sum(files.pop(name) for name in found[0]) // 3
        files[merged] = size
    else:
        pytest.fail("still compacting after 100 steps")
    assert sum(size < 50 for size in files.values()) <= 1
