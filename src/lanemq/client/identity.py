"""Who this process is: client ids that no two members share, and message ids that no two messages share.

Two members with one client id would both be told that they own a queue, and the broker's lock would agree:
order would break silently. So an id holds host, process and a random part, never host and process alone.
"""

import itertools
import os
import secrets
import socket


def new_client_id() -> str:
    """`host@process#random`, the shape RocketMQ's tools expect."""
    return f"{local_ip()}@{os.getpid()}#{secrets.token_hex(6)}"


def new_producer_id() -> str:
    """The name under which the broker remembers this producer's sequence numbers."""
    return secrets.token_hex(8)


def local_ip() -> str:
    """This machine's address towards others, or loopback when it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class MessageIds:
    """Unique message ids (RocketMQ's UNIQ_KEY): 32 upper-case hex digits, one prefix per process."""

    def __init__(self) -> None:
        address = socket.inet_aton(local_ip())
        self._prefix = (address + secrets.token_bytes(8)).hex().upper()
        self._numbers = itertools.count(secrets.randbits(16))

    def next(self) -> str:
        return f"{self._prefix}{next(self._numbers) & 0xFFFFFFFF:08X}"
