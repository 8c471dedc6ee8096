"""Lanes that stand still, seen and decided about by a person, whether or not the pipeline runs.

Reads the stage's files only: no Spark, no broker. A decision is a file that the next pass takes; a pipeline that is
down takes it when it starts. `place` is the stage's folder inside the checkpoint.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lanemq.clock import SystemClock
from lanemq.model.errors import InvalidOption, StateLost
from lanemq.model.units import Millis
from lanemq.pipelines.stages.transitions.event import Message
from lanemq.pipelines.stages.transitions.lane import Lane, Why, read_plain
from lanemq.pipelines.stages.transitions.operator_requests import Verb
from lanemq.pipelines.stages.transitions.shard import START, key_of, keyless
from lanemq.pipelines.stages.transitions.state_files import ShardFiles
from lanemq.pipelines.stages.transitions.unit_log import Books, Ledger, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoppedLane:
    """A lane that stands still."""

    lane: str
    """What the requests take; the key itself, or a name for a queue's messages without a key."""
    key: str | None
    shard: str
    why: Why
    reason: str
    since: Millis
    failures: int
    retry_at: Millis | None
    """Wall time of the next attempt; None: a person, or a missing message, must come first."""
    messages: tuple[Message, ...]
    """The first one is what stopped it. Bodies as they were sent."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """A key as the last finished unit of work left it."""

    lane: str
    shard: str
    state: object
    number: int | None
    seen: Millis
    stopped: StoppedLane | None


def list_parked(place: Path, *, held: bool = True) -> list[StoppedLane]:
    """Every lane that stands still, by shard; `held=False` leaves out those that are tried again by themselves."""
    found = _read_newest(place, _waiting)
    return [each for each in found if held or each.why is not Why.HELD]


def show(place: Path, key: str) -> list[LaneState]:
    """The key's state and what waits in it; one per shard that knows it, so usually one or none."""

    def states(ledger: Ledger) -> Iterator[LaneState]:
        for shard, entry in ledger.shards.items():
            packed = ShardFiles(place, ledger.query, shard).load(entry.version).lanes.get(key)
            if packed is not None:
                lane = read_plain(packed)
                stopped = _stopped(shard, key, lane)
                yield LaneState(key, shard, lane.state, lane.number, Millis(lane.seen), stopped)

    return _read_newest(place, lambda _, ledger: states(ledger))


def request_redrive(place: Path, key: str | None = None, *, everything: bool = False) -> str:
    """The key's messages are tried again in order, before newer ones. Gives the request's id."""
    return _ask(place, "redrive", key, everything=everything)


def request_discard(place: Path, key: str | None = None, *, everything: bool = False, first_only: bool = False) -> str:
    """The key's waiting messages become dead letters, and the key goes on; `first_only`: just the one that failed."""
    return _ask(place, "discard_first" if first_only else "discard", key, everything=everything)


def pending_requests(place: Path) -> list[Request]:
    """Decisions that no pass has taken yet."""
    return Books(place).requests()


def keyless_lane(topic: str, broker: str, queue_id: int) -> str:
    """What to call the messages without a key of one queue."""
    return keyless(f"{topic}/{broker}/{queue_id}")


def _ask(place: Path, verb: Verb, key: str | None, *, everything: bool) -> str:
    if (key is None) != everything:
        raise InvalidOption(f"{verb}: name one key, or say everything=True, and not both")
    if not place.is_dir():
        raise InvalidOption(f"{place} is not a stage's folder: is the checkpoint right?")
    asked = SystemClock().wall()
    request = Request(f"{asked}-{os.urandom(4).hex()}", verb, key, asked)
    Books(place).ask(request)
    return request.id


def _read_newest(place: Path, read: Callable[[Path, Ledger], Iterable[T]]) -> list[T]:
    """What the newest ledger says. A running pipeline removes files of older ones; then there is a newer to ask."""
    books, failed = Books(place), None
    while True:
        number = max(books.ledgers(), default=START)
        try:
            return list(read(place, books.ledger(number)))
        except StateLost:
            if number == failed:
                raise
            failed = number


def _waiting(place: Path, ledger: Ledger) -> Iterator[StoppedLane]:
    for name, entry in ledger.shards.items():
        if entry.waiting:
            shard = ShardFiles(place, ledger.query, name).load(entry.version)
            for lane in shard.meta.waiting:
                stopped = _stopped(name, lane, read_plain(shard.lanes[lane]))
                if stopped is not None:
                    yield stopped


def _stopped(shard: str, name: str, lane: Lane) -> StoppedLane | None:
    waiting = lane.waiting
    if waiting is None:
        return None
    return StoppedLane(
        lane=name,
        key=key_of(name),
        shard=shard,
        why=waiting.why,
        reason=waiting.reason,
        since=Millis(waiting.since),
        failures=waiting.failures,
        retry_at=Millis(waiting.retry_at) if waiting.why is Why.HELD else None,
        messages=tuple(waiting.messages),
    )
