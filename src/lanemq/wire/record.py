"""The stored record: what lies in the log is what a pull returns.

     0 total size 4      20 queue offset 8     48 born host 8       76 checksum 8
     4 magic 4           28 log position 8     56 store time 8      84 body length 4, body
     8 body CRC 4        36 sys flag 4         64 store host 8         topic length 1, topic
    12 queue id 4        40 born time 8        72 reconsume times 4    properties length 2, properties
    16 flag 4

Invariant: no byte of a record can change unnoticed. RocketMQ's body CRC does not cover the head and the properties, so
the 8 bytes at 76 (`preparedTransactionOffset`, which only transactions use) hold a CRC32 of everything else. Other
clients ignore the field. Its upper half, together with inverted CRC bits, says that everything before the record was on
disk before the record was written (`mark_synced`). Records are written with magic V1 and IPv4 hosts, because Node
clients read nothing else. V2 and IPv6 hosts are read too; each IPv6 host shifts what follows by 12 bytes.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct, error
from typing import Final, NamedTuple, NoReturn
from zlib import crc32

from lanemq._fast import compiled
from lanemq.model.errors import LocalProtocolError, RemoteProtocolError, UsageError
from lanemq.wire.properties import MAX_PROPERTIES_BYTES, decode_properties

COMPRESSED: Final = 0x1
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
"""The request's commitOffset counts."""
PULL_SUSPEND: Final = 0x2
"""The broker may hold the request until a message arrives."""
PULL_SUBSCRIPTION: Final = 0x4
"""The request brings its own filter expression."""
PULL_LITE: Final = 0x10


_HOST = Struct(">4sI")
HOST_BYTES = 8
NO_HOST = bytes(HOST_BYTES)


@lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """The field for a peer; an address that is not IPv4, plain or mapped, becomes 0.0.0.0."""
    return _HOST.pack(_ipv4(ip).packed, port & 0xFFFFFFFF)


def unpack_host(field: bytes) -> str:
    """`ip:port` of a field of 8 bytes, or `[ip]:port` of one of 20."""
    port = int.from_bytes(field[-4:], "big")
    if len(field) == HOST_BYTES:
        return f"{IPv4Address(field[:4])}:{port}"
    return f"[{IPv6Address(field[:16])}]:{port}"


def _ipv4(ip: str) -> IPv4Address:
    try:
        address = ip_address(ip)
    except ValueError:
        return IPv4Address(0)
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv4Address(0)


MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB

HEAD_BYTES: Final = 84
MIN_RECORD_BYTES: Final = 91
CHECKSUM_AT: Final = 76
MAX_TOPIC_BYTES: Final = 127
STORE_TIME_AT: Final = 56
"""In records that LaneMQ writes; IPv6 hosts shift it."""

PROOF: Final = Struct(">iI4xi4xqq40xQ")
"""Size, magic, queue id, queue offset, position, checksum: what identifies a record."""
SYNCED_MARK: Final = 0x1_FFFF_FFFF
"""The bits in which the checksums of a marked and an unmarked record differ: so many that damage cannot make a mark."""
_HEAD = Struct(">iIiiiqqiq8sq8si")
_CHECKSUM = Struct(">Q")
_SIZE_MAGIC = Struct(">iI")
_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_BYTE = Struct(">b")
_V6_SHIFT = 12
OUR_FLAGS: Final = ~(BORN_HOST_V6 | STORE_HOST_V6)
"""Clears the flags that announce IPv6 hosts, because records are written with IPv4 hosts."""

Buffer = bytes | bytearray | memoryview


def build_tail(body: bytes, topic: bytes, properties: bytes) -> bytes:
    """Everything after the head. It does not depend on the place in the log, so it can be built early."""
    try:
        return b"".join(
            (
                _INT.pack(len(body)),
                body,
                _BYTE.pack(len(topic)),
                topic,
                _SHORT.pack(len(properties)),
                properties,
            )
        )
    except error:
        refuse_tail(topic, properties)
        raise


def refuse_tail(topic: bytes, properties: bytes) -> NoReturn:
    """Raises an error about a topic or properties that are too long."""
    raise LocalProtocolError(
        f"topic of {len(topic)} bytes (at most 127) or properties of {len(properties)} bytes "
        f"(at most 32767) do not fit into a record"
    ) from None


def body_crc(body: bytes) -> int:
    """RocketMQ's body checksum: CRC32 without the top bit, because Java's int has a sign."""
    return crc32(body) & 0x7FFFFFFF


def seal_record(
    tail: bytes,
    crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    position: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
) -> bytes:
    """The complete record: head with its place in queue and log, checksum, tail."""
    head = _HEAD.pack(
        HEAD_BYTES + len(tail),
        MAGIC_V1,
        crc,
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
    )
    return head + _CHECKSUM.pack(crc32(tail, crc32(head))) + tail


@compiled
def seal_records(
    items: Iterable[tuple[bytes, bytes, int, int, int, int, int]],
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
) -> list[bytes]:
    """Consecutive records in queue and log; the same bytes as `build_tail` and `seal_record` give.

    An item is (body, properties, ignored, flag, sys flag, born time, reconsume times). All steps are in one loop for
    speed.
    """
    named = _BYTE.pack(len(topic)) + topic if len(topic) <= MAX_TOPIC_BYTES else refuse_tail(topic, b"")
    records: list[bytes] = []
    add, join, pack_head, pack_int = records.append, b"".join, _HEAD.pack, _INT.pack
    pack_check, pack_short = _CHECKSUM.pack, _SHORT.pack
    for body, properties, _, flag, sys_flag, born, reconsumed in items:
        length = len(properties)
        if length > MAX_PROPERTIES_BYTES:
            refuse_tail(topic, properties)
        tail = join((pack_int(len(body)), body, named, pack_short(length), properties))
        size, crc = HEAD_BYTES + len(tail), crc32(body) & 0x7FFFFFFF
        head = pack_head(
            size, MAGIC_V1, crc, queue_id, flag, queue_offset, position, sys_flag & OUR_FLAGS,
            born, born_host, store_timestamp, store_host, reconsumed,
        )  # fmt: skip
        add(join((head, pack_check(crc32(head + tail)), tail)))
        queue_offset += 1
        position += size
    return records


def checksum_of(whole: memoryview, start: int, end: int) -> int:
    """The checksum of the record from `start` to `end`: a CRC32 of everything except the field at `CHECKSUM_AT`.

    Computed in one call: for zlib, two short pieces take longer than copying both.
    """
    return crc32(b"".join((whole[start : start + CHECKSUM_AT], whole[start + HEAD_BYTES : end])))


def proves(stored: int, crc: int) -> bool:
    """Whether the stored value is this checksum, with or without the synced mark."""
    return stored == crc or stored == crc ^ SYNCED_MARK


def mark_synced(record: bytearray, start: int = 0) -> None:
    """Marks a sealed record: everything before it is on disk. Must be called once: a second call removes the mark."""
    at = start + CHECKSUM_AT
    _CHECKSUM.pack_into(record, at, _CHECKSUM.unpack_from(record, at)[0] ^ SYNCED_MARK)


def is_marked_synced(buffer: Buffer, start: int) -> bool:
    """Whether an undamaged record is marked: everything before it was on disk before it was written."""
    return bool(_CHECKSUM.unpack_from(buffer, start + CHECKSUM_AT)[0] >> 32)


@compiled
def record_starts(buffer: Buffer) -> list[int]:
    """Where each record of a pull's body begins; raises if the sizes do not fill the buffer exactly."""
    starts: list[int] = []
    position, end = 0, len(buffer)
    unpack = _SIZE_MAGIC.unpack_from
    while position + MIN_RECORD_BYTES <= end:
        size, magic = unpack(buffer, position)
        if size < MIN_RECORD_BYTES or (magic != MAGIC_V1 and magic != MAGIC_V2):
            raise RemoteProtocolError(
                f"no record at byte {position} of {end}: size {size}, magic {magic:#x}; the body is damaged"
            )
        starts.append(position)
        position += size
    if position != end:
        raise RemoteProtocolError(f"the last record ends at byte {position}, the body at {end}; it is damaged")
    return starts


def records_in(body: bytes) -> dict[int, bytes]:
    """The records of a pull's body, each by its offset."""
    starts = list(record_starts(body))
    ends = (*starts[1:], len(body))
    return {RecordView(body, at).queue_offset: body[at:end] for at, end in zip(starts, ends, strict=True)}


@compiled
class RecordView:
    """One record whose fields are decoded on demand, because consumers use few of them.

    `start` comes from `record_starts` or from an index; lengths inside the record are checked on first use.
    """

    __slots__ = ("_buffer", "_properties", "_spans", "_start")

    def __init__(self, buffer: Buffer, start: int = 0) -> None:
        self._buffer = buffer
        self._start = start
        self._spans: tuple[int, int, int, int, int, int] | None = None
        self._properties: dict[str, str] | None = None

    @property
    def size(self) -> int:
        return self._int(0)

    @property
    def queue_id(self) -> int:
        return self._int(12)

    @property
    def flag(self) -> int:
        return self._int(16)

    @property
    def queue_offset(self) -> int:
        return self._long(20)

    @property
    def position(self) -> int:
        return self._long(28)

    @property
    def sys_flag(self) -> int:
        return self._int(36)

    @property
    def born_timestamp(self) -> int:
        return self._long(40)

    @property
    def born_host(self) -> str:
        self._measure()
        return unpack_host(self._bytes(48, 56 + self._born_shift()))

    @property
    def store_timestamp(self) -> int:
        return self._long(56 + self._born_shift())

    @property
    def store_host(self) -> str:
        self._measure()
        return unpack_host(self._bytes(64 + self._born_shift(), 72 + self._shift()))

    @property
    def reconsume_times(self) -> int:
        self._measure()
        return self._int(72 + self._shift())

    @property
    def body(self) -> bytes:
        """The body as stored: compressed if `sys_flag` says so."""
        spans = self._spans or self._measure()
        return self._bytes(spans[0], spans[1])

    @property
    def topic(self) -> str:
        spans = self._spans or self._measure()
        return self._bytes(spans[2], spans[3]).decode(errors="replace")

    @property
    def properties_text(self) -> str:
        """Bytes that are not UTF-8 are replaced, as in Java: one odd message must not block its queue."""
        spans = self._spans or self._measure()
        return self._bytes(spans[4], spans[5]).decode(errors="replace")

    @property
    def properties(self) -> dict[str, str]:
        """Parsed once and shared: callers must not change it."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_text)
        return self._properties

    def to_bytes(self) -> bytes:
        """A copy of the record alone."""
        self._measure()
        return self._bytes(0, self.size)

    def _int(self, at: int) -> int:
        return self._unpack(_INT, at)[0]

    def _long(self, at: int) -> int:
        return self._unpack(_LONG, at)[0]

    def _bytes(self, first: int, end: int) -> bytes:
        return bytes(self._buffer[self._start + first : self._start + end])

    def _born_shift(self) -> int:
        return _V6_SHIFT if self._int(36) & BORN_HOST_V6 else 0

    def _shift(self) -> int:
        sys_flag = self._int(36)
        if not sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
            return 0
        return self._born_shift() + (_V6_SHIFT if sys_flag & STORE_HOST_V6 else 0)

    def _measure(self) -> tuple[int, int, int, int, int, int]:
        """Finds body, topic and properties. Unused bytes after the properties are allowed, an overrun is not."""
        size, magic = self._unpack(_SIZE_MAGIC, 0)
        body_at = HEAD_BYTES + _INT.size + self._shift()
        if self._start + size > len(self._buffer):
            raise self._damaged(f"size {size}")
        topic_length = _SHORT if magic == MAGIC_V2 else _BYTE
        body_end = self._end(body_at, _INT, size)
        topic_at = body_end + topic_length.size
        topic_end = self._end(topic_at, topic_length, size)
        text_at = topic_end + _SHORT.size
        self._spans = (body_at, body_end, topic_at, topic_end, text_at, self._end(text_at, _SHORT, size))
        return self._spans

    def _end(self, first: int, length_of: Struct, size: int) -> int:
        """Where the part ends that begins at `first`, right after its length field."""
        if first > size:
            raise self._damaged(f"it ends at {size}, in front of a part at {first}")
        length: int = length_of.unpack_from(self._buffer, self._start + first - length_of.size)[0]
        if length < 0 or first + length > size:
            raise self._damaged(f"a part of {length} bytes at {first} in a record of {size}")
        return first + length

    def _unpack(self, layout: Struct, at: int) -> tuple[int, ...]:
        try:
            return layout.unpack_from(self._buffer, self._start + at)
        except error:
            raise self._damaged("cut off") from None

    def _damaged(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"record at byte {self._start} of {len(self._buffer)} is damaged: {what}")


_MAX_ID_CHARS = 56


class OffsetId(NamedTuple):
    """The address of a record: the broker and the position in its log."""

    ip: str
    port: int
    position: int


@lru_cache(maxsize=64)
def offset_id_prefix(ip: str, port: int) -> str:
    """The common start of all offset ids of a broker."""
    return pack_host(ip, port).hex().upper()


def encode_offset_id(ip: str, port: int, position: int) -> str:
    """32 characters; an IPv6 broker appears as 0.0.0.0, as in its records."""
    return f"{offset_id_prefix(ip, port)}{position:016X}"


def decode_offset_id(text: str) -> OffsetId:
    """The address in an offset id, or `UsageError`: people paste all kinds of ids into tools."""
    try:
        data = bytes.fromhex(text) if len(text) in (32, _MAX_ID_CHARS) and text.isalnum() else b""
    except ValueError:
        data = b""
    if not data:
        raise UsageError(f"{text[:80]!r} is not an offset message id: 32 or 56 hex digits are expected")
    address = IPv4Address(data[:4]) if len(data) == 16 else IPv6Address(data[:16])
    port = int.from_bytes(data[-12:-8], "big")
    return OffsetId(str(address), port, int.from_bytes(data[-8:], "big", signed=True))
