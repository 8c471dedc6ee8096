"""One member for each group whose clients are here.

The member is LaneMQ's own (`ConsumerEngine`) on a thread of its own, so that nothing here delays its keep-alives. It
has no handlers: its lanes are taken by this module, on the front's event loop, and handed to clients. It joins with the
first consumer of its group and leaves with the last, because a member owns queues. Its topics are those of its clients,
and change with them. Only when its tags or its order change, a new member takes the place of the old one.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from lanemq.client.consumer.engine import EngineThread, without_resources
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.history import TurnRecorder
from lanemq.client.consumer.turns.scheduler import MessageFinished, MessageRun, Scheduler
from lanemq.client.consumer.turns.subscription import Subscription
from lanemq.client.consumer.turns.taking import TakingScheduler
from lanemq.client.consumer.turns.workers import RunEnd
from lanemq.client.identity import new_client_id
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey, SendBack
from lanemq.core.consuming.runs import DONE, STOPPED, LaneRun, Order, Outcome, Why
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.grpc_front.options import FrontOptions
from lanemq.model.errors import LaneError
from lanemq.model.names import retry_topic
from lanemq.model.units import Millis
from lanemq.wire.lane_bodies import FrontClientsBody
from lanemq.wire.lane_fields import FRONT_SUFFIX

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.2
"""Interval of offset reports: what a crash of the front leaves unreported is delivered again."""
STOP_SECONDS = 5.0
"""How long a member that ends waits for what its clients are processing. With the rest of a stop, it is less than the
20 s after which a broker kills its front."""
RESTART_SECONDS = 1.0
"""Pause before a member that ended by an error is replaced."""
SETTLE_SECONDS = 0.05
"""How long a change of topics waits for others: after a restart of the front, clients call for one topic at a time."""

Tags = Mapping[str, str]
"""Tags by topic."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a group's clients subscribe to."""

    tags: Tags
    ordered: bool

    def subscription(self, topic: str, policy: FailurePolicy) -> Subscription:
        order = Order.KEY if self.ordered else Order.NONE
        return Subscription(topic=topic, tags=self.tags[topic], order=order, policy=policy, run_limit=1)

    def differs_in_topics_only(self, other: "Wanted") -> bool:
        """Whether a member for the other one can work for this one, too."""
        return self.ordered == other.ordered and all(
            self.tags[topic] == other.tags[topic] for topic in self.tags.keys() & other.tags.keys()
        )


class LaneMember:
    """A running member, and the lanes of its topics."""

    def __init__(self, group: str, wanted: Wanted, front: FrontOptions, clock: Clock, on_work: Callable[[], None]):
        self.group, self.wanted = group, wanted
        settings: ConsumerSettings = {
            "codec": "bytes",
            "commit_every": REPORT_SECONDS,
            "stop_timeout": STOP_SECONDS,
            "clock": clock,
            "client_id": new_client_id() + FRONT_SUFFIX,
        }
        if front.history is not None:
            settings["history"] = front.history
        self.options = consumer_options(front.servers, group, **settings)
        history = self.options.history
        self.recorder = TurnRecorder(group, history, clock, keyed=wanted.ordered) if history.on else None
        self._on_work = on_work
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, TakingScheduler] = {}
        self._aside: dict[str, deque[MessageRun]] = {}
        """Runs of the retry topic whose messages belong to a topic that nobody has asked for since they were taken."""
        self._ending = False
        self._policy = _policy(front, group, wanted)
        subscriptions = [wanted.subscription(topic, self._policy) for topic in wanted.tags]
        self.thread = EngineThread(self.options, without_resources(subscriptions), self._make)

    def follow(self, wanted: Wanted) -> None:
        """Consumes other topics from now on."""
        before, self.wanted = self.wanted.tags.keys(), wanted
        added = [wanted.subscription(topic, self._policy) for topic in wanted.tags.keys() - before]
        removed = before - wanted.tags.keys()
        self.thread.loop.call_soon_threadsafe(self.thread.engine.change_topics, added, removed)

    def _make(self, subscription: Subscription, clock: Clock) -> Scheduler:
        """Called on the member's thread."""
        made = TakingScheduler(LaneScheduler(subscription.lanes), clock, self._tell)
        self._lanes[subscription.topic] = made
        return made

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the front's loop has ended
            self._loop.call_soon_threadsafe(self._on_work)

    def take(self, topic: str, most: int) -> MessageRun | Millis | None:
        """A run of a topic; or when a held lane may run again, None if none is held."""
        run_or_time = self._take_from(topic, most)
        if isinstance(run_or_time, LaneRun):
            return run_or_time
        retry_or_time = self._take_retry(topic)
        if isinstance(retry_or_time, LaneRun):
            return retry_or_time
        return min((time for time in (run_or_time, retry_or_time) if time is not None), default=None)

    def _take_from(self, topic: str, most: int) -> MessageRun | Millis | None:
        lanes = self._lanes.get(topic)
        return None if lanes is None or lanes.closed else lanes.take_now(most)

    def _take_retry(self, topic: str) -> MessageRun | Millis | None:
        """A run of the retry topic whose message was first sent to `topic`."""
        if self._ending:
            return None
        aside = self._aside.get(topic)
        while aside:
            run = aside.popleft()
            if run.may_continue(now=self.options.clock.now()):
                return run
            self.put_back(run)
        while isinstance(run_or_time := self._take_from(retry_topic(self.group), 1), LaneRun):
            first_topic = run_or_time.messages[0].topic
            if first_topic == topic:
                return run_or_time
            self._aside.setdefault(first_topic, deque()).append(run_or_time)
        return run_or_time

    # how runs end

    def begun(self, run: MessageRun, client: str) -> None:
        self._lanes[run.queue.topic].handed_to(run, client)
        if self.recorder is not None:
            self.recorder.begin(run.messages, run)

    def progressed(self, run: MessageRun, done: int) -> None:
        """The first messages of a run in progress are done: the next report says so."""
        if self.recorder is not None:
            self.recorder.end(run.messages[run.done : done], run, None)
        run.done = done
        with self._lanes[run.queue.topic] as lanes:
            lanes.note_progress(run)

    def finish(self, run: MessageRun, outcome: Outcome, done: int = 0, error: Exception | None = None) -> Why:
        """Ends a run; what must be sent to the broker is sent on the member's thread."""
        stop = None if outcome is DONE else Stop(outcome, succeeded=done, error=error)
        if self.recorder is not None:
            self._record_end(run, stop)
        lanes = self._lanes[run.queue.topic]
        lanes.handed_to(run, "")
        finished = lanes.finish(run, outcome, done, "" if error is None else str(error))
        if finished.why is Why.SEND_BACK and stop is not None:
            self._send_back(run, RunEnd(stop, done), finished)
        return finished.why

    def _record_end(self, run: MessageRun, stop: Stop | None) -> None:
        """Records how the rest of a run ends. What was done before was recorded then, before it could be reported."""
        assert self.recorder is not None
        rest = None if stop is None else replace(stop, succeeded=stop.succeeded - run.done)
        self.recorder.end(run.messages[run.done :], run, rest)

    def _send_back(self, run: MessageRun, end: RunEnd, finished: MessageFinished) -> None:
        try:
            engine = self.thread.engine
        except LaneError as error:  # the member has ended, and the next one gets the message again
            log.warning("a failed message of group %s was not sent back: %s", self.group, error)
            return
        following = engine.reporter.follow(engine.subscriptions[run.queue.topic], run, end, finished)
        future: Future[MessageFinished] = asyncio.run_coroutine_threadsafe(following, self.thread.loop)
        future.add_done_callback(_log_failure)

    def now_has(self, clients: FrontClientsBody) -> None:
        """For operators: the clients of the group."""
        for lanes in list(self._lanes.values()):
            lanes.now_has(clients)

    def put_back(self, run: MessageRun) -> None:
        """Returns a run that was taken and not handed out."""
        self._lanes[run.queue.topic].finish(run, STOPPED)

    def release(self) -> None:
        """The member will end: what waits for a client must not hold the hand-over up."""
        self._ending = True
        for runs in self._aside.values():
            for run in runs:
                self.put_back(run)
        self._aside.clear()

    def withdraw(self) -> None:
        """Asks for no queue any more."""
        with contextlib.suppress(LaneError, RuntimeError):  # it has ended
            self.thread.loop.call_soon_threadsafe(self.thread.engine.withdraw)

    @property
    def alive(self) -> bool:
        return self.thread.running


def _policy(front: FrontOptions, group: str, wanted: Wanted) -> FailurePolicy:
    if not wanted.ordered:
        return SendBack(retries=16 if front.retries < 0 else front.retries)
    hold = HoldKey(retries=front.retries)
    return DeadLetter(skip=True, hold=hold) if group in front.dead_letter_groups else hold


def _log_failure(future: "Future[MessageFinished]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("a failed message was not sent back", exc_info=error)


class FrontGroup:
    """A group of which clients are here: keeps its member as the clients need it."""

    def __init__(self, name: str, front: FrontOptions, clock: Clock, on_work: Callable[["FrontGroup"], None]) -> None:
        self.name = name
        self.member: LaneMember | None = None
        self.failure = ""
        """Why there is no member, if one is wanted."""
        self._front, self._clock = front, clock
        self._on_work = on_work
        self._wanted: Wanted | None = None
        self._changed, self._closing = asyncio.Event(), asyncio.Event()
        self._starting: LaneMember | None = None
        self._told = False
        self._keeper = asyncio.create_task(self._keep())

    def want(self, wanted: Wanted | None) -> None:
        """What the clients subscribe to now; None: there are none."""
        if wanted != self._wanted and not self._closing.is_set():
            self._wanted = wanted
            self._changed.set()

    @property
    def wanted(self) -> Wanted | None:
        return self._wanted

    @property
    def idle(self) -> bool:
        """Whether there is nothing to keep."""
        return self._wanted is None and self.member is None and self._starting is None

    def check(self) -> None:
        """Called now and then: replaces a member that has ended by itself."""
        if self.member is not None and not self.member.alive:
            self._changed.set()

    def look(self) -> None:
        """There may be runs to take. Told once for many changes."""
        if not self._told:
            self._told = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._told = False
        self._on_work(self)

    async def close(self) -> None:
        """Hands the queues over, and waits for that. A member that is starting ends as soon as it has started."""
        self.want(None)
        self._closing.set()
        self._changed.set()
        if self._starting is not None:
            await asyncio.to_thread(self._starting.thread.stop)
        await self._keeper

    async def _keep(self) -> None:
        while not self._closing.is_set():
            await self._changed.wait()
            await self._pause(SETTLE_SECONDS)
            self._changed.clear()
            await self._try_to_follow()
        if self.member is not None:
            await self._try_to_follow()

    async def _try_to_follow(self) -> None:
        try:
            await self._follow()
        except (LaneError, OSError) as error:
            log.warning("group %s has no member at the moment: %s", self.name, error)
            await self._try_again(error)
        except Exception as error:
            log.exception("the member of group %s ended by an error", self.name)
            await self._try_again(error)

    async def _try_again(self, error: Exception) -> None:
        self.failure = str(error) or repr(error)
        await self._pause(RESTART_SECONDS)
        self._changed.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _follow(self) -> None:
        member = self.member
        if member is not None and not self._keeps(member):
            await self._stop_member(member)
        wanted = self._wanted
        if wanted is not None and self.member is None:
            await self._start_member(wanted)
        self.look()

    def _keeps(self, member: LaneMember) -> bool:
        """Whether a member is still the right one, if its topics change."""
        wanted = self._wanted
        if wanted is None or not member.alive or not wanted.differs_in_topics_only(member.wanted):
            return False
        if wanted != member.wanted:
            member.follow(wanted)
        return True

    async def _start_member(self, wanted: Wanted) -> None:
        self._starting = started = LaneMember(self.name, wanted, self._front, self._clock, self.look)
        try:
            await asyncio.to_thread(started.thread.start)
        finally:
            self._starting = None
        self.member, self.failure = started, ""
        log.info("group %s: member %s joined for %s", self.name, started.options.client_id, ", ".join(wanted.tags))

    async def _stop_member(self, member: LaneMember) -> None:
        member.release()
        member.withdraw()
        try:
            await asyncio.to_thread(member.thread.stop)
        finally:
            self.member = None
