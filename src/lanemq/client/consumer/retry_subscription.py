"""The group's retry topic: where messages come back that were handed to the broker for another attempt.

Its messages belong to all of the group's topics, so it has a station of its own that calls the handler of the
topic a message was first sent to (A76).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from lanemq.client.consumer.attempts import Attempt, async_routed, blocking, routed
from lanemq.client.consumer.subscription import StationPlan
from lanemq.core.consuming.turns import Order
from lanemq.model.names import retry_topic

MOST_WORKERS = 4
"""Retries are few; a station of 20 more threads would only idle."""


def retry_plan(group: str, plans: Sequence[StationPlan], loop: asyncio.AbstractEventLoop) -> StationPlan:
    """The plan of the retry topic: as relaxed in order as the most relaxed of the group's topics."""
    model = next((plan for plan in plans if plan.order is Order.NONE), plans[0])
    plan = replace(model, topic=retry_topic(group), tags="*", batch_size=1, workers=min(MOST_WORKERS, model.workers))
    if all(each.async_attempt is not None for each in plans):
        attempts = {each.topic: each.async_attempt for each in plans if each.async_attempt is not None}
        return replace(plan, attempt=None, async_attempt=async_routed(attempts))
    threads = {each.topic: attempt for each in plans if (attempt := _for_threads(each, loop)) is not None}
    return replace(plan, attempt=routed(threads) if threads else None, async_attempt=None)


def _for_threads(plan: StationPlan, loop: asyncio.AbstractEventLoop) -> Attempt | None:
    if plan.async_attempt is not None:
        return blocking(plan.async_attempt, loop)
    return plan.attempt
