"""Positions of a query in all its queues, and the JSON in which Spark's checkpoint keeps them.

    {"orders": {"broker-a/0": 17, "broker-a/1": 4}}

The rule guarded here: equal positions give equal text, because Spark compares texts to see whether there is
anything new. An offset is the next one to read.
"""

from collections.abc import Mapping
from typing import TypeAlias

from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

Positions: TypeAlias = dict[MessageQueue, QueueOffset]
OffsetJson: TypeAlias = dict[str, dict[str, int]]


def to_json(positions: Mapping[MessageQueue, QueueOffset]) -> OffsetJson:
    """What the checkpoint keeps, sorted."""
    topics: OffsetJson = {}
    for queue in sorted(positions):
        topics.setdefault(queue.topic, {})[f"{queue.broker}/{queue.queue_id}"] = int(positions[queue])
    return topics


def from_json(offset: Mapping[str, Mapping[str, int]]) -> Positions:
    """What the checkpoint kept; `UsageError` for what this source never wrote."""
    positions: Positions = {}
    try:
        for topic, queues in offset.items():
            for name, number in queues.items():
                broker, _, queue_id = name.rpartition("/")
                positions[MessageQueue(topic, broker, int(queue_id))] = QueueOffset(int(number))
    except (AttributeError, TypeError, ValueError):
        raise UsageError(
            f"the checkpoint holds {str(offset)[:200]}, which is no position of a lanemq source: "
            f"use another checkpoint location"
        ) from None
    return positions
