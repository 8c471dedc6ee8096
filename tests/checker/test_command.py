"""`lanemq check`: text, JSON and exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lanemq.checker.command import check

GOOD = [
    ("turn", 0, {}),
    ("turn_end", 0, {"outcome": "ok"}),
    ("turn", 1, {}),
    ("turn_end", 1, {"outcome": "ok"}),
]
BAD = [("turn", 1, {}), ("turn_end", 1, {"outcome": "ok"}), ("turn", 0, {})]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, story in (("good", GOOD), ("bad", BAD), ("empty", [])):
        place = {"group": "g", "topic": "orders", "queue": 0, "key": "k"}
        lines: list[dict[str, object]] = [{"e": "begin", "n": 0, "t": 0, "name": "a", "role": "consumer"}]
        lines += [
            {"e": tag, "n": n, "t": n * 10**7, "offset": offset, **place, **more}
            for n, (tag, offset, more) in enumerate(story, 1)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("bad", 1), ("empty", 2)])
def test_exit_code_is_the_verdict(folder: Path, name: str, code: int) -> None:
    assert CliRunner().invoke(check, [str(folder / f"{name}.jsonl")]).exit_code == code


def test_violation_is_explained_in_words(folder: Path) -> None:
    output = CliRunner().invoke(check, [str(folder / "bad.jsonl")]).output
    assert "first violation, B2: messages of a key run for the first time in stored order" in output
    assert "offset 0 of key 'k' ran for the first time after offset 1" in output
    assert "in orders/0, group g" in output


PHANTOM = """
{"e":"begin","n":0,"t":0,"name":"p","role":"producer"}
{"e":"send","n":1,"t":10000000,"topic":"orders","id":"m0","key":"k"}
{"e":"begin","n":0,"t":0,"name":"a","role":"consumer"}
{"e":"turn","n":1,"t":20000000,"group":"g","topic":"orders","queue":0,"offset":0,"key":"k","id":"m7"}
{"e":"turn_end","n":2,"t":30000000,"group":"g","topic":"orders","queue":0,"offset":0,"key":"k","outcome":"ok"}
{"e":"turn","n":3,"t":40000000,"group":"g","topic":"orders","queue":0,"offset":1,"key":"k","id":"m8"}
{"e":"turn_end","n":4,"t":50000000,"group":"g","topic":"orders","queue":0,"offset":1,"key":"k","outcome":"ok"}
"""


def test_the_report_of_a_message_never_sent_asks_once_about_producers_without_a_history(tmp_path: Path) -> None:
    """This is the most common cause, and not a fault of the run."""
    lines = PHANTOM.strip().splitlines()
    (tmp_path / "p.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (tmp_path / "a.jsonl").write_text("\n".join(lines[2:]) + "\n")
    result = CliRunner().invoke(check, [str(tmp_path)])
    assert result.exit_code == 1
    assert "violations by invariant: S2 2" in result.output
    assert result.output.count("--foreign-producers") == 1
    assert CliRunner().invoke(check, ["--foreign-producers", str(tmp_path)]).exit_code == 0


def test_other_violations_do_not_ask_about_producers(folder: Path) -> None:
    assert "--foreign-producers" not in CliRunner().invoke(check, [str(folder / "bad.jsonl")]).output


def test_json_report_is_one_object(folder: Path) -> None:
    result = CliRunner().invoke(check, ["--json", str(folder / "bad.jsonl")])
    report = json.loads(result.output)
    assert report["verdict"] == "violation"
    assert report["violations"][0]["invariant"] == "B2"
    assert report["coverage"]["turns"] == 2


def test_requirement_not_met_is_unknown(folder: Path) -> None:
    result = CliRunner().invoke(check, ["--require", "rebalance=10", str(folder / "good.jsonl")])
    assert result.exit_code == 2
    assert "rebalance 0, at least 10 required" in result.output


def test_unknown_requirement_names_the_choices(folder: Path) -> None:
    result = CliRunner().invoke(check, ["--require", "luck", str(folder / "good.jsonl")])
    assert "cannot require 'luck': choose from turns, redelivery" in result.output


def test_a_folder_without_history_files_is_an_error(folder: Path) -> None:
    """Also next to a good file: what was to be judged is missing."""
    (folder / "nothing").mkdir()
    for others in ([], [str(folder / "good.jsonl")]):
        result = CliRunner().invoke(check, [*others, str(folder / "nothing")])
        assert result.exit_code == 2
        assert f"no history files in {folder / 'nothing'}" in result.output


@pytest.mark.parametrize("text", ["# Title\n\nWords.\n", "Words without an end", '{"json": "of another kind"}\n'])
def test_a_file_of_another_kind_is_not_a_history(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text * 3)
    result = CliRunner().invoke(check, [str(tmp_path / "README.md")])
    assert result.exit_code == 2
    assert result.output.count("README.md") == 1, "reported once, not for every line"
    assert "README.md is not a history" in result.output
