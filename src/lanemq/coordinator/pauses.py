"""After a pause, a coordinator answers nothing until the name servers confirm that it still has its place.

While it was frozen, an operator may have started a copy of its data folder on another machine. Both have the same id
and would grant the same epochs to different members. The one that was started last is entered at the name servers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lanemq.broker.dispatch import Handler
from lanemq.clock import Clock
from lanemq.coordinator.watch import OtherCoordinator
from lanemq.net.peer import Peer
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

MAX_PAUSE_MS = 2_000
"""Shorter than a coordinator that starts waits for the answer of the one before it."""
LOOK_SECONDS = 0.5
AGAIN_SECONDS = 0.2


class PauseGate:
    """The handler in front of all others. It lets requests wait, in their order, while the place is not confirmed."""

    def __init__(self, clock: Clock, handle: Handler, confirm: Callable[[], Awaitable[bool]]) -> None:
        """`confirm` says whether a name server has answered, and raises `OtherCoordinator`."""
        self._clock = clock
        self._handle = handle
        self._confirm = confirm
        self._last = clock.now()
        self._paused = False
        self._confirming: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Peer, Command]] = []

    def __call__(self, peer: Peer, request: Command) -> None:
        self.look()
        if self._confirming is None:
            self._handle(peer, request)
        else:
            peer.hold()
            self._waiting.append((peer, request))

    async def run(self) -> None:
        """Looks for ever: without that, a time without requests would look like a pause."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Notice a pause: this process did not run since the last look."""
        now = self._clock.now()
        if now - self._last > MAX_PAUSE_MS:
            self._paused = True
            if self._confirming is None:
                self._confirming = asyncio.create_task(self._open_again())
        self._last = now

    async def _open_again(self) -> None:
        """Wait until a name server has confirmed the place, in a request that was sent after the last pause."""
        while self._paused:
            self._paused = False
            try:
                confirmed = await self._confirm()
            except OtherCoordinator as error:
                log.error("no request is answered any more: %s", error)
                return  # it stays shut; the watch ends this process
            if not confirmed:
                self._paused = True
                await asyncio.sleep(AGAIN_SECONDS)
        self._confirming, waiting, self._waiting = None, self._waiting, []
        for peer, request in waiting:
            peer.release()
            if peer.is_open:
                self._handle(peer, request)
