"""The one sentence that matters is found in Spark's wrapped errors."""

import pytest

from lanemq.model.errors import ConnectFailed
from lanemq.pipelines.running.failure import PipelineFailed, advice_for, sentence_of

SOURCE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "x.py", line 1, in a
    raise error
lanemq.model.errors.ConnectFailed: cannot connect to 127.0.0.1:1: refused; is a broker running there?
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
Current State: ACTIVE
"""
TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "step.py", line 3, in step
    raise ValueError("first line\\nsecond line")
ValueError: first line
second line
"""
CHAINED = """Job aborted due to stage failure: Traceback (most recent call last):
  File "a.py", line 1, in a
KeyError: 'id'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1, in b
lanemq.model.errors.StateLost: shard orders/b/0: file 7.change is cut; restore the checkpoint

\tat org.apache.spark.api.python.BasePythonRunner.handle(X.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RuntimeError(SOURCE), "cannot connect to 127.0.0.1:1: refused; is a broker running there?"),
        (RuntimeError(TASK), "ValueError: first line second line"),
        (RuntimeError(CHAINED), "shard orders/b/0: file 7.change is cut; restore the checkpoint"),
        (ConnectFailed("no name server answered"), "no name server answered"),
        (OSError("power cut"), "OSError: power cut"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (
            RuntimeError("[TABLE_NOT_FOUND] no x. SQLSTATE: 42P01\n\nJVM stacktrace:\n at"),
            "RuntimeError: [TABLE_NOT_FOUND] no x.",
        ),
        (
            RuntimeError("Traceback (most recent call last):\n  nothing else"),
            "RuntimeError: Traceback (most recent call last):",
        ),
    ],
)
def test_the_sentence_is_found_in_sparks_error(error: BaseException, sentence: str) -> None:
    assert sentence_of(error) == sentence


def test_the_whole_error_is_kept_as_trace() -> None:
    failed = PipelineFailed("orders", RuntimeError(SOURCE), "batch 3")
    assert str(failed).startswith("pipeline 'orders' failed in batch 3: cannot connect")
    assert failed.trace == SOURCE


class Py4JJavaError(Exception):
    """As py4j's: its text is a Java trace."""


def test_the_innermost_java_cause_is_the_sentence() -> None:
    error = Py4JJavaError(
        "An error occurred while calling o61.start.\n: java.lang.RuntimeException: wrapped\n\tat a.b(C.java:1)\n"
        "Caused by: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat d"
    )
    assert sentence_of(error) == "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
    assert "hadoop-aws" in advice_for(error)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError("Generic S3 error: Error performing PUT: <Code>NoSuchBucket</Code>"), "has no such bucket"),
        (RuntimeError("NoSuchMethodError: resolveEnum"), "the driver's version of Spark"),
        (RuntimeError("Traceback ...\nModuleNotFoundError: No module named 'pyarrow'"), "lanemq spark pack"),
        (ModuleNotFoundError("No module named 'mine'"), ""),  # missing in this process, not on an executor
        (ConnectFailed("the bucket does not exist"), ""),  # LaneMQ's own errors have their advice
        (ValueError("something else"), ""),
    ],
)
def test_usual_mistakes_get_advice(error: BaseException, advice: str) -> None:
    assert advice in advice_for(error)
    assert bool(advice_for(error)) == bool(advice)
    assert str(PipelineFailed("orders", error)).endswith(advice_for(error))


def test_the_trace_of_an_error_of_this_process_has_its_lines() -> None:
    try:
        raise OSError("no such place")
    except OSError as error:
        failed = PipelineFailed("orders", error, "its start")
    assert "in its start: OSError: no such place" in str(failed)
    assert __file__ in failed.trace


def test_a_python_process_that_started_too_slowly_is_explained() -> None:
    error = RuntimeError("SparkException: Python worker failed to connect back.\n\nJVM stacktrace:\n at org.apache")
    assert "too busy to start a Python process within 10 s" in str(PipelineFailed("orders", error))
