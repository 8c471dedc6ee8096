"""Periodic work for groups, in a broker and in a coordinator: leases and members expire, and progress is saved."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.broker.context import GroupContext
from lanemq.broker.group_rules import members_changed
from lanemq.core.brokering.members.lost_members import LostFilter, shown_member
from lanemq.core.brokering.members.tag_filters import ALL, shown
from lanemq.model.units import Millis
from lanemq.net.serving.server import Server

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
IDLE_CHECK_EVERY_MS = 1_000
FAILURE_EVERY_MS = 60_000
"""Between two lines about the same failure of the housekeeping."""
MAX_IDLE_SECONDS = 120.0
"""Silence after which a server closes a connection (RocketMQ: NettyServerConfig)."""
PAUSE_MS = 1_000
"""A longer time between two ticks means that this process did not run: it or its machine was suspended."""
MAX_LINES = 64
"""Lines in the log about members that one tick removes; each costs some ten microseconds."""


class GroupHousekeeping:
    """Calls every part that has deadlines; what a broker has beside groups is in `housekeeping`."""

    def __init__(self, context: GroupContext, server: Server) -> None:
        self._context = context
        self._server = server
        self.last_tick = context.clock.now()
        """Monotonic time of the last tick; any thread may read it."""
        self._last: dict[str, Millis] = {}
        self._failed: dict[str, Millis] = {}
        """Failures of steps that were logged in the last minute, and when."""

    async def run(self) -> None:
        """Tick for ever."""
        loop, delays = asyncio.get_running_loop(), self._context.counters.loop_delay
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            delays.add(max(0.0, loop.time() - due))
            self.tick()

    def tick(self) -> None:
        """Run all steps that are due. A failing step must not prevent the others, such as the expiry of leases."""
        now = self._context.clock.now()
        if not self._context.leads():
            return
        self._step(lambda: self._expire_leases_and_members(now))
        self._step(lambda: self._context.saved_filters.tick(now))
        self._step(lambda: self._context.progress_keeper.tick(now))
        self._step(lambda: self._context.notices.expire(now))
        if self._is_time("idle", IDLE_CHECK_EVERY_MS, now):
            self._step(lambda: self._server.close_idle(MAX_IDLE_SECONDS))

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            # Not at every tick: a disk that cannot be asked would fill the log.
            now, text = self._context.clock.now(), f"{type(error).__name__}: {error}"
            if now - self._failed.get(text, Millis(now - FAILURE_EVERY_MS)) >= FAILURE_EVERY_MS:
                recent = {each: at for each, at in self._failed.items() if now - at < FAILURE_EVERY_MS}
                self._failed = {**recent, text: now}
                log.exception("housekeeping failed")

    def _is_time(self, what: str, every: int, now: Millis) -> bool:
        if now - self._last.get(what, Millis(0)) < every:
            return False
        self._last[what] = now
        return True

    def _expire_leases_and_members(self, now: Millis) -> None:
        """Expire leases and members and notify their groups, so that the next owner does not wait for its own timer."""
        members, pause = self._context.members, Millis(now - self.last_tick)
        self.last_tick = now
        if pause > PAUSE_MS:
            log.warning("this process did not run for %.1f s: suspended, or the machine is overloaded", pause / 1000)
            members.paused(pause, now=now)
        ended = self._context.locks.expire(now=now)
        self._context.counters.leases_expired += len(ended)
        if self._context.recording.on:
            self._context.recording.expired(ended)
        changed, given_up = members.expire(now=now)
        self._warn_of_given_up(given_up)
        for group in changed[:MAX_LINES]:
            left = ", ".join(members.members(group)) or "none"
            log.info("group %s: a member was silent for too long and is removed; members now: %s", group, left)
        if len(changed) > MAX_LINES:
            log.info("members of %s further groups were silent for too long and are removed", len(changed) - MAX_LINES)
        members_changed(self._context, dict.fromkeys((*(group for group, _ in ended), *changed)), given_up)

    def _warn_of_given_up(self, given_up: Sequence[LostFilter]) -> None:
        """Warn that members with fewer tags get the queues that they kept waiting for a lost member."""
        self._context.counters.filters_given_up += len(given_up)
        for each in given_up[:MAX_LINES]:
            log.warning(
                "group %s: %s, which read %s with tags %r, was lost and has not come back: members with %r get "
                "the queues now, and skip messages that only it read",
                each.group,
                shown_member(each.member),
                each.topic,
                shown(each.tags),
                shown(self._context.members.widest(each.group, each.topic) or ALL),
            )
        if len(given_up) > MAX_LINES:
            log.warning("members of %s further topics were lost and have not come back", len(given_up) - MAX_LINES)
