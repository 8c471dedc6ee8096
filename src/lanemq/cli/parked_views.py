"""Parked lanes and their messages as `lanemq parked` prints them."""

from collections.abc import Sequence

from lanemq.cli.output import Grid, body_for_json, wall_time
from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.message import MAX_BODY_BYTES
from lanemq.wire.compression import decompress
from lanemq.wire.properties import PropertyName
from lanemq.wire.record import RecordView

SHOWN_CHARS = 60


def sentence(lane: ParkedLaneView) -> str:
    queue = lane.queue
    name = "without a key" if lane.key is None else f"of key {lane.key}"
    return f"lane {name}, queue {queue.queue_id} of {queue.topic}, group {lane.group}: {lane.status.value}"


def lane_grid(lanes: Sequence[ParkedLaneView], empty: str) -> Grid:
    columns = ("group", "topic", "queue", "key", "status", "messages", "first offset", "attempts", "since", "reason")
    rows = [
        (
            lane.group,
            lane.queue.topic,
            lane.queue.queue_id,
            lane.key,
            lane.status.value,
            lane.messages,
            lane.first,
            lane.attempts,
            wall_time(lane.since_ms),
            _short(lane.reason),
        )
        for lane in lanes
    ]
    return Grid(columns, rows, empty)


def message_grid(messages: Sequence[RecordView]) -> Grid:
    rows = [
        (
            each.queue_offset,
            wall_time(each.store_timestamp),
            each.properties.get(PropertyName.TAGS),
            _short(_text(each)),
        )
        for each in messages
    ]
    return Grid(("offset", "stored", "tag", "value"), rows, "no messages: it was emptied meanwhile")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _text(record: RecordView) -> str:
    return _body(record)[: SHOWN_CHARS * 4].decode("utf-8", "backslashreplace")


def _body(record: RecordView) -> bytes:
    return decompress(record.sys_flag, record.body, MAX_BODY_BYTES)


def lane_document(lane: ParkedLaneView) -> dict[str, object]:
    return {
        "group": lane.group,
        "topic": lane.queue.topic,
        "broker": lane.queue.broker,
        "queue": lane.queue.queue_id,
        "key": lane.key,
        "status": lane.status.value,
        "messages": lane.messages,
        "bytes": lane.size,
        "first_offset": lane.first,
        "last_offset": lane.last,
        "attempts": lane.attempts,
        "since": wall_time(lane.since_ms),
        "reason": lane.reason,
    }


def message_document(record: RecordView) -> dict[str, object]:
    properties = record.properties
    return {
        "offset": record.queue_offset,
        "stored_at": wall_time(record.store_timestamp),
        "tag": properties.get(PropertyName.TAGS),
        "message_id": properties.get(PropertyName.UNIQUE_ID),
        "value": body_for_json(_body(record)),
    }
