"""In front of all handlers of a broker with `--users`: who is asking, and may they?

The rule guarded here: nothing gets past without a signature that proves a user's secret and that user's permission;
a request that cannot be judged is refused. A broker without users has no guard and spends nothing on one.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from lanemq.broker.access.permissions import Need, TopicAt, needs
from lanemq.broker.access.users import Users, read_users
from lanemq.broker.reply import answer_code, answer_error
from lanemq.clock import Clock
from lanemq.model.errors import LaneError
from lanemq.net.fresh_file import FreshFile
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.server import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.signing import ACCESS_KEY, is_signed

log = logging.getLogger(__name__)

NOBODYS_SECRET = "nobody's"
"""For users that do not exist: refusing them must take as long as refusing a wrong signature."""

Next = Callable[[Peer, Command], None]


class Guard:
    """Hands on what is allowed and answers the rest with NO_PERMISSION."""

    def __init__(self, file: Path, following: Next, topic_at: TopicAt, clock: Clock) -> None:
        self._users: FreshFile[Users] = FreshFile((file,), lambda: read_users(file), clock)
        self._following = following
        self._topic_at = topic_at
        self._rate_limited = RateLimitedLog(log, clock)

    def __call__(self, peer: Peer, request: Command) -> None:
        try:
            refusal = self._refusal(request)
        except LaneError as error:
            answer_error(peer, request, error)
            return
        except Exception:
            log.exception("request %s from %s could not be judged", request.code, peer)
            refusal = "the request cannot be read, so nobody knows whether it is allowed"
        if refusal is None:
            self._following(peer, request)
        else:
            self._rate_limited.warn("", f"request {request.code} from {peer.remote.host} refused: {refusal}")
            answer_code(peer, request, ResponseCode.NO_PERMISSION, refusal)

    def _refusal(self, request: Command) -> str | None:
        """Why not, for the sender; None if it may."""
        name = request.ext.get(ACCESS_KEY)
        if name is None:
            return "this broker takes signed requests only: connect with credentials (access key and secret key)"
        user = self._users.value().get(name)
        if not is_signed(request, user.secret_key if user is not None else NOBODYS_SECRET) or user is None:
            return f"the access key {name[:64]!r} is unknown or the signature is wrong: check access key and secret key"
        missing = next((need for need in needs(request, self._topic_at) if not need.given_to(user)), None)
        return None if missing is None else _not_allowed(name, missing)


def _not_allowed(name: str, missing: Need) -> str:
    return f"user {name!r} may not {missing}"
