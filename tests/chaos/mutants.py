"""Guards that can be removed one at a time, so that a test can show what each of them prevents.

Every mutant is the real code with one check removed. `patch` is `monkeypatch.setattr` inside a test and plain
`setattr` in a child process.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from lanemq import forking
from lanemq.broker import group_housekeeping
from lanemq.broker.app import Broker
from lanemq.broker.storage import group_commit
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.pinning import Pinning
from lanemq.broker.storage.progress_keeper import ProgressKeeper
from lanemq.client.consumer.engine import EngineThread
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.heartbeat import Heartbeat
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.core.brokering import dedup
from lanemq.core.brokering.dedup import Fresh, Gap, ProducerTable
from lanemq.core.brokering.keep_alive import KeepAlives
from lanemq.core.brokering.lock_table import Current, Lease, LockGrant, LockTable
from lanemq.core.brokering.members.membership import Membership
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.lanes_aside import LanesAside
from lanemq.core.consuming.queue_lease import QueueLease
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.effects import EffectOwner
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.sending import sharding
from lanemq.effects import drivers, steps
from lanemq.effects.statements import EffectTables, Statement
from lanemq.log import reading, record_bytes, recovery
from lanemq.log.appender import Appender
from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import RealDisk
from lanemq.log.state.database import State
from lanemq.model.units import Epoch, Millis
from lanemq.net.calling.connection import ConnectionPool
from lanemq.net.serving.descriptors import DescriptorReserve
from lanemq.net.serving.server import ConnectionLimits
from lanemq.testing.sim.disk import SimDisk
from lanemq.wire.record import PROOF

Patch = Callable[[Any, str, Any], None]


def check_alone() -> None:
    """Fails while members run in this process. For simulations, which have none: a member of an earlier test that
    still runs would lose the guard too, and what it does without it may stay."""
    members = [each for each in forking._objects if isinstance(each, EngineThread) and each.running]
    groups = ", ".join(each._options.group for each in members)
    assert not members, f"members of {groups} run in this process: stop them first, or give them one of their own"


def epoch_check(patch: Patch) -> None:
    """Broker: takes every client for the owner, whatever its epoch."""
    patch(LockTable, "verdict", lambda self, group, queue, owner, epoch, *, now: Current(epoch or Epoch(0)))


def broker_lock(patch: Patch) -> None:
    """Broker: grants a queue to every member that asks."""

    def acquire(self: Any, group: str, queues: Any, owner: str, *, now: Millis, **wishes: Any) -> LockGrant:
        return LockGrant(tuple(Lease(each, owner, Epoch(1), Millis(now + 60_000)) for each in queues), (), ())

    patch(LockTable, "acquire", acquire)
    patch(LockTable, "release", lambda self, *given, **named: ())
    epoch_check(patch)


def lane_lock(patch: Patch) -> None:
    """Member: runs a lane on several workers at once, as RocketMQ would without its local queue lock."""
    real = LaneScheduler.add

    def add(self: Any, queue: Any, start: Any, **named: Any) -> None:
        self._options = replace(self._options, order=Order.NONE)
        real(self, queue, start, **named)

    patch(LaneScheduler, "add", add)


def drain(patch: Patch) -> None:
    """Member: releases a queue without waiting for its running handler (RocketMQ's consume lock)."""

    async def drained(self: Any, queue: Any, timeout_ms: int) -> bool:
        return True

    patch(Scheduler, "drained", drained)


def lease_end(patch: Patch) -> None:
    """Member: continues with a queue after its lease has ended."""
    real = LaneScheduler.add

    def add(self: Any, queue: Any, start: Any, **named: Any) -> None:
        real(self, queue, start, **named | {"usable_until": NO_LEASE_NEEDED})

    patch(LaneScheduler, "add", add)
    patch(LaneScheduler, "set_usable_until", lambda self, queue, deadline: None)
    patch(AssignedQueue, "may_pull", lambda self, *, now: True)


def keep_alive_deadline(patch: Patch) -> None:
    """Member: starts turns during the whole lease, however long ago the broker answered."""
    patch(QueueLease, "_set_deadline", lambda self: setattr(self, "usable_until", self._until))


def keep_alive_waited_for(patch: Patch) -> None:
    """Broker: grants the queues of a lost connection after a fixed time, before its owner's keep-alive deadline."""
    patch(KeepAlives, "until", lambda self, owner, timeout, renewed: Millis(0))


def member_silence(patch: Patch) -> None:
    """Broker: keeps a silent member for RocketMQ's two minutes, whatever it stated."""
    real = Membership.heartbeat

    def heartbeat(self: Any, *given: Any, expiry: Any, **named: Any) -> Any:
        return real(self, *given, **named)

    patch(Membership, "heartbeat", heartbeat)


def late_ticks(patch: Patch) -> None:
    """Broker: its housekeeping comes so late that each tick looks like the end of a pause: an overloaded machine."""
    patch(group_housekeeping, "TICK_SECONDS", 1.1)


def pauses_once(patch: Patch) -> None:
    """Broker: every pause of its own is added to a member's time, however many there are."""
    real = Membership.paused

    def paused(self: Any, duration: Any, *, now: Any) -> None:
        for expiry in self._expiries.values():
            expiry.extended = False
        real(self, duration, now=now)

    patch(Membership, "paused", paused)


def joining_again(patch: Patch) -> None:
    """Member: does not join again when a broker has removed it; its next heartbeat comes every 30 s."""

    async def send_again_to(self: Any, address: Any) -> None:
        return None

    patch(Heartbeat, "send_again_to", send_again_to)


def dead_connection(patch: Patch) -> None:
    """Member: leaves it to TCP to notice that a connection is dead."""
    patch(ConnectionPool, "close_silent", lambda self, address, seconds: False)


def lease_news(patch: Patch) -> None:
    """Member: never renews its leases, and continues after it lost them."""

    async def renew(self: Any, broker: str, queues: Any) -> None:
        return None

    patch(LeaseKeeper, "_renew", renew)
    patch(Assignment, "lose", lambda self, assigned, why: None)
    lease_end(patch)


def finished_ranges(patch: Patch) -> None:
    """Member: ignores what former owners finished above the offset of a queue."""
    real = LaneScheduler.add

    def add(self: Any, queue: Any, start: Any, **named: Any) -> None:
        real(self, queue, start, **named | {"finished": NOTHING_FINISHED, "parked": ()})

    patch(LaneScheduler, "add", add)


def progress_inside_a_run(patch: Patch) -> None:
    """Member: reports what it finished when a run of messages ends, however long that takes."""
    patch(LaneScheduler, "note_progress", lambda self, run: False)


def finished_span(patch: Patch) -> None:
    """Member: skips everything up to the last message that a former owner finished."""
    real = LaneScheduler.add

    def add(self: Any, queue: Any, start: Any, finished: FinishedRanges = NOTHING_FINISHED, **named: Any) -> None:
        span = FinishedRanges.of([(start, finished.bounds[-1])]) if finished else finished
        real(self, queue, start, finished=span, **named)

    patch(LaneScheduler, "add", add)


def saved_offsets(patch: Patch) -> None:
    """Broker: writes offsets only at a clean stop."""
    patch(ProgressKeeper, "tick", lambda self, now: None)


def offsets_at_stop(patch: Patch) -> None:
    """Broker: does not write the newest offsets at a clean stop."""
    patch(ProgressKeeper, "save_now", lambda self: None)


def flush_before_ack(patch: Patch) -> None:
    """Broker: acknowledges a message before it is written."""
    real = GroupCommit.append

    def append(
        self: Any, topic: str, queue_id: int, items: Any, born_host: bytes, size: int, done: Callable[..., None]
    ) -> Any:
        staged = real(self, topic, queue_id, items, born_host, size, lambda error: None)
        self._loop.call_soon(done, None)
        return staged

    patch(GroupCommit, "append", append)


def sync_before_ack(patch: Patch) -> None:
    """Broker: acknowledges a message that is written but not synced."""
    patch(CommitLog, "sync", lambda self: None)


def _each_flush_takes(patch: Patch, seconds: float) -> None:
    real = Appender.flush

    def flush(self: Any, *given: Any, **named: Any) -> None:
        time.sleep(seconds)
        real(self, *given, **named)

    patch(Appender, "flush", flush)


def slow_disk(patch: Patch) -> None:
    """No guard: every flush takes 30 ms, so that a kill before a flush is likely on any machine."""
    _each_flush_takes(patch, 0.03)


def stalling_disk(patch: Patch) -> None:
    """No guard: every flush takes half a second, so that producers are faster on any machine."""
    _each_flush_takes(patch, 0.5)


def little_memory(patch: Patch) -> None:
    """No guard: the broker is busy as soon as a mebibyte waits for the disk."""
    patch(group_commit, "MAX_PENDING_BYTES", 1 << 20)


def patient_server(patch: Patch) -> None:
    """No guard: connections may be silent for ten minutes, and all may come from one address."""

    def limits(_: Broker, reserve: DescriptorReserve) -> ConnectionLimits:
        return ConnectionLimits(reserve.connections(), per_address=reserve.connections(), first_request=600)

    patch(Broker, "_connection_limits", limits)


def _fails_at(patch: Patch, call: str, number: int) -> None:
    """Only this one fails, as on a real disk; later ones succeed."""
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
    """Broker: stores everything, also repeats and messages after a gap."""
    patch(ProducerTable, "judge", lambda self, topic, queue_id, first, count: Fresh(0))
    patch(ProducerTable, "record", lambda self, *given, **named: None)


def first_unfinished(patch: Patch) -> None:
    """Member: commits what it has fetched instead of what it has finished."""
    patch(LaneQueue, "committable", property(lambda self: self._next))
    patch(LaneQueue, "finished_ranges", lambda self: NOTHING_FINISHED)


def off_by_one(patch: Patch) -> None:
    """Member: commits one offset too many, past the first unfinished message."""
    real = LaneQueue.committable.fget  # type: ignore[attr-defined]
    patch(LaneQueue, "committable", property(lambda self: min(real(self) + 1, self._next)))


def wide_ranges(patch: Patch) -> None:
    """Member: reports as finished, above its offset, everything that it has fetched."""

    def finished_ranges(self: Any) -> FinishedRanges:
        first = self.committable + 1
        return FinishedRanges.of([(first, self._next)]) if first < self._next else NOTHING_FINISHED

    patch(LaneQueue, "finished_ranges", finished_ranges)


def hold(patch: Patch) -> None:
    """Member: continues with the next message of a key after a failure."""
    real = LaneScheduler.finish

    def finish(self: Any, run: Any, outcome: Any, **named: Any) -> Any:
        return real(self, run, DONE if outcome is FAILED else outcome, **named)

    patch(LaneScheduler, "finish", finish)


def sequence_check(patch: Patch) -> None:
    """Broker: drops repeats, but stores messages after a gap."""
    real = ProducerTable.judge

    def judge(self: Any, *given: Any) -> Any:
        judged = real(self, *given)
        return Fresh(0) if isinstance(judged, Gap) else judged

    patch(ProducerTable, "judge", judge)


def saved_epochs(patch: Patch) -> None:
    """Broker: grants epochs without saving them."""
    patch(State, "save_leases", lambda self, rows: None)


def restored_leases(patch: Patch) -> None:
    """Broker: restores epochs after a restart, but no leases."""
    real = LockTable.restore

    def restore(self: Any, rows: Any, *, floor: Any, now: Millis) -> None:
        rows = list(rows)
        real(self, (), floor=max([floor, *(row.epoch for row in rows)]), now=now)

    patch(LockTable, "restore", restore)


def folder_sync(patch: Patch) -> None:
    """Broker: does not sync the folder of a new segment (only on the simulated disk)."""
    patch(SimDisk, "fsync_dir", lambda self, path: None)


def restored_stamps(patch: Patch) -> None:
    """Broker: does not restore the stamps in the log after its checkpoint."""
    patch(ProducerTable, "replay", lambda self, *given, **named: None)


def record_checksum(patch: Patch) -> None:
    """Broker: checks no checksums, at its start and when it reads."""

    def checksum(whole: memoryview, start: int, end: int) -> int:
        return int(PROOF.unpack_from(whole, start)[-1])

    patch(record_bytes, "checksum_of", checksum)
    patch(reading, "verify", lambda *given: [])


def torn_end(patch: Patch) -> None:
    """Broker: after a power cut, keeps what follows a torn record of an unacknowledged group commit, and takes a
    repeat of what was torn for a duplicate."""
    patch(recovery, "shows_synced", lambda log, position: position < log.end)
    patch(dedup._Producer, "misses", lambda self, first, end: False)


def lane_fence(patch: Patch) -> None:
    """Member: takes a lane for an ordinary one when it has run what it fetched, although the broker has more of it."""

    def finished(self: Any, lane: Any, messages: Any) -> bool:
        more = real(self, lane, messages)
        if not more and self._of(lane) is not None:
            return bool(self._remove(self._lanes[lane.key]))
        return more

    real = LanesAside.finished
    patch(LanesAside, "finished", finished)


def confirmed_lane(patch: Patch) -> None:
    """Member: counts a held lane as finished before the broker has it, which takes the member a while to tell."""
    looks, requests = count(1), LanesAside.requests

    def seldom(self: Any, *, now: Millis) -> list[Any]:
        return requests(self, now=now) if next(looks) % 20 == 0 else []

    def set_aside(self: Any, lane: Any) -> None:
        real(self, lane)
        if lane.key in self._lanes:
            self._queue.finish(lane.pending)

    real = LanesAside._set_aside_if_long
    patch(LanesAside, "_set_aside_if_long", set_aside)
    patch(LanesAside, "requests", seldom)


def pinned_log(patch: Patch) -> None:
    """Broker: deletes log files with parked messages when retention is due."""

    def all_expired(_: Any, expired: int, __: object) -> Iterator[None]:
        yield
        return expired

    patch(Pinning, "deletable", all_expired)


def selector_sign(patch: Patch) -> None:
    """Producer: uses Python's remainder of a negative hash instead of Java's."""
    patch(sharding, "_index", lambda number, queues: number % len(queues))


def applied_place(patch: Patch) -> None:
    """Effects: store every place, also one that is not above the last."""
    real = EffectTables.take_place

    def take_place(self: EffectTables, *given: Any) -> Statement | None:
        statement = real(self, *given)
        return statement and statement._replace(sql=statement.sql.replace("held.log_position < ?", "? IS NOT NULL"))

    patch(EffectTables, "take_place", take_place)


def effect_owner(patch: Patch) -> None:
    """Effects: take every owner for the current one once the queue has an epoch."""
    real = steps.judge_owner

    def judge(highest: int | None, epoch: int) -> EffectOwner:
        return real(highest, epoch) if highest is None else EffectOwner.CURRENT

    patch(steps, "judge_owner", judge)


def shared_epoch(patch: Patch) -> None:
    """Effects in PostgreSQL: read the epoch without a lock."""
    real = EffectTables.locked_epoch

    def locked_epoch(self: EffectTables, *given: Any) -> Statement:
        statement = real(self, *given)
        return statement._replace(sql=statement.sql.replace(" FOR SHARE", ""))

    patch(EffectTables, "locked_epoch", locked_epoch)


def checked_status(patch: Patch) -> None:
    """Effects in PostgreSQL: commit without looking whether the transaction was aborted."""
    patch(drivers, "check_status", lambda connection: None)


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
        late_ticks,
        pauses_once,
        joining_again,
        dead_connection,
        lease_news,
        finished_ranges,
        progress_inside_a_run,
        finished_span,
        saved_offsets,
        offsets_at_stop,
        flush_before_ack,
        sync_before_ack,
        slow_disk,
        stalling_disk,
        little_memory,
        patient_server,
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
        lane_fence,
        confirmed_lane,
        pinned_log,
        selector_sign,
        applied_place,
        effect_owner,
        shared_epoch,
        checked_status,
    )
}
