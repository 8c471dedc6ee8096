"""The turns of one key in recorded histories.

A history is large and a key's share of it small, so lines are searched for the key's bytes before they are decoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

MAX_BYTES = 1 << 30
"""Bytes of history that one page reads; newer files first. A page of a larger history says that it is not complete."""


class HistoryLine(msgspec.Struct):
    """The fields that a journey needs; a line has some of them."""

    e: str
    t: int = 0
    name: str = ""
    group: str = ""
    topic: str = ""
    queue: int = -1
    offset: int = -1
    key: str = ""
    id: str = ""
    outcome: str = ""
    attempt: int = 0
    epoch: int = 0
    ended: int = 0
    reason: str = ""
    why: str = ""
    last: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One call of a handler, or another recorded event of a message."""

    process: str
    group: str
    queue: int
    offset: int
    what: str
    """`ok`, `retry`, `abandoned`, `late`, `running`, `interrupted`, or the name of another event."""
    began: int
    """Nanoseconds on the machine's clock."""
    ended: int | None
    attempt: int = 0
    id: str = ""
    """Of the message; empty for events that do not have it."""
    why: str = ""
    """The error of a turn that failed, or the reason of another event; empty if none was recorded."""
    epoch: int = 0
    """Of the lease under which the turn began; 0 without leases."""

    def interrupted(self, why: str) -> "RecordedTurn":
        """The same turn, if its worker has ended or lost the queue: whatever it still does has no effect."""
        return replace(self, what=INTERRUPTED, why=f"its end is not recorded, and {why}")


@dataclass(slots=True)
class KeyHistory:
    """What histories say about a key."""

    turns: list[RecordedTurn] = field(default_factory=list)
    """By the time when they began."""
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    """Queue and offset of every message that a producer knows to be stored, and when it knew, in ns."""
    deleted: int = -1
    """When a topic of this name was deleted last. What was recorded before concerns another topic."""
    complete: bool = True
    """Whether all files were read."""


INTERRUPTED = "interrupted"
_OTHERS = frozenset({"dead_lettered", "skipped", "parked", "redriven", "discarded", "effect"})


def read_key_history(folder: Path, topic: str, key: str) -> KeyHistory:
    """Reads every line about the key."""
    found = KeyHistory()
    files = sorted(folder.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    left = MAX_BYTES
    for path in files:
        length = path.stat().st_size
        if length > left:
            found.complete = False
            continue
        left -= length
        _read_file(path, topic, key, found)
    turns = (turn for turn in found.turns if turn.began > found.deleted)
    found.turns = _with_interrupted(_once(sorted(turns, key=lambda turn: turn.began)))
    found.acknowledged = {place: at for place, at in found.acknowledged.items() if at > found.deleted}
    return found


def _once(turns: list[RecordedTurn]) -> list[RecordedTurn]:
    """Without events that broker and member have both recorded."""
    kept: list[RecordedTurn] = []
    last: dict[tuple[str, int, int], str] = {}
    for turn in turns:
        place = (turn.group, turn.queue, turn.offset)
        if turn.what not in _OTHERS or last.get(place) != turn.what:
            kept.append(turn)
        last[place] = turn.what
    return kept


def _with_interrupted(turns: list[RecordedTurn]) -> list[RecordedTurn]:
    """A turn without an end is not running any more if a later one of the same message has begun."""
    begun_later = set[tuple[str, int, int]]()
    for at in range(len(turns) - 1, -1, -1):
        turn = turns[at]
        place = (turn.group, turn.queue, turn.offset)
        if turn.what == "running" and place in begun_later:
            turns[at] = turn.interrupted("the message was begun again")
        if turn.what not in _OTHERS:
            begun_later.add(place)
    return turns


def _lines(path: Path, key: str) -> Iterator[HistoryLine]:
    wanted = msgspec.json.encode(key)
    with path.open("rb") as file:
        for line in file:
            if wanted in line or b'"begin"' in line or b'"topic_deleted"' in line:
                try:
                    yield msgspec.json.decode(line, type=HistoryLine)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue  # the last line of a process that was killed, or that is being written


def _read_file(path: Path, topic: str, key: str, found: KeyHistory) -> None:
    process = path.stem
    running: dict[tuple[str, int, int], HistoryLine] = {}
    for line in _lines(path, key):
        place = (line.group, line.queue, line.offset)
        if line.e == "begin":
            found.turns += (
                _turn(process, each, "running", None).interrupted("its process was started again")
                for each in running.values()
            )
            running.clear()
            process = line.name
        elif line.e == "topic_deleted" and line.topic == topic:
            found.deleted = max(found.deleted, line.t)
        elif line.key != key or line.topic != topic:
            continue
        elif line.e == "acked":
            known = found.acknowledged.get((line.queue, line.offset), line.t)
            found.acknowledged[line.queue, line.offset] = max(known, line.t)
        elif line.e == "turn":
            if place in running:  # the message was given back without an end
                found.turns.append(_turn(process, running[place], "running", None))
            running[place] = line
        elif line.e == "turn_end":
            began = running.pop(place, line)
            found.turns.append(_turn(process, began, line.outcome, line.ended or line.t, line.why))
        elif line.e in _OTHERS:
            found.turns.append(_turn(process, line, line.e, line.t, line.reason))
    found.turns += [_turn(process, line, "running", None) for line in running.values()]


def _turn(process: str, line: HistoryLine, what: str, ended: int | None, why: str = "") -> RecordedTurn:
    return RecordedTurn(
        process=process,
        group=line.group,
        queue=line.queue,
        offset=line.offset,
        what=what,
        began=line.t,
        ended=ended,
        attempt=line.attempt,
        id=line.id,
        why=why,
        epoch=line.epoch,
    )
