"""The guard: checks every request of a broker with `--users` before its handler runs.

Invariant: a handler sees a request only if it carries the signature of a user that has the needed permissions; a
request that cannot be checked is refused. A broker without users has no guard and no cost.

After a request without a right signature, the next one of its connection may have to wait
(`core/brokering/refusal_pace`), so that refusals do not keep the broker from other clients.
"""

import logging
from pathlib import Path

from lanemq.broker.access.audit import Refused
from lanemq.broker.access.permissions import Need, TopicAt, needs
from lanemq.broker.access.users import Users, read_users, without_secrets
from lanemq.broker.body_limits import SMALL_BODY, body_problem
from lanemq.broker.dispatch import Handler, answer_code, answer_error
from lanemq.clock import Clock
from lanemq.core.brokering.refusal_pace import RefusalPace
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.model.errors import LaneError
from lanemq.net.fresh_file import FreshFile
from lanemq.net.rate_limited_log import FaultLog, RateLimitedLog
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.signing import ACCESS_KEY, is_signed

log = logging.getLogger(__name__)

MAX_UNHANDLED = 200
"""Requests that a connection without a right signature may have sent ahead while it waits; they take memory."""

UNKNOWN_USER_SECRET = "unknown"
"""Checked for users that do not exist, so that their refusal takes as long as that of a wrong signature."""


class Guard:
    """Passes allowed requests to the next handler and answers others with NO_PERMISSION."""

    def __init__(
        self,
        file: Path,
        next_handler: Handler,
        topic_at: TopicAt,
        clock: Clock,
        refusals: RefusalCounts | None = None,
        on_refused: Refused = lambda peer, request, why: None,
    ) -> None:
        self._on_refused = on_refused
        self._refusals = refusals or RefusalCounts()
        self._users: FreshFile[Users] = FreshFile((file,), lambda: read_users(file), clock)
        self._next_handler = next_handler
        self._topic_at = topic_at
        self._rate_limited = RateLimitedLog(log, clock)
        self._faults = FaultLog(log, clock)
        self._clock = clock
        self._pace = RefusalPace()

    def reload(self) -> None:
        """Read the file of users again."""
        self._users.reload()

    def users(self) -> str:
        """Names and rights of the users, as JSON without secrets."""
        return without_secrets(self._users.value())

    def __call__(self, peer: Peer, request: Command) -> None:
        if request.is_response:  # it asks for nothing
            self._next_handler(peer, request)
            return
        if len(request.body) > SMALL_BODY and (problem := body_problem(request)) is not None:
            self._refusals.add(RefusalReason.BODY)
            self._on_refused(peer, request, problem)
            if not peer.known:
                self._slow_down(peer)
            answer_code(peer, request, ResponseCode.INVALID_PARAMETER, problem)
            return
        try:
            refusal = self._refusal(peer, request)
        except LaneError as error:
            self._on_refused(peer, request, str(error))
            answer_error(peer, request, error)
            return
        except Exception as error:  # noqa: BLE001 - what cannot be checked is refused
            self._faults.write(f"request {request.code} from {peer} could not be checked", error)
            self._slow_down(peer)
            refusal = "the request cannot be read, so it cannot be checked; the broker's log has the details"
        if refusal is None:
            self._next_handler(peer, request)
        else:
            self._refusals.add(RefusalReason.NOT_ALLOWED)
            self._on_refused(peer, request, refusal)
            self._rate_limited.warn("", f"request {request.code} from {peer.remote.host} refused: {refusal}")
            answer_code(peer, request, ResponseCode.NO_PERMISSION, refusal)

    def _refusal(self, peer: Peer, request: Command) -> str | None:
        """Why the request is refused; None if it is allowed."""
        name = request.ext.get(ACCESS_KEY)
        if name is None:
            self._slow_down(peer)
            return "this broker takes signed requests only: connect with credentials (access key and secret key)"
        user = self._users.value().get(name)
        if not is_signed(request, user.secret_key if user is not None else UNKNOWN_USER_SECRET) or user is None:
            self._slow_down(peer)
            return f"the access key {name[:64]!r} is unknown or the signature is wrong: check access key and secret key"
        peer.known = True
        missing = next((need for need in needs(request, self._topic_at) if not need.given_to(user)), None)
        return None if missing is None else _not_allowed(name, missing)

    def _slow_down(self, peer: Peer) -> None:
        """Lets a connection wait after a request without a right signature, if its address had too many of them."""
        wait = self._pace.refused(peer.origin, self._clock.now())
        if wait and not peer.known and peer.unhandled > MAX_UNHANDLED:
            peer.close(f"more than {MAX_UNHANDLED} requests ahead without a right signature")
        elif wait:
            peer.hold_for(wait / 1000)


def _not_allowed(name: str, missing: Need) -> str:
    return f"user {name!r} may not {missing}"
