"""What a task does with a shard: put its pieces in order and feed them to the checker.

Pieces come sorted by their first event, so nothing that is still to come is earlier than the piece just read: what is
earlier than that can be judged. Memory is what overlaps, beside what the checker itself remembers.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.checker.checking import Checker, Options
from lanemq.checker.events import AnyEvent, Event, Process, Role
from lanemq.pipelines.audit.routing import Order, Topics
from lanemq.pipelines.audit.scanning import ENCODE

RESULTS = pa.schema({"run": pa.int32(), "payload": pa.binary()})
"""What was found in a shard of a run; without a run, the facts of a file."""

ENOUGH = 4096
"""Events that are put in order at once: fewer is slower, more is memory."""

_COLUMNS = ("topic", "shard", "t", "file", "pos", "process", "role", "payload")
_DECODE = msgspec.msgpack.Decoder(tuple[list[int], list[AnyEvent]]).decode


class Shard:
    """One shard on its way through the checker; pieces must be added in the order of their first events."""

    def __init__(self, label: str, options: Options, first_send: Order | None) -> None:
        run, _, self._topic = label.partition(" ")
        self.run = int(run)
        self._checker = Checker(options)
        self._first_send = first_send
        self._processes: dict[str, Process] = {}
        self._waiting: list[tuple[int, int, int, Event]] = []
        self._fresh = 0

    def add(self, first: Order, process: str, role: str, payload: bytes) -> None:
        if self._fresh >= ENOUGH:
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
        self._waiting.sort()
        self._feed(self._waiting)
        return ENCODE(self._checker.close())

    def _judge(self, until: Order) -> None:
        self._waiting.sort()
        end = bisect_left(self._waiting, until)
        self._feed(self._waiting[:end])
        del self._waiting[:end]
        self._fresh = 0

    def _feed(self, ready: list[tuple[int, int, int, Event]]) -> None:
        """The topic's first send may be in another shard; from that moment on this one knows of it."""
        if self._first_send is not None and ready and ready[-1][:3] >= self._first_send:
            at = bisect_left(ready, self._first_send)
            self._checker.feed([item[3] for item in ready[:at]])
            self._checker.topic_is_sent_to(self._topic)
            self._first_send = None
            ready = ready[at:]
        self._checker.feed([item[3] for item in ready])


def judge(options: Options, topics: Topics, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of `RESULTS` from pieces in the order of `routing.into_shards`."""
    was_enabled = gc.isenabled()
    gc.disable()  # as in the plain checker: what it remembers has no cycles
    try:
        for run, payload in _results(options, topics, batches):
            yield pa.record_batch([pa.array([run], pa.int32()), [payload]], schema=RESULTS)
    finally:
        if was_enabled:
            gc.enable()


def _results(options: Options, topics: Topics, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int | None, bytes]]:
    shard: Shard | None = None
    here: tuple[str, int] | None = None
    for label, number, t, file, pos, process, role, payload in _pieces(batches):
        if label is None:
            yield None, payload
            continue
        if shard is None or (label, number) != here:
            if shard is not None:
                yield shard.run, shard.finish()
            here = (label, number)
            shard = Shard(label, options, topics.first_sends.get(label))
        shard.add((t, file, pos), process, role, payload)
    if shard is not None:
        yield shard.run, shard.finish()


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
