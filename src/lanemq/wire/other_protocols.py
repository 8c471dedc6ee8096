"""Other protocols, recognised by their first four bytes, which are read as the length of a frame.

An operator who points a client at the wrong port, or at a broker that does not speak its protocol, should not have to
decode a number to see it.
"""

from lanemq.model.errors import RemoteProtocolError

_HTTP_METHODS = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN"})

REMOTING = "this port takes RocketMQ's remoting protocol (TCP) only"

_HTTP2 = (
    "it speaks HTTP/2, as RocketMQ's gRPC clients do (Java rocketmq-client-java, Go rocketmq-clients/golang, npm "
    "rocketmq-client-nodejs, PyPI rocketmq-python-client, crate rocketmq, C++ and C# of rocketmq-clients): "
    f"{REMOTING}; use Java rocketmq-client, Go rocketmq-client-go/v2, npm ali-ons, crate rocketmq-client-v4, PyPI "
    "rocketmq (C++) or lanemq"
)
_TLS = (
    f"it begins a TLS handshake, and {REMOTING} without encryption: start the broker with --tls-cert, or switch TLS "
    "off in the client. RocketMQ's gRPC clients use TLS by default and do not work with this broker either way"
)


class OtherProtocol(RemoteProtocolError):
    """The peer speaks a protocol that is known, and not RocketMQ's remoting."""


def refuse_other_protocol(length: int) -> None:
    """Raise `OtherProtocol` if a peer's first four bytes, read as a frame's length, begin a protocol that is known."""
    spoken = _spoken(length)
    if spoken is not None:
        raise OtherProtocol(spoken)


def _spoken(length: int) -> str | None:
    first = length.to_bytes(4, "big")
    if first == b"PRI ":
        return _HTTP2
    if first in _HTTP_METHODS:
        return f"it sends an HTTP request: {REMOTING}"
    if first == b"HTTP":
        return "it answers as an HTTP server: the address is not that of a RocketMQ broker or name server"
    if first[:2] == b"\x16\x03":
        return _TLS
    return None
