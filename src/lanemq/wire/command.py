"""Frames and commands: RocketMQ's remoting protocol, from bytes to requests and responses and back.

A frame is one command in a stream of bytes:

    | 4 bytes    | 1 byte         | 3 bytes       | header length | the rest |
    | length L   | serialize type | header length | header        | body     |

`L` counts everything after itself. A peer can make this module hold at most one frame of the limit.

A command has one shape for requests and responses; bit 0 of `flag` tells them apart. Headers are read leniently, as
RocketMQ reads them: Node clients put numbers and booleans into `extFields`, Java accepts numbers as text. A header that
cannot be read is refused, with the opaque to answer to if it is known. `headers` knows which fields a code needs.

Clients may choose a binary header (serialize type 1) instead of JSON, see `binary_header`.
"""

from struct import Struct
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lanemq._fast import compiled
from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire.binary_header import UnreadableHeader, decode_binary_header, encode_binary_header
from lanemq.wire.other_protocols import refuse_other_protocol

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The length field included, as in RocketMQ's NettyDecoder."""
MAX_HEADER_BYTES = 256 * 1024
"""Properties may take 32767 bytes, and JSON turns each separator among them into six characters."""

JSON = 0
BINARY = 1
"""Serialize types of a header (RocketMQ's SerializeType)."""

_CRUMB_BYTES = 4096
"""Pieces smaller than this are joined as they arrive."""

LARGE_FRAME_BYTES = 32 * 1024
"""From this size on, the body of a frame is received into memory of its own. Smaller frames cost less to cut out of
what was read."""

MAX_RESERVED = 16
"""Memory for a whole frame is reserved once one part in so many of it has arrived (1/16). Larger: a peer that sends a
few bytes makes this side reserve a lot. Smaller: more of each large frame is copied."""

_FRAME_HEAD = Struct(">II")
_FRAME_LENGTH = Struct(">I")


class Frame(NamedTuple):
    """One frame, split into its parts."""

    serialize_type: int
    header: bytes
    body: bytes


@compiled
class BodyBuffer:
    """Memory for the body of one large frame, into which a socket can write. The compiled twin returns that memory as
    the body; here it is copied once."""

    __slots__ = ("_data", "left")

    def __init__(self, size: int) -> None:
        self._data = bytearray(size)
        self.left = size
        """Bytes that are still to come."""

    def space(self) -> memoryview:
        """Where the next bytes belong. It must not be written to once the body is taken."""
        return memoryview(self._data)[len(self._data) - self.left :]

    def filled(self, count: int) -> None:
        """Notes that `count` bytes were written to `space`."""
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} bytes were written where {self.left} fit")
        self.left -= count

    def put(self, data: bytes, start: int = 0) -> int:
        """Copies what fits of `data` from `start` on, and returns where it stopped."""
        count = min(len(data) - start, self.left)
        self.space()[:count] = memoryview(data)[start : start + count]
        self.left -= count
        return start + count

    def take(self) -> bytes:
        """The complete body."""
        if self.left:
            raise ValueError(f"{self.left} bytes of the body are missing")
        return bytes(self._data)


class FrameDecoder:
    """Splits a stream of bytes into frames; one decoder per connection.

    Bytes come through `feed`. While `body` is not None, they can also be written to its `space` directly, which saves
    copies of large frames; `body_filled` follows then.

    `trusted` says that the peer is a server that this side has chosen: memory for a large frame is reserved as soon as
    its header is there, so `MAX_RESERVED` does not apply.
    """

    __slots__ = ("_head", "_limit", "_needed", "_rest", "_trusted", "body", "large_next", "pending")

    def __init__(self, limit: int = MAX_FRAME_BYTES, *, trusted: bool = False) -> None:
        self._limit = limit
        self._trusted = trusted
        self.large_next = False
        """Whether the next frame is probably large, as the last one of a trusted peer was. Then it pays to read little
        at first, and the rest of it into its own memory."""
        self._rest: list[bytes | bytearray] = []
        self._needed = 0
        """With fewer bytes than this in `_rest`, there is no reason to look at it."""
        self.body: BodyBuffer | None = None
        """The body of the large frame that is being received."""
        self._head = (0, b"")
        """Serialize type and header of that frame."""
        self.pending = 0
        """Bytes held for an unfinished frame: those that arrived, or the whole frame if its memory is reserved. More
        than 0 at the end of a connection means it was cut off."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises `RemoteProtocolError` for bytes that are not a frame; the connection must be closed then. Complete frames
        before the bad one in the same `data` are dropped with it: for the peer, an unanswered request is the same as
        a lost one.
        """
        frames: list[Frame] = []
        if self.body is not None:
            position = self.body.put(data)
            frames = self.body_filled(0)
            if position == len(data):
                return frames
            data = data[position:]
        elif self._rest:
            self._keep(data)
            if self.pending < self._needed:
                return frames
            data = b"".join(self._rest)
            self._rest.clear()
            self.pending = 0
        whole, position, self._needed = split_frames(data, self._limit, Frame)
        if whole:
            self.large_next = self._trusted and len(whole[-1].body) >= LARGE_FRAME_BYTES
            frames = [*frames, *whole] if frames else whole
        if position < len(data):
            self._begin_frame(data, position)
        return frames

    def body_filled(self, count: int) -> list[Frame]:
        """Notes that `count` bytes were written to the `space` of `body`; returns the frame if it is complete now."""
        body = self.body
        if body is None:
            raise ValueError("no large frame is being received")
        body.filled(count)
        if body.left:
            return []
        self.body = None
        self.pending = 0
        self.large_next = self._trusted
        return [Frame(*self._head, body.take())]

    def _begin_frame(self, data: bytes, position: int) -> None:
        """Keeps the start of an unfinished frame: what arrived, or its header and a buffer for its whole body."""
        arrived = len(data) - position
        if self._needed >= LARGE_FRAME_BYTES:
            _, mark = _FRAME_HEAD.unpack_from(data, position)
            body_at = 8 + (mark & 0xFFFFFF)
            enough = body_at if self._trusted else max(body_at, self._needed // MAX_RESERVED)
            if arrived >= enough and self._needed - body_at > 1:
                body_at += position
                self._head = (mark >> 24, data[position + 8 : body_at])
                self.pending = self._needed
                self.body = BodyBuffer(position + self._needed - body_at)
                self.body.put(data, body_at)
                return
            self._needed = enough
        self._keep(data[position:])

    def _keep(self, data: bytes) -> None:
        """Keeps large pieces as they are, so that they are copied once, and joins small ones to save memory."""
        self.pending += len(data)
        if len(data) >= _CRUMB_BYTES:
            self._rest.append(data)
        elif self._rest and isinstance(self._rest[-1], bytearray):
            self._rest[-1] += data
        else:
            self._rest.append(bytearray(data))


@compiled
def split_frames(data: bytes, limit: int, kind: type[Frame]) -> tuple[list[Frame], int, int]:
    """The complete frames of `data`, where the unfinished one begins, and how many bytes it needs at least."""
    frames: list[Frame] = []
    position, end = 0, len(data)
    while end - position >= 8:
        length, mark = _FRAME_HEAD.unpack_from(data, position)
        body_at = position + 8 + (mark & 0xFFFFFF)
        next_at = position + 4 + length
        if next_at - position > limit or body_at > next_at or mark & 0xFEFFFFFF > MAX_HEADER_BYTES:
            _refuse_frame(length, mark, limit)
        if next_at > end:
            return frames, position, next_at - position
        frames.append(kind(mark >> 24, data[position + 8 : body_at], data[body_at:next_at]))
        position = next_at
    if end - position >= 4:
        (length,) = _FRAME_LENGTH.unpack_from(data, position)
        if length < 4 or length + 4 > limit:
            _refuse_frame(length, 0, limit)
    return frames, position, 8


def pack_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """The bytes of one frame, ready for the socket."""
    return frame_head(serialize_type, header, len(body)) + header + body


def frame_head(serialize_type: int, header: bytes, body_bytes: int) -> bytes:
    """The bytes of a frame before its header."""
    if len(header) > MAX_HEADER_BYTES:
        raise LocalProtocolError(
            f"a header of {len(header)} bytes is over the limit of {MAX_HEADER_BYTES}: send fewer properties"
        )
    return _FRAME_HEAD.pack(4 + len(header) + body_bytes, serialize_type << 24 | len(header))


def _refuse_frame(length: int, mark: int, limit: int) -> None:
    """Raises an error that says what is wrong with the frame."""
    serialize_type, header = mark >> 24, mark & 0xFFFFFF
    if length + 4 > limit:
        refuse_other_protocol(length)
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


RESPONSE_BIT = 1
ONEWAY_BIT = 2
"""Flag bits (RocketMQ's RemotingCommand)."""

LANGUAGE = "PYTHON"
VERSION = 473
"""Ordinal of V5_3_0 in RocketMQ's MQVersion: servers answer it with strict JSON and never with GO_AWAY."""

MAX_EXT_FIELDS = 128

_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class BadHeader(RemoteProtocolError):
    """The header of a frame cannot be read.

    `opaque` names the request to answer with an error; None means that no answer is possible and the connection must be
    closed.
    """

    def __init__(self, problem: str, opaque: int | None = None) -> None:
        self.opaque = opaque
        super().__init__(f"command header cannot be read: {problem}")


class Command(msgspec.Struct):
    """A request or a response."""

    code: int
    opaque: int
    flag: int = 0
    ext: dict[str, str] = {}
    body: bytes = b""
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION
    serialize_type: int = JSON

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_BIT != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_BIT != 0

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"Command({kind} code={self.code} opaque={self.opaque} ext={self.ext!r} "
            f"body={len(self.body)}B remark={self.remark!r})"
        )


class _JsonHeader(msgspec.Struct, kw_only=True):
    """Attributes in the order in which Java writes them. The code is required: without it, an answer would count as
    success.
    """

    code: _Int32
    ext: dict[str, str] | None = msgspec.field(name="extFields", default=None)
    flag: _Int32 = 0
    language: str = "JAVA"
    opaque: _Int32
    remark: str | UnsetType | None = UNSET
    form: str = msgspec.field(name="serializeTypeCurrentRPC", default="JSON")
    version: _Int32 = 0


_decoder = msgspec.json.Decoder(_JsonHeader)
_encoder = msgspec.json.Encoder()


def decode_command(frame: Frame) -> Command:
    """Decodes the command in a frame; raises `BadHeader`."""
    serialize_type, header, body = frame
    if serialize_type == BINARY:
        return _decode_binary(header, body)
    try:
        parsed = _decoder.decode(header)
    except (ValueError, RecursionError):
        parsed = _decode_careless(header)
    ext = parsed.ext
    if ext is None:
        ext = {}
    elif len(ext) > MAX_EXT_FIELDS:
        raise BadHeader(f"{len(ext)} ext fields, at most {MAX_EXT_FIELDS} are read", _opaque_to_answer(parsed))
    remark = None if parsed.remark is UNSET else parsed.remark
    return Command(parsed.code, parsed.opaque, parsed.flag, ext, body, remark, parsed.language, parsed.version)


def encode_command(command: Command) -> bytes:
    """The complete frame of a command."""
    if len(command.ext) > MAX_EXT_FIELDS:
        raise LocalProtocolError(f"{len(command.ext)} ext fields, at most {MAX_EXT_FIELDS} may be sent")
    if command.serialize_type == BINARY:
        header = encode_binary_header(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            command.remark,
            command.ext,
        )
        return pack_frame(BINARY, header, command.body)
    remark = UNSET if command.remark is None else command.remark
    shape = _JsonHeader(
        code=command.code,
        ext=command.ext,
        flag=command.flag,
        language=command.language,
        opaque=command.opaque,
        remark=remark,
        version=command.version,
    )
    return pack_frame(JSON, _encode_json(shape), command.body)


def response_to(
    request: Command,
    code: int = 0,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> Command:
    """A response to a request: same opaque, same header format, response bit set."""
    return Command(code, request.opaque, RESPONSE_BIT, ext or {}, body, remark, serialize_type=request.serialize_type)


_NO_EXT: dict[str, str] = {}


def encode_response(
    opaque: int,
    code: int = 0,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
    version: int = VERSION,
) -> bytes:
    """The frame of a JSON response, without building a `Command`: the fast path of a broker."""
    return response_head(opaque, code, ext, len(body), remark, version) + body


def response_head(
    opaque: int,
    code: int,
    ext: dict[str, str] | None,
    body_bytes: int,
    remark: str | None = None,
    version: int = VERSION,
) -> bytes:
    """The frame of a JSON response up to its body, which follows: a large body need not be copied into the frame.

    `extFields` is always present, because Java producers dereference it without a check (MQClientAPIImpl).
    """
    header = b'{"code":%d,"extFields":%b,"flag":1,"language":"PYTHON","opaque":%d,%b%b' % (
        code,
        _encode_json(_NO_EXT if ext is None else ext),
        opaque,
        b"" if remark is None else b'"remark":%b,' % _encode_json(remark),
        b'"serializeTypeCurrentRPC":"JSON","version":%d}' % version,
    )
    return frame_head(JSON, header, body_bytes) + header


def _encode_json(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"command header holds text that is not Unicode: {error}") from None


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark, ext = decode_binary_header(header)
    except UnreadableHeader as error:
        raise BadHeader(str(error), None if error.flag & RESPONSE_BIT else error.opaque) from None
    if len(ext) > MAX_EXT_FIELDS:
        known = None if flag & RESPONSE_BIT else opaque
        raise BadHeader(f"{len(ext)} ext fields, at most {MAX_EXT_FIELDS} are read", known)
    return Command(code, opaque, flag, ext, body, remark, language, version, BINARY)


def _decode_careless(header: bytes) -> _JsonHeader:
    """Reads a header as leniently as Java's fastjson: any scalar where text or a number belongs."""
    try:
        members = msgspec.json.decode(header)
    except (ValueError, RecursionError) as error:
        raise BadHeader(str(error)) from None
    if not isinstance(members, dict):
        raise BadHeader("it is not a JSON object")
    parsed = _JsonHeader(code=0, opaque=_number(members, "opaque", None))
    parsed.flag = _number(members, "flag", None, absent=0)
    known = _opaque_to_answer(parsed)
    parsed.code = _number(members, "code", known)
    parsed.version = _number(members, "version", known, absent=0)
    parsed.language = _text_or(members.get("language"), "JAVA")
    remark = members.get("remark")
    parsed.remark = None if remark is None else _as_text(remark)
    parsed.ext = _text_fields(members.get("extFields"), known)
    return parsed


def _opaque_to_answer(parsed: _JsonHeader) -> int | None:
    """The opaque of a request; None for a response, which gets no answer."""
    return None if parsed.flag & RESPONSE_BIT else parsed.opaque


def _number(members: dict[str, object], name: str, known: int | None, absent: int | None = None) -> int:
    value = members.get(name)
    if value is None:
        value = absent
    try:
        return msgspec.convert(value, _Int32, strict=False)
    except ValueError as error:
        raise BadHeader(f"{name}: {error}", known) from None


def _text_fields(fields: object, known: int | None) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise BadHeader("extFields is not a JSON object", known)
    return {name: _as_text(value) for name, value in fields.items() if value is not None}


def _text_or(value: object, default: str) -> str:
    return value if isinstance(value, str) else default


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _encoder.encode(value).decode()
