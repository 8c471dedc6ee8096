"""The step of pipelines over order life cycles: one row per transition, with the offset of its message."""

from typing import Any, Final

from lanemq.pipelines import Event
from lanemq.testing.order_life import apply_event

OUTPUTS: Final = (
    "order string, seq long, before string, status string, total long, "
    "topic string, queue_id int, queue_offset long, key string"
)


def order_step(state: dict[str, Any] | None, event: Event) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Raises an error for an illegal transition, so that an overtaken event is noticed."""
    state, rows = apply_event(state, event.value)
    place = {"topic": event.topic, "queue_id": event.queue_id, "queue_offset": event.offset, "key": event.key}
    return state, [row | place for row in rows]
