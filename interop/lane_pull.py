"""LaneMQ's `PullConsumer` in the two forms that cases use: single pulls, and polling in the background."""

from typing import Any

from interop.lane_seen import seen_message
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.message import Message
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue


def read_once(
    address: str, group: str, topic: str, queue_id: int, offset: int, most: int, tags: str
) -> tuple[list[Message], int]:
    """The messages of one pull, and the next offset."""
    with PullConsumer(address, group=group, tags=tags, batch=most) as consumer:
        queue = _queue(consumer, topic, queue_id)
        consumer.assign([queue])
        consumer.seek(queue, offset)
        found = consumer.poll(timeout=0)
        return found, consumer.position(queue)


def pull(address: str, group: str, request: dict[str, Any]) -> dict[str, Any]:
    """The result with RocketMQ's PullStatus, which LaneMQ's consumer does not have."""
    topic, queue_id, offset = request["topic"], request["queue"], request["offset"]
    found, after = read_once(address, group, topic, queue_id, offset, request["most"], request["tags"])
    first, end = _bounds(address, group, topic, queue_id)
    return {
        "status": _status(bool(found), offset, after, end),
        "next": after,
        "min": first,
        "max": end,
        "messages": [seen_message(each) for each in found],
    }


def _status(found: bool, offset: int, after: int, end: int) -> str:
    if found:
        return "FOUND"
    if offset > end:
        return "OFFSET_ILLEGAL"
    return "NO_NEW_MSG" if after == offset else "NO_MATCHED_MSG"


def _bounds(address: str, group: str, topic: str, queue_id: int) -> tuple[int, int]:
    with PullConsumer(address, group=group) as consumer:
        queue = _queue(consumer, topic, queue_id)
        consumer.assign([queue])
        consumer.seek_to_first()
        first = consumer.position(queue)
        consumer.seek_to_last()
        return first, consumer.position(queue)


def _queue(consumer: PullConsumer, topic: str, queue_id: int) -> MessageQueue:
    found = next((each for each in consumer.queues(topic) if each.queue_id == queue_id), None)
    if found is None:
        raise LaneError(f"{topic} has no queue {queue_id}")
    return found


class LanePoller:
    """Reads all queues of a topic from the group's offsets."""

    def __init__(self, address: str, request: dict[str, Any]) -> None:
        self._auto_commit = request["auto_commit"]
        self._consumer = PullConsumer(address, group=request["group"], tags=request["tags"])
        self._consumer.assign(self._consumer.queues(request["topic"]))

    def poll(self, timeout_ms: int) -> list[dict[str, Any]]:
        found = self._consumer.poll(timeout_ms / 1000)
        if found and self._auto_commit:
            self._consumer.commit()
        return [seen_message(each) for each in found]

    def commit(self) -> None:
        self._consumer.commit()

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        self._consumer.seek(_queue(self._consumer, topic, queue_id), offset)

    def stop(self) -> None:
        self._consumer.close()
