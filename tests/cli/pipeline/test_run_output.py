"""What `lanemq pipeline` says about work that is not done: dead letters, decisions that wait, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Run
from tests.pipelines.stages.transitions import pipeline_fixture
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.cli.pipeline.dead import Tally, counted_by, kept_in
from lanemq.pipelines import Park, ParquetSink, Pipeline, Project, Topic
from lanemq.pipelines.batch import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, stage_folder
from lanemq.pipelines.running.progress import AppliedBatch, Progress

FAILS = {"n": 1, "fails": 99}
NOWHERE = {"servers": "127.0.0.1:1", "topic": "orders"}


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for an attempt and a second one."""
    monkeypatch.setattr("lanemq.cli.pipeline.status.BROKER_WAIT", "100ms")


@pytest.fixture
def stopped(tmp_path: Path) -> pipeline_fixture.Pipeline:
    """A checkpoint in which the keys a and b stand still, with three messages and one."""
    Checkpoint(tmp_path, "orders", NOWHERE).close()
    stage_folder(tmp_path).mkdir(parents=True)
    shutil.rmtree(stage_folder(tmp_path).parent / "running", ignore_errors=True)  # the stage is driven without a run
    pipeline = pipeline_fixture.Pipeline(stage_folder(tmp_path), on_failure=Park())
    pipeline.run(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, "a", 3), Sent(0, 3, "b", FAILS))
    return pipeline


def declared(folder: Path, **parts: Any) -> Pipeline:
    source = Topic("127.0.0.1:1", "orders")
    return Pipeline("orders", source, Project(["key"]), ParquetSink(folder / "out"), folder / "checkpoint", **parts)


def told(messages: int, dead: int, number: int = 0, **counts: int) -> Progress:
    return Progress("orders", AppliedBatch(Batch("q", number, 1), dead_letters=dead, counts=counts), messages)


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_only_the_first_message_is_told_as_given_up_if_only_that_is(run: Run, tmp_path: Path, dry: tuple[str]) -> None:
    said = run("pipeline", "parked", "discard", str(tmp_path), "a", "--first-only", *dry).stdout
    would = "would" if dry else "will"
    assert said.startswith(f"1 message of 1 key {would} be made a dead letter, 2 behind tried again")
    whole = json.loads(run("pipeline", "parked", "discard", str(tmp_path), "--all", "--dry-run", "--json").stdout)
    assert whole["messages"] == 4


@pytest.mark.usefixtures("stopped")
def test_a_decision_that_waits_is_seen(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path)
    before = run("pipeline", "parked", "list", place).stdout
    assert "decided" not in before
    assert run("pipeline", "parked", "discard", place, "a", "--first-only").exit_code == 0
    listed = run("pipeline", "parked", "list", place).stdout
    assert "discard --first-only" in listed
    assert "what is decided is carried out by the running pipeline within a second, or by its next start" in listed
    found = json.loads(run("pipeline", "parked", "list", place, "--json").stdout)
    assert {each["key"]: each["decided"] for each in found} == {"a": "discard_first", "b": None}
    assert "1 key decided about" in run("pipeline", "status", place).stdout
    assert run("pipeline", "parked", "redrive", place, "--all").exit_code == 0
    status = json.loads(run("pipeline", "status", place, "--json").stdout)
    assert status["decided_lanes"] == {"a": "redrive", "b": "redrive"}


def test_a_decision_is_not_told_any_more_once_it_is_carried_out(
    run: Run, tmp_path: Path, stopped: pipeline_fixture.Pipeline
) -> None:
    run("pipeline", "parked", "redrive", str(tmp_path), "b")
    stopped.run_retry_pass()
    found = json.loads(run("pipeline", "parked", "list", str(tmp_path), "--json").stdout)
    assert {each["key"]: each["decided"] for each in found} == {"a": None, "b": None}


@pytest.mark.usefixtures("stopped")
def test_a_key_that_does_not_stand_still_is_answered_with_a_command(run: Run, tmp_path: Path) -> None:
    wrong = run("pipeline", "parked", "redrive", str(tmp_path), "zzz")
    assert wrong.exit_code == 1
    assert "`lanemq pipeline parked list --held`" in wrong.stderr


@pytest.mark.usefixtures("stopped")
def test_a_status_without_a_broker_tells_its_error_once(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = run("pipeline", "status", str(tmp_path))
    assert shown.output.count("no name server answered") == 1
    assert caplog.messages == []


@pytest.mark.usefixtures("stopped")
def test_a_status_counts_what_was_set_aside_and_says_where(run: Run, tmp_path: Path) -> None:
    assert "dead letters go to the sink that the pipeline declares" in run("pipeline", "status", str(tmp_path)).stdout
    folder = tmp_path / "dead_letters"
    for place, rows in (("lanemq_query=q-dead/lanemq_batch=0", 2), ("lanemq_query=q-dead/lanemq_batch=7", 1),
                        ("_lanemq/query=q-dead/epoch=1/8-draft", 5)):  # fmt: skip
        (folder / place).mkdir(parents=True)
        pq.write_table(pa.table({"key": ["k"] * rows}), folder / place / "000-0.parquet")
    assert f"3 dead letters in {folder}\n" in run("pipeline", "status", str(tmp_path)).stdout
    found = json.loads(run("pipeline", "status", str(tmp_path), "--json").stdout)
    assert found["dead_letters"] == {"count": 3, "folder": str(folder)}
    assert kept_in(tmp_path) == (3, folder)


def test_a_run_that_set_messages_aside_says_so_with_their_place(tmp_path: Path) -> None:
    tally, passed_on = Tally(), list[Progress]()
    tell = counted_by(tally, passed_on.append)
    assert tally.told(declared(tmp_path)) is None
    for progress in (told(28, 25), told(0, 3, number=batch_number(0, 1), events=9, discarded=2)):
        tell(progress)
    assert len(passed_on) == 2
    place = tmp_path / "checkpoint" / "dead_letters"
    said = f"orders: 26 messages set aside (28 read): dead letters (Parquet) are in {place}"
    assert tally.told(declared(tmp_path)) == said
    elsewhere = tally.told(declared(tmp_path, dead_letters=ParquetSink(tmp_path / "dead")))
    assert elsewhere is not None
    assert elsewhere.endswith("in the sink that the pipeline declares for them (ParquetSink)")


@pytest.mark.parametrize(
    ("progress", "everything"),
    [
        (told(3, 3), True),
        (told(9, 3, events=3), True),
        (told(3, 2), False),
        (told(0, 0), False),
    ],
    ids=["all", "all that a filter let through", "not all", "nothing read"],
)
def test_a_run_that_set_everything_aside_is_known(progress: Progress, everything: bool) -> None:
    tally = Tally()
    tally.add(progress)
    assert tally.nothing_else is everything


@pytest.mark.parametrize(
    ("flags", "dead", "code"),
    [
        ((), 3, 0),
        (("--fail-on-parked",), 3, 1),
        (("--fail-on-parked",), 2, 0),
        (("--fail-on-dead-letters",), 1, 1),
        (("--fail-on-dead-letters",), 0, 0),
    ],
)
def test_what_was_set_aside_may_fail_a_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], dead: int, code: int
) -> None:
    """Spark is left out: a run that reports one batch of three messages."""

    def one_batch(pipeline: Pipeline, *, report: Any, **_: Any) -> None:
        Checkpoint(pipeline.folder, pipeline.name, NOWHERE).close()
        report(told(3, dead))

    monkeypatch.setattr("lanemq.pipelines.running.program.run", one_batch)
    ended = run("pipeline", "run", str(declaration(tmp_path, "orders")), *flags)
    assert ended.exit_code == code, ended.output
    assert ("set aside (" in ended.stderr) is (dead > 0)


@pytest.mark.parametrize("flags", [(), ("--new-sink",)])
def test_a_new_sink_is_a_word_of_one_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """And none of the file, where it would stay and never let anybody notice again."""
    said: list[bool] = []

    def noted(pipeline: Pipeline, *, new_sink: bool, **_: Any) -> None:
        Checkpoint(pipeline.folder, pipeline.name, NOWHERE).close()
        said.append(new_sink)

    monkeypatch.setattr("lanemq.pipelines.running.program.run", noted)
    assert run("pipeline", "run", str(declaration(tmp_path, "orders")), *flags).exit_code == 0
    assert said == [bool(flags)]


def test_a_run_that_made_no_row_says_so_beside_its_keys() -> None:
    """A misspelt column stops every key: 6 of 6 must not look like 6 of 6,000."""
    tally = Tally()
    assert tally.yield_words == ""
    tally.add(told(6, 0))
    assert tally.yield_words == "; no row came of the 6 messages read"
    tally.rows = 1
    assert tally.yield_words == ""


def test_a_refused_checkpoint_is_exit_code_1_and_no_start_is_announced(run: Run, tmp_path: Path) -> None:
    """Of another pipeline, or in use: both are refusals, not mistakes in the file."""
    file = declaration(tmp_path, "bills")
    held = Checkpoint(tmp_path / "checkpoint", "orders", NOWHERE)
    in_use = run("pipeline", "run", str(file))
    held.close()
    others = run("pipeline", "run", str(file))
    assert (in_use.exit_code, others.exit_code) == (1, 1)
    assert "is used by another run" in in_use.stderr
    assert "belongs to pipeline 'orders': choose another folder for 'bills'" in others.stderr
    assert "start" not in in_use.stderr.splitlines()[0].split(":")[1]
    assert len(others.stderr.splitlines()) == 1


def test_warnings_about_a_batch_name_the_pipeline() -> None:
    """The query is a number that nobody knows; sinks know batches by it, so it stays what is compared."""
    assert str(Batch("ea749b4a", 0, 1, "orders")).startswith("orders batch 0")
    assert Batch("ea749b4a", 0, 1, "orders") == Batch("ea749b4a", 0, 1)


def declaration(folder: Path, name: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f'[pipeline]\nname = "{name}"\ncheckpoint = "{folder}/checkpoint"\n'
        '[source]\nservers = "127.0.0.1:1"\ntopic = "orders"\n'
        '[stage]\nkind = "project"\nselect = ["key"]\n'
        f'[sink]\nkind = "parquet"\npath = "{folder}/out"\n'
    )
    return file
