"""Spark's output goes to a file, and LaneMQ's warnings to the terminal too."""

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lanemq.files import locate
from lanemq.pipelines.running.session import inherited_stderr, not_started, repeat_warnings, spark_output_file
from lanemq.spark import worker_process

LOUD = "import sys; print('Exception in thread main', file=sys.stderr)"


def test_a_child_process_writes_its_standard_error_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = spark_output_file(tmp_path)
    with inherited_stderr(output):
        child = subprocess.Popen([sys.executable, "-c", f"input(); {LOUD}"], stdin=subprocess.PIPE)
    os.write(2, b"ours\n")
    child.communicate(b"\n", timeout=30)
    assert output.read_text() == "Exception in thread main\n"
    assert capfd.readouterr().err == "ours\n"


def test_the_output_of_a_pipeline_with_a_remote_checkpoint_is_a_local_file_of_its_own() -> None:
    files = {spark_output_file(locate(f"s3a://{bucket}/checkpoint")) for bucket in ("a", "b")}
    assert len(files) == 2
    assert {file.parent for file in files} == {Path(tempfile.gettempdir())}


def test_the_output_of_the_run_before_is_kept(tmp_path: Path) -> None:
    """A run that a supervisor restarts must not remove the reason why the last one died."""
    output = spark_output_file(tmp_path)
    for word in (b"first", b"second", b"third"):
        with inherited_stderr(output):
            os.write(2, word)
    assert (output.read_bytes(), output.with_name("spark.log.1").read_bytes()) == (b"third", b"second")


def test_standard_error_is_restored_after_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no session"), inherited_stderr(tmp_path / "output"):
        raise ValueError("no session")
    os.write(2, b"back")
    assert capfd.readouterr().err == "back"


def test_every_complete_line_is_read_once(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"")
    lines: list[str] = []
    with output.open("ab", buffering=0) as file, repeat_warnings(output, lines.append):
        file.write(b"first\nsec")
        until = time.monotonic() + 30
        while not lines and time.monotonic() < until:
            time.sleep(0.01)
        assert lines == ["first"]
        file.write(b"ond\nlast\n")
    assert lines == ["first", "second", "last"]


def test_only_warnings_of_lanemq_are_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for line in (
        "2026-11-16 03:00:00,123 WARNING lanemq.spark.retrying: topic orders: no answer yet",
        "2026-11-16 03:00:00,123 WARNING org.apache.spark: noise",
        "26/11/16 03:00:00 WARN Utils: noise",
        "Traceback (most recent call last):",
    ):
        worker_process.relog(line)
    assert caplog.record_tuples == [("lanemq.spark.retrying", logging.WARNING, "topic orders: no answer yet")]


WARNS = """
import logging, sys, types
from lanemq.spark.worker_process import configure_worker_logging
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[1])
configure_worker_logging()
logging.getLogger("lanemq.x").warning("away")
"""


@pytest.mark.slow
def test_warnings_of_a_spark_worker_are_recognised() -> None:
    """Logging is configured only in Spark's workers; in its own process it is up to the application."""
    said = {}
    for name in ("pyspark.daemon", "my.program"):
        output = [sys.executable, "-c", WARNS, name]
        said[name] = subprocess.run(output, capture_output=True, text=True, check=True, timeout=60).stderr.strip()
    assert said["my.program"] == "away"
    assert worker_process._LANEMQ_LINE.match(said["pyspark.daemon"])


COLLECTING = """
import gc, sys, types
from lanemq.spark.worker_process import prepare_task_process
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[1])
prepare_task_process()
print(gc.get_freeze_count() > len(gc.get_objects()))
"""


@pytest.mark.slow
def test_collections_after_each_task_leave_out_what_a_process_of_spark_has_imported() -> None:
    for name, frozen in (("pyspark.daemon", True), ("my.program", False)):
        run = subprocess.run([sys.executable, "-c", COLLECTING, name], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == str(frozen)


ENDING = """
import atexit, logging, sys
from types import SimpleNamespace
from lanemq.spark.worker_process import configure_worker_logging, skip_teardown

class Torn:
    def __del__(self): print("taken apart")

sys.modules["__main__"].__spec__ = SimpleNamespace(name=sys.argv[1])
kept = Torn()
configure_worker_logging()
skip_teardown()
atexit.register(print, "registered later")
logging.getLogger("lanemq.x").warning("the last line")
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "code", "said"),
    [("pyspark.worker", 0, "registered later"), ("app", 3, "registered later taken apart")],
)
def test_a_process_of_spark_ends_without_being_taken_apart(module: str, code: int, said: str) -> None:
    """Everything written before is flushed; other processes end as always."""
    run = subprocess.run([sys.executable, "-c", ENDING, module], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split("\n")[:-1]) == (code, said.replace(" taken", "\ntaken").split("\n"))
    assert "the last line" in run.stderr


def test_a_failed_download_is_named_and_java_is_not_blamed(tmp_path: Path) -> None:
    said = (
        "\t\t::          UNRESOLVED DEPENDENCIES         ::\n"
        "\t\t:: org.apache.hadoop#hadoop-aws;9.9.9: not found\n"
        "Exception: [unresolved dependency: org.apache.hadoop#hadoop-aws;9.9.9: not found]\n"
    )
    output = tmp_path / "spark.log"
    text = not_started("[JAVA_GATEWAY_EXITED] Java gateway process exited", said, output)
    assert text.startswith("Spark could not download org.apache.hadoop#hadoop-aws;9.9.9")
    assert str(output) in text
    other = not_started("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore", "", output)
    assert other == f"Spark did not start: [JAVA_GATEWAY_EXITED] Java gateway process exited (Spark's output: {output})"
