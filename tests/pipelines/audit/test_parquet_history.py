"""A history that is written as Parquet."""

from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest
from pyarrow import parquet
from tests.checker.test_history_format import write_everything

from lanemq.checker.checking import check
from lanemq.checker.reading import HistoryReader, find_files
from lanemq.checker.verdict import Verdict
from lanemq.history import NO_HISTORY, Place, open_history
from lanemq.pipelines.audit import parquet_history
from lanemq.pipelines.audit.parquet_history import ParquetHistory, open_parquet_history


def effects(history: ParquetHistory, first: int, last: int) -> None:
    for offset in range(first, last):
        history.effect(Place("g", "orders", 0, offset), "k", "table", epoch=1)


def test_a_parquet_history_reads_like_one_of_lines(tmp_path: Path) -> None:
    for folder, opened in (("lines", open_history), ("columns", open_parquet_history)):
        history = opened(tmp_path / folder, "member/1", count(1).__next__, role="consumer", run="run-1")
        write_everything(history)
        history.close()
    lines, columns = (
        [event for batch in HistoryReader(find_files([tmp_path / folder])).batches() for event in batch]
        for folder in ("lines", "columns")
    )
    assert columns == lines


def test_flushed_events_survive_without_close(tmp_path: Path) -> None:
    history = ParquetHistory(tmp_path / "sink.parquet", "sink", count(1).__next__)
    effects(history, 0, 5)
    history.flush()
    effects(history, 5, 7)
    assert check([tmp_path]).coverage["effects"] == 5
    history.close()
    assert check([tmp_path]).coverage["effects"] == 7


def test_several_files_are_one_history_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_history, "MAX_ROWS", 4)
    history = ParquetHistory(tmp_path / "sink.parquet", "sink", count(1).__next__)
    effects(history, 0, 30)
    history.close()
    assert len(list((tmp_path / "sink.parquet").iterdir())) > 5
    report = check([tmp_path])
    assert [reason for reason in report.reasons if "turns" not in reason] == []
    assert report.coverage["effects"] == 30


def test_a_restarted_process_continues_its_history(tmp_path: Path) -> None:
    clock = count(1).__next__
    for _ in range(2):
        history = ParquetHistory(tmp_path / "sink.parquet", "sink", clock)
        effects(history, 0, 3)
        history.close()
    report = check([tmp_path])
    assert report.violations[0].invariant == "P1", "the same effects again"
    assert report.violations[0].process == "sink#2"
    assert report.verdict is Verdict.VIOLATION


def test_an_unfinished_part_is_not_read(tmp_path: Path) -> None:
    history = ParquetHistory(tmp_path / "sink.parquet", "sink", count(1).__next__)
    effects(history, 0, 3)
    history.close()
    (tmp_path / "sink.parquet" / "9.unfinished").write_bytes(b"PAR1")
    assert check([tmp_path]).coverage["effects"] == 3


def test_a_closed_or_disabled_history_writes_nothing(tmp_path: Path) -> None:
    assert open_parquet_history(None, "sink", count().__next__) is NO_HISTORY
    history = ParquetHistory(tmp_path / "sink.parquet", "sink", count(1).__next__)
    history.close()
    history.close()
    effects(history, 0, 3)
    history.flush()
    assert check([tmp_path]).events == 1


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not leave an incomplete file under a name that is read, and must not lose recorded events."""
    history = ParquetHistory(tmp_path / "sink.parquet", "sink", count(1).__next__)
    effects(history, 0, 3)

    def full_disk(table: object, file: BinaryIO, **_: object) -> None:
        file.write(b"PAR1")
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet, "write_table", full_disk)
        with pytest.raises(OSError, match="no space left"):
            history.flush()
    assert not list(tmp_path.rglob("*/*.parquet"))
    history.close()
    assert check([tmp_path]).coverage["effects"] == 3
