"""The state of a stage after a unit of work: where to find every shard, and what waits in it.

A checkpoint keeps it as a text, in the record of the unit (`checkpoint/units.py`).
"""

from typing import Final

import msgspec

from lanemq.pipelines.stages.transitions.event_time import QueueTime
from lanemq.pipelines.stages.transitions.operator_requests import OperatorRequest
from lanemq.pipelines.stages.transitions.shard import START, Version


class ShardEntry(msgspec.Struct, frozen=True):
    """One shard in a manifest."""

    version: Version
    snapshot: int = START
    """The unit of the newest snapshot; only older versions need older files."""
    keys: int = 0
    waiting: int = 0
    """Lanes that are held or parked."""
    parked: int = 0
    retry_at: int | None = None
    """Wall time of the next retry, milliseconds."""
    timers: int = 0
    """Keys with timers that do not wait."""
    timer_at: int | None = None
    """Wall time at which the first timer in processing time is due, milliseconds."""
    event_timer_at: int | None = None
    """Event time at which the first timer in event time is due, milliseconds."""


class Manifest(msgspec.Struct, frozen=True, tag_field="stage", tag="transitions"):
    """The stage's state after a unit."""

    number: int
    query: str
    shards: dict[str, ShardEntry]
    wall: int = 0
    """Wall time of the unit, milliseconds."""
    times: dict[str, QueueTime] = {}
    """How far event time has come in each queue; empty if the step takes no context."""
    watermark: int = 0
    """How far event time had come by what all queues had read when the unit began, milliseconds; 0: unknown."""
    requests: tuple[OperatorRequest, ...] = ()
    """What the unit has carried out for operators."""
    redrives: tuple[str, ...] = ()
    """Files of dead letters that the unit gave to the step again."""


EMPTY: Final = Manifest(START, "", {})

_decode: Final = msgspec.json.Decoder(Manifest).decode
_encode: Final = msgspec.json.Encoder().encode
_BEGINS: Final = '{"stage":"transitions"'


def pack_manifest(manifest: Manifest) -> str:
    return _encode(manifest).decode()


def read_manifest(state: str) -> Manifest:
    """The manifest in a stage's state; an empty one if there is none, or if the state is another stage's."""
    return _decode(state) if state.startswith(_BEGINS) else EMPTY
