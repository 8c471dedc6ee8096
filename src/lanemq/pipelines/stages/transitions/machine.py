"""Runs the events of one shard through the user's step: every key in order, each event once.

The rules guarded here, for whatever is repeated, replayed or failing:
- an event of a lane is tried only when all before it in the lane are settled;
- an event that failed leaves its key's state as it was, and none of its rows;
- an event whose offset, stamp or number was seen is dropped; rows that come out of order are an error, not repeats.

Pure: events and wall time come in, rows, dead letters and a `Change` come out. A lane that cannot go on carries its
messages in its own state (`stopped.py`), so a stopped lane costs no other lane anything.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from operator import ge
from typing import NamedTuple, TypeAlias

import msgspec

from lanemq.model.errors import InvalidOption, OrderError
from lanemq.pipelines.stages.transitions.event import Event, Message
from lanemq.pipelines.stages.transitions.expiry import Expiry
from lanemq.pipelines.stages.transitions.lane_table import LaneTable
from lanemq.pipelines.stages.transitions.operator_requests import Orders
from lanemq.pipelines.stages.transitions.redrives import Letter
from lanemq.pipelines.stages.transitions.rules import Rules, UnfitState
from lanemq.pipelines.stages.transitions.shard import Change, Shard, keyless
from lanemq.pipelines.stages.transitions.stamps import StampTable
from lanemq.pipelines.stages.transitions.stopped import StoppedLanes

Stamps: TypeAlias = list[tuple[str, int, int] | None]


class Run(NamedTuple):
    """Messages of one queue, in the order of their offsets; one list per column."""

    topic: str
    broker: str
    queue_id: int
    offsets: list[int]
    keys: list[str | None]
    values: list[bytes | None]
    tags: list[str | None]
    stored: list[int]
    ids: list[str | None]
    stamps: Stamps | None = None
    """None: none of them has a stamp."""

    @property
    def queue(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    def without(self, dropped: set[int]) -> "Run":
        """The same without the messages at these places."""
        kept = [index for index in range(len(self.offsets)) if index not in dropped]
        columns = ([column[index] for index in kept] for column in self[3:9])
        return Run(self.topic, self.broker, self.queue_id, *columns)  # type: ignore[arg-type]


class ShardMachine:
    """One unit of work on one shard. The shard is changed in place: after an error it must not be used again."""

    def __init__(self, shard: Shard, rules: Rules, wall: int) -> None:
        self._shard = shard
        self._rules = rules
        self.table = LaneTable(shard.lanes, rules)
        self._stamps = StampTable(rules.limits.producers_per_shard, shard.meta.stamps)
        self._reached: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self.stopped = StoppedLanes(self.table, shard.meta.waiting, rules, wall)
        self.counts = self.table.counts

    def take(self, run: Run) -> None:
        """New messages of one queue."""
        fresh = self._fresh(run)
        if not fresh.offsets:
            return
        self._shard.meta.newest = max(self._shard.meta.newest, max(fresh.stored))
        if self._rules.one_queue_a_key:
            self._stay_home(fresh)
        topic, broker, queue_id, nameless = fresh.topic, fresh.broker, fresh.queue_id, keyless(fresh.queue)
        hot, apply, stopped = self.table.hot, self.table.apply, self.stopped
        decode, decode_empty = self._rules.decode, self._rules.decode_empty
        for offset, key, body, tags, stored, ident in zip(*fresh[3:9], strict=True):
            name = nameless if key is None else key
            lane = hot.get(name) or self.table.restore(name)
            if lane.waiting is not None:
                stopped.join(name, lane, Message(topic, broker, queue_id, offset, tags, stored, ident, body))
                continue
            poison = True
            try:
                value = decode(body) if body else decode_empty(body)
                event = Event(key, value, topic, broker, queue_id, offset, tags, stored, ident, 1)
                poison = False
                apply(name, lane, event)
            except UnfitState:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
                message = Message(topic, broker, queue_id, offset, tags, stored, ident, body)
                stopped.arrived(name, message, error, poison=poison)

    def retry(self, orders: Orders) -> None:
        """A pass: lanes whose time has come, and those that a person decided about."""
        self.stopped.run(orders)

    def redrive(self, letters: Iterable[Letter]) -> None:
        """Dead letters again; each is in one pass only (`redrives.py`), so nothing here knows what was seen."""
        for letter in letters:
            self.stopped.come_late(letter.lane, msgspec.structs.replace(letter.message, late=True))

    def finish(self) -> Change:
        """Everything this unit changed; the shard in memory has it already."""
        self.table.prove_all()
        meta, lanes = self._shard.meta, self._shard.lanes
        for name in self.stopped.standing:
            self.table.save(name, self.table.hot[name])
        touched = dict.fromkeys([*self.table.hot, *Expiry(self._shard, self.table, self._rules).sweep()])
        self._check_size()
        for queue, reached in self._reached.items():
            meta.offsets[queue] = max(reached, meta.offsets.get(queue, 0))
            meta.times[queue] = max(self._times[queue], meta.times.get(queue, 0))
        meta.stamps = self._stamps.rows()
        meta.chain += 1
        meta.chained_keys += len(touched)
        self.counts["applied"] += self.table.applied
        changed = {name: lanes[name] for name in touched if name in lanes}
        return Change(meta, changed, [name for name in touched if name not in lanes])

    def _stay_home(self, run: Run) -> None:
        """Rows are sorted by queue, so events of a key in two queues would come in an order that means nothing."""
        homes = self._shard.meta.homes
        if run.queue not in homes:
            homes.append(run.queue)
        here = homes.index(run.queue)
        for key in {key for key in run.keys if key is not None}:
            lane = self.table.hot.get(key) or self.table.restore(key)
            if lane.home is None:
                lane.home = here
            elif lane.home != here:
                raise OrderError(
                    f"key {key!r} has messages in {homes[lane.home]} and in {run.queue}, and nothing says which come "
                    f"first: number the events of a key and say sequence=, or on_queue_change='continue' if the key "
                    f"moved and its former queue was read to the end before"
                )

    def _check_size(self) -> None:
        limits, keys = self._rules.limits, len(self._shard.lanes)
        size = self._shard.count_bytes(self.table.grown)
        for found, name in ((keys, "max_keys_per_shard"), (size, "max_bytes_per_shard")):
            most = getattr(limits, name)
            if found > most:
                numbered = " and their numbers with forget_numbers_after"
                ended = ", or give back None from the step when a key has ended"
                raise InvalidOption(
                    f"a shard has {found} {name.split('_')[1]}, more than StateLimits({name}={most}): raise it, or let "
                    f"old keys go with expire_after{numbered if self._rules.number else ended}"
                )

    def _fresh(self, run: Run) -> Run:
        """The run without what was seen before; an error if it is out of order."""
        queue, offsets = run.queue, run.offsets
        reached = self._reached.get(queue)
        if (reached is not None and offsets[0] < reached) or any(map(ge, offsets, offsets[1:])):
            raise _out_of_order(queue, offsets, reached)
        self._reached[queue] = offsets[-1] + 1
        known = self._known(queue, offsets[0], run.stored[0])
        if self._rules.by_queue:
            seen = reached is not None or queue in self._shard.meta.offsets
            self.counts["missing"] += _missing(offsets, max(reached or 0, known) if seen else offsets[0])
        self._times[queue] = max(self._times.get(queue, 0), max(run.stored))
        self.counts["events"] += len(offsets)
        dropped = set() if offsets[0] >= known else {at for at, offset in enumerate(offsets) if offset < known}
        if run.stamps is not None:
            repeats, gaps = self._stamps.judge(queue, run.stamps)
            dropped.update(repeats)
            self.counts["gaps"] += gaps if self._rules.by_queue else 0
        self.counts["repeats"] += len(dropped)
        return run.without(dropped) if dropped else run

    def _known(self, queue: str, offset: int, stored: int) -> int:
        """Below this everything was seen. Old offsets with new times: the topic was deleted and created again."""
        meta = self._shard.meta
        if offset < meta.offsets.get(queue, 0) and stored > meta.times.get(queue, 0):
            self.counts["recreated_queues"] += 1
            meta.offsets[queue] = 0
        return meta.offsets.get(queue, 0)


def _missing(offsets: list[int], since: int) -> int:
    """How many offsets no message came for: deleted before they were read, or left out on the way."""
    fresh = len(offsets) - bisect_left(offsets, since)
    return max(0, offsets[-1] + 1 - since) - fresh


def _out_of_order(queue: str, offsets: list[int], reached: int | None) -> OrderError:
    before, then = next(((a, b) for a, b in pairwise(offsets) if a >= b), ((reached or 0) - 1, offsets[0]))
    return OrderError(
        f"messages of {queue} came out of order (offset {then} after {before}): the rows were shuffled or repeated "
        f"between source and transitions. Leave the source's partitions as they are, or use shards=<number>"
    )
