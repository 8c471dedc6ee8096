"""Answers that need more time than one request may take, because they list everything that exists.

They are made in slices of about a millisecond, one in each round of the event loop. Connections take turns, so one that
asks for a hundred long answers delays the long answers of the others by one of its own, and short requests by a slice.
An answer that fits into the first slice is sent at once, like that of any other request.

Later requests of the same connection are handled in between. Where that would be wrong, because a request changes
something, it is begun `in_order`: then they wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from lanemq.broker.dispatch import answer, answer_error, answer_fault, give_up
from lanemq.clock import Clock, nanoseconds_of
from lanemq.model.errors import BrokerBusy, LaneError
from lanemq.net.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

SLICE_NS = 1_000_000
"""Time of one slice. Large: sends wait. Small: long answers take longer."""
MAX_PER_PEER = 16
"""Unfinished answers of one connection; further requests are answered "busy"."""

Steps: TypeAlias = Generator[None, None, bytes | None]
"""Yields after each step of bounded length; returns the body of the answer, or None if it has answered by itself."""


class _Unfinished(NamedTuple):
    request: Command
    steps: Steps
    in_order: bool


class SlicedAnswers:
    """The long answers of one broker. Use it on the event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._nanoseconds = nanoseconds_of(clock)
        self._waiting: dict[Peer, deque[_Unfinished]] = {}
        """By connection, in the order in which they get their slices."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, peer: Peer, request: Command, steps: Steps, *, in_order: bool = False) -> None:
        """Make the answer of a request; raises what the steps of the first slice raise.

        `in_order`: later requests of the connection wait until it is made.
        """
        mine = self._waiting.get(peer)
        if mine is not None:
            if len(mine) >= MAX_PER_PEER:
                raise BrokerBusy(
                    ResponseCode.SYSTEM_BUSY, f"{MAX_PER_PEER} long answers are under way here; wait for one of them"
                )
            mine.append(_Unfinished(request, steps, in_order))
        elif self._slice(peer, request, steps):
            return
        else:
            self._waiting[peer] = deque([_Unfinished(request, steps, in_order)])
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="lanemq-long-answers")
        if in_order:
            peer.hold()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)
                peer, mine = next(iter(self._waiting.items()))
                del self._waiting[peer]
                if not peer.is_open:
                    for unfinished in mine:
                        give_up(unfinished.request)
                    continue
                if self._slice_later(peer, mine[0].request, mine[0].steps) and mine.popleft().in_order:
                    peer.release()
                if mine:
                    self._waiting[peer] = mine
        finally:
            self._task = None

    def _slice_later(self, peer: Peer, request: Command, steps: Steps) -> bool:
        try:
            return self._slice(peer, request, steps)
        except LaneError as error:
            answer_error(peer, request, error)
        except Exception:
            log.exception("request %s from %s failed", request.code, peer)
            answer_fault(peer, request)
        return True

    def _slice(self, peer: Peer, request: Command, steps: Steps) -> bool:
        """Make one slice of an answer; whether it is finished."""
        until = self._nanoseconds() + SLICE_NS
        try:
            next(steps)
            while self._nanoseconds() < until:
                next(steps)
        except StopIteration as end:
            if end.value is not None:
                answer(peer, request, {}, end.value)
            return True
        return False
