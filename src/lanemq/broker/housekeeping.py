"""Periodic work: held pulls, leases and members expire, delayed messages become due, old files are deleted."""

import logging
from collections.abc import Iterator, Sequence

from lanemq.broker.context import BrokerContext
from lanemq.broker.group_housekeeping import GroupHousekeeping
from lanemq.broker.group_rules import free_leases, free_progress, is_reported
from lanemq.broker.handlers.pull import PullHandler
from lanemq.broker.storage.checkpoints import Checkpoints
from lanemq.broker.storage.index_rebuilding import IndexRebuilding
from lanemq.broker.storage.pinning import Pinning
from lanemq.broker.storage.unread import Unread
from lanemq.core.brokering.quotas import UNUSED_NAME_MS, Quota
from lanemq.log.commit_log import Segment
from lanemq.log.state.space_reserve import SpaceReserve, reserve_bytes
from lanemq.model.errors import DiskFull, StorageError, WriteFailed
from lanemq.model.names import retry_topic
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.server import Server

log = logging.getLogger(__name__)

RETENTION_EVERY_MS = 10_000
DESCRIPTORS_EVERY_MS = 1_000
"""Between two looks at how many connections fit beside the files. In that time, new files use the reserve."""
GROUPS_EVERY_MS = 1_000
DELETIONS_EVERY_MS = 2_000
RESERVE_EVERY_MS = 10_000
PAUSE_AFTER_FULL_MS = 1_000
"""How long sends pause at least after a write that met a full disk or a lack of descriptors."""
DELAYS_EVERY_MS = 100
"""As RocketMQ's ScheduleMessageService."""
RETENTION_WAITS = "; lost indexes are being rebuilt, and retention deletes nothing until that is done"
MAX_UNUSED_MS = Millis(30 * 24 * 3_600_000)
"""A group without members and commits for so long is forgotten, with its offsets and locks; counted from the broker's
start at the earliest. Short: a group that pauses loses its place. Long: groups that nobody uses again take memory."""
MAX_FORGOTTEN = 100
"""Groups that one tick forgets at most."""


class Housekeeping(GroupHousekeeping):
    """Calls every part of a broker that has deadlines."""

    _context: BrokerContext

    def __init__(
        self,
        context: BrokerContext,
        pull: PullHandler,
        checkpoints: Checkpoints,
        server: Server,
        space_reserve: SpaceReserve,
    ) -> None:
        super().__init__(context, server)
        self._space_reserve = space_reserve
        self._pull = pull
        self._checkpoints = checkpoints
        self._index_rebuilding = IndexRebuilding(context.store, context.search_thread)
        self._pinning = Pinning(
            context.store, context.progress_keeper, context.options.max_pinned_bytes, context.slices, context.clock
        )
        self.retiring = False
        """Whether retention looks for files that may be deleted."""
        self._forgotten_groups = UnusedGroups(context)
        self._warnings = RateLimitedLog(log, context.clock)
        self._last["space"] = context.clock.now()
        self._paused_at = Millis(0)

    def tick(self) -> None:
        """The steps of groups, and those of the log."""
        now = self._context.clock.now()
        self._step(lambda: self._pull.expire(now))
        super().tick()
        self._step(lambda: self._checkpoints.tick(now))
        self._step(self._index_rebuilding.tick)
        self._step(lambda: self._watch_disk(now))
        self._step(lambda: self._context.store.retention.note_if_grown(now))
        if self._is_time("delays", DELAYS_EVERY_MS, now) and not self._context.group_commit.refusing:
            self._step(self._context.delay_delivery.tick)
        if self._is_time("descriptors", DESCRIPTORS_EVERY_MS, now):
            self._step(self._limit_connections)
        if self._is_time("space", RESERVE_EVERY_MS, now):
            self._step(self._reserve_space)
        if self._is_time("retention", RETENTION_EVERY_MS, now):
            self._step(self._retire)
        if self._is_time("deletions", DELETIONS_EVERY_MS, now):
            self._step(self._repeat_deletions)
        if self._is_time("groups", GROUPS_EVERY_MS, now):
            self._step(lambda: self._forgotten_groups.forget(now))
        if not self._context.options.durable:
            self._step(lambda: self._context.group_commit.sync_if_due(now))

    def _watch_disk(self, now: Millis) -> None:
        """Pause sends while the disk is nearly full, and let them continue by themselves. Stop them if the folder is
        gone: the files are open, so writes would succeed, and what they write would be lost."""
        context, group_commit = self._context, self._context.group_commit
        if (lost := context.store.lost()) is not None:
            why = f"{lost}, so messages would be lost: put it back or restore a backup, then restart the broker"
            group_commit.stop_writing(WriteFailed(why))
            return
        if context.low_space.look(context.store.space()):
            if group_commit.paused is None:
                # Old messages may go now instead of in a while.
                self._step(self._retire)
            group_commit.pause(
                DiskFull(
                    f"the disk of {context.options.data} has {context.low_space.space.free >> 20} MiB left, and sends "
                    f"stop below {context.low_space.watermark() >> 20} MiB: free some space, or restart with a smaller "
                    f"--retention or --retention-bytes; deleting topics frees old log files that hold nothing else; "
                    f"sends continue by themselves from {context.low_space.needed() >> 20} MiB"
                    f"{'' if context.store.indexes_complete else RETENTION_WAITS}"
                )
            )
            self._paused_at = now
        elif group_commit.paused is not None and now - self._paused_at >= PAUSE_AFTER_FULL_MS:
            self._paused_at = now  # the next failed write pauses again, and the next attempt waits as long
            group_commit.resume()

    def reserve_at_start(self) -> None:
        """Take the reserve for `state.db`, before the row thread has anything to do."""
        self._context.low_space.look(self._context.store.space())
        self._space_reserve.take(self._reservable())

    def _reserve_space(self) -> None:
        """Take the reserve again if it was used, while the disk has room."""
        reserve, size = self._space_reserve, self._reservable()
        if size and reserve.possible and not reserve.held:
            self._context.row_thread.submit(lambda: reserve.take(size), _ignored)

    def _reservable(self) -> int:
        """The size of the reserve; 0 if the disk has no room for it."""
        low_space = self._context.low_space
        size = reserve_bytes(low_space.watermark())
        return size if low_space.space.free > low_space.needed() + size else 0

    def _limit_connections(self) -> None:
        """Leave enough descriptors for the files, as their number and the limit of the process change."""
        context, server = self._context, self._server
        if server.limit_connections(context.reserve.connections()):
            context.in_force = {**context.in_force, **server.limits.in_force()}
        if (problem := context.reserve.problem()) is not None:
            self._warnings.warn("descriptors", problem)

    def _repeat_deletions(self) -> None:
        """Free what deleted topics have left in the log, then write deletions that a full disk did not take."""
        keeper = self._context.topic_keeper
        if keeper.unfinished_deletions:
            self._retire()
            for name in keeper.unfinished_deletions:
                keeper.repeat_deletion(name, _nothing)

    def _retire(self) -> None:
        """Look for log files to delete, in slices: there may be many parked lanes, groups and queues."""
        if not self.retiring:
            self.retiring = True
            self._context.slices.begin(self._retire_steps(self._context.clock.now()))

    def _retire_steps(self, now: Millis) -> Iterator[None]:
        context, store = self._context, self._context.store
        try:
            yield from context.producers.expire(now=now)
            if not store.indexes_complete:
                return
            yield from context.unread.warn(now)
            lost: Unread | None = None
            with context.progress.watching() as changes:
                expired = yield from store.expired(now)
                count = yield from self._pinning.deletable(expired, changes)
                while count:
                    lost = yield from context.unread.below(store.start_after(count))
                    # Without a pause from here on: what was counted holds when the log is cut.
                    free = self._pinning.still_deletable(count, changes)
                    if free == count:
                        break
                    count = free
                self._delete(store.retire(now, count))
            if count and lost is not None:
                yield from context.unread.lose(lost, now)
        except Exception:
            log.exception("housekeeping failed")
        finally:
            self.retiring = False

    def _delete(self, retired: Sequence[Segment]) -> None:
        """Delete the files of retired segments, once no search reads them."""
        store, thread = self._context.store, self._context.thread
        if not retired:
            return
        log.info("retention deletes %s log files", len(retired))
        if self._context.recording.on:
            self._context.recording.trimmed({queue: store.bounds(*queue)[0] for queue in store.queues()})

        def forgotten(_: object, error: StorageError | None) -> None:
            _log_failure(_, error)
            thread.submit(lambda: store.delete_retired(retired), _log_failure)

        self._context.search_thread.submit(lambda: store.forget_keys(retired), forgotten)


def _log_failure(_: object, error: StorageError | None) -> None:
    if error is not None:
        log.error("old log files could not be deleted: %s", error)


class UnusedGroups:
    """Forgets groups that were not used for long: names that a client once invented would stay for ever."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._forgetting = False

    def forget(self, now: Millis) -> None:
        """Forget the groups that are due, in slices: each may have a hundred thousand leases."""
        if not self._forgetting:
            self._forgetting = True
            self._context.slices.begin(self._steps(now))

    def _steps(self, now: Millis) -> Iterator[None]:
        """Look at one group in each step, at up to `MAX_FORGOTTEN`; the next call takes the others.

        Each step asks anew which group is due: one that is used in between is not due any more.
        """
        use = self._context.charges.group_use
        names_until, kept_until = Millis(now - UNUSED_NAME_MS), Millis(now - MAX_UNUSED_MS)
        try:
            for _ in range(MAX_FORGOTTEN):
                for group in use.unused_since(names_until, 1):
                    self._look(group, now)
                for group in use.kept_since(kept_until, 1):
                    self._look(group, now, kept_for=MAX_UNUSED_MS)
                yield
        except Exception:
            log.exception("housekeeping failed")
        finally:
            self._forgetting = False

    def _look(self, group: str, now: Millis, *, kept_for: Millis | None = None) -> None:
        """Forget a group that was not used for long, unless there is a reason to keep it.

        `kept_for` is how long it was kept already; None: offsets and leases are a reason to keep it for longer.
        """
        context, use = self._context, self._context.charges.group_use
        configured = group in context.groups and not is_reported(context, group)
        if context.members.members(group) or configured or context.progress.lane_bytes(group):
            use.used(group, now)
        elif context.traffic.group_moved(group, UNUSED_NAME_MS, now=now):
            use.used(group, now)  # readers that choose their own offsets pull without being members
        elif kept_for is not None:
            log.warning("group %s was not used for %s s: its offsets are deleted", group, kept_for // 1000)
            self._forget(group)
        elif context.progress.has_group(group) or context.locks.holds_any(group, now=now):
            use.keep(group)
        else:
            self._forget(group)

    def _forget(self, group: str) -> None:
        context = self._context
        context.charges.forget_group(group)
        context.traffic.forget_group(group)
        context.groups.pop(group, None)
        free_progress(context, context.progress_keeper.forget_group(group))
        floor, state = free_leases(context, context.locks.forget_group(group)), context.state

        def delete() -> None:
            state.delete_group(group)
            state.forget_group_leases(group, floor)

        context.row_thread.submit_rows(state, delete, _log_failure)
        retry = retry_topic(group)
        if context.topics.get(retry) is not None and not any(context.store.bounds(retry, 0)):
            context.topic_keeper.delete(retry)
            context.charges.shrink(Quota.QUEUES, (retry,))
            context.topic_keeper.forget(retry, _nothing, _nothing)


def _nothing(_: object = None) -> None:
    pass


def _ignored(_: object, error: StorageError | None) -> None:
    pass
