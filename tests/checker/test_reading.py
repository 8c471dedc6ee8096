"""Reading history files: merged by time, and what is missing is reported."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lanemq.checker import reading
from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.reading import HistoryReader, bytes_of, find_files, sizes_at_once
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


@pytest.mark.parametrize("block", [1, 7, 100, 1_000_000])
def test_an_incomplete_line_before_the_next_run_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """The process was killed while it wrote, and started again with the same file."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    again = {"e": "begin", "n": 0, "t": 40, "name": "a", "role": "consumer"}
    path.write_text(f'{path.read_text()}{{"e":"turn","n":3,"t"\n{json.dumps(again)}\n')
    report = check([path])
    assert report.verdict is Verdict.PASS, report.reasons
    assert report.events == 4


@pytest.mark.parametrize("block", [1, 7, 100, 1_000_000])
@pytest.mark.parametrize("after", ["", json.dumps(turn(30, 1) | {"n": 4}) + "\n"])
def test_an_incomplete_line_within_a_run_makes_the_verdict_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, after: str
) -> None:
    """Negative control: a line is missing, and no new run explains it."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    path = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    path.write_text(f'{path.read_text()}{{"e":"turn","n":3,"t"\n{after}')
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert "cannot read the line after n=2" in report.reasons[0]


def on_machine(path: Path, machine: str, *events: dict[str, object]) -> Path:
    write(path, *events)
    path.write_text(path.read_text().replace('"role"', f'"machine": "{machine}", "role"'))
    return path


def test_times_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    """Their clocks differ by minutes, so that here the second turn seems to be the first."""
    one = on_machine(tmp_path / "a.jsonl", "north", turn(600, 0), end(610, 0))
    other = on_machine(tmp_path / "b.jsonl", "south", turn(20, 1), end(30, 1))
    report = check([one, other])
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons[0].startswith("a.jsonl and b.jsonl were recorded on different machines")
    assert "check only files that one machine recorded" in report.reasons[0]
    assert check([on_machine(one, "south", turn(600, 0), end(610, 0)), other]).verdict is Verdict.VIOLATION


def test_runs_of_a_process_before_and_after_a_restart_of_the_machine_are_not_compared(tmp_path: Path) -> None:
    path = on_machine(tmp_path / "a.jsonl", "first start", turn(10, 0), end(20, 0))
    again = on_machine(tmp_path / "again", "second start", turn(50, 0), end(60, 0)).read_text()
    path.write_text(path.read_text() + again.replace('"t": 1,', '"t": 40,'))
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons[0].startswith("the runs in a.jsonl were recorded on different machines")


def test_files_that_do_not_name_a_machine_are_compared(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", turn(10, 0), end(20, 0))
    other = on_machine(tmp_path / "b.jsonl", "south", turn(30, 1), end(40, 1))
    assert check([one, other]).verdict is Verdict.PASS


def test_what_is_written_while_the_checker_reads_is_not_read(tmp_path: Path) -> None:
    """Otherwise a file that is read later would show consequences without their causes."""
    files = [write(tmp_path / f"{name}.jsonl", turn(10, 0)) for name in "ab"]
    reader = HistoryReader(files)
    for path in files:
        with path.open("a") as file:
            file.write(json.dumps({"n": 2} | turn(20, 1)) + "\n")
    assert [event.t for batch in reader.batches() for event in batch] == [1, 1, 10, 10]
    assert reader.problems == []


def test_a_line_that_is_half_written_when_the_checker_begins_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", turn(10, 0))
    whole = path.read_text()
    path.write_text(whole + '{"e":"turn","n":2')
    reader = HistoryReader([path])
    path.write_text(whole + json.dumps({"n": 2} | turn(20, 1)) + "\n")
    assert sum(len(batch) for batch in reader.batches()) == 2
    assert reader.problems == []


def test_the_sizes_of_files_that_grow_are_of_one_moment() -> None:
    """Each call of the size is one step; both files grow in steps 1 and 3."""
    step = 0

    def size_of(path: Path) -> int:
        nonlocal step
        step += 1
        return 10 * sum(step > grown for grown in (1, 3))

    assert sizes_at_once([Path("a"), Path("b")], size_of) == [20, 20]
    assert step == 8, "until two collections are equal"


def test_sizes_that_never_stop_growing_are_used_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_COLLECTIONS", 3)
    sizes = count()
    assert sizes_at_once([Path("a"), Path("b")], lambda path: next(sizes)) == [6, 7]


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
