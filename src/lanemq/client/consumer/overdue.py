"""Concurrent only: a message whose handler has not returned for 15 minutes goes back to the broker.

Without order, one stuck handler must not hold the group's offset for ever (RocketMQ's consumeTimeout). In ordered
mode nothing may pass a message that is being handled, so there a stuck handler is only visible, never overtaken.

The rule guarded here: a turn is ended once. A handler may come back while its messages are being sent, and what the
worker reports then counts.
"""

import asyncio
import logging
from collections.abc import Mapping

from lanemq.client.consumer.in_progress import MessageRun
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.send_back import DeadLetters
from lanemq.client.consumer.subscription import ActiveSubscription
from lanemq.core.consuming.retry_policy import SendBack
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis, to_millis

log = logging.getLogger(__name__)

SENT_BACK_LEVEL = 3
"""Delay level of a message that took too long (RocketMQ's ProcessQueue.cleanExpiredMsg)."""


class OverdueRuns:
    """Looks for stuck turns of concurrent subscriptions."""

    def __init__(
        self, options: ConsumerOptions, subscriptions: Mapping[str, ActiveSubscription], dead_letters: DeadLetters
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters

    async def run(self) -> None:
        """Never ends."""
        while True:
            await asyncio.sleep(self._options.consume_timeout)
            try:
                await self.look()
            except LaneError as error:
                log.warning("looking for hanging handlers failed, trying again: %s", error)

    async def look(self) -> None:
        before = Millis(self._options.clock.now() - to_millis(self._options.consume_timeout))
        for active in self._subscriptions.values():
            if isinstance(policy := active.subscription.policy, SendBack):
                await self._look_at(active, before, policy.retries)

    async def _look_at(self, active: ActiveSubscription, before: Millis, most: int) -> None:
        """Sending takes seconds where a broker is slow: whether a turn still hangs is asked when it comes to it."""
        for run in active.scheduler.overdue(before):
            if run in active.scheduler.overdue(before) and await self._sent_back(run, most):
                if active.scheduler.take_over(run):
                    log.warning("a handler of %s hangs; its messages were sent back", run.queue)
                else:
                    log.warning("a handler of %s came back late; its messages were sent back already", run.queue)

    async def _sent_back(self, run: MessageRun, most: int) -> bool:
        return all([await self._dead_letters.send_back(message, SENT_BACK_LEVEL, most) for message in run.messages])
