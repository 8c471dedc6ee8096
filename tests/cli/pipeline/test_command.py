"""`lanemq pipeline run`, `check` and `status`, with a pipeline that a file declares."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.spark.spark_driver import send, until

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.model.environment import install_extra
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.pipelines.batches import batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, SparkLog
from lanemq.pipelines.running import program
from lanemq.spark.offsets import Bounds
from lanemq.spark.read.brokers import Brokers
from lanemq.testing.embedded import EmbeddedBroker

DECLARED = """
[pipeline]
name = "totals"
checkpoint = "{folder}/checkpoint"

[source]
servers = "{servers}"
topic = "{topic}"
brokerWait = "300ms"
maxOffsetsPerTrigger = 40

[stage]
kind = "transitions"
step = "totals_{topic}:step"
outputs = "topic string, queue_id int, queue_offset long, key string, total long"
on_failure = {{ kind = "park" }}

[sink]
kind = "sqlite"
path = "{folder}/totals.db"
table = "totals"
"""
STEP = """
def step(state, event):
    if event.value == 13 and not event.late:
        raise ValueError("thirteen is not a number")
    total = (state or 0) + 1
    row = {"topic": event.topic, "queue_id": event.queue_id, "queue_offset": event.offset, "key": event.key}
    return total, [row | {"total": total}]
"""
BROKEN = """
def prepare(messages):
    raise ValueError("no such column: colour")
"""


class Place:
    """A topic, a file that declares a pipeline over it, and the pipeline's table."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.topic = f"t{uuid.uuid4().hex[:10]}"
        self.file = folder / "totals.toml"
        self.file.write_text(DECLARED.format(folder=folder, servers=servers, topic=self.topic))
        (folder / f"totals_{self.topic}.py").write_text(STEP)
        self.log = SparkLog(folder / "checkpoint")
        with Admin(servers) as admin:
            admin.create_topic(self.topic, 2)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """The sink's table, if there is one yet."""
        if not (self.folder / "totals.db").exists():
            return []
        database = sqlite3.connect(self.folder / "totals.db")
        try:
            return database.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            database.close()

    def count(self) -> int:
        found = self.ask("select count(*) from totals")
        return int(found[0][0]) if found else 0


@pytest.fixture
def place(tmp_path: Path, broker: EmbeddedBroker) -> Place:
    return Place(tmp_path, broker.address)


class SharedSession:
    """The session of all tests, which a command must not stop."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def in_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session of the tests; one test below starts its own."""
    monkeypatch.setattr("lanemq.pipelines.running.program.open_session", lambda *_: SharedSession(spark))


def test_a_declaration_is_checked_without_spark(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.pipelines.running.preflight.check_java", lambda: None)
    checked = run("pipeline", "check", str(place.file))
    assert checked.exit_code == 0, checked.output
    assert "Transitions" in checked.stdout
    assert "no errors found: packages and Java are there" in checked.stdout
    (only,) = json.loads(run("pipeline", "check", str(place.file), "--json").stdout)
    assert (only["pipeline"], only["topic"], only["sink"]) == ("totals", place.topic, "SqliteSink")
    place.file.write_text(place.file.read_text().replace("brokerWait", "brokerWeight"))
    wrong = run("pipeline", "check", str(place.file))
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith(f"Error: {place.file}: [source] brokerweight: there is no such option; did you mean")


def test_check_reports_what_the_machine_lacks(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.pipelines.running.preflight.SPARK_PACKAGES", ("pyspark", "not_there"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "")
    checked = run("pipeline", "check", str(place.file))
    assert checked.exit_code == 1
    assert "Transitions" in checked.stdout
    assert "no errors found" not in checked.stdout
    assert checked.stderr == (
        f"Error: Spark needs the package not_there, which is not installed: {install_extra('spark')}; Spark needs Java "
        "17 or newer, and there is none: install it, or set JAVA_HOME to its folder\n"
    )


@pytest.mark.parametrize("words", [("status",), ("parked", "list"), ("parked", "redrive", "--all")])
def test_a_pipeline_that_never_ran_is_reported(run: Run, place: Place, words: tuple[str, ...]) -> None:
    result = run("pipeline", *words, str(place.file))
    assert result.exit_code == 1
    assert "was never started" in result.stderr


@pytest.mark.slow
def test_without_the_broker_the_lag_is_unknown(run: Run, place: Place) -> None:
    """A lag of 0 would look like good news."""
    folder = place.folder / "checkpoint"
    Checkpoint(folder, "totals", {"servers": "127.0.0.1:1", "topic": place.topic}).close()
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
        (folder / name / "0").write_text(f'v1\n{{}}\n{{"{place.topic}": {{"b/0": 7}}}}')
    shown = run("pipeline", "status", str(place.file))
    assert shown.exit_code == 0, shown.output
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith(place.topic)]
    assert row.split() == [place.topic, "0", "7", *["unknown"] * 3]
    assert "\nlag unknown\n" in shown.stdout
    assert "the lag is unknown: no name server answered" in shown.stdout
    result = json.loads(run("pipeline", "status", str(place.file), "--json").stdout)
    assert (result["lag"], result["lag_seconds"]) == (None, None)
    (queue,) = result["queues"]
    assert (queue["offset"], queue["end"], queue["lag"], queue["lag_seconds"]) == (7, None, None, None)


def test_the_lag_of_a_status_has_messages_and_seconds(
    run: Run, place: Place, producer: Producer, broker: EmbeddedBroker
) -> None:
    Checkpoint(place.folder / "checkpoint", "totals", {"servers": broker.address, "topic": place.topic}).close()
    producer.send(place.topic, 1, key="a")
    result = json.loads(run("pipeline", "status", str(place.file), "--json").stdout)
    assert result["lag"] == 1
    assert result["lag_seconds"] >= 0
    assert "lag 1 message, the oldest " in run("pipeline", "status", str(place.file)).stdout


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_sink_that_does_not_fit_the_stage_is_refused_without_spark(run: Run, place: Place, command: str) -> None:
    text = place.file.read_text()
    stage = (
        '[stage]\nkind = "last_state"\nschema = "id bigint"\nkeys = ["id"]\n\n[sink]\nkind = "parquet"\npath = "x"\n'
    )
    place.file.write_text(text[: text.index("[stage]")] + stage)
    refused = run("pipeline", command, str(place.file))
    assert refused.exit_code == 2
    assert "ParquetSink only adds rows, and LastState replaces them: use DeltaSink" in refused.stderr


def test_an_absent_broker_is_reported_in_one_line_without_spark(run: Run, place: Place) -> None:
    away = run("pipeline", "run", str(place.file), "--servers", "127.0.0.1:1", "--quiet")
    assert away.exit_code == 1
    (line,) = away.stderr.strip().splitlines()
    assert line.startswith("Error: no name server answered (tried 127.0.0.1:1)")
    assert "? Start a broker with" in line
    assert "or correct servers (--servers); the source's option brokerWait sets how long" in line


def test_a_missing_topic_is_reported_in_one_line_without_spark(run: Run, place: Place) -> None:
    place.file.write_text(place.file.read_text().replace(f'topic = "{place.topic}"', 'topic = "oders"'))
    missing = run("pipeline", "run", str(place.file), "--quiet")
    assert missing.exit_code == 1
    (line,) = missing.stderr.strip().splitlines()
    assert "topic 'oders' does not exist at" in line
    assert "lanemq topic create oders" in line


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("check", "--help")])
def test_help_says_what_relative_paths_are_relative_to(run: Run, words: tuple[str, ...]) -> None:
    assert "relative to the working directory" in " ".join(run("pipeline", *words).stdout.split())


def test_help_says_what_exit_codes_mean(run: Run) -> None:
    assert "Exit codes: 0" in run("pipeline", "run", "--help").stdout


def test_a_spark_setting_must_have_the_form_name_value(run: Run, place: Place) -> None:
    result = run("pipeline", "run", str(place.file), "--conf", "executor.memory=4g")
    assert result.exit_code == 2
    assert "should look like spark.executor.memory=4g" in result.stderr


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_spark_the_extra_is_named(place: Place, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from lanemq.cli.main import main; main()"
    words = [sys.executable, "-c", code, "pipeline", "check", str(place.file)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == f"Error: pipelines need {package}: {install_extra('spark')}, and Java 17 or newer\n"


@pytest.mark.parametrize("there", [True, False])
def test_a_traced_run_gives_its_batches_to_opentelemetry(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    given: list[object] = []
    monkeypatch.setattr("lanemq.pipelines.running.program.run", lambda *_, **more: given.append(more["trace"]))
    if not there:
        monkeypatch.delitem(sys.modules, "lanemq.pipelines.running.tracing", raising=False)
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
    shown = run("pipeline", "run", str(place.file), "--trace")
    assert [callable(each) for each in given] == ([True] if there else [])
    assert ("extra `otel`" in shown.stderr) is not there


def test_ctrl_c_while_spark_starts_is_one_line(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lanemq.pipelines.running.program.run", interrupted)
    result = run("pipeline", "run", str(place.file), "--quiet")
    assert result.exit_code == 130
    assert result.stderr == "interrupted while Spark was starting or stopping; no batch was running\n"


def test_a_missing_java_is_reported(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "")
    result = run("pipeline", "run", str(place.file), "--quiet")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: Spark needs Java 17 or newer, and there is none: install it, or set JAVA_HOME to its folder\n"
    )


def test_help_does_not_wait_for_spark() -> None:
    code = "import sys, lanemq.cli.pipeline.command; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("in_spark")
def test_a_parked_key_is_listed_shown_and_discarded(run: Run, place: Place, producer: Producer, tmp_path: Path) -> None:
    for value in (1, 13, 2, 3):
        producer.send(place.topic, value, key="bad" if value in (13, 2) else "good")
    first = run("pipeline", "run", str(place.file), "--once", "--json", "--history", str(tmp_path / "history"))
    assert first.exit_code == 0, first.output
    assert "1 key parked (waits for an operator); see lanemq pipeline parked list" in first.stderr
    (line,) = map(json.loads, first.stdout.splitlines())
    assert (line["batch"], line["messages"], line["outputs"], line["lag"]) == (0, 4, 2, 0)
    status = json.loads(run("pipeline", "status", str(place.file), "--json").stdout)
    assert (status["batch"], status["unfinished_batch"], status["epoch"], status["running"]) == (0, None, 1, None)
    assert (status["waiting_lanes"], status["lag"]) == ({"parked": 1}, 0)
    assert "1 key parked\n" in run("pipeline", "status", str(place.file)).stdout
    again = run("pipeline", "run", str(place.file), "--once", "--quiet", "--fail-on-parked")
    assert again.exit_code == 1
    assert again.stderr.startswith("Error: totals: 1 key parked")
    checkpoint = str(tmp_path / "checkpoint")
    (lane,) = json.loads(run("pipeline", "parked", "list", checkpoint, "--json").stdout)
    assert (lane["key"], lane["messages"]) == ("bad", 2)
    assert "thirteen is not a number" in run("pipeline", "parked", "list", checkpoint).stdout
    shown = json.loads(run("pipeline", "parked", "show", checkpoint, "bad", "--json").stdout)
    assert [each["value"] for each in shown["messages"]] == [13, 2]
    assert "13" in run("pipeline", "parked", "show", checkpoint, "bad").stdout
    assert run("pipeline", "parked", "show", checkpoint, "other").exit_code == 1
    assert run("pipeline", "parked", "discard", checkpoint).exit_code == 2, "one key, or all"
    assert run("pipeline", "parked", "discard", checkpoint, "good").exit_code == 1, "it is not parked"
    dry = run("pipeline", "parked", "redrive", checkpoint, "bad", "--dry-run")
    assert "2 messages of 1 key would be retried" in dry.stdout
    discarded = run("pipeline", "parked", "discard", checkpoint, "bad", "--first-only", "--yes").stdout
    assert discarded.startswith("1 message of 1 key will be turned into a dead letter (and 1 later message retried)")
    assert "no key waits" not in run("pipeline", "parked", "list", checkpoint).stdout, "only asked for so far"
    again = run("pipeline", "run", str(place.file), "--once", "--history", str(tmp_path / "history"))
    assert again.exit_code == 0, again.output
    assert "totals retry pass 1 after batch 0" in again.stdout
    assert again.stderr == f"totals: start 3, checkpoint {checkpoint}, Spark on local[*]\n", "no key is parked now"
    assert "no key waits for an operator" in run("pipeline", "parked", "list", checkpoint).stdout
    assert f"\n1 dead letter in {checkpoint}/dead_letters\n" in run("pipeline", "status", checkpoint).stdout
    assert sorted(place.ask("select key, total from totals")) == [("bad", 1), ("good", 1), ("good", 2)]
    assert run("pipeline", "dead-letters", "redrive", str(place.file), "--key", "bad").exit_code == 0
    late = run("pipeline", "run", str(place.file), "--once", "--json", "--history", str(tmp_path / "history"))
    assert [json.loads(line)["counts"]["redriven_dead_letters"] for line in late.stdout.splitlines()] == [1], (
        late.output
    )
    assert place.ask("select max(total), count(*) from totals where key = 'bad'") == [(2, 2)], "the step took it, late"
    assert "no dead letters" in run("pipeline", "dead-letters", "list", checkpoint).stdout
    verdict = run("check", str(tmp_path / "history"), "--require", "effects=3", "--json")
    assert json.loads(verdict.stdout)["violations"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("in_spark")
def test_a_failing_pipeline_is_one_line(run: Run, place: Place, producer: Producer) -> None:
    prepare = f'[pipeline]\nprepare = "totals_{place.topic}:prepare"'
    place.file.write_text(place.file.read_text().replace("[pipeline]", prepare))
    (place.folder / f"totals_{place.topic}.py").write_text(STEP + BROKEN)
    producer.send(place.topic, 1, key="a")
    words = place.folder / "checkpoint" / "lanemq" / "spark.log"
    failed = run("pipeline", "run", str(place.file), "--quiet", "--once")
    assert isinstance(failed.exception, SystemExit), failed.exception
    (line,) = failed.stderr.strip().splitlines()
    assert line.startswith("Error: pipeline 'totals' failed in batch 0: ValueError: no such column: colour (")
    assert line.endswith(f"(--traceback shows all; Spark's output: {words})")
    assert failed.stdout == ""
    whole = run("pipeline", "run", str(place.file), "--traceback")
    assert "no such column: colour\n" in whole.stderr


@pytest.fixture
def in_the_background(place: Place) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    command = [sys.executable, "-m", "lanemq.cli.main", "pipeline", "run", str(place.file), "--master", "local[2]"]

    def start() -> subprocess.Popen[str]:
        settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1", "--json"]
        with (place.folder / "stderr").open("a") as errors:
            process = subprocess.Popen(command + settings, stdout=subprocess.PIPE, stderr=errors, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


@pytest.mark.slow
@pytest.mark.driver
@pytest.mark.timeout(1800)
def test_a_kill_repeats_at_most_one_batch_and_a_stop_none(
    run: Run, place: Place, broker: EmbeddedBroker, in_the_background: Callable[[], subprocess.Popen[str]]
) -> None:
    """A real process: its own session, modules beside the file, `kill -9`, a second start, SIGTERM."""
    send(broker.address, place.topic, [n for n in range(200) if n != 13])
    first = in_the_background()
    until(lambda: place.count() > 0 or first.poll() is not None, 600)
    assert first.poll() is None, (place.folder / "stderr").read_text()
    second = run("pipeline", "run", str(place.file))
    assert second.exit_code == 1
    assert f"is used by another run (process {first.pid} on " in second.stderr
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    again = in_the_background()
    until(lambda: place.count() == 199 or again.poll() is not None, 600)
    send(broker.address, place.topic, range(200, 1200))
    assert again.stdout is not None
    assert json.loads(again.stdout.readline())["epoch"] == 2
    os.kill(again.pid, signal.SIGTERM)
    rest, _ = again.communicate(timeout=600)
    assert again.returncode == 0, (place.folder / "stderr").read_text()
    done = place.log.done()
    assert done is not None
    assert place.ask("select max(batch) from lanemq_ledger where query not like '%#owner'") == [(batch_number(done),)]
    assert place.ask("select count(distinct queue_id || '/' || queue_offset) from totals") == [(place.count(),)]
    assert place.ask("select count(*) from (select key from totals group by key having max(total) <> count(*))") == [
        (0,)
    ]
    assert all(json.loads(line)["repeated"] is False for line in rest.splitlines())
    said = (place.folder / "stderr").read_text().splitlines()
    assert [line for line in said if not line.startswith(("totals: ", "20"))] == [], (
        "Spark's output is not on the terminal"
    )
    words = (place.folder / "checkpoint" / "lanemq" / "spark.log").read_text()
    assert "log4j" in words, "they are in a file"


@pytest.mark.parametrize("below", ["", "/orders"])
@pytest.mark.parametrize("command", ["run", "status"])
def test_a_checkpoint_that_is_a_file_is_refused_in_one_line(run: Run, place: Place, command: str, below: str) -> None:
    (place.folder / "checkpoint").write_text("no folder")
    place.file.write_text(place.file.read_text().replace("/checkpoint", f"/checkpoint{below}"))
    refused = run("pipeline", command, str(place.file))
    assert refused.exit_code in {1, 2}
    assert refused.exception is None or isinstance(refused.exception, SystemExit)
    line = refused.stderr.strip().splitlines()[-1]
    assert "checkpoint" in line
    assert command == "status" or "is a file, or below one: choose a folder" in line


def test_messages_that_retention_deleted_are_no_lag(
    run: Run, place: Place, producer: Producer, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.folder / "checkpoint"
    Checkpoint(folder, "totals", {"servers": broker.address, "topic": place.topic}).close()
    queue = producer.send(place.topic, 1, key="a").queue
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
        (folder / name / "0").write_text(f'v1\n{{}}\n{{"{place.topic}": {{"{queue.broker}/{queue.queue_id}": 7}}}}')
    real = Brokers.bounds

    def after_retention(brokers: Brokers) -> dict[MessageQueue, Bounds]:
        held = {each: Bounds(QueueOffset(2_000), QueueOffset(2_146)) for each in real(brokers)}
        return {each: bounds for each, bounds in held.items() if each == queue}

    monkeypatch.setattr(Brokers, "bounds", after_retention)
    result = json.loads(run("pipeline", "status", str(place.file), "--json").stdout)
    assert (result["lag"], result["deleted_unread"]) == (146, 1_993)
    shown = run("pipeline", "status", str(place.file)).stdout
    assert "\nlag 146 messages\nretention deleted 1993 messages after the last batch, before they were read\n" in shown


def test_once_with_nothing_new_says_so_without_spark(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoint(place.folder / "checkpoint", "totals").close()
    monkeypatch.setattr(program, "is_nothing_new", lambda _: True)
    monkeypatch.setattr(program, "open_session", lambda *_: pytest.fail("Spark must not be started"))
    done = run("pipeline", "run", str(place.file), "--once")
    assert done.exit_code == 0, done.output
    assert "totals: nothing new" in done.stderr
