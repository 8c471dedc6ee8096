"""The audit log: one line for every administrative request, allowed or refused.

Administrative are requests that change topics, groups, positions or parked lanes for others; what producers and members
do for themselves is not. Lines go to the logger `lanemq.audit`, each as one JSON object. They name the user, the
address, the request and its fields, without signatures and tokens. A broker without users logs who connected from
where.
"""

import logging
from collections.abc import Callable, Mapping

import msgspec

from lanemq.broker.dispatch import Handler
from lanemq.clock import Clock, wall_time
from lanemq.net.server import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.signing import ACCESS_KEY

log = logging.getLogger("lanemq.audit")

MAX_CHARS = 500
"""Longest text of a field; a request may carry megabytes."""

SECRET_FIELDS = frozenset({"Signature", "SecurityToken"})

ADMINISTRATIVE = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.LANE_PARKED_REDRIVE,
        RequestCode.LANE_PARKED_DISCARD,
    }
)

Refused = Callable[[Peer, Command, str], None]
"""Called with a request that is not allowed, and why."""


class Audit:
    """Logs the administrative requests that pass, and those that a guard refuses. Other requests cost nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def over(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """A table of handlers in which the administrative ones log their requests first."""
        return {code: self._logged(handler) if code in ADMINISTRATIVE else handler for code, handler in table.items()}

    def _logged(self, handler: Handler) -> Handler:
        def handle(peer: Peer, request: Command) -> None:
            self._log(peer, request, "allowed")
            handler(peer, request)

        return handle

    def refused(self, peer: Peer, request: Command, why: str) -> None:
        if request.code in ADMINISTRATIVE:
            self._log(peer, request, f"refused: {why}")

    def _log(self, peer: Peer, request: Command, outcome: str) -> None:
        fields = {
            name: value[:MAX_CHARS]
            for name, value in request.ext.items()
            if name not in SECRET_FIELDS and name != ACCESS_KEY
        }
        line = {
            "time": wall_time(self._clock.wall()).isoformat(timespec="milliseconds"),
            "user": request.ext.get(ACCESS_KEY, "")[:MAX_CHARS] or None,
            "address": peer.remote.host,
            "request": RequestCode(request.code).name,
            "fields": fields,
            "body": request.body[:MAX_CHARS].decode("utf-8", "backslashreplace"),
            "outcome": outcome,
        }
        log.info("%s", msgspec.json.encode(line).decode())
