"""Commands: what a frame says.

One shape serves requests and responses; bit 0 of `flag` tells them apart. The rule guarded here: a sound
frame with a careless header still becomes a command (Node clients put numbers and booleans into `extFields`,
Java accepts numbers as text); one that cannot be read is refused, with the opaque to answer to if known.
Which fields a code needs is `headers`' matter; the compact header lives in `binary_header`.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire import binary_header
from lanemq.wire.frame import BINARY, JSON, Frame, pack_frame

RESPONSE_BIT = 1
ONEWAY_BIT = 2
"""Flag bits (RocketMQ's RemotingCommand)."""

LANGUAGE = "PYTHON"
VERSION = 473
"""Ordinal of V5_3_0 in RocketMQ's MQVersion: servers answer it with strict JSON and never with GO_AWAY."""

MAX_EXT_FIELDS = 128

_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class BadHeader(RemoteProtocolError):
    """A sound frame whose header cannot be read.

    `opaque` is that of a request which may be answered with an error; None means that nobody can be told and
    the connection must be closed.
    """

    def __init__(self, problem: str, opaque: int | None = None) -> None:
        self.opaque = opaque
        super().__init__(f"command header cannot be read: {problem}")


class Command:
    """A request or a response."""

    __slots__ = ("body", "code", "ext", "flag", "language", "opaque", "remark", "serialize_type", "version")

    def __init__(
        self,
        code: int,
        opaque: int,
        flag: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
        language: str = LANGUAGE,
        version: int = VERSION,
        serialize_type: int = JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.remark = remark
        self.language = language
        self.version = version
        self.serialize_type = serialize_type

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_BIT != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_BIT != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Command.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"Command({kind} code={self.code} opaque={self.opaque} ext={self.ext!r} "
            f"body={len(self.body)}B remark={self.remark!r})"
        )


class _JsonHeader(Struct, kw_only=True):
    """Members in the order in which Java writes them. Without a code, an answer would count as success."""

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
    """The command in a frame, or `BadHeader`."""
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
        raise BadHeader(f"{len(ext)} ext fields, at most {MAX_EXT_FIELDS} are read", _askable(parsed))
    remark = None if parsed.remark is UNSET else parsed.remark
    return Command(parsed.code, parsed.opaque, parsed.flag, ext, body, remark, parsed.language, parsed.version)


def encode_command(command: Command) -> bytes:
    """The whole frame of a command, its length included."""
    if len(command.ext) > MAX_EXT_FIELDS:
        raise LocalProtocolError(f"{len(command.ext)} ext fields, at most {MAX_EXT_FIELDS} may be sent")
    if command.serialize_type == BINARY:
        header = binary_header.encode(
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
    """The answer to a request: same opaque, same header form, response bit set."""
    return Command(code, request.opaque, RESPONSE_BIT, ext, body, remark, serialize_type=request.serialize_type)


_NO_EXT: dict[str, str] = {}


def encode_response(
    opaque: int,
    code: int = 0,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
    version: int = VERSION,
) -> bytes:
    """The frame of a JSON response without a `Command` in between: what a broker does for every request.

    `extFields` is always there: Java producers dereference it without looking (MQClientAPIImpl).
    """
    header = b'{"code":%d,"extFields":%b,"flag":1,"language":"PYTHON","opaque":%d,%b%b' % (
        code,
        _encode_json(_NO_EXT if ext is None else ext),
        opaque,
        b"" if remark is None else b'"remark":%b,' % _encode_json(remark),
        b'"serializeTypeCurrentRPC":"JSON","version":%d}' % version,
    )
    return pack_frame(JSON, header, body)


def _encode_json(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"command header holds text that is not Unicode: {error}") from None


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark, ext = binary_header.decode(header)
    except binary_header.Unreadable as error:
        raise BadHeader(str(error), error.opaque) from None
    if len(ext) > MAX_EXT_FIELDS:
        known = None if flag & RESPONSE_BIT else opaque
        raise BadHeader(f"{len(ext)} ext fields, at most {MAX_EXT_FIELDS} are read", known)
    return Command(code, opaque, flag, ext, body, remark, language, version, BINARY)


def _decode_careless(header: bytes) -> _JsonHeader:
    """Read a header as Java's fastjson would: scalars of any kind where text or numbers are due."""
    try:
        members = msgspec.json.decode(header)
    except (ValueError, RecursionError) as error:
        raise BadHeader(str(error)) from None
    if not isinstance(members, dict):
        raise BadHeader("it is no JSON object")
    parsed = _JsonHeader(code=0, opaque=_number(members, "opaque", None))
    parsed.flag = _number(members, "flag", None, absent=0)
    known = _askable(parsed)
    parsed.code = _number(members, "code", known)
    parsed.version = _number(members, "version", known, absent=0)
    parsed.language = _text_or(members.get("language"), "JAVA")
    remark = members.get("remark")
    parsed.remark = None if remark is None else _as_text(remark)
    parsed.ext = _text_fields(members.get("extFields"), known)
    return parsed


def _askable(parsed: _JsonHeader) -> int | None:
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
        raise BadHeader("extFields is no JSON object", known)
    return {name: _as_text(value) for name, value in fields.items() if value is not None}


def _text_or(value: object, default: str) -> str:
    return value if isinstance(value, str) else default


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _encoder.encode(value).decode()
