"""Runs the events of one shard through the user's step: every key in order, each event once.

Pure: messages and wall time go in; rows, dead letters and a `Change` come out. A lane that cannot continue keeps its
messages in its own state (`held_lanes.py`), so it does not delay any other lane.

Invariants, whatever is repeated, replayed or fails:
- An event is tried only after all events before it in its lane are settled.
- An event that failed leaves its key's state as it was, and none of its rows.
- A message without a key is a dead letter: there is no state that would be its own.
- An event whose offset, stamp or number was seen is dropped. Rows that come out of order are an error, not repeats.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from operator import ge
from typing import TypeAlias

import msgspec

from lanemq.model.errors import InvalidOption, OrderError
from lanemq.pipelines.stages.transitions.event_time import moved
from lanemq.pipelines.stages.transitions.held_lanes import HeldLanes
from lanemq.pipelines.stages.transitions.lanes import Expiry, LaneTable
from lanemq.pipelines.stages.transitions.messages import Event, QueueSlice, Stamps, WaitingMessage
from lanemq.pipelines.stages.transitions.operator_requests import RedrivenDeadLetter, RequestedActions
from lanemq.pipelines.stages.transitions.rules import PASSED_ON, Rules
from lanemq.pipelines.stages.transitions.shard import Change, Shard

StampKey: TypeAlias = tuple[str, str, int]
"""Queue, producer and epoch. With the epoch in it, a late repeat of an older epoch is still recognised."""


class ShardMachine:
    """One unit of work on one shard. Changes the shard in place: after an error it must not be used again."""

    def __init__(self, shard: Shard, rules: Rules, wall: int, watermark: int = 0) -> None:
        """`watermark`: how far event time has come by what other shards have read; 0 if it says nothing."""
        self._shard = shard
        self._rules = rules
        self._wall = wall
        self.table = LaneTable(shard.lanes, rules, shard.timers, wall, max(watermark, shard.meta.watermark))
        self.event_times: dict[str, int] = {}
        """By queue: the highest event time in this unit."""
        self._stamps = StampTable(rules.limits.max_producers_per_shard, shard.meta.stamps)
        self._reached: dict[str, int] = {}
        """By queue: the offset after the last message of this unit. Earlier units are in `shard.meta.offsets`."""
        self._times: dict[str, int] = {}
        """By queue: the highest store time in this unit."""
        self.held = HeldLanes(self.table, shard.meta.waiting, rules, wall)
        self.counts = self.table.counts

    def take(self, messages: QueueSlice) -> None:
        """Applies new messages of one queue."""
        fresh = self._fresh(messages)
        if not fresh.offsets:
            return
        self._shard.meta.newest = max(self._shard.meta.newest, max(fresh.stored))
        if None in fresh.keys:
            fresh = self._keyed(fresh)
        if self._rules.one_queue_per_key:
            self._check_one_queue(fresh)
        if self._rules.timed:
            self._take_timed(fresh)
            return
        topic, broker, queue_id = fresh.topic, fresh.broker, fresh.queue_id
        loaded, apply, held = self.table.loaded, self.table.apply, self.held
        decode, decode_empty = self._rules.decode, self._rules.decode_empty
        # Fields 3 to 8 of a slice are its columns, from `offsets` to `ids`.
        for offset, key, body, tags, stored, ident in zip(*fresh[3:9], strict=True):
            lane = loaded.get(key) or self.table.restore(key)
            if lane.waiting is not None:
                held.join(key, lane, WaitingMessage(topic, broker, queue_id, offset, tags, stored, ident, body))
                continue
            poison = True
            try:
                value = decode(body) if body else decode_empty(body)
                event = Event(key, value, topic, broker, queue_id, offset, tags, stored, ident, 1)
                poison = False
                apply(key, lane, event)
            except PASSED_ON:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
                message = WaitingMessage(topic, broker, queue_id, offset, tags, stored, ident, body)
                held.fail_new(key, message, error, poison=poison)

    def _take_timed(self, fresh: QueueSlice) -> None:
        """Applies new messages of one queue to a step that takes a context: event time moves, and timers are called."""
        topic, broker, queue_id = fresh.topic, fresh.broker, fresh.queue_id
        table, held, rules, wall = self.table, self.held, self._rules, self._wall
        loaded, time_of, lateness = table.loaded, rules.event_time.reader(), rules.event_time.lateness_ms
        newest = self.event_times.get(fresh.queue, 0)
        for offset, key, body, tags, stored, ident in zip(*fresh[3:9], strict=True):
            lane = loaded.get(key) or table.restore(key)
            poison, failed = True, None
            try:
                value = rules.decode(body) if body else rules.decode_empty(body)
                event = Event(key, value, topic, broker, queue_id, offset, tags, stored, ident, 1)
                poison = False
                event_time = time_of(event)
                newest = max(newest, min(event_time, stored))
                if rules.by_queue:
                    table.watermark = moved(table.watermark, event_time, stored, lateness)
            except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
                failed = error
            if lane.timers and lane.waiting is None:
                held.call_due_timers(key)
                lane = loaded[key]
            message = WaitingMessage(
                topic, broker, queue_id, offset, tags, stored, ident, body, watermark=table.watermark, arrived=wall
            )
            if lane.waiting is not None:
                held.join(key, lane, message)
                continue
            try:
                if failed is not None:
                    raise failed
                table.apply(key, lane, event, event_time, table.watermark)
            except PASSED_ON:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
                held.fail_new(key, message, error, poison=poison)
        self.event_times[fresh.queue] = newest

    def call_due_timers(self, max_rows: int) -> bool:
        """Calls timers that are due, also of keys without a message, until there are so many rows.

        Returns whether more are due.
        """
        table = self.table
        while (name := table.timers.due_key(table.watermark, self._wall)) is not None:
            if len(table.outputs) + len(self.held.dead) >= max_rows:
                return True
            if name not in table.loaded:
                table.restore(name)
            self.held.call_due_timers(name)
        return False

    def _fresh(self, messages: QueueSlice) -> QueueSlice:
        """The messages that were not seen before. Raises if they are out of order."""
        queue, offsets = messages.queue, messages.offsets
        reached = self._reached.get(queue)
        if (reached is not None and offsets[0] < reached) or any(map(ge, offsets, offsets[1:])):
            raise _out_of_order(queue, offsets, reached)
        self._reached[queue] = offsets[-1] + 1
        known = self._known(queue, offsets[0], messages.stored[0])
        if self._rules.by_queue:
            seen = reached is not None or queue in self._shard.meta.offsets
            self.counts["missing"] += _missing(offsets, max(reached or 0, known) if seen else offsets[0])
        self._times[queue] = max(self._times.get(queue, 0), max(messages.stored))
        self.counts["events"] += len(offsets)
        dropped = set() if offsets[0] >= known else {at for at, offset in enumerate(offsets) if offset < known}
        if messages.stamps is not None:
            repeats, gaps = self._stamps.judge(queue, messages.stamps)
            dropped.update(repeats)
            self.counts["gaps"] += gaps if self._rules.by_queue else 0
        self.counts["repeats"] += len(dropped)
        return messages.without(dropped) if dropped else messages

    def _keyed(self, messages: QueueSlice) -> QueueSlice:
        """The messages that have a key; the others become dead letters."""
        keyless = {at for at, key in enumerate(messages.keys) if key is None}
        place = messages.topic, messages.broker, messages.queue_id
        for at, (offset, _, body, tags, stored, ident) in enumerate(zip(*messages[3:9], strict=True)):
            if at in keyless:
                self.held.refuse_keyless(WaitingMessage(*place, offset, tags, stored, ident, body))
        return messages.without(keyless)

    def _known(self, queue: str, offset: int, stored: int) -> int:
        """The offset below which everything was seen. A seen offset with a later time belongs to a re-created topic."""
        meta = self._shard.meta
        if offset < meta.offsets.get(queue, 0) and stored > meta.times.get(queue, 0):
            self.counts["recreated_queues"] += 1
            meta.offsets[queue] = 0
        return meta.offsets.get(queue, 0)

    def _check_one_queue(self, messages: QueueSlice) -> None:
        """Refuses a key in two queues: rows are sorted by queue, so the order of its events would mean nothing."""
        queues = self._shard.meta.queues
        if messages.queue not in queues:
            queues.append(messages.queue)
        here = queues.index(messages.queue)
        for key in {key for key in messages.keys if key is not None}:
            lane = self.table.loaded.get(key) or self.table.restore(key)
            if lane.queue is None:
                lane.queue = here
            elif lane.queue != here:
                raise OrderError(
                    f"key {key!r} has messages in {queues[lane.queue]} and in {messages.queue}, and nothing says which "
                    f"come first: number the events of a key and give sequence=, or on_queue_change='continue' if the "
                    f"key moved and its former queue was read to the end before"
                )

    def retry(self, actions: RequestedActions) -> None:
        """Retries lanes whose wait is over, and does what operators requested."""
        self.held.retry(actions)

    def redrive(self, dead_letters: Iterable[RedrivenDeadLetter]) -> None:
        """Gives dead letters to the step again. Each is in only one retry pass (`Redrives`), so none is a repeat."""
        for each in dead_letters:
            self.held.redrive(each.lane, msgspec.structs.replace(each.message, late=True))

    def finish(self) -> Change:
        """Returns everything this unit changed; the shard in memory has it already."""
        self.table.check_states()
        meta, lanes = self._shard.meta, self._shard.lanes
        for name in self.held.unsaved:
            self.table.save(name, self.table.loaded[name])
        touched = dict.fromkeys([*self.table.loaded, *Expiry(self._shard, self.table, self._rules).sweep()])
        self._check_size()
        for queue, reached in self._reached.items():
            meta.offsets[queue] = max(reached, meta.offsets.get(queue, 0))
            meta.times[queue] = max(self._times[queue], meta.times.get(queue, 0))
        meta.stamps = self._stamps.rows()
        meta.watermark = self.table.watermark
        meta.chain += 1
        meta.chained_keys += len(touched)
        self.counts["applied"] += self.table.applied
        changed = {name: lanes[name] for name in touched if name in lanes}
        timers = self._shard.timers.keys
        due = {name: timers[name] for name in changed if name in timers} if timers else {}
        return Change(meta, changed, [name for name in touched if name not in lanes], due)

    def _check_size(self) -> None:
        limits, keys = self._rules.limits, len(self._shard.lanes)
        size = self._shard.count_bytes(self.table.grown)
        for found, name in ((keys, "max_keys_per_shard"), (size, "max_bytes_per_shard")):
            limit = getattr(limits, name)
            if found > limit:
                numbered = " and their numbers with forget_numbers_after"
                ended = ", or return None from the step when a key has ended"
                raise InvalidOption(
                    f"a shard has {found} {name.split('_')[1]}, more than StateLimits({name}={limit}): raise it, or "
                    f"forget old keys with expire_after{numbered if self._rules.number else ended}"
                )


def _missing(offsets: list[int], since: int) -> int:
    """The number of offsets from `since` that no message came for: deleted before they were read, or filtered out."""
    fresh = len(offsets) - bisect_left(offsets, since)
    return max(0, offsets[-1] + 1 - since) - fresh


def _out_of_order(queue: str, offsets: list[int], reached: int | None) -> OrderError:
    before, then = next(((a, b) for a, b in pairwise(offsets) if a >= b), ((reached or 0) - 1, offsets[0]))
    return OrderError(
        f"messages of {queue} came out of order (offset {then} after {before}): the rows were shuffled or repeated "
        f"between source and transitions. Leave the source's partitions as they are, or use shards=<number>"
    )


class StampTable:
    """The last sequence of every producer in every queue of a shard; recognises repeats and counts gaps.

    A LaneMQ broker stores each stamped message once. An Apache broker stores repeats too: within one queue, the
    sequences of one producer and epoch only grow. Gaps are only counted, because a filter on tags, or a query that
    begins in the middle, makes gaps where nothing is missing.
    """

    def __init__(self, capacity: int, rows: list[tuple[str, str, int, int]] | None = None) -> None:
        self._capacity = capacity
        self._last: dict[StampKey, int] = {
            (queue, producer, epoch): last for queue, producer, epoch, last in rows or []
        }

    def judge(self, queue: str, stamps: Stamps) -> tuple[list[int], int]:
        """Returns the indices of messages that are repeats, and the number of missing sequences."""
        repeats: list[int] = []
        gaps = 0
        for index, stamp in enumerate(stamps):
            if stamp is None:
                continue
            producer, epoch, sequence = stamp
            key = (queue, producer, epoch)
            last = self._last.pop(key, None)
            if last is not None and sequence <= last:
                repeats.append(index)
                sequence = last
            elif last is not None and sequence > last + 1:
                gaps += sequence - last - 1
            self._last[key] = sequence
            if len(self._last) > self._capacity:
                del self._last[next(iter(self._last))]
        return repeats, gaps

    def rows(self) -> list[tuple[str, str, int, int]]:
        """The producers as `__init__` takes them, the one silent for longest first."""
        return [(*key, last) for key, last in self._last.items()]
