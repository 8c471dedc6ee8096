"""The widest tag filters of groups in `state.db` (`core/brokering/members/filter_rows`)."""

import logging
from collections.abc import Callable, Iterable

import msgspec

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.clock import Clock
from lanemq.core.brokering.members.filter_rows import FilterRow, FilterRows
from lanemq.log.state.group_rows import GroupRows
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

AFTER_FAILURE_MS = 5_000
"""Pause of the housekeeping after a failed write."""


def _nothing() -> None:
    pass


class SavedFilters:
    """Writes the rows that have changed. Used on the event loop."""

    def __init__(self, rows: FilterRows, state: GroupRows, thread: DiskThread, clock: Clock) -> None:
        self._rows = rows
        self._state = state
        self._thread = thread
        self._clock = clock
        self._writing = 0
        """Writes that are not finished; the thread runs them one after the other."""
        self._retry_at = Millis(0)
        self._failures = RateLimitedLog(log, clock)

    def save(self, then: Callable[[], None] = _nothing) -> None:
        """Write what has changed, and call `then` once everything that changed before is on disk.

        Also called if that fails: members can join and read on a disk that takes no rows. The broker warns, and the
        next call tries again.
        """
        rows = self._rows.take()
        if not rows and not self._writing:
            then()
            return
        self._writing += 1

        def written(_: object, error: StorageError | None) -> None:
            self._writing -= 1
            if error is not None:
                self._rows.give_back(rows)
                self._retry_at = Millis(self._clock.now() + AFTER_FAILURE_MS)
                self._failures.warn(
                    "filters",
                    f"the tags that groups read could not be saved: {error}. If the broker restarts now, members with "
                    f"fewer tags may skip messages of members that are back later",
                )
            then()

        self._thread.submit_rows(self._state, lambda: self._state.save_filters(map(_encoded, rows)), written)

    def tick(self, now: Millis) -> None:
        """Write what members have left behind that did not say that they leave.

        Not while a write is under way: on a disk that is slow for a moment, a job for each tick would pile up.
        """
        if not self._writing and now >= self._retry_at:
            self.save()


def _encoded(row: FilterRow) -> tuple[str, str, str | None]:
    text = None if row.tags is None else msgspec.json.encode(sorted(row.tags)).decode()
    return row.group, row.topic, text


def restored_filters(rows: Iterable[tuple[str, str, str]]) -> list[FilterRow]:
    """Rows of the state database."""
    return [
        FilterRow(group, topic, frozenset(msgspec.json.decode(text, type=list[str]))) for group, topic, text in rows
    ]
