"""Guards that can be taken out one at a time, so that a test can show what each of them prevents.

Every mutant is the real code with one check removed. `patch` is `monkeypatch.setattr` inside a test and plain
`setattr` in a child process.
"""

import errno
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from lanemq.broker.storage.checkpoints import Checkpoints
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.core.brokering import dedup
from lanemq.core.brokering.dedup import Fresh, Gap, ProducerTable
from lanemq.core.brokering.keep_alive import KeepAlives
from lanemq.core.brokering.lock_table import Current, Lease, LockGrant, LockTable
from lanemq.core.brokering.membership import Membership
from lanemq.core.consuming.keyed_queue import KeyedQueue
from lanemq.core.consuming.queue_lease import QueueLease
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.sending import sharding
from lanemq.log import reading, record_bytes, recovery
from lanemq.log.appender import Appender
from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import RealDisk
from lanemq.log.state import State
from lanemq.model.units import Epoch, Millis
from lanemq.testing.sim.disk import SimDisk
from lanemq.wire.record import PROOF

Patch = Callable[[Any, str, Any], None]


def epoch_check(patch: Patch) -> None:
    """Broker: whoever speaks is taken for the owner, whatever epoch it names."""
    patch(LockTable, "verdict", lambda self, group, queue, owner, epoch, *, now: Current(epoch or Epoch(0)))


def broker_lock(patch: Patch) -> None:
    """Broker: a queue is given to everybody who asks, held by another or not."""

    def acquire(self: Any, group: str, queues: Any, owner: str, *, now: Millis, **wishes: Any) -> LockGrant:
        return LockGrant(tuple(Lease(each, owner, Epoch(1), Millis(now + 60_000)) for each in queues), (), ())

    patch(LockTable, "acquire", acquire)
    patch(LockTable, "release", lambda self, *given, **named: ())
    epoch_check(patch)


def lane_lock(patch: Patch) -> None:
    """Member: a lane may run on several workers at once, as RocketMQ without its local queue lock."""
    real = LaneScheduler.add

    def add(self: Any, queue: Any, start_offset: Any, order: Order, **named: Any) -> None:
        real(self, queue, start_offset, Order.NONE, **named)

    patch(LaneScheduler, "add", add)


def drain(patch: Patch) -> None:
    """Member: a queue is given away without waiting for its running handler (RocketMQ's consume lock)."""

    async def drained(self: Any, queue: Any, timeout_ms: int) -> bool:
        return True

    patch(Scheduler, "drained", drained)


def lease_end(patch: Patch) -> None:
    """Member: goes on with a queue when its lease has ended and could not be renewed."""
    real = Scheduler.add

    def add(self: Any, queue: Any, start: Any, usable_until: Any, *more: Any) -> None:
        real(self, queue, start, NO_LEASE_NEEDED, *more)

    patch(Scheduler, "add", add)
    patch(Scheduler, "set_usable_until", lambda self, queue, until: None)
    patch(AssignedQueue, "may_pull", lambda self, *, now: True)


def keep_alive_deadline(patch: Patch) -> None:
    """Member: starts turns as long as its lease lasts, however long ago the broker has answered."""
    patch(QueueLease, "usable_until", property(lambda self: self._until))


def keep_alive_waited_for(patch: Patch) -> None:
    """Broker: gives the queues of a lost connection away after a fixed time, whatever their owner believes."""
    patch(KeepAlives, "until", lambda self, owner, timeout, renewed: Millis(0))


def member_silence(patch: Patch) -> None:
    """Broker: keeps a silent member for RocketMQ's two minutes, whatever it stated."""
    real = Membership.heartbeat

    def heartbeat(self: Any, *given: Any, expiry: Any, **named: Any) -> Any:
        return real(self, *given, **named)

    patch(Membership, "heartbeat", heartbeat)


def lease_news(patch: Patch) -> None:
    """Member: never asks for its leases again, and goes on when it is told that they are lost."""

    async def renew(self: Any, broker: str, queues: Any) -> None:
        return None

    patch(LeaseKeeper, "_renew", renew)
    patch(Assignment, "lose", lambda self, assigned, why: None)
    lease_end(patch)


def finished_ranges(patch: Patch) -> None:
    """Member: takes a queue over at its offset, whatever former owners finished above it."""
    real = Scheduler.add
    patch(Scheduler, "add", lambda self, queue, start, usable_until, *done: real(self, queue, start, usable_until))


def finished_span(patch: Patch) -> None:
    """Member: takes everything up to the last message that a former owner finished for finished."""
    real = Scheduler.add

    def add(
        self: Any, queue: Any, start: Any, usable_until: Any, done: FinishedRanges = NOTHING_FINISHED, *more: Any
    ) -> None:
        span = FinishedRanges.of([(start, done.bounds[-1])]) if done else done
        real(self, queue, start, usable_until, span, *more)

    patch(Scheduler, "add", add)


def saved_offsets(patch: Patch) -> None:
    """Broker: answers commits and writes them down only when it is stopped in order."""
    patch(Checkpoints, "_save_offsets", lambda self: None)


def offsets_at_stop(patch: Patch) -> None:
    """Broker: stops in order without writing down the offsets of its last moments."""
    patch(Checkpoints, "save_offsets_now", lambda self: None)


def flush_before_ack(patch: Patch) -> None:
    """Broker: acknowledges a message when it is staged, before any byte of it is written."""
    real = GroupCommit.append

    def append(
        self: Any, topic: str, queue_id: int, items: Any, born_host: bytes, size: int, done: Callable[..., None]
    ) -> Any:
        staged = real(self, topic, queue_id, items, born_host, size, lambda error: None)
        self._loop.call_soon(done, None)
        return staged

    patch(GroupCommit, "append", append)


def sync_before_ack(patch: Patch) -> None:
    """Broker: acknowledges what the operating system has, and the disk perhaps not."""
    patch(CommitLog, "sync", lambda self: None)


def _each_flush_takes(patch: Patch, seconds: float) -> None:
    real = Appender.flush

    def flush(self: Any, *given: Any, **named: Any) -> None:
        time.sleep(seconds)
        real(self, *given, **named)

    patch(Appender, "flush", flush)


def slow_disk(patch: Patch) -> None:
    """No guard: every flush takes 30 ms, so that what happens before one is seen on any machine."""
    _each_flush_takes(patch, 0.03)


def stalling_disk(patch: Patch) -> None:
    """No guard: every flush takes half a second, so that any machine, however busy, can send more than it takes."""
    _each_flush_takes(patch, 0.5)


def _fails_at(patch: Patch, call: str, number: int) -> None:
    """Only this one fails, as on a real disk: what comes after it would succeed."""
    real, calls = getattr(RealDisk, call), count(1)

    def failing(self: Any, *given: Any) -> Any:
        if next(calls) == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, *given)

    patch(RealDisk, call, failing)


def failing_write(patch: Patch) -> None:
    """No guard: the 150th write of the log fails."""
    _fails_at(patch, "write_at", 150)


def failing_sync(patch: Patch) -> None:
    """No guard: the 150th fdatasync of the log fails."""
    _fails_at(patch, "fdatasync", 150)


def stamp_check(patch: Patch) -> None:
    """Broker: stores whatever arrives; repeats and gaps are not recognised."""
    patch(ProducerTable, "judge", lambda self, topic, queue_id, first, count: Fresh(0))
    patch(ProducerTable, "record", lambda self, *given, **named: None)


def first_unfinished(patch: Patch) -> None:
    """Member: commits what it has fetched instead of what it has finished."""
    patch(KeyedQueue, "committable", property(lambda self: self._next))
    patch(KeyedQueue, "finished_ranges", lambda self: NOTHING_FINISHED)


def off_by_one(patch: Patch) -> None:
    """Member: commits the first unfinished message together with the finished ones: the last read, not the next."""
    real = KeyedQueue.committable.fget  # type: ignore[attr-defined]
    patch(KeyedQueue, "committable", property(lambda self: min(real(self) + 1, self._next)))


def wide_ranges(patch: Patch) -> None:
    """Member: reports as finished, above its offset, everything that it has fetched."""

    def finished_ranges(self: Any) -> FinishedRanges:
        first = self.committable + 1
        return FinishedRanges.of([(first, self._next)]) if first < self._next else NOTHING_FINISHED

    patch(KeyedQueue, "finished_ranges", finished_ranges)


def hold(patch: Patch) -> None:
    """Member: goes on with the next message of a key when one has failed."""
    real = LaneScheduler.finish

    def finish(self: Any, run: Any, outcome: Any, **named: Any) -> Any:
        return real(self, run, DONE if outcome is FAILED else outcome, **named)

    patch(LaneScheduler, "finish", finish)


def sequence_check(patch: Patch) -> None:
    """Broker: recognises repeats, but stores what follows a missing message."""
    real = ProducerTable.judge

    def judge(self: Any, *given: Any) -> Any:
        judged = real(self, *given)
        return Fresh(0) if isinstance(judged, Gap) else judged

    patch(ProducerTable, "judge", judge)


def saved_epochs(patch: Patch) -> None:
    """Broker: gives epochs out and does not write them down."""
    patch(State, "save_leases", lambda self, rows: None)


def restored_leases(patch: Patch) -> None:
    """Broker: begins again with its epochs, but without knowing who holds what."""
    real = LockTable.restore

    def restore(self: Any, rows: Any, *, floor: Any, now: Millis) -> None:
        rows = list(rows)
        real(self, (), floor=max([floor, *(row.epoch for row in rows)]), now=now)

    patch(LockTable, "restore", restore)


def folder_sync(patch: Patch) -> None:
    """Broker: syncs a new segment's bytes, but not its name. (The simulation's disk; a real one cannot be asked.)"""
    patch(SimDisk, "fsync_dir", lambda self, path: None)


def restored_stamps(patch: Patch) -> None:
    """Broker: begins again without the stamps it finds in the log behind its checkpoint."""
    patch(ProducerTable, "replay", lambda self, *given, **named: None)


def record_checksum(patch: Patch) -> None:
    """Broker: takes every record for intact whose head looks like one, at its start and when it reads."""

    def checksum(whole: memoryview, start: int, end: int) -> int:
        return int(PROOF.unpack_from(whole, start)[-1])

    patch(record_bytes, "checksum_of", checksum)
    patch(reading, "verify", lambda *given: [])


def torn_end(patch: Patch) -> None:
    """Broker: after a power cut, keeps what follows a torn record of a group commit that nobody was told of, and
    takes a repetition of what was torn for a duplicate."""
    patch(recovery, "shows_synced", lambda log, position: position < log.end)
    patch(dedup._Producer, "misses", lambda self, first, end: False)


def selector_sign(patch: Patch) -> None:
    """Producer: takes Python's remainder of a negative hash for Java's."""
    patch(sharding, "_index", lambda number, queues: number % len(queues))


MUTANTS: dict[str, Callable[[Patch], None]] = {
    each.__name__: each
    for each in (
        epoch_check,
        broker_lock,
        lane_lock,
        drain,
        lease_end,
        keep_alive_deadline,
        keep_alive_waited_for,
        member_silence,
        lease_news,
        finished_ranges,
        finished_span,
        saved_offsets,
        offsets_at_stop,
        flush_before_ack,
        sync_before_ack,
        slow_disk,
        stalling_disk,
        failing_write,
        failing_sync,
        stamp_check,
        first_unfinished,
        off_by_one,
        wide_ranges,
        hold,
        sequence_check,
        saved_epochs,
        restored_leases,
        restored_stamps,
        folder_sync,
        record_checksum,
        torn_end,
        selector_sign,
    )
}
