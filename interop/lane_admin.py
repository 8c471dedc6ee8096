"""LaneMQ's `Admin` behind the commands of a harness."""

import threading
from typing import Any

from interop.lane_pull import read_once
from interop.lane_seen import seen_record
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import AtTime
from lanemq.model.errors import LaneError

PLACE = "place"
"""How a receipt names a place here: `place/topic/queue/offset`. A LaneMQ receipt holds queue and offset and not
the broker's own id, which is read from the stored message on request."""


def place(topic: str, queue: int, offset: int) -> str:
    return f"{PLACE}/{topic}/{queue}/{offset}"


class LaneAdmin:
    """One `Admin`, one caller at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._admin = Admin(address)
        self._guard = threading.Lock()

    def perform(self, what: str, request: dict[str, Any]) -> Any:
        with self._guard:
            return getattr(self, what.removeprefix("admin."))(request)

    def create_topic(self, request: dict[str, Any]) -> bool:
        self._admin.create_topic(request["topic"], request["queues"])
        return True

    def reset(self, request: dict[str, Any]) -> dict[int, int]:
        when = AtTime(request["timestamp_ms"] / 1000)
        changes = self._admin.reset_offsets(request["group"], request["topic"], to=when)
        return {change.queue.queue_id: change.after for change in changes}

    def progress(self, request: dict[str, Any]) -> dict[int, int]:
        found = self._admin.describe_group(request["group"]).queues
        return {each.queue.queue_id: each.offset for each in found if each.queue.topic == request["topic"]}

    def bounds(self, request: dict[str, Any]) -> dict[int, list[int]]:
        found = self._admin.describe_topic(request["topic"]).queues
        return {each.queue.queue_id: [each.first, each.end] for each in found}

    def search(self, request: dict[str, Any]) -> dict[int, int]:
        when = request["timestamp_ms"] / 1000
        queues = [each.queue for each in self._admin.describe_topic(request["topic"]).queues]
        return {queue.queue_id: self._admin.offset_at(queue, when) for queue in queues}

    def members(self, request: dict[str, Any]) -> list[str]:
        return [each.client_id for each in self._admin.describe_group(request["group"]).members]

    def query(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [seen_record(each.record) for each in self._admin.find_key(request["topic"], request["key"])]

    def view(self, request: dict[str, Any]) -> dict[str, Any]:
        message = request["message"]
        if message.startswith(PLACE):
            return seen_record(self._admin.view(self._stored_id(message)).record)
        found = self._admin.find_id(request["topic"], message)
        if not found:
            raise LaneError(f"no message {message} in {request['topic']}")
        return seen_record(found[0].record)

    def close(self) -> None:
        self._admin.close()

    def _stored_id(self, place: str) -> str:
        _, topic, queue, offset = place.split("/")
        found, _ = read_once(self._address, "interop-places", topic, int(queue), int(offset), 1, "*")
        if not found:
            raise LaneError(f"nothing is stored at {place}")
        return found[0].stored_id
