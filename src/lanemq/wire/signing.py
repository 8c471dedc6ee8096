"""Who sends a request, and the proof: RocketMQ's access control signs each request with a secret both sides know.

The signature is the HMAC-SHA1 of the values of all ext fields, in the order of their names and without the signature
itself, followed by the body; in base64. The rule guarded here: what is signed is what is sent, so a request is signed
last, and a repetition is signed anew. The secret itself never travels, and never shows up in a text.
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
    """A user of a broker that asks who is there. The secret is in no `repr`, so in no log and no error."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    """Of temporary credentials, where the cluster gives such; LaneMQ's broker signs it in and asks no more of it."""

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidOption(f"credentials: {name} is empty; both belong together, take them from the broker")


def sign(command: Command, credentials: Credentials) -> None:
    """Adds who sends it, and the proof. The fields are copied: callers share them between requests."""
    ext = {**command.ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.body, credentials.secret_key)
    command.ext = ext


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """What `Signature` must be for a request of these fields."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    proof = hmac.new(secret_key.encode(), text.encode("utf-8", "surrogatepass"), "sha1")
    proof.update(body)  # a large body joined to the text would be copied, which takes as long as the signature
    return base64.b64encode(proof.digest()).decode()


def is_signed(command: Command, secret_key: str) -> bool:
    """Whether whoever sent it knows the secret. Takes as long for a wrong signature as for the right one."""
    given = command.ext.get(SIGNATURE, "")
    wanted = signature(command.ext, command.body, secret_key)
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())
