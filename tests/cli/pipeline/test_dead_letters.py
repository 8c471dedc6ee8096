"""`lanemq pipeline dead-letters`: dead letters are listed, shown and redriven."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.conftest import Run
from tests.pipelines.stages.transitions.dead_letter_fixture import DeadLetterPipeline
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.console.views.pipelines import PipelineNow, PipelineReading
from lanemq.pipelines import DeadLetter, Park, dead_letters, parked
from lanemq.pipelines.operate.status import PipelineStatus

DEAD_LETTER = "orders/broker-a/0/0"


@pytest.fixture
def kept(tmp_path: Path) -> DeadLetterPipeline:
    """A checkpoint with two dead letters of a key and one of another."""
    pipeline = DeadLetterPipeline(tmp_path, on_failure=DeadLetter(skip=True))
    pipeline.process(*(Sent(0, at, key, {"n": at, "fails": 1}) for at, key in enumerate(["a", "a", "b"])))
    return pipeline


@pytest.mark.usefixtures("kept")
def test_dead_letters_are_listed_and_shown(run: Run, tmp_path: Path) -> None:
    listed = run("pipeline", "dead-letters", "list", str(tmp_path))
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.count("ValueError: attempt 1 failed") == 3
    (only,) = json.loads(run("pipeline", "dead-letters", "list", str(tmp_path), "--key", "b", "--json").stdout)
    assert (only["topic"], only["queue"], only["offset"], only["key"]) == ("orders", 0, 2, "b")
    assert (only["state"], only["stored_at"][:4]) == ("open", "2023")
    shown = run("pipeline", "dead-letters", "show", str(tmp_path), DEAD_LETTER).stdout
    assert '{"n": 0, "fails": 1}' in shown
    (found,) = json.loads(run("pipeline", "dead-letters", "show", str(tmp_path), DEAD_LETTER, "--json").stdout)
    assert found["value"] == {"n": 0, "fails": 1}
    missing = run("pipeline", "dead-letters", "show", str(tmp_path), "x")
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (1, 1)


def test_a_redrive_says_that_it_comes_late_and_is_shown_until_it_is_done(
    run: Run, tmp_path: Path, kept: DeadLetterPipeline
) -> None:
    place = str(tmp_path)
    dry = run("pipeline", "dead-letters", "redrive", place, "--key", "a", "--dry-run").stdout
    assert dry.startswith("2 dead letters of 1 key would be passed to the step again\nthey come late: after everything")
    assert kept.process_retry_pass() is None, "a dry run changes nothing"
    said = run("pipeline", "dead-letters", "redrive", place, DEAD_LETTER)
    assert said.stdout.startswith("1 dead letter of 1 key will be passed to the step again by the running pipeline, or")
    assert "they come late: after everything that their keys have by then" in said.stdout
    assert (
        "the running pipeline applies decisions within a second"
        in run("pipeline", "dead-letters", "list", place).stdout
    )
    assert "1 dead letter with a request" in run("pipeline", "status", place).stdout
    again = run("pipeline", "dead-letters", "redrive", place, DEAD_LETTER)
    assert (again.exit_code, "redriven already" in again.stderr) == (1, True)
    rest = json.loads(run("pipeline", "dead-letters", "redrive", place, "--all", "--json").stdout)
    assert rest == {"dead_letters": ["orders/broker-a/0/1", "orders/broker-a/0/2"], "asked": True}
    kept.process_retry_pass()
    states = [
        each["state"] for each in json.loads(run("pipeline", "dead-letters", "list", place, "--all", "--json").stdout)
    ]
    assert states == ["redriven"] * 3 + ["open"] * 3, "they failed again"
    assert json.loads(run("pipeline", "status", place, "--json").stdout)["requested_dead_letters"] == 0


def test_settled_notices_are_not_counted_with_what_waits(run: Run, tmp_path: Path) -> None:
    place, pipeline = str(tmp_path), DeadLetterPipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", b"{"))
    assert "1 dead letter in" in run("pipeline", "status", place).stdout
    pipeline.restart(decode="text", step=lambda state, event: (state, []))
    parked(tmp_path).redrive("a")
    pipeline.process_retry_pass()
    assert "and 1 notice of messages that do not wait any more" in run("pipeline", "status", place).stdout
    listed = run("pipeline", "dead-letters", "list", place).stdout
    assert "not listed: 1 settled notice; --all lists all" in listed
    assert "settled" in run("pipeline", "dead-letters", "list", place, "--all").stdout
    status = msgspec.json.decode(run("pipeline", "status", place, "--json").stdout, type=PipelineStatus)
    reading = PipelineReading(0, status, letters=tuple(dead_letters(tmp_path).records(redriven=True)))
    assert (reading.dead, PipelineNow(0, "", reading).dead) == (0, 0)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("words", [(), (DEAD_LETTER, "--all"), (DEAD_LETTER, "--key", "a"), ("--key", "a", "--all")])
def test_redrive_needs_exactly_one_choice(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run("pipeline", "dead-letters", "redrive", str(tmp_path), *words).exit_code == 2


@pytest.mark.parametrize("damage", ["log", "rows"])
@pytest.mark.usefixtures("kept")
def test_a_damaged_table_of_dead_letters_is_named(run: Run, tmp_path: Path, damage: str) -> None:
    table = tmp_path / "dead_letters"
    if damage == "log":
        newest = max((table / "_delta_log").glob("*.json"))
        newest.write_bytes(newest.read_bytes()[:-20])
    else:
        for file in table.glob("*.parquet"):
            file.unlink()
    for command in (["status"], ["dead-letters", "list"]) if damage == "log" else (["dead-letters", "list"],):
        failed = run("pipeline", *command, str(tmp_path))
        assert failed.exit_code == 1
        assert f"the dead letters in {table} cannot be read" in failed.stderr
        assert "Restore the folder from a copy of the checkpoint" in failed.stderr
