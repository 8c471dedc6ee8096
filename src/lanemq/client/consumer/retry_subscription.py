"""The group's retry topic: where messages come back that were handed to the broker for another attempt.

Its messages belong to all of the group's topics, so it has a station of its own that calls the handler of the
topic a message was first sent to (A76).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from lanemq.client.consumer.attempts import BatchHandler, async_by_topic, blocking, by_topic
from lanemq.client.consumer.subscription import StationPlan
from lanemq.core.consuming.runs import Order
from lanemq.model.names import retry_topic

MOST_WORKERS = 4
"""Retries are few; a station of 20 more threads would only idle."""


def retry_plan(group: str, plans: Sequence[StationPlan], loop: asyncio.AbstractEventLoop) -> StationPlan:
    """The plan of the retry topic: as relaxed in order as the most relaxed of the group's topics."""
    model = next((plan for plan in plans if plan.order is Order.NONE), plans[0])
    plan = replace(model, topic=retry_topic(group), tags="*", batch_size=1, workers=min(MOST_WORKERS, model.workers))
    if all(each.async_handler is not None for each in plans):
        attempts = {each.topic: each.async_handler for each in plans if each.async_handler is not None}
        return replace(plan, handler=None, async_handler=async_by_topic(attempts))
    threads = {each.topic: handler for each in plans if (handler := _for_threads(each, loop)) is not None}
    return replace(plan, handler=by_topic(threads) if threads else None, async_handler=None)


def _for_threads(plan: StationPlan, loop: asyncio.AbstractEventLoop) -> BatchHandler | None:
    if plan.async_handler is not None:
        return blocking(plan.async_handler, loop)
    return plan.handler
