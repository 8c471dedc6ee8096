"""The step of pipelines over order life cycles: one row per transition, with the place of the message it came from."""

from typing import Any, Final

from lanemq.pipelines import Event
from lanemq.testing.order_life import apply_event

OUTPUTS: Final = (
    "order string, seq long, before string, status string, total long, "
    "topic string, queue_id int, queue_offset long, key string"
)


def order_step(state: dict[str, Any] | None, event: Event) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Refuses transitions that no order goes through, so an overtaken event does not pass unnoticed."""
    state, rows = apply_event(state, event.value)
    place = {"topic": event.topic, "queue_id": event.queue_id, "queue_offset": event.offset, "key": event.key}
    return state, [row | place for row in rows]
