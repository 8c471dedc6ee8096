"""How a client protects its connections: with TLS, with signed requests, with both, or not at all.

A plain value that can be compared and sent to another process; whatever is not set costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lanemq.net.tls import TlsOptions
from lanemq.wire.command import Command, encode_command
from lanemq.wire.signing import Credentials, sign


@dataclass(frozen=True, slots=True)
class Security:
    """For every connection of one client, to name servers and brokers alike."""

    tls: TlsOptions | None = None
    credentials: Credentials | None = None


OPEN = Security()
"""Neither encrypted nor signed."""


def request_encoder(security: Security) -> Callable[[Command], bytes]:
    """How a connection turns requests into frames; without credentials the plain function itself."""
    if security.credentials is None:
        return encode_command
    return partial(_encode_signed, security.credentials)


def _encode_signed(credentials: Credentials, command: Command) -> bytes:
    sign(command, credentials)
    return encode_command(command)
