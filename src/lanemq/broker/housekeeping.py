"""Periodic work: held pulls, leases and members expire, delayed messages become due, old files are deleted."""

import logging
from collections.abc import Callable

from lanemq.broker.handlers.pull import PullHandler
from lanemq.broker.parts import Parts
from lanemq.broker.storage.checkpoints import Checkpoints
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.log.commit_log import Segment
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis
from lanemq.net.server import Server

log = logging.getLogger(__name__)

RETENTION_EVERY_MS = 10_000
IDLE_CHECK_EVERY_MS = 1_000
DELAYS_EVERY_MS = 100
"""As RocketMQ's ScheduleMessageService."""


class Housekeeping:
    """Calls every part that has deadlines."""

    def __init__(self, parts: Parts, pull: PullHandler, checkpoints: Checkpoints, delays: DelayDelivery) -> None:
        self._parts = parts
        self._pull = pull
        self._checkpoints = checkpoints
        self._delays = delays
        self._last: dict[str, Millis] = {}

    def tick(self, server: Server) -> None:
        """Run all steps that are due. A failing step must not prevent the others, such as the expiry of leases."""
        now = self._parts.clock.now()
        self._step(lambda: self._pull.expire(now))
        self._step(lambda: self._expire_leases(now))
        self._step(lambda: self._parts.notices.group_changed(self._parts.members.expire(now=now).groups))
        self._step(lambda: self._checkpoints.tick(now))
        if self._is_time("delays", DELAYS_EVERY_MS, now) and self._parts.group_commit.failure is None:
            self._step(self._delays.tick)
        if self._is_time("idle", IDLE_CHECK_EVERY_MS, now):
            self._step(lambda: server.close_idle(self._parts.options.idle_timeout))
        if self._is_time("retention", RETENTION_EVERY_MS, now):
            self._step(self._retire)
        if not self._parts.options.durable:
            self._step(lambda: self._parts.group_commit.sync_if_due(now))

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("housekeeping failed")

    def _expire_leases(self, now: Millis) -> None:
        """Expire leases and notify their groups, so that the next owner does not wait for its own timer."""
        ended = self._parts.locks.expire(now=now)
        if self._parts.recording.on:
            self._parts.recording.expired(ended)
        self._parts.notices.group_changed(dict.fromkeys(group for group, _ in ended))

    def _retire(self) -> None:
        retired: list[Segment] = self._parts.store.retire(self._parts.clock.wall())
        if retired:
            log.info("retention deletes %s log files", len(retired))
            self._parts.thread.submit(lambda: self._parts.store.delete_retired(retired), _log_failure)
        self._parts.producers.expire(wall=self._parts.clock.wall())

    def _is_time(self, what: str, every: int, now: Millis) -> bool:
        if now - self._last.get(what, Millis(0)) < every:
            return False
        self._last[what] = now
        return True


def _log_failure(_: object, error: StorageError | None) -> None:
    if error is not None:
        log.error("old log files could not be deleted: %s", error)
