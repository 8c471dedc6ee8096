"""Reads a single send that comes alone, by comparing its header with that of an earlier send of the same client.

The headers of a client's sends to one topic differ in four values only: opaque, queue, birth time and properties. The
first send is decoded in full, and the places of the four values are noted (`SendForm`). Later sends are compared with
it byte by byte, which takes a fraction of the time. Invariant: a send that `read_alike` accepts has the meaning that
decoding it in full gives. Everything else it leaves to the caller, who decodes it.
"""

import re
from struct import Struct
from typing import NamedTuple, TypeAlias

import msgspec

from lanemq._fast import compiled
from lanemq.model.errors import LaneError
from lanemq.model.stamp import Stamp
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import JSON, MAX_HEADER_BYTES, Frame, decode_command
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import LANE_STAMP, stamp_in, stamp_prefix

OPAQUE, QUEUE, BORN, PROPERTIES = range(4)
"""The values in which sends of one form differ."""

NO_STAMP = -1
"""In place of a sequence number: the message has no stamp."""

_PLAIN = (b'{"code":310,', b'{"code":10,')
"""How the header of a single send begins; other headers are not looked at."""

_NAMES: dict[int, dict[bytes, int]] = {
    RequestCode.SEND_MESSAGE_V2: {b'"e"': QUEUE, b'"g"': BORN, b'"i"': PROPERTIES},
    RequestCode.SEND_MESSAGE: {b'"queueId"': QUEUE, b'"bornTimestamp"': BORN, b'"properties"': PROPERTIES},
}
_FRAME_HEAD = Struct(">II")
_EXT = b'"extFields":{'
_TEXT = re.compile(rb'(?:[ !#-\[\]-\x7f]|\\["\\/bfnrt]|\\u00[0-7][0-9a-fA-F])*')
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_STRING = rb'"(?:[ !#-\[\]-\x7f]|\\.)*"'
_PAIR = re.compile(rb"(" + _STRING + rb"):(" + _STRING + rb"|-?[0-9]+|true|false|null)")
_STAMP_NAME = f"{LANE_STAMP}\x01".encode()
_MAX_INT = 2**31 - 1

Shape: TypeAlias = tuple[bytes, tuple[int, ...], bytes]
"""A header; name, start and end of each of the four values in it, in the order in which they come; and the stamp of its
message up to the sequence number (`stamp_prefix`), empty if it has none."""

SingleSend: TypeAlias = tuple[int, int, int, bytes, bytes, int, bool]
"""Opaque, queue id, birth time, properties, body, sequence number or `NO_STAMP`, and whether there may be a tag."""


class SendForm(NamedTuple):
    """What the sends of one form have in common."""

    header: SendHeader
    """Of the first one. Queue, birth time and properties are those of that send only."""
    stamp: Stamp | None
    """Of the first one; the others have the same producer and epoch."""
    shape: Shape


def form_of(data: bytes) -> SendForm | None:
    """The form of a send, which must fill `data` as one frame; None if it is anything else, or of no usual form."""
    if not data.startswith(_PLAIN, 8):
        return None
    length, mark = _FRAME_HEAD.unpack_from(data)
    if length + 4 != len(data) or mark > MAX_HEADER_BYTES or 8 + mark > len(data):
        return None
    text = data[8 : 8 + mark]
    try:
        command = decode_command(Frame(JSON, text, b""))
        decode = SendHeader.from_ext_v1 if command.code == RequestCode.SEND_MESSAGE else SendHeader.from_ext_v2
        header = decode(command.ext)
        stamp = stamp_in(header.properties.encode())
    except (LaneError, ValueError):
        return None
    names = _NAMES.get(command.code)
    spans = None if names is None else _spans(text, names)
    if spans is None or command.flag or header.batch:
        return None
    return SendForm(header, stamp, (text, spans, b"" if stamp is None else stamp_prefix(stamp)))


def _spans(header: bytes, names: dict[bytes, int]) -> tuple[int, ...] | None:
    """Where the four values are; None if the header is not written as nearly all clients write it, or has one of the
    names twice."""
    spans: list[tuple[int, int, int]] = []
    at, inside = 1, False
    while True:
        if not inside and header.startswith(_EXT, at):
            at, inside = at + len(_EXT), True
        pair = _PAIR.match(header, at)
        if pair is None:
            return None
        name = names.get(pair[1]) if inside else OPAQUE if pair[1] == b'"opaque"' else None
        if name is not None:
            start, end = pair.span(2)
            is_text = header[start] == ord('"')
            if is_text is (name == OPAQUE):
                return None
            spans.append((name, start + is_text, end - is_text))
        at = pair.end()
        if inside and header.startswith(b"}", at):
            at, inside = at + 1, False
        if header[at:] == b"}" and not inside:
            break
        if not header.startswith(b",", at):
            return None
        at += 1
    if sorted(name for name, _, _ in spans) != [OPAQUE, QUEUE, BORN, PROPERTIES]:
        return None
    return tuple(number for span in spans for number in span)


@compiled
def read_alike(data: bytes, shape: Shape) -> SingleSend | None:
    """The send that `data` consists of; None unless it is of this form and asks for nothing special.

    Special are delays, timers, and requests that wait for a reply.
    """
    model, spans, prefix = shape
    if len(data) < 8:
        return None
    length, mark = _FRAME_HEAD.unpack_from(data)
    if length + 4 != len(data) or mark > MAX_HEADER_BYTES or 8 + mark > len(data):
        return None
    header, numbers, properties = data[8 : 8 + mark], [0, 0, 0], b""
    at = model_at = 0
    for place in range(0, len(spans), 3):
        name, start, end = spans[place : place + 3]
        same = start - model_at
        if header[at : at + same] != model[model_at:start]:
            return None
        found = (_TEXT if name == PROPERTIES else _NUMBER).match(header, at + same)
        if found is None:
            return None
        if name == PROPERTIES:
            properties = msgspec.json.decode(b'"%b"' % found[0], type=str).encode()
        else:
            numbers[name] = int(found[0])
        at, model_at = found.end(), end
    opaque, queue_id, born = numbers
    if header[at:] != model[model_at:] or opaque > _MAX_INT or queue_id > _MAX_INT:
        return None
    sequence, tagged = _sequence(properties, prefix), _maybe_tagged(properties)
    if sequence is None or tagged is None:
        return None
    return opaque, queue_id, born, properties, data[8 + mark :], sequence, tagged


def _sequence(properties: bytes, prefix: bytes) -> int | None:
    """The sequence number of the message; None if its stamp is not at the end, or has another producer or epoch."""
    if not prefix:
        return None if _STAMP_NAME in properties else NO_STAMP
    before, _, number = properties.removesuffix(b"\x02").rpartition(b".")
    if not properties.endswith(b"\x02") or not before.endswith(prefix[:-1]) or _NUMBER.fullmatch(number) is None:
        return None
    return int(number)


def _maybe_tagged(properties: bytes) -> bool | None:
    """Whether a property's name ends as that of a tag; None if one asks for something special."""
    tagged = False
    for entry in properties.split(b"\x02"):
        name, *rest = entry.split(b"\x01")
        names = (name, *rest[:-1]) if rest else ()
        if names and name.startswith(b"TIMER_"):
            return None
        if any(each.endswith((b"DELAY", b"REPLY_TO_CLIENT")) for each in names):
            return None
        tagged = tagged or any(each.endswith(b"TAGS") for each in names)
    return tagged
