"""Who may do what: RocketMQ's signature of gRPC calls, and the rights of a broker's file of users.

The signature covers nothing but the time that the client writes into the call, and whoever sees it can use it again.
So users without TLS are accepted on loopback only (`cli/server/grpc`). The time is not compared with a clock: clients
write local time in several forms.
"""

import hmac
import re
from pathlib import Path

from lanemq.broker.access.users import Right, User, Users, read_users
from lanemq.grpc_front.answers import CallFailed
from lanemq.grpc_front.port import CallHead
from lanemq.wire.grpc.messages import Code

_SIGNED = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=([^,/\s]+)[^,]*,\s*SignedHeaders=x-mq-date-time,\s*Signature=([0-9a-fA-F]{40})"
)


class Access:
    """The users of a front; without a file, everybody may do everything."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._users: Users | None = None
        self.refused = 0
        self.reload()

    def reload(self) -> None:
        """Reads the file again; raises `InvalidOption` if it has a mistake, and keeps what it had."""
        if self._file is not None:
            self._users = read_users(self._file)

    def send(self, user: User | None, topic: str) -> None:
        self._check(user, user is None or user.may_use_topic(topic, Right.PUB), f"send to topic {topic!r}")

    def look(self, user: User | None, topic: str) -> None:
        self._check(user, user is None or user.may_use_topic(topic, Right.ANY), f"look at topic {topic!r}")

    def consume(self, user: User | None, group: str, topic: str) -> None:
        self._check(user, user is None or user.may_use_topic(topic, Right.SUB), f"consume from topic {topic!r}")
        self.act_for(user, group)

    def act_for(self, user: User | None, group: str) -> None:
        self._check(user, user is None or user.may_act_for(group), f"act for group {group!r}")

    def _check(self, user: User | None, allowed: bool, what: str) -> None:
        if user is not None and not allowed:
            self.refused += 1
            raise CallFailed(Code.FORBIDDEN, f"user {user.access_key!r} may not {what}")

    def user_of(self, head: CallHead) -> User | None:
        """The user that signed a call, None if there are no users; raises `CallFailed` if no user did."""
        users = self._users
        if users is None:
            return None
        signed = _SIGNED.fullmatch(head.metadata.get("authorization", "").strip())
        user = users.get(signed[1]) if signed is not None else None
        time = head.metadata.get("x-mq-date-time", "")
        if user is not None and signed is not None and time:
            proof = hmac.new(user.secret_key.encode(), time.encode(), "sha1").digest()
            if hmac.compare_digest(proof, bytes.fromhex(signed[2])):
                return user
        self.refused += 1
        raise CallFailed(
            Code.UNAUTHORIZED, "the call is not signed by a user of this front: check access key and secret"
        )
