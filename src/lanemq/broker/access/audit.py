"""The audit log: one line for every administrative request, with its outcome.

Administrative are requests that change topics, groups, positions or parked lanes for others; what producers and members
do for themselves is not. Lines go to the logger `lanemq.audit`, each as one JSON object. They name the user, the
address, the request and its fields, without signatures and tokens. A broker without users logs who connected from
where.

A line is written when the request is answered, because only then its outcome is known: `done`, `refused: ` and why
(nothing was changed), or `failed: ` and why (some of it may be changed). A request that was under way when the broker
was killed has no line.

Invariant: refused requests cannot push the lines of others out of the log, which is limited in size. Without a valid
user, the first one of an address and minute is logged, without fields, and the others are counted. Of clients with a
valid user, the first hundred of an address and minute are logged.
"""

import logging
from collections.abc import Callable

import msgspec

from lanemq.broker.dispatch import WatchedRequest
from lanemq.clock import Clock, wall_time
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.signing import ACCESS_KEY

log = logging.getLogger("lanemq.audit")

MAX_CHARS = 500
"""Longest text of a field; a request may carry megabytes."""

WINDOW_MS = 60_000
"""Refused requests without a valid user are logged once per address in this time, others `LINES_OF_USERS` times."""
LINES_OF_USERS = 100
MAX_ADDRESSES = 20
"""Addresses with lines of their own in that time; all others are counted together."""
OTHERS = "other addresses"
MAX_UNKNOWN_CHARS = 100
"""Longest text that a client without credentials brings into the log."""

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
        RequestCode.LANE_PARKED_REDRIVE,
        RequestCode.LANE_PARKED_DISCARD,
        RequestCode.LANE_COORDINATE,
        RequestCode.LANE_COMPARE,
    }
)

Refused = Callable[[Peer, Command, str], None]
"""Called with a request that is not allowed, and why."""


class Audit:
    """Logs administrative requests: how those ended that were passed on, and those that a guard refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window_began = clock.now()
        self._unknown: dict[str, int] = {}
        """Refused requests without a valid user in this window, by address; the first one of each is logged."""
        self._of_users: dict[str, int] = {}
        """The same of clients with a valid user."""

    def watched(self, peer: Peer, request: Command) -> WatchedRequest:
        """An administrative request whose outcome is logged."""
        return WatchedRequest.of(request, lambda outcome: self._log(peer, request, outcome))

    def refused(self, peer: Peer, request: Command, why: str) -> None:
        if request.code not in ADMINISTRATIVE:
            return
        self._end_window()
        if not peer.known:
            self._count_unknown(peer, request, why)
            return
        address = peer.remote.host
        self._of_users[address] = count = self._of_users.get(address, 0) + 1
        if count <= LINES_OF_USERS:
            self._log(peer, request, f"refused: {why}")

    def _count_unknown(self, peer: Peer, request: Command, why: str) -> None:
        address = peer.remote.host
        if address not in self._unknown and len(self._unknown) >= MAX_ADDRESSES:
            address = OTHERS
        count = self._unknown.get(address, 0)
        self._unknown[address] = count + 1
        if count == 0 and address != OTHERS:
            user = request.ext.get(ACCESS_KEY, "")[:MAX_UNKNOWN_CHARS] or None
            self._write(address, f"refused: {why[:MAX_CHARS]}", user=user, request=RequestCode(request.code).name)

    def _end_window(self) -> None:
        """Write the counts of the last window when it has ended."""
        if self._clock.now() - self._window_began < WINDOW_MS:
            return
        unknown = {address: count - (address != OTHERS) for address, count in self._unknown.items()}
        of_users = {address: max(0, count - LINES_OF_USERS) for address, count in self._of_users.items()}
        self._window_began = self._clock.now()
        self._unknown.clear()
        self._of_users.clear()
        for left_out, whose in ((unknown, "without a valid user"), (of_users, "of users")):
            for address, count in left_out.items():
                if count:
                    self._write(address, f"refused: {count} more {whose}", count=count)

    def _log(self, peer: Peer, request: Command, outcome: str) -> None:
        fields = {
            name: value[:MAX_CHARS]
            for name, value in request.ext.items()
            if name not in SECRET_FIELDS and name != ACCESS_KEY
        }
        self._end_window()
        self._write(
            peer.remote.host,
            outcome[: MAX_CHARS + len("refused: ")],
            user=request.ext.get(ACCESS_KEY, "")[:MAX_CHARS] or None,
            request=RequestCode(request.code).name,
            fields=fields,
            body=request.body[:MAX_CHARS].decode("utf-8", "backslashreplace"),
        )

    def _write(self, address: str, outcome: str, **more: object) -> None:
        time = wall_time(self._clock.wall()).isoformat(timespec="milliseconds")
        line = {"time": time, "address": address, **more, "outcome": outcome}
        log.info("%s", msgspec.json.encode(line).decode())
