"""The events around a violation, found by all files' tasks at once.

Each file tells its nearest ones; the nearest of all are among them.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from lanemq.checker.events import Event
from lanemq.checker.explain import AFTER, BEFORE, line, surroundings
from lanemq.checker.verdict import Violation
from lanemq.pipelines.audit.scanning import Files, RunFile, assigned
from lanemq.pipelines.audit.tasks import Tasks

LINES = pa.schema({"after": pa.bool_(), "t": pa.int64(), "file": pa.int32(), "at": pa.int32(), "text": pa.string()})


def around_with_spark(tasks: Tasks, found: Violation, home: int) -> tuple[str, ...]:
    """What `explain.around` says, one sentence for each event; `home` is the number of the file with the violation."""
    rows = tasks.map(partial(_lines, found, home), LINES).collect()
    ordered = sorted(rows, key=lambda row: (row.t, row.file, row.at))
    before = [row.text for row in ordered if not row.after][-BEFORE:]
    return (*before, *[row.text for row in ordered if row.after][:AFTER])


def _lines(found: Violation, home: int, files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for file in assigned(files, batches):
        before, after = surroundings(file.open().blocks(), found, _later(file, found, home))
        rows = [
            {"after": is_after, "t": event.t, "file": file.number, "at": at, "text": line(event, found)}
            for is_after, events in ((False, before), (True, after))
            for at, event in enumerate(events)
        ]
        yield pa.RecordBatch.from_pylist(rows, LINES)


def _later(file: RunFile, found: Violation, home: int) -> Callable[[Event], bool] | None:
    """In its own file the violation is met; for the others it has a time and a place. What has no line is last."""
    if found.n < 0 or file.number == home:
        return None
    return lambda event: (event.t, file.number) > (found.t, home)
