"""Periodic work for groups, in a broker and in a coordinator: leases and members expire, and progress is saved."""

import logging
from collections.abc import Callable, Iterator, Sequence

from lanemq.broker.context import GroupContext
from lanemq.broker.group_rules import members_changed
from lanemq.core.brokering.members.lost_members import LostFilter, shown_member
from lanemq.core.brokering.members.tag_filters import ALL, shown
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

MAX_IDLE_SECONDS = 120.0
"""Silence after which a server closes a connection (RocketMQ: NettyServerConfig)."""
PAUSE_MS = 1_000
"""A longer time between two ticks means that this process did not run: it or its machine was suspended."""
MAX_LINES = 64
"""Lines in the log about members that one tick removes; each costs some ten microseconds."""


class GroupHousekeeping:
    """The steps of each tick that concern groups."""

    def __init__(self, parts: GroupContext) -> None:
        self._parts = parts
        self.last_tick = parts.clock.now()
        """Monotonic time of the last tick; any thread may read it."""

    def steps(self, now: Millis) -> Iterator[Callable[[], None]]:
        """What is to be done now; a step that fails must not prevent the others."""
        yield lambda: self._expire_leases_and_members(now)
        yield lambda: self._parts.saved_filters.tick(now)
        yield lambda: self._parts.progress_keeper.tick(now)
        yield lambda: self._parts.notices.expire(now)

    def _expire_leases_and_members(self, now: Millis) -> None:
        """Expire leases and members and notify their groups, so that the next owner does not wait for its own timer."""
        members, pause = self._parts.members, Millis(now - self.last_tick)
        self.last_tick = now
        if pause > PAUSE_MS:
            log.warning("this process did not run for %.1f s: suspended, or the machine is overloaded", pause / 1000)
            members.paused(pause, now=now)
        ended = self._parts.locks.expire(now=now)
        self._parts.counters.leases_expired += len(ended)
        if self._parts.recording.on:
            self._parts.recording.expired(ended)
        changed, given_up = members.expire(now=now)
        self._warn_of_given_up(given_up)
        for group in changed[:MAX_LINES]:
            left = ", ".join(members.members(group)) or "none"
            log.info("group %s: a member was silent for too long and is removed; members now: %s", group, left)
        if len(changed) > MAX_LINES:
            log.info("members of %s further groups were silent for too long and are removed", len(changed) - MAX_LINES)
        members_changed(self._parts, dict.fromkeys((*(group for group, _ in ended), *changed)), given_up)

    def _warn_of_given_up(self, given_up: Sequence[LostFilter]) -> None:
        """Warn that members with fewer tags get the queues that they kept waiting for a lost member."""
        self._parts.counters.filters_given_up += len(given_up)
        for each in given_up[:MAX_LINES]:
            log.warning(
                "group %s: %s, which read %s with tags %r, was lost and has not come back: members with %r get "
                "the queues now, and skip messages that only it read",
                each.group,
                shown_member(each.member),
                each.topic,
                shown(each.tags),
                shown(self._parts.members.widest(each.group, each.topic) or ALL),
            )
        if len(given_up) > MAX_LINES:
            log.warning("members of %s further topics were lost and have not come back", len(given_up) - MAX_LINES)
