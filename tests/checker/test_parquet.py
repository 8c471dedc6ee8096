"""A history in Parquet has the same events, verdict and damage as its JSONL file."""

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.checker.conftest import parse
from tests.checker.test_planted_violations import PLANTED
from tests.checker.test_random_histories import World
from tests.pipelines.audit.histories import write_history

from lanemq.checker import parquet_writing, reading
from lanemq.checker.checking import check
from lanemq.checker.events import HistoryEvent
from lanemq.checker.parquet_writing import convert
from lanemq.checker.reading import HistoryReader, find_files
from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow


def converted(folder: Path) -> Path:
    into = folder.parent / f"{folder.name}-parquet"
    list(convert(folder, into))
    return into


def events(paths: Iterable[Path]) -> list[HistoryEvent]:
    return [event for batch in HistoryReader(find_files(paths)).batches() for event in batch]


def test_converted_events_are_equal(tmp_path: Path) -> None:
    lines = write_history(tmp_path / "run", World(3).run())
    again = converted(lines)
    assert events([again]) == events([lines])
    assert {path.suffix for path in again.iterdir()} == {".parquet"}


def test_reports_are_equal(tmp_path: Path) -> None:
    for number, (_, script) in enumerate(list(PLANTED.values())[::12]):
        lines = write_history(tmp_path / str(number), parse(script))
        assert check([converted(lines)]) == check([lines])


def test_sizes_of_row_groups_and_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_history(tmp_path / "run", World(5).run())
    monkeypatch.setattr(parquet_writing, "ROW_GROUP", 7)
    monkeypatch.setattr(reading, "BATCH_ROWS", 3)
    assert events([converted(lines)]) == events([lines])


def test_a_file_is_read_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 16)
    again = converted(write_history(tmp_path / "run", World(5).run()))
    for path in again.iterdir():
        assert all(len(block) <= 16 for block in reading.ParquetRows(path, pytest.fail).blocks())


def test_a_gap_in_the_lines_is_a_gap_in_the_rows(tmp_path: Path) -> None:
    lines = write_history(tmp_path / "run", World(1).run())
    path = lines / "broker.jsonl"
    kept = path.read_text().splitlines()
    path.write_text("\n".join([*kept[:4], "{not json", *kept[5:]]) + "\n")
    into = tmp_path / "into"
    problems = [problem for done in convert(lines, into) for problem in done.problems]
    assert len(problems) == 1
    assert "cannot read the line after n=3" in problems[0]
    report = check([into])
    assert report.verdict is Verdict.UNKNOWN
    assert "history lost: n=4 expected, n=5 found" in report.reasons[0]


def test_the_target_folder_must_not_be_the_source(tmp_path: Path) -> None:
    lines = write_history(tmp_path / "run", World(1).run())
    with pytest.raises(ValueError, match="choose another folder"):
        list(convert(lines, lines))


def test_a_copy_next_to_its_jsonl_file_is_not_read(tmp_path: Path) -> None:
    lines = write_history(tmp_path / "run", World(1).run())
    alone = check([lines])
    for path in converted(lines).iterdir():
        path.rename(lines / path.name)
    assert check([lines]) == alone


@pytest.fixture
def cut_file(tmp_path: Path) -> Path:
    again = converted(write_history(tmp_path / "run", World(1).run()))
    path = again / "broker.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    return path


def test_an_incomplete_file_makes_the_verdict_unknown(cut_file: Path) -> None:
    report = check([cut_file])
    assert report.verdict is Verdict.UNKNOWN
    assert "broker.parquet: cannot be read as Parquet" in report.reasons[0]


def test_parquet_of_another_kind_is_not_a_history(tmp_path: Path) -> None:
    path = tmp_path / "sales.parquet"
    parquet.write_table(pa.table({"amount": [1, 2]}), path)
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert "sales.parquet is not a history" in report.reasons[0]


def test_rows_that_are_no_events_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"e": "begin", "n": 0, "t": 1, "name": "a"}, {"e": "dream", "n": 1, "t": 2}, {"e": "send", "n": 2, "t": 3}]
    parquet.write_table(parquet_writing.table(rows), path)
    reasons = check([path]).reasons
    assert "cannot read the row with n=1: Invalid value 'dream'" in reasons[0]
    assert "cannot read the row with n=2: Object missing required field" in reasons[1]


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = converted(write_history(tmp_path / "run", World(1).run()))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"need pyarrow"):
        check([again])


def test_jsonl_needs_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_history(tmp_path / "run", World(1).run())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert check([lines]).verdict is Verdict.PASS


def test_every_field_of_the_format_has_a_column() -> None:
    """A field without a column would be lost."""
    columns = set(reading.field_types())
    for kind in reading.AnyEvent.__args__:
        assert {field.name for field in msgspec.structs.fields(kind)} - {"process"} <= columns
