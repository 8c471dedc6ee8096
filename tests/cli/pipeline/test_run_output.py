"""What `lanemq pipeline` prints about unfinished work: dead letters, pending decisions, refusals."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.cli.conftest import Run
from tests.pipelines.stages.transitions import pipeline_fixture
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.cli.pipeline.run_output import RunTotals, download_lines
from lanemq.pipelines import Park, ParquetSink, Pipeline, Project, Topic
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, run_log_of_stage, stage_folder
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.unit_record import UNIT, UnitRecord, pack_unit
from lanemq.pipelines.running.progress import AppliedBatch, Progress
from lanemq.pipelines.stages.cdc.misfits import ColumnMisfits
from lanemq.pipelines.stages.cdc.replica_state import ReplicaState, pack_replica_state

FAILS = {"n": 1, "fails": 99}
NUMBERS = {"queue_id": [0] * 3, "queue_offset": [1, 2, 3], "batch": [0] * 3, "waits": [False] * 3}
NOWHERE = {"servers": "127.0.0.1:1", "topic": "orders"}


@pytest.fixture
def parked(tmp_path: Path) -> pipeline_fixture.Pipeline:
    """A checkpoint in which the keys a and b are parked, with three messages and one."""
    Checkpoint(tmp_path, "orders", NOWHERE).close()
    stage_folder(tmp_path).mkdir(parents=True)
    pipeline = pipeline_fixture.Pipeline(stage_folder(tmp_path), on_failure=Park())
    pipeline.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, "a", 3), Sent(0, 3, "b", FAILS))
    return pipeline


def declared(folder: Path, **parts: Any) -> Pipeline:
    source = Topic("127.0.0.1:1", "orders")
    return Pipeline("orders", source, Project(["key"]), ParquetSink(folder / "out"), folder / "checkpoint", **parts)


def progress_of(messages: int, dead: int, number: int = 0, **counts: int) -> Progress:
    return Progress("orders", AppliedBatch(Batch("q", number, 1), dead_letters=dead, counts=counts), messages)


def test_a_run_names_the_jars_that_spark_downloads_first(tmp_path: Path) -> None:
    """Spark's output goes to a file, so minutes of downloading would look like a run that hangs."""
    wanted = {"spark.jars.packages": "org.example:client:1.2", "spark.jars.ivy": str(tmp_path)}
    (line,) = download_lines(declared(tmp_path, spark=wanted), {})
    assert line == "orders: Spark first downloads jars, which may take minutes: org.example:client:1.2"
    assert not list(download_lines(declared(tmp_path, spark=wanted), {"spark.jars.packages": ""}))


@pytest.mark.usefixtures("parked")
@pytest.mark.parametrize("dry", [("--yes",), ("--dry-run",)])
def test_discard_first_only_reports_one_message_as_discarded(run: Run, tmp_path: Path, dry: tuple[str]) -> None:
    said = run("pipeline", "parked", "discard", str(tmp_path), "a", "--first-only", *dry).stdout
    would = "would" if dry == ("--dry-run",) else "will"
    assert said.startswith(f"1 message of 1 key {would} be turned into a dead letter (and 2 later messages retried)")
    whole = json.loads(run("pipeline", "parked", "discard", str(tmp_path), "--all", "--dry-run", "--json").stdout)
    assert whole["messages"] == 4


@pytest.mark.usefixtures("parked")
def test_without_a_terminal_a_discard_needs_yes(run: Run, tmp_path: Path) -> None:
    refused = run("pipeline", "parked", "discard", str(tmp_path), "a")
    assert (refused.exit_code, "--yes" in refused.stderr) == (1, True)
    assert "requested" not in run("pipeline", "parked", "list", str(tmp_path)).stdout


@pytest.mark.usefixtures("parked", "on_terminal")
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_a_discard_shows_the_keys_and_asks(run: Run, tmp_path: Path, answer: str, code: int) -> None:
    asked = run("pipeline", "parked", "discard", str(tmp_path), "a", stdin=f"{answer}\n")
    assert (asked.exit_code, "reason" in asked.stderr) == (code, True)
    assert ("requested" in run("pipeline", "parked", "list", str(tmp_path)).stdout) is (code == 0)


@pytest.mark.usefixtures("parked")
def test_a_pending_decision_is_shown(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path)
    before = run("pipeline", "parked", "list", place).stdout
    assert "requested" not in before
    assert run("pipeline", "parked", "discard", place, "a", "--first-only", "--yes").exit_code == 0
    listed = run("pipeline", "parked", "list", place).stdout
    assert "discard --first-only" in listed
    assert "the running pipeline applies decisions within a second, otherwise its next start does" in listed
    found = json.loads(run("pipeline", "parked", "list", place, "--json").stdout)
    assert {each["key"]: each["requested"] for each in found} == {"a": "discard_first", "b": None}
    assert "1 key with a request" in run("pipeline", "status", place).stdout
    assert run("pipeline", "parked", "redrive", place, "--all").exit_code == 0
    status = json.loads(run("pipeline", "status", place, "--json").stdout)
    assert status["requested_lanes"] == {"a": "redrive", "b": "redrive"}


def test_a_decision_is_no_longer_shown_once_it_is_applied(
    run: Run, tmp_path: Path, parked: pipeline_fixture.Pipeline
) -> None:
    run("pipeline", "parked", "redrive", str(tmp_path), "b")
    parked.process_retry_pass()
    found = json.loads(run("pipeline", "parked", "list", str(tmp_path), "--json").stdout)
    assert {each["key"]: each["requested"] for each in found} == {"a": None, "b": None}


@pytest.mark.usefixtures("parked")
def test_an_unknown_key_is_refused_with_the_command_that_lists_keys(run: Run, tmp_path: Path) -> None:
    wrong = run("pipeline", "parked", "redrive", str(tmp_path), "zzz")
    assert wrong.exit_code == 1
    listing = f"lanemq pipeline parked list {tmp_path} --held"
    assert f"`{listing}` lists those that are" in wrong.stderr
    assert run(*listing.split()[1:]).exit_code == 0


@pytest.mark.usefixtures("parked")
def test_status_without_a_broker_shows_the_error_once(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = run("pipeline", "status", str(tmp_path))
    assert shown.output.count("no name server answered") == 1
    assert caplog.messages == []


@pytest.mark.usefixtures("parked")
def test_status_counts_dead_letters_and_names_their_folder(run: Run, tmp_path: Path) -> None:
    assert "dead letters go to the sink that the pipeline declares" in run("pipeline", "status", str(tmp_path)).stdout
    folder = tmp_path / "dead_letters"
    write_deltalake(folder, pa.table({name: ["k"] * 3 for name in ("topic", "broker", "key")} | NUMBERS))
    assert f"3 dead letters in {folder}\n" in run("pipeline", "status", str(tmp_path)).stdout
    found = json.loads(run("pipeline", "status", str(tmp_path), "--json").stdout)
    assert found["dead_letters"] == {"count": 3, "settled": 0, "folder": str(folder)}


@pytest.mark.usefixtures("parked")
def test_status_has_the_values_that_became_null(run: Run, tmp_path: Path) -> None:
    state = pack_replica_state(ReplicaState(misfits={"amount": ColumnMisfits("double", "'abc'", 3)}))
    log = RunLog(run_log_of_stage(stage_folder(tmp_path)), lambda runs: runs.newest + 1)
    log.record(UNIT, pack_unit(UnitRecord(0, 1, "", state)))
    shown = run("pipeline", "status", str(tmp_path)).stdout
    assert "3 values of the column amount did not fit double and became null; the first was 'abc'\n" in shown
    found = json.loads(run("pipeline", "status", str(tmp_path), "--json").stdout)
    assert found["misfits"] == {"amount": {"type": "double", "first": "'abc'", "count": 3}}


def test_a_run_reports_its_dead_letters_and_their_folder(tmp_path: Path) -> None:
    totals, reported = RunTotals(), list[Progress]()
    report = totals.counting(reported.append)
    assert totals.report(declared(tmp_path)) is None
    for progress in (progress_of(28, 25), progress_of(0, 3, number=batch_number(0, 1), events=9, discarded=2)):
        report(progress)
    assert len(reported) == 2
    place = tmp_path / "checkpoint" / "dead_letters"
    said = f"orders: 26 dead letters (28 read): they are in {place} (a Delta table)"
    assert totals.report(declared(tmp_path)) == said
    elsewhere = totals.report(declared(tmp_path, dead_letters=ParquetSink(tmp_path / "dead")))
    assert elsewhere is not None
    assert elsewhere.endswith("in the sink that the pipeline declares for them (ParquetSink)")


@pytest.mark.parametrize(
    ("progress", "everything"),
    [
        (progress_of(3, 3), True),
        (progress_of(9, 3, events=3), True),
        (progress_of(3, 2), False),
        (progress_of(0, 0), False),
    ],
    ids=["all", "all that a filter let through", "not all", "nothing read"],
)
def test_a_run_that_only_made_dead_letters_is_recognised(progress: Progress, everything: bool) -> None:
    totals = RunTotals()
    totals.add(progress)
    assert totals.all_dead is everything


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
def test_flags_make_dead_letters_fail_a_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], dead: int, code: int
) -> None:
    """Runs without Spark: the run reports one batch of three messages."""

    def one_batch(pipeline: Pipeline, *, report: Any, **_: Any) -> None:
        Checkpoint(pipeline.folder, pipeline.name, NOWHERE).close()
        report(progress_of(3, dead))

    monkeypatch.setattr("lanemq.pipelines.running.program.run", one_batch)
    ended = run("pipeline", "run", str(declaration(tmp_path, "orders")), *flags)
    assert ended.exit_code == code, ended.output
    assert ("dead letter" in ended.stderr) is (dead > 0)


@pytest.mark.parametrize("flags", [(), ("--new-sink",), ("--new-checkpoint",)])
def test_new_sink_and_new_checkpoint_apply_to_one_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """It is not an option of the file, where it would hide the problem at every start."""
    said: list[tuple[bool, bool]] = []

    def noted(pipeline: Pipeline, *, new_sink: bool, new_checkpoint: bool, **_: Any) -> None:
        Checkpoint(pipeline.folder, pipeline.name, NOWHERE).close()
        said.append((new_sink, new_checkpoint))

    monkeypatch.setattr("lanemq.pipelines.running.program.run", noted)
    assert run("pipeline", "run", str(declaration(tmp_path, "orders")), *flags).exit_code == 0
    assert said == [("--new-sink" in flags, "--new-checkpoint" in flags)]


def test_a_run_without_rows_says_so_in_the_report_on_keys() -> None:
    """A misspelt column fails every key; 6 of 6 must not look like 6 of 6,000."""
    totals = RunTotals()
    assert totals.no_rows_note == ""
    totals.add(progress_of(6, 0))
    assert totals.no_rows_note == "; the 6 messages read produced no row"
    totals.rows = 1
    assert totals.no_rows_note == ""


def test_a_refused_checkpoint_is_exit_code_1_and_no_start_is_announced(run: Run, tmp_path: Path) -> None:
    """A checkpoint of another pipeline, or one in use, is a refusal and not an error in the file."""
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
    """Users do not know the query id; it still identifies the batch for sinks."""
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
