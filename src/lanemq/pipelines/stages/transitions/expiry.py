"""Keys that were silent for too long.

The rules guarded here: time is what the shard's messages say (their store times), so a repeated unit forgets the same
keys; a state goes together with the rows of its `on_expire`, or stays; its number goes later than the state or not at
all, because a key that comes back without it would wait for numbers that were applied long ago.
"""

from typing import Final

from lanemq.pipelines.stages.transitions.lane import Lane, RawLane, read_raw
from lanemq.pipelines.stages.transitions.lane_table import LaneTable
from lanemq.pipelines.stages.transitions.rules import Rules
from lanemq.pipelines.stages.transitions.shard import Shard

_LOOKS: Final = 16
"""How often all keys are looked at in the time after which one is forgotten."""

_NONE: Final = b"\xc0"
"""A state that is None, as bytes."""


class Expiry:
    """Looks through a shard at the end of a unit of work."""

    def __init__(self, shard: Shard, table: LaneTable, rules: Rules) -> None:
        self._shard, self._table, self._rules = shard, table, rules
        self._span, self._numbers = rules.limits.expire_after_ms, rules.limits.forget_numbers_after_ms

    def sweep(self) -> list[str]:
        """The keys that were changed. Those that stand still are left alone: what waits in them is to be applied."""
        meta = self._shard.meta
        spans = [span for span in (self._span, self._numbers) if span is not None]
        if not spans or meta.newest - meta.swept < max(min(spans) // _LOOKS, 1):
            return []
        meta.swept = meta.newest
        return [
            name
            for name, packed in list(self._shard.lanes.items())
            if name not in meta.waiting and self._look(name, packed)
        ]

    def _look(self, name: str, packed: bytes) -> bool:
        """Whether the key was changed."""
        lane = read_raw(packed)
        silent = self._shard.meta.newest - lane.seen
        if bytes(lane.state) == _NONE:
            return self._forget(name, lane, silent)
        if self._span is None or silent < self._span:
            return False
        if self._table.say_last(name, self._rules.codec.decode(packed).state) is not None:
            return False
        self._table.counts["expired"] += 1
        if not self._forget(name, lane, silent):
            self._table.save(name, Lane(None, lane.number, lane.seen, None, lane.missed, lane.home, lane.doubtful))
        return True

    def _forget(self, name: str, lane: RawLane, silent: int) -> bool:
        """A key without a state, if its number is not needed any more."""
        kept = self._rules.number is not None and lane.number is not None
        if kept and (self._numbers is None or silent < self._numbers):
            return False
        self._table.counts["forgotten_numbers"] += kept
        self._table.save(name, Lane())
        return True
