"""What a task does with one file of a history: reads it with the checker's own reader and passes it on in pieces.

The first pass finds the queue of each message, the second passes the events on. A piece holds events of one block, one
process and one destination, with the line number of each, so that a shard can be ordered in whatever order pieces
arrive. Pieces are used because single events would be expensive to pass between Python and Spark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.checker.checking import UNJUDGED, kind_name
from lanemq.checker.events import UNKNOWN_PROCESS, AnyEvent, HistoryEvent, Process, Send, TopicDeleted
from lanemq.checker.reading import HistoryFile, claim_names, sizes_at_once
from lanemq.checker.verdict import queue_text

MESSAGES = pa.schema(
    {
        "topic": pa.string(),
        "id": pa.string(),
        "key": pa.string(),
        "queue": pa.string(),
        "t": pa.int64(),
        "file": pa.int32(),
        "pos": pa.int64(),
        "whole": pa.bool_(),
    }
)
"""The key that a message was sent with, and the queue it was seen in, as `queue_text` names it.

A row without an id is the first send to a topic in this file, or says (`whole`) that the topic must be one shard.
"""

PIECES = pa.schema(
    {
        "topic": pa.string(),
        "queue": pa.string(),
        "name": pa.string(),
        "t": pa.int64(),
        "file": pa.int32(),
        "pos": pa.int64(),
        "process": pa.string(),
        "role": pa.string(),
        "payload": pa.binary(),
    }
)
"""`queue` or, for sends, `name` says where a piece belongs. A row without a topic concerns the whole file."""

ROWS_PER_BATCH = 1000
"""A piece has at most a few kilobytes, so a batch has a few megabytes."""

Rows = list[tuple[Any, ...]]

ENCODE = msgspec.msgpack.Encoder().encode

_Destination = tuple[str, str | None, str | None, Process]
"""Topic, queue or name, and the process that recorded it."""

_KINDS: tuple[type[HistoryEvent], ...] = AnyEvent.__args__
_WITH_QUEUE_AND_ID = frozenset(kind for kind in _KINDS if {"queue", "id"} <= set(kind.__struct_fields__))
_SENT = frozenset(
    kind
    for kind in _KINDS
    if "id" in kind.__struct_fields__ and kind not in _WITH_QUEUE_AND_ID and kind not in UNJUDGED
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
    size: int | None = None
    """How many bytes of it are read; its process may still be writing."""

    def open(self) -> HistoryFile:
        """The checker's reader for it."""
        return HistoryFile(Path(self.path), self.number, self.claims, self.size)

    def label(self, topic: str) -> str:
        """The name of a topic of this run; topics of other runs have other labels."""
        return f"{self.run} {topic}"


Files = tuple[RunFile, ...]


def files_of(runs: Sequence[Sequence[Path]]) -> Files:
    """What tasks need to know of the files; reads the beginning of each."""
    return tuple(
        RunFile(run, number, str(path), claims, size)
        for run, paths in enumerate(runs)
        for sizes, claims in [(sizes_at_once(paths), claim_names(paths))]
        for number, (path, size) in enumerate(zip(paths, sizes, strict=True))
    )


def assigned(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[RunFile]:
    """The files that this task reads."""
    for batch in batches:
        yield from (files[number] for number in batch.column(0).to_pylist())


@dataclass(slots=True)
class FileFacts:
    """What is known of a file after reading it. `seen` counts only events that no rule checks."""

    run: int
    file: int
    name: str = ""
    machines: list[str] = field(default_factory=list)
    events: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    last_t: int = -1
    last_process: str = ""


def name_of(key: str, id: str) -> str:
    """The name that sends are routed by: the key, or the id of a message without one."""
    return f"k{key}" if key else f"i{id}"


def scan_messages(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First pass: rows of `MESSAGES`."""
    return _gathered(MESSAGES, (rows for file in assigned(files, batches) for rows in _file_messages(file)))


def _file_messages(file: RunFile) -> Iterator[Rows]:
    first_sends: dict[str, tuple[int, int]] = {}
    pos = 0
    for block in file.open().blocks():
        yield _messages(file, block, pos, first_sends)
        pos += len(block)
    yield [(file.label(topic), None, None, None, t, file.number, at, False) for topic, (t, at) in first_sends.items()]


def _messages(file: RunFile, block: list[HistoryEvent], pos: int, first_sends: dict[str, tuple[int, int]]) -> Rows:
    """One row for each message of the block, and one more for each second key or queue of a message."""
    keys: dict[tuple[str, str], str] = {}
    queues: dict[tuple[str, str], tuple[str, int]] = {}
    rows: Rows = []
    event: Any
    for at, event in enumerate(block, pos):
        kind = event.__class__
        if kind in _SENT:
            if keys.setdefault((event.topic, event.id), event.key) != event.key:
                rows.append((file.label(event.topic), event.id, event.key, *_NO_QUEUE))
            if kind is Send and event.topic not in first_sends:
                first_sends[event.topic] = (event.t, at)
        elif (
            kind in _WITH_QUEUE_AND_ID
            and event.id
            and queues.setdefault((event.topic, event.id), (event.broker, event.queue)) != (event.broker, event.queue)
        ):
            rows.append((file.label(event.topic), event.id, None, queue_text(event.broker, event.queue), *_NO_SEND))
        elif kind is TopicDeleted:
            rows.append((file.label(event.topic), *_WHOLE))
    for name in keys.keys() | queues.keys():
        queue = queue_text(*queues[name]) if name in queues else None
        rows.append((file.label(name[0]), name[1], keys.get(name), queue, *_NO_SEND))
    return rows


def scan_pieces(files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Second pass: rows of `PIECES`."""
    return _gathered(PIECES, (rows for file in assigned(files, batches) for rows in _file_pieces(file)))


def _file_pieces(file: RunFile) -> Iterator[Rows]:
    history = file.open()
    facts = FileFacts(file.run, file.number, history.path.name)
    for block in history.blocks():
        yield _pieces(file, block, facts)
    facts.problems, facts.machines = history.problems, history.machines
    facts.processes = [process.name for process in history.processes]
    yield [(None, None, None, 0, file.number, 0, None, None, ENCODE(facts))]


def _pieces(file: RunFile, block: list[HistoryEvent], facts: FileFacts) -> Rows:
    pieces: dict[_Destination, tuple[list[int], list[HistoryEvent]]] = {}
    event: Any
    for at, event in enumerate(block, facts.events):
        kind = event.__class__
        if kind in UNJUDGED:
            tag = kind_name(kind)
            facts.seen[tag] = facts.seen.get(tag, 0) + 1
            continue
        destination: _Destination
        if kind in _IN_QUEUE:
            destination = (event.topic, queue_text(event.broker, event.queue), None, event.process)
        else:
            name = "" if kind is TopicDeleted else name_of(event.key, event.id)
            destination = (event.topic, None, name, event.process)
        piece = pieces.get(destination)
        if piece is None:
            piece = pieces[destination] = ([], [])
        piece[0].append(at)
        piece[1].append(event)
    if block:
        facts.events += len(block)
        facts.last_t, facts.last_process = block[-1].t, block[-1].process.name
    return [_piece(file, destination, *piece) for destination, piece in pieces.items()]


def _piece(file: RunFile, destination: _Destination, at: list[int], events: list[HistoryEvent]) -> tuple[Any, ...]:
    topic, queue, name, process = destination
    for event in events:
        event.process = UNKNOWN_PROCESS  # given once for the whole piece
    first = (events[0].t, file.number, at[0])
    return file.label(topic), queue, name, *first, process.name, process.role.value, ENCODE((at, events))


def _gathered(schema: pa.Schema, parts: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
    """Gathers rows of small files and blocks into one batch, because each batch has a fixed cost."""
    rows: Rows = []
    for part in parts:
        rows += part
        if len(rows) >= ROWS_PER_BATCH:
            yield _batch(schema, rows)
            rows = []
    if rows:
        yield _batch(schema, rows)


def _batch(schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(column, type) for column, type in zip(columns, schema.types, strict=True)], schema)
