"""What a task does with one file of a history: read it with the checker's own reader and hand it on in pieces.

Two passes. The first finds out where messages are, the second carries the events. A piece holds events of one block,
one process and one destination, with the line number of each, so that a shard can be put in order again whatever way
the pieces come; pieces instead of single events make everything between the two Pythons cheap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.checker.checking import UNJUDGED, kind_name
from lanemq.checker.events import NOBODY, AnyEvent, Event, Process, Send, TopicDeleted
from lanemq.checker.history_file import HistoryFile, claim_names

PLACES = pa.schema(
    {
        "topic": pa.string(),
        "id": pa.string(),
        "key": pa.string(),
        "queue": pa.int32(),
        "t": pa.int64(),
        "file": pa.int32(),
        "pos": pa.int64(),
        "whole": pa.bool_(),
    }
)
"""A message's key, as sent, and its queue, as seen.

Without an id: the first send to a topic in this file, or `whole`, that the topic cannot be cut.
"""

PIECES = pa.schema(
    {
        "topic": pa.string(),
        "queue": pa.int32(),
        "name": pa.string(),
        "t": pa.int64(),
        "file": pa.int32(),
        "pos": pa.int64(),
        "process": pa.string(),
        "role": pa.string(),
        "payload": pa.binary(),
    }
)
"""`queue` or, for sends, `name` says where a piece belongs; without a topic it is about the file as a whole."""

ROWS_TOGETHER = 1000
"""A piece has a few kilobytes at most, so this is megabytes, not gigabytes."""

Rows = list[tuple[Any, ...]]

ENCODE = msgspec.msgpack.Encoder().encode

_Place = tuple[str, int | None, str | None, Process]
"""Topic, queue or name, and who wrote it."""

_KINDS: tuple[type[Event], ...] = AnyEvent.__args__
_PLACED = frozenset(kind for kind in _KINDS if {"queue", "id"} <= set(kind.__struct_fields__))
_SENT = frozenset(
    kind for kind in _KINDS if "id" in kind.__struct_fields__ and kind not in _PLACED and kind not in UNJUDGED
)
_IN_QUEUE = frozenset(kind for kind in _KINDS if "queue" in kind.__struct_fields__)
_NO_SEND = (None, None, None, False)
_NO_QUEUE = (None, *_NO_SEND)
_WHOLE = (None, None, None, None, None, None, True)


@dataclass(frozen=True, slots=True)
class RunFile:
    """File `number` of run `run`; must be readable under this path on every machine."""

    run: int
    number: int
    path: str
    claims: dict[str, int] = field(compare=False)

    def open(self) -> HistoryFile:
        return HistoryFile(Path(self.path), self.number, self.claims)

    def label(self, topic: str) -> str:
        """A topic of this run, not to be mixed up with its namesake in another."""
        return f"{self.run} {topic}"


Files = tuple[RunFile, ...]


def files_of(runs: Sequence[Sequence[Path]]) -> Files:
    """Everything the tasks need to know of the files; reads the beginning of each."""
    return tuple(
        RunFile(run, number, str(path), claims)
        for run, paths in enumerate(runs)
        for claims in [claim_names(paths)]
        for number, path in enumerate(paths)
    )


def assigned(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[RunFile]:
    """Which files this task is to read."""
    for batch in batches:
        yield from (files[number] for number in batch.column(0).to_pylist())


@dataclass(slots=True)
class FileFacts:
    """What is known of a file when all of it was read. `seen` counts only what no rule looks at."""

    run: int
    file: int
    events: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    last_t: int = -1
    last_process: str = ""


def name_of(key: str, id: str) -> str:
    """What sends are routed by: messages of a key stay together, a message without one goes alone."""
    return f"k{key}" if key else f"i{id}"


def scan_places(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First pass: rows of `PLACES`."""
    return _gathered(PLACES, (rows for file in assigned(files, batches) for rows in _file_places(file)))


def _file_places(file: RunFile) -> Iterator[Rows]:
    first_sends: dict[str, tuple[int, int]] = {}
    pos = 0
    for block in file.open().blocks():
        yield _places(file, block, pos, first_sends)
        pos += len(block)
    yield [(file.label(topic), None, None, None, t, file.number, at, False) for topic, (t, at) in first_sends.items()]


def _places(file: RunFile, block: list[Event], pos: int, first_sends: dict[str, tuple[int, int]]) -> Rows:
    """One row for each message of the block, and another one wherever the block contradicts itself."""
    keys: dict[tuple[str, str], str] = {}
    queues: dict[tuple[str, str], int] = {}
    rows: Rows = []
    event: Any
    for at, event in enumerate(block, pos):
        kind = event.__class__
        if kind in _SENT:
            if keys.setdefault((event.topic, event.id), event.key) != event.key:
                rows.append((file.label(event.topic), event.id, event.key, *_NO_QUEUE))
            if kind is Send and event.topic not in first_sends:
                first_sends[event.topic] = (event.t, at)
        elif kind in _PLACED and event.id and queues.setdefault((event.topic, event.id), event.queue) != event.queue:
            rows.append((file.label(event.topic), event.id, None, event.queue, *_NO_SEND))
        elif kind is TopicDeleted:
            rows.append((file.label(event.topic), *_WHOLE))
    for name in keys.keys() | queues.keys():
        rows.append((file.label(name[0]), name[1], keys.get(name), queues.get(name), *_NO_SEND))
    return rows


def scan_pieces(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Second pass: rows of `PIECES`."""
    return _gathered(PIECES, (rows for file in assigned(files, batches) for rows in _file_pieces(file)))


def _file_pieces(file: RunFile) -> Iterator[Rows]:
    history = file.open()
    facts = FileFacts(file.run, file.number)
    for block in history.blocks():
        yield _pieces(file, block, facts)
    facts.problems = history.problems
    facts.processes = [process.name for process in history.processes]
    yield [(None, None, None, 0, file.number, 0, None, None, ENCODE(facts))]


def _pieces(file: RunFile, block: list[Event], facts: FileFacts) -> Rows:
    pieces: dict[_Place, tuple[list[int], list[Event]]] = {}
    event: Any
    for at, event in enumerate(block, facts.events):
        kind = event.__class__
        if kind in UNJUDGED:
            tag = kind_name(kind)
            facts.seen[tag] = facts.seen.get(tag, 0) + 1
            continue
        place: _Place
        if kind in _IN_QUEUE:
            place = (event.topic, event.queue, None, event.process)
        else:
            name = "" if kind is TopicDeleted else name_of(event.key, event.id)
            place = (event.topic, None, name, event.process)
        piece = pieces.get(place)
        if piece is None:
            piece = pieces[place] = ([], [])
        piece[0].append(at)
        piece[1].append(event)
    if block:
        facts.events += len(block)
        facts.last_t, facts.last_process = block[-1].t, block[-1].process.name
    return [_piece(file, place, *piece) for place, piece in pieces.items()]


def _piece(file: RunFile, place: _Place, at: list[int], events: list[Event]) -> tuple[Any, ...]:
    topic, queue, name, process = place
    for event in events:
        event.process = NOBODY  # told once for the whole piece
    first = (events[0].t, file.number, at[0])
    return file.label(topic), queue, name, *first, process.name, process.role.value, ENCODE((at, events))


def _gathered(schema: pa.Schema, parts: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
    """Small files and small blocks share a batch: each batch is a trip to the other side."""
    rows: Rows = []
    for part in parts:
        rows += part
        if len(rows) >= ROWS_TOGETHER:
            yield _batch(schema, rows)
            rows = []
    if rows:
        yield _batch(schema, rows)


def _batch(schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(column, type) for column, type in zip(columns, schema.types, strict=True)], schema)
