"""Frames: where one command ends and the next begins in a stream of bytes.

    | 4 bytes    | 1 byte         | 3 bytes       | header length | the rest |
    | length L   | serialize type | header length | header        | body     |

`L` counts everything behind itself. The rule guarded here: a peer can make us hold at most one frame of the
limit, and nothing that is not a frame gets further than this module. What a header means, `command` knows.
"""

from struct import Struct
from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.model.errors import LocalProtocolError, RemoteProtocolError

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The length field included, as in RocketMQ's NettyDecoder."""
MAX_HEADER_BYTES = 256 * 1024
"""Properties may take 32767 bytes, and JSON turns each separator among them into six characters."""

JSON = 0
BINARY = 1
"""Serialize types of a header (RocketMQ's SerializeType)."""

_CRUMB_BYTES = 4096
"""What arrives in smaller pieces is put together at once."""

_LENGTHS = Struct(">II")
_LENGTH = Struct(">I")


class Frame(NamedTuple):
    """One frame, taken apart but not understood."""

    serialize_type: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Turns what a socket delivers into frames; one decoder per connection."""

    __slots__ = ("_limit", "_needed", "_rest", "pending")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._rest: list[bytes | bytearray] = []
        self._needed = 0
        """Fewer bytes than this in `_rest` cannot complete a frame: not worth looking again."""
        self.pending = 0
        """Bytes of an unfinished frame; more than 0 at the end of a connection means it was cut off."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        `RemoteProtocolError` means that nothing behind this point can be trusted. Frames in front of the bad
        one in the same `data` are dropped with it: the connection is closed, and for its peer an unanswered
        request is the same as a lost one.
        """
        if self._rest:
            self._keep(data)
            if self.pending < self._needed:
                return []
            data = b"".join(self._rest)
            self._rest.clear()
            self.pending = 0
        frames: list[Frame] = []
        position = self._take_frames(data, frames)
        if position < len(data):
            self._keep(data[position:])
        return frames

    def _keep(self, data: bytes) -> None:
        """As it came, so that it is copied once; crumbs together, or each would take many times its own size."""
        self.pending += len(data)
        if len(data) >= _CRUMB_BYTES:
            self._rest.append(data)
        elif self._rest and isinstance(self._rest[-1], bytearray):
            self._rest[-1] += data
        else:
            self._rest.append(bytearray(data))

    def _take_frames(self, data: bytes, frames: list[Frame]) -> int:
        """Append the whole frames of `data`, return where the unfinished one begins."""
        whole, position, self._needed = split_frames(data, self._limit, Frame)
        frames += whole
        return position


@compiled
def split_frames(data: bytes, limit: int, kind: type[Frame]) -> tuple[list[Frame], int, int]:
    """The whole frames of `data`, where the unfinished one begins, and how many bytes it needs at least."""
    frames: list[Frame] = []
    position, end = 0, len(data)
    while end - position >= 8:
        length, mark = _LENGTHS.unpack_from(data, position)
        body_at = position + 8 + (mark & 0xFFFFFF)
        next_at = position + 4 + length
        if next_at - position > limit or body_at > next_at or mark & 0xFEFFFFFF > MAX_HEADER_BYTES:
            _refuse(length, mark, limit)
        if next_at > end:
            return frames, position, next_at - position
        frames.append(kind(mark >> 24, data[position + 8 : body_at], data[body_at:next_at]))
        position = next_at
    if end - position >= 4:
        (length,) = _LENGTH.unpack_from(data, position)
        if length < 4 or length + 4 > limit:
            _refuse(length, 0, limit)
    return frames, position, 8


def pack_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """The bytes of one frame, ready for the socket."""
    if len(header) > MAX_HEADER_BYTES:
        raise LocalProtocolError(
            f"a header of {len(header)} bytes is over the limit of {MAX_HEADER_BYTES}: send fewer properties"
        )
    lengths = _LENGTHS.pack(4 + len(header) + len(body), serialize_type << 24 | len(header))
    return lengths + header + body


def _refuse(length: int, mark: int, limit: int) -> None:
    """Say what is wrong with a frame that `_take_frames` did not accept."""
    serialize_type, header = mark >> 24, mark & 0xFFFFFF
    if length + 4 > limit:
        problem = f"a frame of {length + 4} bytes is over the limit of {limit}"
    elif length < 4:
        problem = f"a frame of length {length} has no room for its own header length"
    elif serialize_type not in (JSON, BINARY):
        problem = f"header serialize type {serialize_type} is unknown"
    elif header > MAX_HEADER_BYTES:
        problem = f"a header of {header} bytes is over the limit of {MAX_HEADER_BYTES}"
    else:
        problem = f"a header of {header} bytes does not fit into a frame of length {length}"
    raise RemoteProtocolError(f"{problem}; the peer does not speak RocketMQ's remoting protocol")
