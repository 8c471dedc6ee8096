"""Single sends: reads those that arrive together, and writes their replies.

A producer that does not wait for replies fills each read of a socket with sends that differ only in opaque, body,
properties and birth time. Reading them together saves most of the cost of each. The first send that differs in another
field, or whose stamp does not follow, ends what is read together.
"""

from collections.abc import Sequence
from itertools import islice

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from lanemq._fast import compiled
from lanemq.model.stamp import Stamp
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import JSON, VERSION, Frame
from lanemq.wire.headers import Int32, SendHeader
from lanemq.wire.lane_fields import LANE_STORED
from lanemq.wire.properties import following_stamps

MAX_TOGETHER = 1024
"""Sends that are read together. Afterwards the server looks whether the peer reads its replies."""

_USUAL = b'{"code":310,'
"""How nearly all clients begin the header of a single send."""


class Sends(Struct):
    """One or more single sends with the same header; the lists hold what differs between them."""

    header: SendHeader
    """Of the first one, with its properties and its birth time."""
    opaques: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    born: list[int]

    def first(self, count: int) -> "Sends":
        """The first `count` of them."""
        return self._part(self.header, slice(count))

    def only(self, at: int) -> "Sends":
        """The one at this index."""
        header = replace(self.header, properties=self.properties[at].decode(), born_timestamp=self.born[at])
        return self._part(header, slice(at, at + 1))

    def _part(self, header: SendHeader, part: slice) -> "Sends":
        return Sends(header, self.opaques[part], self.bodies[part], self.properties[part], self.born[part])


def read_following(frames: Sequence[Frame]) -> tuple[Sends, Stamp | None] | None:
    """The sends at the start of `frames` that can be stored together, and the first one's stamp.

    Their stamps are consecutive, or none of them has one. None if the first frame is not a usual single send that
    expects a reply.
    """
    sends = read_sends(frames, MAX_TOGETHER) if frames[0].header.startswith(_USUAL) else None
    if sends is None:
        return None
    stamp, count = following_stamps(sends.properties)
    return (sends if count == len(sends.opaques) else sends.first(count)), stamp


class _Request(Struct):
    """A command header whose ext fields are those of a send."""

    code: Int32
    opaque: Int32
    header: SendHeader = field(name="extFields")
    flag: Int32 = 0
    version: Int32 = 0
    language: str = ""
    remark: str | None = None


_decode = msgspec.json.Decoder(_Request, strict=False).decode


@compiled
def read_sends(frames: Sequence[Frame], most: int) -> Sends | None:
    """The sends at the start of `frames`, at most so many; None if the first frame is no single send."""
    sends: Sends | None = None
    for serialize_type, text, body in islice(frames, most):
        request = _single_send(text) if serialize_type == JSON else None
        if request is None:
            break
        header = request.header
        if sends is None:
            sends = Sends(header, [], [], [], [])
        elif not _is_alike(header, sends.header):
            break
        sends.opaques.append(request.opaque)
        sends.bodies.append(body)
        sends.properties.append(header.properties.encode())
        sends.born.append(header.born_timestamp)
    return sends


def _is_alike(header: SendHeader, first: SendHeader) -> bool:
    return replace(header, properties=first.properties, born_timestamp=first.born_timestamp) == first


def _single_send(header: bytes) -> _Request | None:
    """Decodes a request 310 with one message that expects a reply; None for anything else."""
    try:
        request = _decode(header)
    except (ValueError, RecursionError):
        return None
    wanted = request.code == RequestCode.SEND_MESSAGE_V2 and request.flag == 0 and not request.header.batch
    return request if wanted else None


@compiled
def encode_send_answers(
    opaques: list[int], prefix: str, positions: list[int], queue_id: int, first_offset: int, stored: str
) -> bytes:
    """The response frames for single sends, byte for byte as if each were answered alone.

    `prefix` is the common start of the broker's offset ids; `stored` is `durable` or `relaxed`.
    """
    before = f'{{"code":0,"extFields":{{"msgId":"{prefix}'
    middle = f'","queueId":"{queue_id}","queueOffset":"'
    after = f'","MSG_REGION":"DefaultRegion","TRACE_ON":"true","{LANE_STORED}":"{stored}"}}'
    after += ',"flag":1,"language":"PYTHON","opaque":'
    last = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
    parts: list[bytes] = []
    for offset, (opaque, position) in enumerate(zip(opaques, positions, strict=True), first_offset):
        header = f"{before}{position:016X}{middle}{offset}{after}{opaque}{last}".encode()
        size = len(header)
        parts += ((size + 4).to_bytes(4, "big"), size.to_bytes(4, "big"), header)
    return b"".join(parts)
