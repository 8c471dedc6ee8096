"""Reading history files: merged by time, and what is missing is reported."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanemq.checker import reading
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.reading import HistoryReader, bytes_of, find_files
from lanemq.checker.verdict import Verdict


def write(path: Path, *events: dict[str, object]) -> Path:
    """A file with one begin line and the given events, numbered; `n` in an event overrides."""
    lines: list[dict[str, object]] = [{"e": "begin", "t": 1, "name": path.stem, "role": "consumer"}, *events]
    path.write_text("".join(json.dumps({"n": n} | line) + "\n" for n, line in enumerate(lines)))
    return path


def turn(t: int, offset: int, **more: object) -> dict[str, object]:
    place = {"group": "g", "topic": "orders", "queue": 0, "offset": offset, "key": "k"}
    return {"e": "turn", "t": t, **place, **more}


def end(t: int, offset: int) -> dict[str, object]:
    return turn(t, offset) | {"e": "turn_end", "outcome": "ok"}


def times(*files: Path) -> Iterator[int]:
    for batch in HistoryReader(files).batches():
        yield from (event.t for event in batch)


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", turn(10, 0), end(30, 0), turn(50, 1))
    other = write(tmp_path / "b.jsonl", turn(20, 7), end(40, 7))
    assert list(times(one, other)) == [1, 1, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("block", [1, 7, 100, 1000])
def test_block_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    files = [
        write(tmp_path / f"{name}.jsonl", *(turn(10 * i + shift, i) for i in range(20)))
        for shift, name in enumerate("abc")
    ]
    whole = list(times(*files))
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    assert list(times(*files)) == whole == sorted(whole)


def test_progress_ends_at_the_size_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    files = [write(tmp_path / f"{name}.jsonl", *(turn(10 * i, i) for i in range(20))) for name in "ab"]
    seen: list[int] = []
    check(files, on_read=seen.append)
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == sum(map(bytes_of, files))


@pytest.mark.parametrize("block", [1, 60, 100, 1000])
def test_events_with_the_same_time_come_in_the_order_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Wherever a block ends; otherwise the verdict would depend on it."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    files = [write(tmp_path / f"{name}.jsonl", *(turn(10, i) for i in range(20)), turn(11, 50)) for name in "abc"]
    read = [event for batch in HistoryReader(files).batches() for event in batch][3:]
    assert [event.process.name for event in read] == ["a"] * 20 + ["b"] * 20 + ["c"] * 20 + ["a", "b", "c"]


def test_processes_of_the_same_name_in_two_files_are_different(tmp_path: Path) -> None:
    """Whatever the size of a block."""
    (tmp_path / "again").mkdir()
    write(tmp_path / "again" / "a.jsonl", turn(10, 0), end(20, 0))
    write(tmp_path / "a.jsonl", turn(30, 0), end(40, 0))
    names = {event.process.name for batch in HistoryReader(find_files([tmp_path])).batches() for event in batch}
    assert names == {"a", "a@2"}


def test_gap_in_the_numbers_makes_the_verdict_unknown(tmp_path: Path) -> None:
    """The missing line may be the one that decides."""
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0) | {"n": 3})
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert "history lost: n=2 expected, n=3 found" in report.reasons[0]


def test_a_violation_in_a_damaged_history_is_reported_but_the_verdict_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), turn(20, 1) | {"n": 3})
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert report.violations[0].invariant == "B5"


def test_unreadable_line_makes_the_verdict_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), {"e": "nonsense", "t": 20}, end(30, 0))
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert "nonsense" in report.reasons[0]


def test_time_going_back_makes_the_verdict_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(5, 0))
    assert "time went back by 5 ns" in check([path]).reasons[0]


def test_file_without_a_begin_line_makes_the_verdict_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"n": 0} | turn(10, 0)) + "\n")
    assert check([path]).verdict is Verdict.UNKNOWN


def test_an_incomplete_last_line_of_a_killed_process_is_no_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    with path.open("a") as file:
        file.write('{"e":"turn","n":3,"t"')
    report = check([path])
    assert report.verdict is Verdict.PASS
    assert report.events == 3


def test_a_complete_last_line_without_a_line_end_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    path.write_text(path.read_text().rstrip("\n"))
    assert check([path]).events == 3


def test_a_second_run_in_one_file_is_another_process(tmp_path: Path) -> None:
    """Otherwise the replay after a crash would look like a redelivery without a cause."""
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    again = write(tmp_path / "again", turn(50, 0), end(60, 0)).read_text()
    with path.open("a") as file:
        file.write(again.replace('"name": "again"', '"name": "a"').replace('"t": 1,', '"t": 40,'))
    report = check([path])
    assert report.verdict is Verdict.PASS
    assert report.groups["g"].redelivered == {"change of owner": 1}


def test_folders_are_searched_for_history_files(tmp_path: Path) -> None:
    inner = tmp_path / "run"
    inner.mkdir()
    (tmp_path / "notes.txt").write_text("no history")
    files = [write(inner / "b.jsonl"), write(tmp_path / "a.jsonl")]
    assert sorted(find_files([tmp_path])) == sorted(files)


def test_a_run_without_turns_is_unknown(tmp_path: Path) -> None:
    report = check([write(tmp_path / "a.jsonl")])
    assert report.verdict is Verdict.UNKNOWN
    assert "turns 0, at least 1 required" in report.reasons[0]


def test_required_coverage_that_was_not_seen_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    assert check([path]).verdict is Verdict.PASS
    report = check([path], CheckOptions(require=("redelivery", "turns=100")))
    assert report.verdict is Verdict.UNKNOWN
    assert len(report.reasons) == 2


def test_violation_outweighs_missing_coverage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0), turn(20, 1))
    assert check([path], CheckOptions(require=("rebalance",))).verdict is Verdict.VIOLATION


def test_unknown_requirement_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot require 'luck'"):
        check([], CheckOptions(require=("luck",)))


def test_first_violation_comes_with_the_events_around_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        turn(10, 0),
        end(20, 0),
        turn(30, 5, key="other"),
        turn(40, 2),
        turn(50, 3),
        end(60, 3),
    )
    around = check([path]).around
    marked = [line for line in around if line.startswith(">")]
    assert len(marked) == 1
    assert "offset=3" in marked[0]
    assert not any("other" in line for line in around), "events of other keys"
    assert "+0.000 ms" in around[-1]
