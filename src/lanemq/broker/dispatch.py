"""Request code → handler, as a table; what happens when a handler fails."""

import logging
from collections.abc import Callable

from lanemq.broker.reply import answer_code, answer_error
from lanemq.model.errors import LaneError
from lanemq.net.server import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

Handler = Callable[[Peer, Command], None]


class Dispatch:
    """Finds the handler of a request. A bad request costs its sender an answer, never the connection."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def add(self, table: dict[int, Handler]) -> None:
        """Takes in one family of requests; two handlers for one code are a mistake in the wiring."""
        twice = self._handlers.keys() & table.keys()
        assert not twice, f"two handlers for request codes {sorted(twice)}"
        self._handlers.update({int(code): handler for code, handler in table.items()})

    def __call__(self, peer: Peer, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            _refuse_unknown(peer, request)
            return
        try:
            handler(peer, request)
        except LaneError as error:
            answer_error(peer, request, error)
        except Exception:
            # The one place that must survive anything: a fault in one request may not take the broker down.
            log.exception("request %s from %s failed", request.code, peer)
            answer_code(peer, request, ResponseCode.SYSTEM_ERROR, "internal error; the broker's log has the details")


def _refuse_unknown(peer: Peer, request: Command) -> None:
    if request.is_response:
        return  # an answer to a notification of ours; nobody waits for it
    remark = f" request type {request.code} not supported"
    answer_code(peer, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
