"""A pipeline as a program: signals, and the checks before Spark starts."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lanemq.model.errors import CheckpointInUse, ConnectFailed, TopicNotFound, UsageError
from lanemq.pipelines import ParquetSink, Pipeline, Project, Topic
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.running import program, runner, session
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.program import check_topic
from lanemq.testing.embedded import EmbeddedBroker

TWICE = """
import os, signal, threading
from lanemq.pipelines.running.program import stop_on_signals
asked = threading.Event()
with stop_on_signals(asked):
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.wait(10)
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("still here")
"""


def declared(folder: Path, **more: Any) -> Pipeline:
    return Pipeline("orders", Topic("a:1", "t"), Project(["key"]), ParquetSink(folder / "out"), folder, **more)


def test_the_first_signal_sets_the_event_and_the_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asked = threading.Event()
    with program.stop_on_signals(asked):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(5)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_second_signal_ends_the_process_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert ended.stdout == "asked\n"


@pytest.mark.timeout(30)
def test_a_signal_does_not_deadlock_on_the_lock_of_the_event() -> None:
    """The main thread, which gets the signals, holds the lock for moments while it waits for the event."""
    asked = threading.Event()
    with program.stop_on_signals(asked):
        with asked._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert asked.wait(5)


def test_signals_are_untouched_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def elsewhere() -> None:
        with program.stop_on_signals(threading.Event()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_second_run_is_refused_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "check_java", lambda: pytest.fail("Spark must not be started"))
    held = Checkpoint(tmp_path, "orders")
    with pytest.raises(CheckpointInUse, match=f"process {os.getpid()}"):
        program.run(declared(tmp_path))
    held.close()


def test_of_two_runs_that_start_at_the_same_time_one_is_refused_before_its_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run begins while the first one waits for its Spark, after both have passed the check for a holder."""
    sessions: list[str] = []

    def opened(*_: object) -> Any:
        sessions.append("Spark")
        if len(sessions) == 1:
            with pytest.raises(CheckpointInUse, match=f"process {os.getpid()}"):
                program.run(declared(tmp_path))
        raise UsageError("Spark did not start")

    fakes: dict[str, Any] = {"check_java": lambda: None, "check_topic": lambda _: None, "open_session": opened}
    for name, fake in (fakes | {"check_checkpoint": lambda _: None}).items():
        monkeypatch.setattr(program, name, fake)
    for _ in range(2):
        with pytest.raises(UsageError, match="Spark did not start"):
            program.run(declared(tmp_path))
    assert len(sessions) == 2, "the second one was for the run after the first, whose lock was free again"


def test_the_checkpoint_of_another_pipeline_is_refused_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "check_java", lambda: pytest.fail("Spark must not be started"))
    Checkpoint(tmp_path, "visits").close()
    with pytest.raises(UsageError, match="belongs to pipeline 'visits': choose another folder"):
        program.run(declared(tmp_path))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"topic": "no-such-topic"}, "topic 'no-such-topic' does not exist at .*: create it with `lanemq topic create"),
        ({"topicPattern": "no-such-.*"}, "no topic at .* matches topicPattern 'no-such-.*'; `lanemq topic list"),
    ],
)
def test_a_missing_topic_is_refused_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, source: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(program, "check_java", lambda: None)
    monkeypatch.setattr(program, "open_session", lambda *_: pytest.fail("Spark must not be started"))
    with pytest.raises(TopicNotFound, match=said):
        program.run(replace(declared(tmp_path), source=Topic(broker.address, **source)))


def test_a_topic_that_was_deleted_later_is_left_to_the_query(tmp_path: Path, broker: EmbeddedBroker) -> None:
    """The checkpoint shows that it existed, so `failOnDataLoss` decides, not the check for typing errors."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n-")
    check_topic(replace(declared(tmp_path), source=Topic(broker.address, "no-such-topic")))


def test_a_broker_that_is_down_is_waited_for_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program, "check_java", lambda: None)
    monkeypatch.setattr(program, "open_session", lambda *_: pytest.fail("Spark must not be started"))
    with pytest.raises(ConnectFailed):
        program.run(replace(declared(tmp_path), source=Topic("127.0.0.1:1", "t", brokerWait="300ms")))
    assert "check it with: lanemq topic list --server '127.0.0.1:1'" in caplog.messages[0]


def test_missing_java_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="Java 17 or newer, and there is none"):
        program.run(declared(tmp_path))


class Builder:
    """Records settings and starts nothing."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def master(self, url: str) -> "Builder":
        return self.config("master", url)

    def appName(self, name: str) -> "Builder":
        return self.config("name", name)

    def config(self, name: str, value: str) -> "Builder":
        self.settings[name] = value
        return self

    def getOrCreate(self) -> dict[str, str]:
        return self.settings


def test_settings_of_the_command_line_override_the_file_and_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "recommended", Builder)
    pipeline = declared(tmp_path, spark={"spark.log.level": "INFO", "spark.a": "file"})
    opened: Any = session.open_session(pipeline, "local[3]", {"spark.a": "line"})
    assert opened["spark.log.level"] == "INFO"
    assert opened["spark.a"] == "line"
    assert (opened["master"], opened["name"]) == ("local[3]", "orders")


IN_GROUP = """
import os, signal, subprocess, sys
from lanemq.pipelines.running.session import children_in_own_group
os.setpgid(0, 0)
with children_in_own_group():
    away = subprocess.Popen(["sleep", "20"], preexec_fn=lambda: None)
near = subprocess.Popen(["sleep", "20"], preexec_fn=lambda: None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
print(near.wait(), away.poll())
away.kill()
away.wait()
"""


@pytest.mark.slow
def test_a_signal_to_the_process_group_does_not_reach_spark() -> None:
    """`timeout 60 lanemq pipeline run ...` signals the group, and the batch cannot be finished without its JVM."""
    ended = subprocess.run([sys.executable, "-c", IN_GROUP], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == [str(-signal.SIGTERM), "None"]


class Session:
    """A session that records whether it was stopped, and the standard error when it was made."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        raise ConnectionRefusedError("the JVM is gone")


def test_sparks_output_goes_to_a_file_and_our_warnings_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, outputs = Session(), []

    def opened(pipeline: Pipeline, master: str, conf: Any, output: Path) -> Session:
        outputs.append(output)
        os.write(2, b"Using Spark's default log4j profile\n")
        return session

    def runs(*_: object) -> None:
        with (tmp_path / "words").open("a") as words:
            words.write("2026-11-16 03:00:00,123 WARNING lanemq.spark.retrying: topic t: no answer yet\n")
        raise ValueError("the pipeline failed")

    for name, fake in {"check_java": lambda: None, "check_topic": lambda _: None, "open_session": opened}.items():
        monkeypatch.setattr(program, name, fake)
    monkeypatch.setattr(program, "_run_in", runs)
    with pytest.raises(ValueError, match="the pipeline failed"):
        program.run(declared(tmp_path), spark_output=tmp_path / "words")
    assert (tmp_path / "words").read_text().startswith("Using Spark's")
    assert caplog.messages == ["topic t: no answer yet"]
    assert (session.stopped, outputs) == (True, [tmp_path / "words"])


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("option", ["new_sink", "new_checkpoint"])
def test_new_sink_and_new_checkpoint_are_passed_on_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, new: bool
) -> None:
    said: list[Any] = []

    def start(pipeline: Pipeline, spark: Any, **options: Any) -> Any:
        said.append(options[option])
        raise ValueError("not here")

    monkeypatch.setattr(program, "start", start)
    with pytest.raises(PipelineFailed, match="'orders' failed in its start: ValueError: not here"):
        program.run(declared(tmp_path), Session(), **{option: new})  # type: ignore[arg-type]
    assert said == [new]


class SlowSource:
    """A source whose Python process connects to Spark in time only after some attempts."""

    def __init__(self, error: str, failures: int) -> None:
        self.error, self.failures, self.loads = error, failures, 0

    def stream(self, *_: Any) -> str:
        self.loads += 1
        if self.loads <= self.failures:
            raise RuntimeError(self.error)
        return "frame"


def load(source: SlowSource, tmp_path: Path) -> Any:
    stage = SimpleNamespace(on_damaged=None)
    pipeline: Any = SimpleNamespace(name="orders", source=source, folder=tmp_path, stage=stage)
    return runner._load(pipeline, Session(), ())  # type: ignore[arg-type]


def test_a_source_is_loaded_again_if_its_python_process_was_too_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = SlowSource(f"{runner.SLOW_PYTHON} in 10 s", failures=2)
    assert load(source, tmp_path) == "frame"
    assert "the source is loaded again (3 of 5)" in caplog.text


def test_a_source_that_fails_otherwise_or_stays_too_slow_is_an_error(tmp_path: Path) -> None:
    other, slow = SlowSource("no such option", failures=1), SlowSource(runner.SLOW_PYTHON, failures=99)
    for source, loads in ((other, 1), (slow, runner.MAX_STARTS)):
        with pytest.raises(RuntimeError, match=source.error):
            load(source, tmp_path)
        assert source.loads == loads
