"""What a task does with a shard: orders its pieces and gives them to the checker.

Pieces arrive sorted by their first event, so events before the first event of the newest piece can be checked: nothing
earlier is still to come. Besides what the checker remembers, only overlapping pieces are in memory.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.checker.checking import Checker, CheckOptions
from lanemq.checker.events import AnyEvent, HistoryEvent, Process, Role
from lanemq.pipelines.audit.routing import Order, Topics
from lanemq.pipelines.audit.scanning import ENCODE

RESULTS = pa.schema({"run": pa.int32(), "payload": pa.binary()})
"""The findings of a shard of a run; without a run, the facts of a file."""

EVENTS_PER_SORT = 4096
"""Events that are sorted at once. Fewer is slower, more takes memory."""

_COLUMNS = ("topic", "shard", "t", "file", "pos", "process", "role", "payload")
_DECODE = msgspec.msgpack.Decoder(tuple[list[int], list[AnyEvent]]).decode


class AuditShard:
    """Gives one shard to the checker. Pieces must be added in the order of their first events."""

    def __init__(self, label: str, options: CheckOptions, first_send: Order | None) -> None:
        run, _, self._topic = label.partition(" ")
        self.run = int(run)
        self._checker = Checker(options)
        self._first_send = first_send
        self._processes: dict[str, Process] = {}
        self._waiting: list[tuple[int, int, int, HistoryEvent]] = []
        self._fresh = 0

    def add(self, first: Order, process: str, role: str, payload: bytes) -> None:
        """Adds a piece."""
        if self._fresh >= EVENTS_PER_SORT:
            self._judge(first)
        lines, events = _DECODE(payload)
        known = self._processes.get(process)
        if known is None:
            known = self._processes[process] = Process(process, Role(role))
        for event in events:
            event.process = known
        self._waiting += zip([event.t for event in events], repeat(first[1]), lines, events)
        self._fresh += len(events)

    def finish(self) -> bytes:
        """Checks the rest and returns the findings."""
        self._waiting.sort()
        self._feed(self._waiting)
        return ENCODE(self._checker.close())

    def _judge(self, until: Order) -> None:
        self._waiting.sort()
        end = bisect_left(self._waiting, until)
        self._feed(self._waiting[:end])
        del self._waiting[:end]
        self._fresh = 0

    def _feed(self, ready: list[tuple[int, int, int, HistoryEvent]]) -> None:
        """Gives events to the checker, and at its time the topic's first send, which may be in another shard."""
        if self._first_send is not None and ready and ready[-1][:3] >= self._first_send:
            at = bisect_left(ready, self._first_send)
            self._checker.feed([item[3] for item in ready[:at]])
            self._checker.topic_is_sent_to(self._topic)
            self._first_send = None
            ready = ready[at:]
        self._checker.feed([item[3] for item in ready])


def judge(options: CheckOptions, topics: Topics, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Checks pieces in the order of `routing.into_shards`. Returns rows of `RESULTS`."""
    was_enabled = gc.isenabled()
    gc.disable()  # as in the plain checker: what it remembers has no cycles
    try:
        for run, payload in _results(options, topics, batches):
            yield pa.record_batch([pa.array([run], pa.int32()), [payload]], schema=RESULTS)
    finally:
        if was_enabled:
            gc.enable()


def _results(
    options: CheckOptions, topics: Topics, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int | None, bytes]]:
    shard: AuditShard | None = None
    here: tuple[str, int] | None = None
    for label, number, t, file, pos, process, role, payload in _pieces(batches):
        if label is None:
            yield None, payload
            continue
        if shard is None or (label, number) != here:
            if shard is not None:
                yield shard.run, shard.finish()
            here = (label, number)
            shard = AuditShard(label, options, topics.first_sends.get(label))
        shard.add((t, file, pos), process, role, payload)
    if shard is not None:
        yield shard.run, shard.finish()


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
