"""Pulls the messages of an assigned queue, in order, while there is room for them.

One loop per queue. Before each pull it checks the lease and the room in the cache (`flow_control`).
Then the messages go into their lanes and the offset moves on, also past messages that a filter left out.

An answer goes into its lanes while it is read from the socket, and the next pull leaves at once (`pull_stream`). The
loop's task wakes up only if the next pull must wait, or after an unusual answer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.pull_stream import Pulled
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.heartbeat import Heartbeat
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.message import Message, read_messages, read_waiting
from lanemq.core.consuming.flow_control import PullNow, WaitFor, verdict
from lanemq.core.consuming.repeats import SeenStamps
from lanemq.core.consuming.runs import Order
from lanemq.history import Place
from lanemq.model.errors import LaneError, LeaseLost, TransportError
from lanemq.model.units import QueueOffset, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode
from lanemq.wire.headers import PullHeader
from lanemq.wire.log_marks import log_mark
from lanemq.wire.properties import PropertyName, find_property
from lanemq.wire.record import PULL_SUBSCRIPTION, PULL_SUSPEND

log = ClientLog(__name__)

PULL_SUSPEND_MS = 15_000
"""How long the broker may hold an empty pull (RocketMQ's DefaultMQPushConsumerImpl)."""

PULL_RETRY = 1.0
"""Seconds between a failed pull and the next one (RocketMQ's ClientConfig.pullTimeDelayMillsWhenException)."""

EMPTY_PAUSE_MS = 50
"""Pause after a broker that answered "nothing" at once instead of holding the pull."""

LOOK_BACK = 1_000
"""Messages before the start of a queue that repeats are compared with: the largest batch of a producer."""

LANE_PULL_BYTES = 1024 * 1024
"""Maximum size of one answer of a LaneMQ broker. RocketMQ's 256 KiB would cut a pull of 1000 small messages short."""


class Puller:
    """The pull loops of one consumer: one call of `run` per assigned queue."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        heartbeat: Heartbeat,
        assignment: Assignment,
        progress: QueueReporter,
        tasks: asyncio.TaskGroup,
        unreachable: Callable[[str], None],
    ) -> None:
        """`unreachable` is told of a topic with a broker that does not answer: it may be at another address now."""
        self._options = options
        self._calls = calls
        self._heartbeat = heartbeat
        self._assignment = assignment
        self._progress = progress
        self._tasks = tasks
        self._unreachable = unreachable
        self._clock = options.clock
        self._loop = asyncio.get_running_loop()
        self._rate_limited = RateLimitedLog(log, options.clock)
        # By whether the broker is a LaneMQ broker.
        self._limits = {lane: options.limits(lane) for lane in (True, False)}
        self._batch = {lane: options.batch_from(lane) for lane in (True, False)}

    def start(self, assigned: AssignedQueue) -> None:
        """Starts the pull loop of a queue."""
        assigned.puller = self._tasks.create_task(self._run(assigned))

    def restart_at(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Continues at another offset: an operator reset the group. A queue that is given up leaves that to its next
        owner: its lanes must not start again while it leaves."""
        if assigned.puller is None:
            return
        assigned.moving_to = offset
        assigned.puller.cancel()
        self.start(assigned)

    async def _run(self, assigned: AssignedQueue) -> None:
        """Pulls until the queue is released; after an error it tries again with a pause."""
        while not assigned.released:
            try:
                await self._once(assigned)
            except LeaseLost as error:
                self._assignment.lose(assigned, f"the broker refused its pull: {error}")
            except LaneError as error:
                if isinstance(error, TransportError):
                    self._unreachable(assigned.queue.topic)
                self._rate_limited.failed(str(assigned), f"pull of {assigned} failed, trying again", error)
                await asyncio.sleep(PULL_RETRY)

    async def _once(self, assigned: AssignedQueue) -> None:
        """One pull, or one wait until a pull is allowed. A reset that is under way comes first."""
        if assigned.moving_to is not None:
            await self._progress.move(assigned, assigned.moving_to)
            return
        if assigned.read_log.is_other or not assigned.may_pull(now=self._clock.now()):
            await self._wait(assigned, to_millis(PULL_RETRY))
            return
        scheduler, queue = assigned.scheduler, assigned.queue
        room = self._room(assigned)
        if isinstance(room, WaitFor):
            limit = self._limits[assigned.is_lanemq].messages // 2
            scheduler.call_below(queue, limit, lambda: self._wake(assigned))
            await self._wait(assigned, room.delay)
            return
        with scheduler as lanes:
            offset = lanes[queue].next_offset
        await self._pull(assigned, offset)

    def _room(self, assigned: AssignedQueue) -> PullNow | WaitFor:
        with assigned.scheduler as lanes:
            cached = lanes[assigned.queue].cached()
        return verdict(cached, self._limits[assigned.is_lanemq], out_of_order=_span_counts(assigned))

    async def _pull(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Pulls as long as one answer can be followed by the next pull at once."""
        queue = assigned.queue
        await self._heartbeat.send_to(self._calls.address(queue.topic, assigned.coordinator))
        if not await self._progress.is_same_log(assigned):
            return
        if self._drops_repeats(assigned) and assigned.read_log.stamps is None:
            assigned.read_log.stamps = await self._look_back(assigned, offset)
        assigned.last_pull = self._clock.now()
        pulled = await self._calls.pull(self._header(assigned, offset), queue.broker, partial(self._answered, assigned))
        if assigned.released:
            return
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            assigned.read_log.master = None
            if not await self._progress.is_same_log(assigned):
                return
            await self._progress.move(assigned, pulled.next_offset)
        elif pulled.code == ResponseCode.PULL_NOT_FOUND and self._clock.now() - assigned.last_pull < EMPTY_PAUSE_MS:
            await asyncio.sleep(EMPTY_PAUSE_MS / 1000)

    def _drops_repeats(self, assigned: AssignedQueue) -> bool:
        """Not in a retry topic: there every attempt of a message has the stamp of the first one."""
        if assigned.is_lanemq or assigned.source.is_retry:
            return False
        wanted = self._options.drop_repeats
        return self._calls.coordination.address is not None if wanted is None else wanted

    def _answered(self, assigned: AssignedQueue, pulled: Pulled, pulled_from: QueueOffset) -> QueueOffset | None:
        """Takes an answer, or a part of one; returns where the next begins, if it may be pulled at once."""
        if assigned.released or not self._put_in_lanes(assigned, pulled, pulled_from):
            return None
        # There is room for another part: together they are no more than the pull has asked for.
        return pulled.next_offset if pulled.more else self._next_at_once(assigned)

    def _put_in_lanes(self, assigned: AssignedQueue, pulled: Pulled, pulled_from: QueueOffset) -> bool:
        """Puts the messages of an answer, or of a part of one, into their lanes.

        False if they do not continue what is there, or if it is an answer of another kind.
        """
        assigned.end = pulled.max_offset
        if pulled.code == ResponseCode.SUCCESS:
            messages = self._accepted(assigned, pulled.body)
        elif pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            messages = []
        else:
            return False
        messages, repeats = self._without_repeats(assigned, messages)
        with assigned.scheduler as lanes:
            if repeats and assigned.queue in lanes:
                lanes[assigned.queue].leave_out(repeats)
            return lanes.put(assigned.queue, messages, pulled.next_offset, pulled_from=pulled_from)

    def _next_at_once(self, assigned: AssignedQueue) -> QueueOffset | None:
        """Where to pull next, if that may happen now; the lease has the same epoch as before, or the queue is lost."""
        now = self._clock.now()
        if assigned.released or assigned.moving_to is not None:
            return None
        if not assigned.may_pull(now=now) or isinstance(self._room(assigned), WaitFor):
            return None
        assigned.last_pull = now
        with assigned.scheduler as lanes:
            return lanes[assigned.queue].next_offset

    def _header(self, assigned: AssignedQueue, offset: QueueOffset) -> PullHeader:
        queue, lane = assigned.queue, assigned.is_lanemq
        return PullHeader(
            consumer_group=self._calls.coordination.pull_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self._batch[lane],
            sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=PULL_SUSPEND_MS,
            subscription=assigned.subscription.filter.text,
            sub_version=self._heartbeat.version,
            expression_type="TAG",
            lane_client=self._calls.client_id if lane else None,
            lane_epoch=(assigned.epoch or None) if lane else None,
            lane_max_bytes=LANE_PULL_BYTES if lane else None,
            lane_parts=True if lane and assigned.epoch else None,
        )

    def _accepted(self, assigned: AssignedQueue, body: bytes) -> list[Message]:
        """The messages, without those whose tag only has the same hash as an accepted one."""
        messages = read_waiting(assigned.source, body)
        if assigned.read_log.is_compared and messages:
            assigned.read_log.read = log_mark(messages[-1].record)
        tags = assigned.subscription.filter
        return [each for each in messages if tags.accepts(each.tag)] if tags.tags else messages

    def _without_repeats(self, assigned: AssignedQueue, messages: list[Message]) -> tuple[list[Message], list[Message]]:
        """The messages, and those that are repeats and were left out."""
        seen = assigned.read_log.stamps
        if seen is None:
            return messages, []
        repeats = {each.queue_offset: each for each in messages if self._is_repeat(assigned, seen, each)}
        left = [each for each in messages if each.queue_offset not in repeats] if repeats else messages
        return left, list(repeats.values())

    def _is_repeat(self, assigned: AssignedQueue, seen: SeenStamps, message: Message) -> bool:
        if not seen.is_repeat(message.stamp, message.queue_offset):
            return False
        # An Apache broker stores a delayed message with its stamp when it is due, after newer ones of its producer.
        if find_property(message.record.properties_text, PropertyName.REAL_TOPIC) is not None:
            return False
        log.info("%s: offset %d is a repeat and is left out", assigned, message.queue_offset)
        if self._options.history.on:
            queue = assigned.queue
            place = Place(self._options.group, queue.topic, queue.queue_id, message.queue_offset, queue.broker)
            self._options.history.skipped(place, message.key or "", "stored twice by the broker")
        return True

    async def _look_back(self, assigned: AssignedQueue, offset: QueueOffset) -> SeenStamps:
        """The stamps of the last messages before an offset: what follows may be repeats of them."""
        seen, queue = SeenStamps(), assigned.queue
        at = QueueOffset(max(0, offset - LOOK_BACK))
        while at < offset:
            header = replace(self._header(assigned, at), sys_flag=PULL_SUBSCRIPTION, suspend_timeout_millis=0)
            pulled = await self._calls.pull(header, queue.broker)
            if pulled.code == ResponseCode.SUCCESS:
                for message in read_messages(assigned.source, pulled.body):
                    if message.queue_offset < offset:
                        seen.is_repeat(message.stamp, message.queue_offset)
            if pulled.next_offset <= at:
                break
            at = pulled.next_offset
        return seen

    async def _wait(self, assigned: AssignedQueue, timeout_ms: int) -> None:
        """Waits until the queue is woken or the timeout has passed."""
        assigned.wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await assigned.wake.wait()

    def _wake(self, assigned: AssignedQueue) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the consumer has ended
            self._loop.call_soon_threadsafe(assigned.wake.set)


def _span_counts(assigned: AssignedQueue) -> bool:
    """Whether messages that ran ahead of an unfinished one would run again after a crash.

    A broker that stores finished ranges remembers them: there, one stuck key must not stop the queue.
    """
    order = assigned.subscription.order
    return order is Order.NONE or (order is Order.KEY and not assigned.epoch)
