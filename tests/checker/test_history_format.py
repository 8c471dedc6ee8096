"""Writer and checker share no code; these tests keep both to one format."""

import ast
import errno
import json
import os
import threading
from itertools import count
from pathlib import Path

import msgspec
import pytest

import lanemq.checker
from lanemq.checker import events
from lanemq.checker.checking import check
from lanemq.checker.explain import describe
from lanemq.checker.reading import HistoryReader
from lanemq.checker.verdict import Report, Verdict
from lanemq.history import MAX_WHY_CHARS, NO_HISTORY, History, Place, RecordedLease, last_time, open_history

PLACE = Place("g", "orders", 0, 7)
LEASE = RecordedLease("g", "orders", 0, "a", 3)


def write_everything(history: History) -> None:
    history.send("orders", "k", "m1", delay=3, tag="paid")
    history.acked("orders", "k", "m1", 0, 7)
    history.send_failed("orders", "k", "m2")
    history.send_unknown("orders", "k", "m3")
    history.turn(PLACE, "k", "m1", epoch=3, attempt=1, batch=2, copy=True)
    history.turn_end(PLACE, "k", "retry", epoch=3, ended=5, why="ValueError('no carrier')")
    history.filtered(PLACE, ["paid", "shipped"])
    history.subscribed("g", "orders", 0, "paid||shipped")
    history.subscribed("g", "orders", 0, "paid", lost="b")
    history.dead_lettered(PLACE, "k", "m1", 16)
    history.skipped(PLACE, "k", "filter")
    history.parked(PLACE, "k")
    history.redriven(PLACE, "k", 5)
    history.discarded(PLACE, "k")
    history.committed(PLACE, epoch=3, asked=5)
    history.commit_refused(PLACE, "stale", epoch=2, asked=5)
    history.effect(PLACE, "k", "table", epoch=3, asked=5)
    history.lease_granted(LEASE, until=99, asked=5)
    history.lease_renewed(LEASE, until=99, asked=5)
    history.lease_released(LEASE)
    history.lease_expired(LEASE)
    history.reset(PLACE, "person")
    history.crashed("orders", 0, 5)
    history.recovered(PLACE, epoch=3)
    history.trimmed("orders", 0, 7)
    history.topic_deleted("bills")
    history.stored("orders", "k", "m1", 0, 7)
    history.fault("kill", "broker", "start")


def test_checker_reads_every_event_and_every_field_the_writer_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    history = History(path, "a", count(1).__next__, role="consumer", run="run-1", machine="boot-1")
    write_everything(history)
    history.close()
    reading = HistoryReader([path])
    read = [event for batch in reading.batches() for event in batch]
    assert reading.problems == []
    for line, event in zip(path.read_text().splitlines(), read, strict=True):
        known = msgspec.to_builtins(event)
        assert json.loads(line).items() <= known.items()
    kinds = {type(event) for event in read}
    assert kinds == set(events.AnyEvent.__args__), "each kind of event can be written"


def test_lines_name_the_broker_unless_it_has_the_default_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    history = History(path, "a", count(1).__next__)
    for broker in ("lanemq", "broker-b"):
        history.acked("orders", "k", "m1", 0, 7, broker=broker)
        history.stored("orders", "k", "m1", 0, 7, broker=broker)
        history.trimmed("orders", 0, 7, broker=broker)
        history.crashed("orders", 0, 5, broker=broker)
        history.turn(Place("g", "orders", 0, 7, broker), "k", "m1")
        history.lease_granted(RecordedLease("g", "orders", 0, "a", 3, broker))
    history.close()
    written = [json.loads(line).get("broker") for line in path.read_text().splitlines()[1:]]
    assert written == [None] * 6 + ["broker-b"] * 6
    read = [
        event
        for batch in HistoryReader([path]).batches()
        for event in batch
        if isinstance(event, events.QueueLineEvent)
    ]
    assert [event.broker for event in read] == ["lanemq"] * 6 + ["broker-b"] * 6


def test_a_second_run_appends_and_starts_its_numbers_again(tmp_path: Path) -> None:
    clock = count(1).__next__
    for _ in range(2):
        history = open_history(tmp_path, "member/1", clock, role="consumer")
        history.send("orders", "k", "m")
        history.close()
    (path,) = tmp_path.iterdir()
    assert path.name == "member_1.jsonl"
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 0, 1]


def test_every_line_is_written_before_the_call_returns(tmp_path: Path) -> None:
    """A killed process must not lose what it recorded."""
    path = tmp_path / "a.jsonl"
    history = History(path, "a", count(1).__next__)
    history.turn(PLACE, "k", "m1")
    assert len(path.read_text().splitlines()) == 2
    history.close()


def test_a_line_that_a_killed_process_left_unfinished_does_not_swallow_the_next_run(tmp_path: Path) -> None:
    clock = count(1).__next__
    for _ in range(3):
        history = open_history(tmp_path, "a", clock, role="consumer")
        history.turn(PLACE, "k", "m1")
        history.turn_end(PLACE, "k", "retry")
        history.close()
        with (tmp_path / "a.jsonl").open("ab") as file:
            file.write(b'{"e":"turn","n":3,"t":')
    report = check([tmp_path])
    assert report.verdict is Verdict.PASS, report.reasons
    assert report.events == 9


class FullDisk:
    """A file that takes so many bytes and no more, until there is room again."""

    def __init__(self, room: int) -> None:
        self.room, self.written = room, b""

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = data[: self.room]
        self.room -= len(taken)
        self.written += taken
        return len(taken)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("room", [0, 10])
def test_an_event_that_does_not_fit_on_the_disk_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """A history that continues without it would show a turn that never began, and be believed."""
    path = tmp_path / "a.jsonl"
    history = History(path, "a", count(1).__next__, role="consumer")
    disk = FullDisk(room)
    monkeypatch.setattr(history, "_file", disk)
    with pytest.raises(OSError, match="No space left"):
        history.turn(PLACE, "k", "m1")
    disk.room = 10_000
    history.turn(Place("g", "orders", 0, 8), "k", "m2")
    path.write_bytes(path.read_bytes() + disk.written)
    report = check([path])
    assert report.verdict is Verdict.UNKNOWN
    assert any("history lost: n=1 expected, n=2 found" in reason for reason in report.reasons), report.reasons
    assert report.events == 2, "the line after it is whole"


def test_lines_of_several_threads_are_whole_and_numbered(tmp_path: Path) -> None:
    history = History(tmp_path / "a.jsonl", "a", count(1).__next__)
    threads = [
        threading.Thread(target=lambda: [history.send("orders", "k", f"m{i}") for i in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history.close()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == list(range(801))
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)


def test_closed_history_writes_nothing_more(tmp_path: Path) -> None:
    """Closing races with the last answers of a client, which are ignored."""
    history = History(tmp_path / "a.jsonl", "a", count(1).__next__)
    history.close()
    history.close()
    history.send("orders", "k", "m")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1


def test_without_a_folder_nothing_is_recorded(tmp_path: Path) -> None:
    assert open_history(None, "a", count().__next__) is NO_HISTORY
    assert not NO_HISTORY.on
    write_everything(NO_HISTORY)


def test_a_recorded_run_passes(tmp_path: Path) -> None:
    clock = count(1).__next__
    producer = open_history(tmp_path, "p", clock, role="producer")
    member = open_history(tmp_path, "a", clock, role="consumer")
    for offset in range(3):
        producer.send("orders", "k", f"m{offset}")
        producer.acked("orders", "k", f"m{offset}", 0, offset)
        place = Place("g", "orders", 0, offset)
        member.turn(place, "k", f"m{offset}", epoch=1)
        member.turn_end(place, "k", "ok", epoch=1)
        member.committed(Place("g", "orders", 0, offset + 1), epoch=1, asked=member.now())
    producer.close()
    member.close()
    report = check([tmp_path])
    assert report.verdict is Verdict.PASS
    assert report.groups["g"].finished == 3


def test_the_account_of_a_pipelines_sink_has_its_effects_and_no_turns(tmp_path: Path) -> None:
    clock = count(1).__next__
    member, sink = open_history(tmp_path, "a", clock, role="consumer"), open_history(tmp_path, "pipeline-steps", clock)
    for offset in range(3):
        member.turn(Place("g", "orders", 0, offset), "k", f"m{offset}", epoch=1)
        member.turn_end(Place("g", "orders", 0, offset), "k", "ok", epoch=1)
        sink.effect(Place("pipeline-steps", "orders", 0, offset), "k", "steps", epoch=1, asked=sink.now())
    member.close()
    sink.close()
    report = check([tmp_path])
    accounts = {name: (each.finished, each.effects, each.consumes) for name, each in report.groups.items()}
    assert accounts == {"g": (3, 0, True), "pipeline-steps": (0, 3, False)}
    assert "group pipeline-steps: 3 effects in a pipeline's sink, which has no turns and no offsets" in describe(report)


def test_the_error_of_a_turn_is_cut_and_changes_no_verdict(tmp_path: Path) -> None:
    """Histories without errors, such as older ones, are judged as those that have them."""

    def report(name: str, why: str) -> tuple[Report, list[dict[str, object]]]:
        history = open_history(tmp_path / name, "a", count(1).__next__, role="consumer")
        for outcome, error in (("retry", why), ("ok", "")):
            history.turn(PLACE, "k", "m1", epoch=3)
            history.turn_end(PLACE, "k", outcome, epoch=3, why=error)
        history.close()
        (path,) = (tmp_path / name).iterdir()
        return check([path]), [json.loads(line) for line in path.read_text().splitlines()]

    without, lines = report("without", "")
    assert not any("why" in line for line in lines)
    judged, lines = report("with", "x" * 10_000)
    assert judged == without
    assert [len(line["why"]) for line in lines if "why" in line] == [MAX_WHY_CHARS]


@pytest.mark.parametrize("path", sorted(Path(lanemq.checker.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_the_checker_imports_nothing_of_what_it_checks(path: Path) -> None:
    """Shared code would share its mistakes."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert not name.startswith("lanemq") or name.startswith("lanemq.checker"), name


def test_the_last_line_of_the_previous_run_has_the_time_at_which_it_was_alive(tmp_path: Path) -> None:
    """Also if the writer died within a line; not if the machine was restarted, and its clock with it."""
    times = iter(range(100, 1000, 100))
    history = open_history(tmp_path, "b", lambda: next(times))
    history.send("t", "k", "m")
    history.close()
    path = tmp_path / "b.jsonl"
    assert last_time(tmp_path, "b", 300) == 200
    with path.open("ab") as file:
        file.write(b'{"e":"send","n":2,"t":')
    assert last_time(tmp_path, "b", 300) == 200
    open_history(tmp_path, "b", lambda: 250).close()
    assert last_time(tmp_path, "b", 300) == 200, "a run with only a begin line"
    assert last_time(tmp_path, "b", 150) == 0
    assert last_time(tmp_path, "c", 300) == last_time(None, "b", 300) == 0
