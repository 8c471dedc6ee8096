"""Tables for people, JSON for programs, and nothing that a stranger's message could do to a terminal."""

from datetime import UTC, datetime

import msgspec
import pytest

from lanemq.cli.options import moment
from lanemq.cli.output import Grid, cell, harmless, show, to_json
from lanemq.clock import SystemClock
from lanemq.model.queue import MessageQueue


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    show(True, lambda: {"queue": MessageQueue("t", "b", 1)}, "for people")
    assert msgspec.json.decode(capsys.readouterr().out) == {"queue": {"topic": "t", "broker": "b", "queue_id": 1}}


def test_people_get_the_parts_and_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: {"a": 1}, Grid(("name", "queues"), [("orders", 8)]), "one topic")
    out = capsys.readouterr().out
    assert "orders" in out
    assert "one topic" in out
    assert "{" not in out


def test_empty_table_says_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("name",), [], "no topics yet"))
    assert capsys.readouterr().out == "no topics yet\n"


def test_piped_table_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe has no width; a table cut at 80 columns would lose ids that scripts look for."""
    long = "x" * 500
    show(False, lambda: [], Grid(("id", "other"), [(long, "y")]))
    assert long in capsys.readouterr().out


def test_markup_in_a_value_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("key",), [("[red]a[/red] :bomb:",)]))
    assert "[red]a[/red] :bomb:" in capsys.readouterr().out


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert harmless("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert cell(b"\xff\x07") == "\\xff\\x07"


def test_absent_values_are_a_dash() -> None:
    assert [cell(None), cell(""), cell(0), cell(True)] == ["–", "–", "0", "yes"]


def test_numbers_stand_on_the_right_and_absent_ones_decide_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, lambda: [], Grid(("owner", "offset"), [(None, 7), (None, None), (None, 12345)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("–")
    assert lines[2].endswith("     7")


def test_times_in_json_name_their_zone() -> None:
    assert to_json(datetime(2026, 1, 31, tzinfo=UTC)) == '"2026-01-31T00:00:00Z"'


def test_moment_reads_iso_and_spans_ago() -> None:
    assert moment("2026-01-31T12:00Z", "--from") == 1769860800000
    ago = SystemClock().wall() - moment("10m", "--from")
    assert 600_000 <= ago < 610_000
