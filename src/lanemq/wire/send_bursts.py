"""Reads and answers single sends that arrive together as one burst.

A producer that does not wait for answers fills each read of a socket with sends that differ only in opaque, body,
properties and birth time. Handling them as one burst saves most of the cost per request. Invariant: a burst gives the
same result as handling its sends one by one. The first send that differs in another field ends the burst. The broker
decides which sends may be stored together.
"""

from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from lanemq._fast import compiled
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import JSON, VERSION, Frame
from lanemq.wire.headers import Int32, SendHeader
from lanemq.wire.lane_fields import LANE_STORED


class SendBurst(NamedTuple):
    """Sends that share one header; the lists hold what differs between them."""

    header: SendHeader
    opaques: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    born: list[int]


def first_of(burst: SendBurst, count: int) -> SendBurst:
    """The first `count` sends of the burst."""
    opaques, bodies, properties, born = (
        burst.opaques[:count],
        burst.bodies[:count],
        burst.properties[:count],
        burst.born[:count],
    )
    return SendBurst(burst.header, opaques, bodies, properties, born)


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
def read_sends(frames: list[Frame], start: int) -> SendBurst | None:
    """The burst of sends that begins at `start`; None if the first frame is not a plain send."""
    burst: SendBurst | None = None
    for serialize_type, header, body in islice(frames, start, None):
        request = _plain_send(header) if serialize_type == JSON else None
        if request is None:
            break
        ext = request.header
        properties, born = ext.properties, ext.born_timestamp
        force_setattr(ext, "properties", "")
        force_setattr(ext, "born_timestamp", 0)
        if burst is None:
            burst = SendBurst(ext, [], [], [], [])
        elif ext != burst.header:
            break
        burst.opaques.append(request.opaque)
        burst.bodies.append(body)
        burst.properties.append(properties.encode())
        burst.born.append(born)
    return burst


def _plain_send(header: bytes) -> _Request | None:
    """Decodes a request 310 with one message that expects an answer; None for anything else."""
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
    """The response frames for a burst, one per send, byte for byte as if each were answered alone.

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
