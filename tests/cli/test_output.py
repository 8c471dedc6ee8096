"""Output: tables, JSON, and no control sequences from message bodies."""

import errno
import io
import json
import logging
import os
import sys
from datetime import UTC, datetime

import click
import msgspec
import pytest
from rich.cells import cell_len

from lanemq.cli.options import parse_time
from lanemq.cli.output import (
    Grid,
    LogFormat,
    announce,
    cell,
    duration_text,
    moving_line,
    printable,
    progress_bar,
    rendered,
    show,
    to_json,
)  # fmt: skip
from lanemq.model.queue import MessageQueue


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    show(True, lambda: {"queue": MessageQueue("t", "b", 1)}, "as text")
    assert msgspec.json.decode(capsys.readouterr().out) == {"queue": {"topic": "t", "broker": "b", "queue_id": 1}}


class FullDisk(io.StringIO):
    def write(self, text: str, /) -> int:
        if text:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 0


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("stdout", "why"), [(None, "stdout is closed"), (FullDisk(), "No space left on device")])
def test_an_answer_that_cannot_be_written_is_an_error_in_one_sentence(
    as_json: bool, stdout: io.StringIO | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(click.ClickException, match=why):
        show(as_json, dict, Grid(("a",), [(1,)], "none"))


def test_a_path_that_is_not_utf_8_is_shown_in_json_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """The operating system takes any bytes for a name; a log line that cannot be written would be lost."""
    path = os.fsdecode(b"/data/\xff")
    show(True, lambda: {"folder": path})
    assert json.loads(capsys.readouterr().out) == {"folder": "/data/\\udcff"}
    announce(logging.INFO, f"data in {path}", LogFormat.JSON)
    assert json.loads(capsys.readouterr().err)["message"] == "data in /data/\\udcff"


def test_text_output_has_the_parts_and_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: {"a": 1}, Grid(("name", "queues"), [("orders", 8)]), "one topic")
    out = capsys.readouterr().out
    assert "orders" in out
    assert "one topic" in out
    assert "{" not in out


def test_an_empty_table_prints_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("name",), [], "no topics yet"))
    assert capsys.readouterr().out == "no topics yet\n"


def test_piped_table_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    """A table cut at 80 columns would lose ids that scripts look for."""
    long = "x" * 500
    show(False, lambda: [], Grid(("id", "other"), [(long, "y")]))
    assert long in capsys.readouterr().out


def test_markup_in_a_value_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("key",), [("[red]a[/red] :bomb:",)]))
    assert "[red]a[/red] :bomb:" in capsys.readouterr().out


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert cell(b"\xff\x07") == "\\xff\\x07"


def test_absent_values_are_a_dash() -> None:
    assert [cell(None), cell(""), cell(0), cell(True)] == ["–", "–", "0", "yes"]


def test_numbers_are_right_aligned_even_if_some_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("owner", "offset"), [(None, 7), (None, None), (None, 12345)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("–")
    assert lines[2].endswith("     7")


def test_times_in_json_have_a_time_zone() -> None:
    assert to_json(datetime(2026, 1, 31, tzinfo=UTC)) == '"2026-01-31T00:00:00Z"'


def test_a_time_is_iso_8601_or_a_span_before_now() -> None:
    assert parse_time("2026-01-31T12:00Z", "--from").timestamp() == 1769860800
    for text in ("10m", "10m ago", "600s"):
        assert 599 < (datetime.now(UTC) - parse_time(text, "--from")).total_seconds() < 610


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (None, None),
        (350, "350 ms"),
        (12_345, "12.3 s"),
        (900_000, "15 min"),
        (7_200_000, "2 h"),
        (300_000_000, "3 days"),
    ],
)
def test_durations_are_shown_in_a_fitting_unit(millis: int | None, text: str | None) -> None:
    assert duration_text(millis) == text


WIDE = Grid(
    ("id", "owner", "since", "reason"),
    [("lanemq/0/17", "10.0.0.7@4711#1", "2026-01-31 12:00:00.000+00:00", "the gateway says: " + "declined " * 12)],
)


def test_only_the_last_column_of_a_table_is_folded() -> None:
    lines = rendered(WIDE, 100).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].startswith("lanemq/0/17   10.0.0.7@4711#1   2026-01-31 12:00:00.000+00:00   the gateway")
    assert lines[3].strip().startswith(("says", "declined", "gateway"))


def test_a_table_without_room_becomes_blocks_of_lines() -> None:
    lines = rendered(WIDE, 70).splitlines()
    assert max(map(len, lines)) <= 70
    assert lines[:3] == [
        "id      lanemq/0/17",
        "owner   10.0.0.7@4711#1",
        "since   2026-01-31 12:00:00.000+00:00",
    ]
    assert lines[3].startswith("reason  the gateway says: declined")


@pytest.mark.parametrize("key", ["customer-" * 20, "注文" * 30, "注文 " * 20, "é́" * 40, "order-7 \U0001f4e6"])
@pytest.mark.parametrize("before", [(), ("orders", 3, 17), ("orders" * 12, 3, 17)])
@pytest.mark.parametrize("after", [(), ("parked", "no carrier takes it: " + "the address has no postal code " * 4)])
def test_a_table_fits_80_columns_whatever_is_in_it_and_loses_nothing(
    key: str, before: tuple[object, ...], after: tuple[object, ...]
) -> None:
    row = (*before, key, *after)
    text = rendered(Grid(tuple(f"column {at}" for at in range(len(row))), [row, row]), 80)
    assert max(map(cell_len, text.splitlines())) <= 80
    if text.startswith("column 0  "):  # blocks: a folded text continues in the next line
        assert "".join(key.split()) in "".join(text.split())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_a_bar_and_a_moving_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("checking", 200) as done:
        done(200)
    with moving_line("starting Spark"):
        pass
    assert "checking" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert "starting Spark" in terminal.getvalue()


def test_long_work_shows_nothing_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("checking", 200) as done, moving_line("starting Spark"):
        done(200)
    assert capsys.readouterr() == ("", "")
