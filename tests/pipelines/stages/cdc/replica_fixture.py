"""A replica without Spark and without a sink: the real stage over a frame of tables, merged into a dictionary."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from lanemq.pipelines import LastState
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE, Results
from lanemq.pipelines.queue_ties import changed_in_two_queues

SCHEMA = "id bigint, name string, amount double"
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("store_timestamp", pa.timestamp("us", "UTC")),
        ("message_id", pa.string()),
    ]
)
Value = dict[str, Any] | bytes | None


_minutes = count(1)


def messages(pairs: Sequence[tuple[str | None, Value]], *, queue: int = 0, first: int = 0) -> pa.Table:
    """Messages of one queue from (key, value) pairs in offset order, stored a minute after those of the call before."""
    stored = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(_minutes))
    rows = [
        {
            "topic": "t",
            "broker": "b",
            "queue_id": queue,
            "queue_offset": first + index,
            "key": key,
            "value": json.dumps(value).encode() if isinstance(value, dict) else value,
            "store_timestamp": stored,
            "message_id": f"id-{queue}-{first + index}",
        }
        for index, (key, value) in enumerate(pairs)
    ]
    return pa.Table.from_pylist(rows, ARROW)


class Frame:
    """As much of a data frame as the stage uses. Every table is a partition."""

    def __init__(self, *partitions: pa.Table) -> None:
        self._partitions = partitions
        self.columns = partitions[0].column_names if partitions else []

    @property
    def sparkSession(self) -> Any:
        def numbers(start: int, end: int, step: int, partitions: int) -> "Frame":
            return Frame(*(pa.table({"id": [number]}) for number in range(start, end, step)))

        return SimpleNamespace(range=numbers)

    def select(self, *columns: str) -> "Frame":
        return Frame(*(partition.select(list(columns)) for partition in self._partitions))

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Any:
        assert schema == "summary string"
        found = [
            row for part in self._partitions for batch in task(iter(part.to_batches())) for row in batch.to_pylist()
        ]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in found])


class Replica:
    """A table as a sink merges it: newer rows replace older ones, deletions stay as rows."""

    def __init__(self, stage: LastState, folder: Path) -> None:
        self._stage = stage
        self._stage.open(None, folder)  # type: ignore[arg-type]
        self._kept = folder.parent / f"{folder.name}-state"
        self.state = self._before = self._kept.read_text() if self._kept.exists() else ""
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._number = 0
        self.dead: list[dict[str, Any]] = []

    def process(self, *partitions: pa.Table) -> Results:
        """Runs a batch and merges its rows."""
        self._number, self._before = self._number + 1, self.state
        return self.repeat(*partitions)

    def repeat(self, *partitions: pa.Table) -> Results:
        """Runs the last batch again, under its number."""
        frame: Any = Frame(*partitions)
        self._stage.continue_from(self._before)
        results = self._stage.process(frame, Batch("q", self._number, 1))
        self.state = results.state or self._before
        self._kept.write_text(self.state)
        self._stage.continue_from(self.state)
        self.merge(results)
        return results

    def merge(self, results: Results) -> None:
        below = results.outputs.emptied_below
        if below is not None:
            self._rows = {key: row for key, row in self._rows.items() if row[SEQUENCE] >= below}
        for row in results.outputs.table().to_pylist():
            key = tuple(row[name] for name in self._stage.how.keys)
            known = self._rows.get(key)
            if known is not None and isinstance(row[SEQUENCE], int) and known.get(QUEUE) != row.get(QUEUE):
                named = dict(zip(self._stage.how.keys, key, strict=True))
                raise changed_in_two_queues(named, known[QUEUE], row[QUEUE], row[SEQUENCE])
            if known is None or row[SEQUENCE] > known[SEQUENCE]:
                stays = json.loads(row.get(KEPT) or "[]")
                self._rows[key] = row | {name: known[name] for name in stays if known is not None}
        if results.dead_letters is not None:
            self.dead += results.dead_letters.table().to_pylist()

    @property
    def live(self) -> dict[Any, dict[str, Any]]:
        """The rows that exist, by key, without the columns for the merge."""
        hidden = (SEQUENCE, DELETED, KEPT, QUEUE)
        return {
            key if len(key) > 1 else key[0]: {name: value for name, value in row.items() if name not in hidden}
            for key, row in self._rows.items()
            if not row[DELETED]
        }

    def tombstones(self) -> set[Any]:
        return {key if len(key) > 1 else key[0] for key, row in self._rows.items() if row[DELETED]}
