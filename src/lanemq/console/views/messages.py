"""Messages: rows of a list, and one message with its body as JSON, text and bytes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

import msgspec

from lanemq.client.admin.key_progress import KeyProgress
from lanemq.client.message import Message, body_start
from lanemq.console.links import group_link, key_link, message_link, pipeline_link
from lanemq.console.views.pipelines import NOT_IN_TIME
from lanemq.console.views.steps import LEVELS, KeyInPipeline, doubt_about, step_of
from lanemq.console.wording import PREVIEW_BYTES, preview, size
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import parse_duration
from lanemq.model.wording import printable
from lanemq.wire.record import COMPRESSED

MAX_BODY_CHARS = 100_000
"""Characters of a body that its page shows."""
MAX_SHOWN_BYTES = 4 * MAX_BODY_CHARS
"""A page expands a compressed body up to this. A few kilobytes may hold 64 MiB."""
MAX_SEARCHED_BYTES = 16 << 20
"""A search looks for words up to here in a body. A body that is not compressed is never larger."""
MAX_HEX_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message in a list."""

    topic: str
    queue: int
    broker: str
    offset: int
    key: str | None
    tag: str | None
    stored_at: datetime
    text: str
    link: str
    key_link: str


def preview_of(message: Message) -> str:
    """The beginning of the body as one line."""
    return preview(body_start(message, PREVIEW_BYTES))


def message_row(message: Message) -> MessageRow:
    return MessageRow(
        topic=message.queue.topic,
        queue=message.queue.queue_id,
        broker=message.queue.broker,
        offset=message.queue_offset,
        key=message.key,
        tag=message.tag,
        stored_at=message.stored_at,
        text=preview_of(message),
        link=message_link(message.queue, message.queue_offset),
        key_link=key_link(message.queue.topic, message.key),
    )


@dataclass(frozen=True, slots=True)
class Search:
    """What a search box asks for. Times are ms since 1970."""

    key: str | None = None
    id: str | None = None
    after: int | None = None
    before: int | None = None
    text: str = ""
    """Words that the body must contain."""


@dataclass(frozen=True, slots=True)
class Older:
    """Where a search continues: before these offsets, and in the index not after a time."""

    ends: Mapping[MessageQueue, int]
    until: int | None = None
    """Ms since 1970, included."""


FROM_THE_END = Older({})


def older_query(topic: str, text: str, older: Older) -> str:
    """The part of an address that names a search and where it continues; `parse_older` reads it."""
    places = [f"{queue.queue_id} {end} {queue.broker}" for queue, end in older.ends.items()]
    named = {"topic": topic, "q": text, "from": places}
    return urlencode(named if older.until is None else {**named, "until": older.until}, doseq=True)


def parse_older(topic: str, places: Iterable[str], until: str) -> Older:
    ends: dict[MessageQueue, int] = {}
    for place in places:
        number, _, rest = place.partition(" ")
        end, _, broker = rest.partition(" ")
        if not (number.isdecimal() and end.isdecimal()):
            raise InvalidOption(f"from={place[:40]!r} is not a place in the topic: search again from the newest")
        ends[MessageQueue(topic, broker, int(number))] = int(end)
    return Older(ends, int(until) if until.isdecimal() else None)


_WORD = re.compile(r'(?:(key|id|after|before|text):)?(?:"([^"]*)"|(\S+))')


def parse_search(text: str, now: datetime) -> Search:
    """`key:order-42 after:10m paid`: words with a name, and words that the body contains.

    One word without a name is searched in bodies. Times are `10m` for ten minutes ago, or ISO 8601.
    """
    found: dict[str, str] = {}
    words: list[str] = []
    for name, quoted, plain in _WORD.findall(text):
        value = quoted or plain
        if name in ("", "text"):
            words.append(value)
        elif name in found:
            raise InvalidOption(f"{name}: appears twice in the search: leave one of them out")
        else:
            found[name] = value
    return Search(
        found.get("key"),
        found.get("id"),
        _millis("after", found["after"], now) if "after" in found else None,
        _millis("before", found["before"], now) if "before" in found else None,
        " ".join(words),
    )


def _millis(name: str, text: str, now: datetime) -> int:
    try:
        return round((now - timedelta(seconds=parse_duration(text))).timestamp() * 1000)
    except InvalidOption:
        pass
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise InvalidOption(
            f"{name}:{text[:40]} is not a time: write 10m for ten minutes ago, or 2026-01-31T12:00"
        ) from None


def matches(search: Search, message: Message) -> bool:
    """Whether a message that was read is one that the search asks for."""
    at = message.record.store_timestamp
    if (search.after is not None and at < search.after) or (search.before is not None and at >= search.before):
        return False
    if search.key is not None and search.key != message.key and search.key not in message.keys:
        return False
    return not search.text or search.text.encode() in body_start(message, MAX_SEARCHED_BYTES)


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a message is for one group or pipeline."""

    group: str
    state: str
    level: str
    detail: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """One message."""

    row: MessageRow
    message_id: str
    stored_id: str
    sent_at: datetime
    sent_from: str
    size: str
    json: str | None
    """The body as indented JSON; None if it is not JSON."""
    text: str
    hex: str
    cut: bool
    properties: tuple[tuple[str, str], ...]
    groups: tuple[GroupPlace, ...]


def message_view(message: Message, places: tuple[GroupPlace, ...] = ()) -> MessageView:
    body, record = body_start(message, MAX_SHOWN_BYTES + 1), message.record
    return MessageView(
        row=message_row(message),
        message_id=message.message_id,
        stored_id=message.stored_id,
        sent_at=message.born_at,
        sent_from=record.born_host,
        size=_size(message, body),
        json=_json(body),
        text=printable_lines(_text(body))[:MAX_BODY_CHARS],
        hex="\n".join(_hex_lines(body[:MAX_HEX_BYTES])),
        cut=len(body) > MAX_HEX_BYTES,
        properties=tuple(sorted((name, printable(value)) for name, value in message.properties.items())),
        groups=places,
    )


def _size(message: Message, start: bytes) -> str:
    """The size of the body, as far as it was expanded."""
    stored = len(message.stored_body)
    if not message.record.sys_flag & COMPRESSED:
        return size(stored)
    if len(start) <= MAX_SHOWN_BYTES:
        return size(len(start))
    return f"more than {size(MAX_SHOWN_BYTES)}, compressed to {size(stored)}"


def _text(body: bytes) -> str:
    """Cuts the text before it is escaped; escaping only makes it longer."""
    return body[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")[:MAX_BODY_CHARS]


def printable_lines(text: str) -> str:
    """The text with control characters escaped, lines kept."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def _json(body: bytes) -> str | None:
    if len(body) > MAX_BODY_CHARS:
        return None
    try:
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _hex_lines(body: bytes) -> Iterator[str]:
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{start:06x}  {row.hex(' '):<47}  {shown}"


def places_of(
    message: Message, groups: Sequence[KeyProgress], pipelines: Sequence[KeyInPipeline]
) -> tuple[GroupPlace, ...]:
    """Where a message is for each group and pipeline that reads its queue.

    A pipeline that commits as a group is shown instead of the group: its offset has passed what it parked or gave up.
    """
    own = {each.group for each in pipelines}
    found: list[GroupPlace] = []
    for each in groups:
        if each.group not in own:
            state, detail = step_of(each, message.queue_offset, doubt_about(each, pipelines))
            at = each.progress.at
            if state == "waiting" and not detail and message.queue_offset > at.offset:
                detail = f"at most {message.queue_offset - at.offset:,} before it in the queue"
            found.append(GroupPlace(each.group, state, LEVELS[state], detail, group_link(each.group)))
    for one in pipelines:
        state, detail = one.step(message.queue, message.queue_offset)
        if detail == NOT_IN_TIME:
            detail += ": open the page again"  # it is not live
        link = pipeline_link(one.pipeline.number)
        found.append(GroupPlace(f"pipeline {one.pipeline.name}", state, LEVELS[state], detail, link))
    return tuple(found)
