"""Answers that need more time than one request may take, because they list everything that exists.

They are made in slices of the loop. A connection works on one of them at a time, so one that asks for a hundred long
answers delays those of the others by one of its own. An answer that fits into the first slice is sent at once, like
that of any other request.

Later requests of the same connection are handled in between. Where that would be wrong, because a request changes
something, it is begun `in_order`: then they wait.
"""

import logging
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from lanemq.broker.dispatch import answer, answer_error, answer_fault, give_up
from lanemq.clock import Clock
from lanemq.model.errors import BrokerBusy, LaneError
from lanemq.net.rate_limited_log import FaultLog
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

MAX_PER_PEER = 16
"""Unfinished answers of one connection; further requests are answered "busy"."""

Steps: TypeAlias = Generator[None, None, bytes | None]
"""Yields after each step of bounded length; returns the body of the answer, or None if it has answered by itself."""


@dataclass(slots=True, eq=False)
class _Unfinished:
    request: Command
    steps: Steps
    holds: bool = False
    """Whether later requests of the connection wait for it."""


class LongAnswers:
    """The long answers of one broker. Use it on the event loop only."""

    def __init__(self, slices: LoopSlices, clock: Clock) -> None:
        self._slices = slices
        self._faults = FaultLog(log, clock)
        self._unfinished: dict[Peer, deque[_Unfinished]] = {}
        """In the order in which they are made; no empty entries."""

    def begin(self, peer: Peer, request: Command, steps: Steps, *, in_order: bool = False) -> None:
        """Make the answer of a request. `in_order`: later requests of the connection wait until it is made."""
        mine, this = self._unfinished.setdefault(peer, deque()), _Unfinished(request, steps)
        if len(mine) >= MAX_PER_PEER:
            raise BrokerBusy(
                ResponseCode.SYSTEM_BUSY, f"{MAX_PER_PEER} long answers are under way here; wait for one of them"
            )
        mine.append(this)
        if len(mine) == 1:
            self._slices.begin(self._make(peer, mine))
        if in_order and this in mine:
            this.holds = True
            peer.hold()

    def _make(self, peer: Peer, mine: deque[_Unfinished]) -> Iterator[None]:
        """Make the answers of a connection one after the other, until it is closed."""
        while mine and peer.is_open:
            request = mine[0].request
            try:
                next(mine[0].steps)
                yield
                continue
            except StopIteration as end:
                if end.value is not None:
                    answer(peer, request, {}, end.value)
            except LaneError as error:
                answer_error(peer, request, error)
            except Exception as error:  # noqa: BLE001 - as in `dispatch`
                self._faults.write(f"request {request.code} from {peer} failed", error)
                answer_fault(peer, request)
            if mine.popleft().holds:
                peer.release()
        for unfinished in mine:
            give_up(unfinished.request)
        del self._unfinished[peer]
