"""The one sentence that matters is found in Spark's wrapped errors."""

import pytest

from lanemq.model.errors import ConnectFailed
from lanemq.pipelines.running.failure import PipelineFailed, sentence_of

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
