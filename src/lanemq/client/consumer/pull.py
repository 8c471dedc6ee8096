"""Fetches the messages of one held queue, in order, as long as there is room for them.

One loop per queue. Before each pull: is the lease usable (A56), is there room (`core/consuming/flow_control`)?
After each: messages into the lanes, the offset on, again. Offsets that a filter left out move it too (A61).
"""

import asyncio
import contextlib
import logging

from lanemq.client.consumer.assigned_queue import Holding
from lanemq.client.consumer.calls import ConsumerCalls, Pulled
from lanemq.client.consumer.heartbeat import Heartbeat
from lanemq.client.consumer.history import group_in_history
from lanemq.client.consumer.leases import Lose
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.parking import Parker
from lanemq.client.message import Message, read_messages
from lanemq.core.consuming.flow_control import WaitFor, verdict
from lanemq.core.consuming.runs import Order
from lanemq.history import Place
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.units import QueueOffset, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode
from lanemq.wire.headers import PullHeader
from lanemq.wire.record import PULL_SUBSCRIPTION, PULL_SUSPEND

log = logging.getLogger(__name__)

EMPTY_PAUSE_MS = 50
"""A broker that answers "nothing" at once instead of holding the pull is asked again only after this."""

LANE_PULL_BYTES = 1024 * 1024
"""Most that one answer of a LaneMQ broker holds. RocketMQ's 256 KiB would cut a pull of 1000 small messages short."""


class Puller:
    """Pulls for all holdings; each has its own call of `run`."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        heartbeat: Heartbeat,
        offsets: OffsetKeeper,
        lose: Lose,
    ) -> None:
        self._options = options
        self._calls = calls
        self._heartbeat = heartbeat
        self._offsets = offsets
        self._lose = lose
        self._clock = options.clock
        self._loop = asyncio.get_running_loop()
        self._rate_limited = RateLimitedLog(log, options.clock)
        self.parker: Parker

    async def run(self, holding: Holding) -> None:
        """Ends when the holding does; any other trouble is tried again after a pause."""
        while not holding.released:
            try:
                await self._once(holding)
            except LeaseLost as error:
                self._lose(holding, f"the broker refused its pull: {error}")
            except LaneError as error:
                self._rate_limited.warn(str(holding), f"pull of {holding} failed, trying again: {error}")
                await asyncio.sleep(self._options.pull_retry)

    async def _once(self, holding: Holding) -> None:
        """One pull, or one wait for the right to make it; a move that was begun comes first."""
        if holding.moving is not None:
            await self.move(holding, holding.moving)
            return
        if not holding.may_pull(now=self._clock.now()):
            await self._wait(holding, to_millis(self._options.pull_retry))
            return
        scheduler, queue = holding.station.scheduler, holding.queue
        limits = self._options.limits(holding.lane)
        room = verdict(scheduler.cached(queue), limits, out_of_order=_span_counts(holding))
        if isinstance(room, WaitFor):
            scheduler.call_below(queue, limits.messages // 2, lambda: self._call(holding))
            await self._wait(holding, room.delay)
            return
        offset = scheduler.next_offset(queue)
        if offset is not None:
            await self._pull(holding, offset)

    async def _pull(self, holding: Holding, offset: QueueOffset) -> None:
        queue = holding.queue
        await self._heartbeat.tell(self._calls.address(queue.topic, queue.broker))
        asked_at = holding.last_pull = self._clock.now()
        pulled = await self._calls.pull(self._header(holding, offset), queue.broker)
        if holding.released:
            return
        match pulled.code:
            case ResponseCode.SUCCESS:
                self._take_in(holding, self._wanted(holding, pulled.body), pulled, offset)
            case ResponseCode.PULL_RETRY_IMMEDIATELY:
                self._take_in(holding, [], pulled, offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                await self.move(holding, pulled.next_offset)
            case _ if self._clock.now() - asked_at < EMPTY_PAUSE_MS:
                await asyncio.sleep(EMPTY_PAUSE_MS / 1000)

    async def move(self, holding: Holding, offset: QueueOffset) -> None:
        """Goes on elsewhere in the queue. Handlers end first: two turns of a key must never overlap."""
        scheduler, queue = holding.station.scheduler, holding.queue
        holding.moving = offset
        log.warning("%s goes on at offset %d instead of %s", queue, offset, scheduler.next_offset(queue))
        scheduler.drain(queue)
        while not await scheduler.drained(queue, to_millis(self._options.hand_over_timeout)):
            log.warning("%s waits for its running handler before it moves to offset %d", queue, offset)
        if holding.released:
            return
        if self._options.history.on:
            place = Place(group_in_history(self._options, self._calls.client_id), queue.topic, queue.queue_id, offset)
            reason = "the broker or a person named another offset"
            self._options.history.reset(place, reason, epoch=holding.epoch)
        kept = await self.parker.kept(queue, asked=holding.keeps_parked)
        if holding.released:
            return
        scheduler.drop(queue)
        scheduler.add(queue, offset, holding.usable_until, kept=kept)
        await self._offsets.move_to(holding, offset)
        holding.moving = None

    def _take_in(self, holding: Holding, messages: list[Message], pulled: Pulled, pulled_from: QueueOffset) -> None:
        holding.station.scheduler.put(holding.queue, messages, pulled.next_offset, pulled_from)

    def _wanted(self, holding: Holding, body: bytes) -> list[Message]:
        """The messages, without those whose tag only shares its hash with a wanted one."""
        messages = read_messages(holding.source, body)
        tags = holding.station.plan.filter
        return [each for each in messages if tags.wants(each.tag)] if tags.tags else messages

    def _header(self, holding: Holding, offset: QueueOffset) -> PullHeader:
        queue, lane = holding.queue, holding.lane
        return PullHeader(
            consumer_group=self._options.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self._options.batch_from(lane),
            sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=to_millis(self._options.pull_suspend),
            subscription=holding.station.plan.filter.text,
            sub_version=self._heartbeat.version,
            expression_type="TAG",
            lane_client=self._calls.client_id if lane else None,
            lane_epoch=holding.epoch or None,
            lane_max_bytes=LANE_PULL_BYTES if lane else None,
        )

    async def _wait(self, holding: Holding, most_ms: int) -> None:
        """Until the holding is called, at most so long."""
        holding.wake.clear()
        try:
            async with asyncio.timeout(most_ms / 1000):
                await holding.wake.wait()
        except TimeoutError:
            pass

    def _call(self, holding: Holding) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody pulls any more
            self._loop.call_soon_threadsafe(holding.wake.set)


def _span_counts(holding: Holding) -> bool:
    """Whether messages that ran ahead of an unfinished one would run again after a crash.

    A broker that keeps finished ranges remembers them: there, one stuck key must not stop the queue.
    """
    order = holding.station.plan.order
    return order is Order.NONE or (order is Order.KEY and not (holding.lane and holding.epoch > 0))
