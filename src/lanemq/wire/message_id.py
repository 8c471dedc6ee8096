"""Message ids: where a message lies, and which message it is.

An offset id is the address of a record: broker host and log position. A unique id is given by the producer
and stays the same across repeats. Both are upper-case hex, as RocketMQ's MessageDecoder and
MessageClientIDSetter write them.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from struct import pack
from typing import NamedTuple

from lanemq.model.errors import UsageError
from lanemq.wire.hosts import pack_host

_LONGEST = 56


class OffsetId(NamedTuple):
    """Where to look: connect to `ip:port` and ask for `position`."""

    ip: str
    port: int
    position: int


@lru_cache(maxsize=64)
def offset_id_prefix(ip: str, port: int) -> str:
    """The part that all offset ids of a broker share."""
    return pack_host(ip, port).hex().upper()


def encode_offset_id(ip: str, port: int, position: int) -> str:
    """32 characters; an IPv6 broker appears as 0.0.0.0, as in its records."""
    return f"{offset_id_prefix(ip, port)}{position:016X}"


def decode_offset_id(text: str) -> OffsetId:
    """The address in an offset id, or `UsageError`: people paste all kinds of ids into tools."""
    try:
        data = bytes.fromhex(text) if len(text) in (32, _LONGEST) and text.isalnum() else b""
    except ValueError:
        data = b""
    if not data:
        raise UsageError(f"{text[:80]!r} is no offset message id: 32 or 56 hex digits are expected")
    address = IPv4Address(data[:4]) if len(data) == 16 else IPv6Address(data[:16])
    port = int.from_bytes(data[-12:-8], "big")
    return OffsetId(str(address), port, int.from_bytes(data[-8:], "big", signed=True))


def unique_id(ip_bytes: bytes, pid: int, salt: int, millis: int, counter: int) -> str:
    """A producer's id for a message, from parts the caller brings.

    `ip_bytes` are the 4 or 16 bytes of its address, `salt` tells apart processes with equal address and pid,
    `millis` counts from the first of the month, `counter` within the process. Numbers wrap to their width.
    """
    tail = pack(">HIIH", pid & 0xFFFF, salt & 0xFFFFFFFF, millis & 0xFFFFFFFF, counter & 0xFFFF)
    return (ip_bytes + tail).hex().upper()
