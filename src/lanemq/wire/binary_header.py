"""The binary header of a command (serialize type 1), an alternative to JSON that clients choose by configuration.

    code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark 4+n | ext fields 4+m

Ext fields are repeated `key length 2, key, value length 4, value` (RocketMQ's RocketMQSerializable). An empty text and
an absent one are the same in this form, so empty ext values do not survive it.
"""

from struct import Struct, pack
from struct import error as struct_error

from lanemq.model.errors import LocalProtocolError

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
)  # fmt: skip
"""Position is the byte on the wire (RocketMQ's LanguageCode)."""
OTHER = LANGUAGES.index("OTHER")

_HEAD = Struct(">hBhii")
_SHORT = Struct(">H")
_LONG = Struct(">I")

BinaryFields = tuple[int, str, int, int, int, str | None, dict[str, str]]
"""code, language, version, opaque, flag, remark, ext"""


class UnreadableHeader(Exception):
    """The binary header is cut off or holds invalid text. `opaque` and `flag` are set if that much could be read."""

    def __init__(self, problem: str, opaque: int | None = None, flag: int = 0) -> None:
        self.opaque = opaque
        self.flag = flag
        super().__init__(problem)


def encode_binary_header(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str]
) -> bytes:
    """The bytes of a binary header. A code that does not fit into 16 bits is refused; it needs a JSON header."""
    number = LANGUAGES.index(language) if language in LANGUAGES else OTHER
    try:
        text = b"" if remark is None else remark.encode()
        fields = b"".join(_field(key, value) for key, value in ext.items() if value)
        return b"".join(
            (_HEAD.pack(code, number, version, opaque, flag), _LONG.pack(len(text)), text,
             _LONG.pack(len(fields)), fields)
        )  # fmt: skip
    except (struct_error, UnicodeEncodeError) as problem:
        raise LocalProtocolError(f"command {code} does not fit into a binary header ({problem}): use JSON") from None


def decode_binary_header(header: bytes) -> BinaryFields:
    """Decodes the fields; raises `UnreadableHeader`."""
    if len(header) < _HEAD.size:
        raise UnreadableHeader(f"a binary header of {len(header)} bytes is cut off")
    code, number, version, opaque, flag = _HEAD.unpack_from(header)
    language = LANGUAGES[number] if number < len(LANGUAGES) else "OTHER"
    try:
        remark, position = _cut(header, _HEAD.size, _LONG)
        fields, _ = _cut(header, position, _LONG)
        return code, language, version, opaque, flag, remark.decode() or None, _split_fields(fields)
    except (_TooShort, UnicodeDecodeError) as problem:
        raise UnreadableHeader(str(problem), opaque, flag) from None


class _TooShort(Exception):
    """A length points behind the end of the data."""


def _field(key: str, value: str) -> bytes:
    name, text = key.encode(), value.encode()
    return pack(">H", len(name)) + name + pack(">I", len(text)) + text


def _split_fields(fields: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position = 0
    while position < len(fields):
        key, position = _cut(fields, position, _SHORT)
        value, position = _cut(fields, position, _LONG)
        if key and value:
            ext[key.decode()] = value.decode()
    return ext


def _cut(data: bytes, position: int, length_of: Struct) -> tuple[bytes, int]:
    """The bytes after the length field at `position`, and where they end. A missing length field counts as 0."""
    start = position + length_of.size
    if position == len(data):
        return b"", position
    if start > len(data):
        raise _TooShort("a length field is cut off")
    end = start + int(length_of.unpack_from(data, position)[0])
    if end > len(data):
        raise _TooShort(f"{end - start} bytes are announced, {len(data) - start} are left")
    return data[start:end], end
