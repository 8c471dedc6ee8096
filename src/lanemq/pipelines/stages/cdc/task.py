"""One task of Spark: record batches in, files with the newest rows of each queue out, one line per queue.

Memory is bounded by a chunk of messages and the distinct keys of a task. The rule guarded here: rows of different
queues never meet here, because only the driver can see whether two queues disagree.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from lanemq.pipelines.stages.cdc.evolving import Fields, new_fields, together
from lanemq.pipelines.stages.cdc.new_fields import skipped_fields
from lanemq.pipelines.stages.cdc.plan import Plan
from lanemq.pipelines.stages.cdc.reading import Counts, Folded, Reader

CHUNK_BYTES: Final = 256 * 1024 * 1024
"""Messages are folded whenever this many bytes have gathered."""
LINE: Final = "line string"
_QUEUE: Final = ("topic", "broker", "queue_id")


Span: TypeAlias = tuple[int, int, int, int]
"""The lowest and highest offset, and their queue's store times: of the lowest, and the highest."""


class Line(msgspec.Struct):
    """What a task says about one queue."""

    queue: str
    rows: str
    dead: str | None
    counts: Counts
    first: int
    """The lowest queue offset."""
    last: int
    """The highest queue offset."""
    first_stored: int
    """When the message with the lowest offset was stored, in milliseconds."""
    stored: int
    """The highest store time."""
    skipped: list[str] = []
    """Fields of its last row that the table does not have."""
    fields: Fields = {}
    """Where the table evolves: all such fields, with their kinds."""
    conflicts: list[str] = []
    """Columns that the table got, and that values of the task did not fit."""


def fold_task(plan: Plan, folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`. A task that is tried again writes files of other names; only lines that arrive count."""
    reader = Reader(plan)
    parts: dict[str, list[Folded]] = {}
    spans: dict[str, Span] = {}
    skipped: dict[str, list[str]] = {}
    fields: dict[str, Fields] = {}
    with _no_collector():
        for chunk in _chunks(batches):
            for queue, messages in by_queue(chunk):
                folded = reader.fold(messages)
                folded.counts["events"] = messages.num_rows
                parts.setdefault(queue, []).append(folded)
                spans[queue] = _span(messages, spans.get(queue))
                skipped[queue] = skipped_fields(plan, messages)
                if plan.evolves:
                    fields[queue] = together(fields.get(queue, {}), new_fields(plan, messages))
    lines = [_write(queue, reader.together(some), spans[queue], Path(folder)) for queue, some in parts.items()]
    for line in lines:
        line.skipped = skipped[line.queue]
        line.fields, line.conflicts = fields.get(line.queue, {}), sorted(reader.conflicts)
    if lines:
        yield pa.record_batch({"line": pa.array([msgspec.json.encode(line).decode() for line in lines])})


def by_queue(messages: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The messages of each queue, in the order of their offsets."""
    if not messages.num_rows:
        return
    if all(_constant(messages[name]) for name in _QUEUE):
        yield _name(messages), _in_order(messages)
        return
    for queue in messages.group_by(list(_QUEUE)).aggregate([]).to_pylist():
        mine = messages
        for name in _QUEUE:
            mine = mine.filter(pc.equal(mine[name], queue[name]))
        yield _name(mine), _in_order(mine)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Documents form no cycles, and the collector would walk through all of them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _span(messages: pa.Table, known: Span | None) -> Span:
    """`messages` are in order."""
    first, last = messages["queue_offset"][0].as_py(), messages["queue_offset"][-1].as_py()
    times = messages["store_timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    since, stored = times[0].as_py() or 0, pc.max(times).as_py() or 0
    if known is None:
        return first, last, since, stored
    return min(first, known[0]), max(last, known[1]), since if first < known[0] else known[2], max(stored, known[3])


def _write(queue: str, folded: Folded, span: Span, folder: Path) -> Line:
    name = uuid4().hex
    rows, dead = folder / f"{name}.rows", folder / f"{name}.dead"
    folder.mkdir(parents=True, exist_ok=True)
    feather.write_feather(folded.rows, str(rows), compression="lz4")
    if folded.dead.num_rows:
        feather.write_feather(folded.dead, str(dead), compression="lz4")
    return Line(queue, str(rows), str(dead) if folded.dead.num_rows else None, folded.counts, *span)


def _constant(column: pa.ChunkedArray) -> bool:
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _in_order(messages: pa.Table) -> pa.Table:
    offsets, count = messages["queue_offset"], messages.num_rows
    ascending = count < 2 or pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py()
    return messages if ascending else messages.sort_by("queue_offset")


def _name(messages: pa.Table) -> str:
    return "/".join(str(messages[name][0].as_py()) for name in _QUEUE)
