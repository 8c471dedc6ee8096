"""Unique ids of clients, producers and messages.

If two members had the same client id, the broker would grant both the same queue, and order would break silently. So a
client id holds host, process and a random part.
"""

import itertools
import os
import socket
from collections.abc import Iterator

from lanemq._fast import compiled


def new_client_id() -> str:
    """`host@process#random`, the form that RocketMQ's tools expect."""
    return f"{origin.address()}@{origin.process()}#{origin.random(6).hex()}"


def new_producer_id() -> str:
    """The name under which the broker remembers this producer's sequence numbers."""
    return origin.random(8).hex()


def local_ip() -> str:
    """This machine's outward address, or the loopback address if it has none, or no descriptor to ask with. Sends
    nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


class Origin:
    """What makes this process unique. A simulation replaces it, so that a run can be repeated."""

    def address(self) -> str:
        return local_ip()

    def process(self) -> int:
        return os.getpid()

    def random(self, count: int) -> bytes:
        """`count` bytes that cannot be guessed."""
        return os.urandom(count)


origin = Origin()

_BLOCK_DIGITS = 3
_TAILS = tuple(f"{number:0{_BLOCK_DIGITS}X}" for number in range(16**_BLOCK_DIGITS))


@compiled
class MessageIds:
    """Unique message ids (RocketMQ's UNIQ_KEY): 32 upper-case hex digits, of which the first 24 are the producer's.

    Ids are made in blocks, because formatting a number takes longer than joining two strings. Safe for threads without
    a lock: an id comes from an iterator that runs no Python code, and two threads that reach the end of a block get a
    new block each.
    """

    def __init__(self, prefix: str, first_block: int) -> None:
        self._prefix = prefix
        self._blocks = itertools.count(first_block)
        self._ready: Iterator[str] = iter(())

    def next(self) -> str:
        return next(self._ready, None) or self._first_of_a_block()

    def _first_of_a_block(self) -> str:
        block = f"{self._prefix}{next(self._blocks) & 0xFFFFF:05X}"
        ids = map(block.__add__, _TAILS)
        first = next(ids)
        self._ready = ids
        return first


def new_message_ids() -> MessageIds:
    """Ids that no other process makes."""
    prefix = socket.inet_aton(origin.address()) + origin.random(8)
    return MessageIds(prefix.hex().upper(), origin.random(1)[0])
