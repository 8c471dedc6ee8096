"""What every request to a leader passes: it answers only in its term, takes no commits that it cannot write, and learns
what its store has lost."""

import logging
from collections.abc import Callable

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer_code
from lanemq.model.units import Epoch, Millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_HIGHEST_EPOCH, LANE_TERM

log = logging.getLogger(__name__)

MAX_BEHIND_MS = Millis(500)
"""How long the last write may take before commits are refused. Long: a fail-over forgets more of those that were taken
and not written. A member whose commit is refused keeps its queue, so that the next owner repeats nothing."""
MAX_DIGITS = 15
"""Of a term or an epoch that a member names. No cluster reaches so many, and the next ones must fit into 64 bits."""


class TermGate:
    """Passes requests on to a handler.

    A member names the highest term and the highest epoch that it has seen. Both are above those of a leader whose
    store, and whose name servers, have gone back.
    """

    def __init__(self, handler: Handler, context: GroupContext, heard_of: Callable[[int], None]) -> None:
        self._handler = handler
        self._context = context
        self._heard_of = heard_of
        self._warnings = RateLimitedLog(log, context.clock)

    def __call__(self, peer: Peer, request: Command) -> None:
        if not self._context.leads():
            peer.abort()
            return
        if (term := _number(request, LANE_TERM)) > self._context.term:
            self._heard_of(term)
            peer.abort()
            return
        if (epoch := _number(request, LANE_HIGHEST_EPOCH)) > self._context.locks.highest_epoch:
            self._warnings.warn(
                "epoch",
                f"a member was granted epoch {epoch}, above all that this coordinator knows: its state has gone back. "
                f"New owners get epochs above it",
            )
            self._context.locks.raise_floor(Epoch(epoch))
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            behind = self._context.progress_keeper.behind(self._context.clock.now())
            if behind > MAX_BEHIND_MS:
                remark = f"the state takes no changes for {behind / 1000:.1f} s, so commits are not taken: commit again"
                answer_code(peer, request, ResponseCode.SYSTEM_BUSY, remark)
                return
        self._handler(peer, request)


def _number(request: Command, field: str) -> int:
    text = request.ext.get(field, "") if request.ext else ""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0
