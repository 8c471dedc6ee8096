"""A pipeline as a program: signals, and what is asked before Spark starts."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lanemq.model.errors import CheckpointInUse, UsageError
from lanemq.pipelines import ParquetSink, Pipeline, Project, Topic, program
from lanemq.pipelines.checkpoint import Checkpoint

TWICE = """
import os, signal, threading
from lanemq.pipelines.program import stop_on_signals
asked = threading.Event()
with stop_on_signals(asked):
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.is_set()
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("still here")
"""


def declared(folder: Path, **more: Any) -> Pipeline:
    return Pipeline("orders", Topic("a:1", "t"), Project(["key"]), ParquetSink(folder / "out"), folder, **more)


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
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


def test_another_thread_leaves_signals_alone() -> None:
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
    monkeypatch.setattr(program, "open_session", lambda *_: pytest.fail("nobody should wait for Spark"))
    held = Checkpoint(tmp_path, "orders")
    with pytest.raises(CheckpointInUse, match=f"process {os.getpid()}"):
        program.run(declared(tmp_path))
    held.close()


def test_no_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="Java 17 or newer, and there is none"):
        program.run(declared(tmp_path))


class Builder:
    """Takes settings, and starts nothing."""

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


def test_the_command_line_beats_the_file_and_the_file_beats_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "recommended", Builder)
    monkeypatch.setattr(program, "need_java", lambda: None)
    pipeline = declared(tmp_path, spark={"spark.log.level": "INFO", "spark.a": "file"})
    opened: Any = program.open_session(pipeline, "local[3]", {"spark.a": "line"})
    assert opened["spark.log.level"] == "INFO"
    assert opened["spark.a"] == "line"
    assert (opened["master"], opened["name"]) == ("local[3]", "orders")
