"""Signed requests: RocketMQ's access control, with a secret that client and broker share.

The signature is the base64 of the HMAC-SHA1 over the values of all ext fields, in the order of their names and without
the signature itself, followed by the body. A request is signed last, and a repeated request is signed again, so that
the signature always covers what is sent. The secret is never sent and never printed.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lanemq.model.errors import InvalidOption
from lanemq.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
"""Ext fields (RocketMQ's SessionCredentials)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of a broker with access control. `repr` leaves out the secret, so no log line or error shows it."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    """The token of temporary credentials, if the cluster uses them. A LaneMQ broker includes it in the signature and
    ignores it otherwise.
    """

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidOption(f"credentials: {name} is empty; both belong together, take them from the broker")
        if not isinstance(self.security_token, str | None):
            raise InvalidOption("credentials: security_token must be text, or None")


def sign(command: Command, credentials: Credentials) -> None:
    """Adds access key and signature to the request. The fields are copied, because requests may share them."""
    ext = {**command.ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.body, credentials.secret_key)
    command.ext = ext


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """The signature for a request with these fields."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    proof = hmac.new(secret_key.encode(), text.encode("utf-8", "surrogatepass"), "sha1")
    proof.update(body)  # joining a large body to the text would copy it, which takes as long as signing
    return base64.b64encode(proof.digest()).decode()


def is_signed(command: Command, secret_key: str) -> bool:
    """Whether the signature was made with the secret; compared in constant time."""
    given = command.ext.get(SIGNATURE, "")
    wanted = signature(command.ext, command.body, secret_key)
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())
