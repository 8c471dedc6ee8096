"""Copying: sessions that read the source in order and write to the target.

A session begins as after a kill: it makes sure that nothing is on its way to the target, reads there what is copied,
and continues from that. Any error ends it, and the next one begins. So there is one way to resume, and it is always
used.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from lanemq.client.copies import producer_id
from lanemq.client.message import Message
from lanemq.client.producer.batches import RequestBuilder
from lanemq.client.security import SecuritySettings
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock, SystemClock
from lanemq.core.backoff import Backoff
from lanemq.mirror.arrivals import FIRST_EPOCH, Arrivals, LayoutChanged, first_needed
from lanemq.mirror.ends import PAGE, BrokersAway, Side, TargetLink
from lanemq.mirror.fence import wait_for_earlier_sends, wait_until_alone, wait_until_confirmed, wait_until_readable
from lanemq.mirror.origin import mirror_name, source_group, target_group, watermarks_of
from lanemq.mirror.others import OtherMirrors, check_not_at_target, check_not_from_target
from lanemq.mirror.queue_mapping import QueueMapping, mapping_of
from lanemq.mirror.shipping import Copy, add_watermarks, copies_by_queue, requests
from lanemq.model.errors import (
    BrokerBusy,
    BrokerRefused,
    InvalidOption,
    MessageRefused,
    NotAllowed,
    OrderError,
    SequenceGap,
    TopicNotFound,
    TransportError,
)
from lanemq.model.names import NOT_SENDABLE, RETRY_PREFIX, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.codes import LATE_CODES, STORED_CODES, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_EXPECTED

log = logging.getLogger(__name__)

COMMIT_MS = Millis(1_000)
CERTAIN_MS = Millis(30_000)
"""How much later the offsets at the source are committed. By then a target that flushes asynchronously has the copies
on disk. If it loses newer ones in a crash, they are copied again."""
IDLE_SECONDS = 0.1
"""Pause after a round in which no queue had a message."""
BUSY = Backoff(first=0.05, factor=2.0, max=2.0)
AGAIN = Backoff(first=0.2, factor=2.0, max=10.0)


class MissingMessages(OrderError):
    """Retention removed messages from the source before they were copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """What is copied from where to where."""

    source: str
    """Servers, as for every client."""
    target: str
    topics: tuple[str, ...]
    name: str | None = None
    """Identifies the mirror; by default it follows from the two servers, and is the same in both directions. A mirror
    of another name starts from the beginning, and copies what this one has copied again."""
    skip_missing: bool = False
    """Continue behind messages that retention removed from the source before they were copied."""
    source_security: SecuritySettings | None = None
    target_security: SecuritySettings | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise InvalidOption("a mirror needs at least one topic: name those to copy")
        for topic in self.topics:
            if topic in NOT_SENDABLE or topic.startswith(RETRY_PREFIX):
                raise InvalidOption(f"topic {topic!r} is not copied: it belongs to the broker or to a group's retries")
            check_topic(topic)
        if self.source == self.target:
            raise InvalidOption(f"source and target are both {self.source}: a topic cannot be copied onto itself")

    @property
    def mirror(self) -> str:
        return self.name or mirror_name(self.source, self.target)

    def open_source(self) -> Side:
        return Side(self.source, source_group(self.mirror), **(self.source_security or {}))

    def open_target(self) -> Side:
        return Side(self.target, target_group(self.mirror), **(self.target_security or {}))


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """The progress of a mirror."""

    copied: int
    """Messages copied by this process."""
    left: int
    """Messages of the source that are not copied yet; -1 if that is not known."""
    sessions: int
    error: str = ""
    """Why the last session ended."""


class Mirror:
    """Copies topics until it is stopped, or until nothing is left."""

    def __init__(
        self,
        options: MirrorOptions,
        *,
        report: Callable[[MirrorReport], object] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self._on_report = report
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._copied = 0
        self._sessions = 0

    def stop(self) -> None:
        """Makes `run` return after the request under way. May be called from a signal handler or another thread."""
        self._stop.set()

    def run(self, *, until_drained: bool = False) -> MirrorReport:
        """Copies until `stop`, or with `until_drained` until the target has everything that the source has.

        Brokers that cannot be reached are tried again, without a limit. Raises what trying again cannot repair: a topic
        that does not exist, a changed layout, another mirror, messages that retention removed; at the start, a broker
        of the source that is away.
        """
        failures = 0
        while True:
            self._sessions += 1
            before = self._copied
            try:
                left = self._session(until_drained)
                return self._report(left)
            except (TransportError, BrokerRefused, SequenceGap, LayoutChanged, BrokersAway) as error:
                # A topic or queue that is not there is a mistake at the start, and later a broker that is away.
                at_start = isinstance(error, TopicNotFound | LayoutChanged | BrokersAway) and self._sessions == 1
                if at_start or isinstance(error, NotAllowed | MessageRefused):
                    raise
                failures = 0 if self._copied > before else failures + 1
                log.warning("the mirror starts a new session: %s", error)
                report = self._report(-1, str(error))
                if self._stop.wait(AGAIN.delay(failures) / 1000):
                    return report

    def check(self) -> None:
        """Begins a session and ends it: raises what would end `run`, and copies nothing."""
        with ExitStack() as ending:
            self._begin(ending).look_ahead()

    def _begin(self, ending: ExitStack) -> "_Session":
        source = ending.enter_context(self.options.open_source())
        target = ending.enter_context(self.options.open_target())
        return _Session(self.options, source, target, self._clock, ending)

    def _session(self, until_drained: bool) -> int:
        with ExitStack() as ending:
            session = self._begin(ending)
            committed_at = self._clock.now()
            while not self._stop.is_set():
                copied, read = session.round(self._stop.is_set)
                self._copied += copied
                now = self._clock.now()
                if now - committed_at >= COMMIT_MS:
                    session.commit()
                    self._report(session.left())
                    committed_at = now
                if not read:
                    if until_drained and session.left() == 0 and session.is_confirmed():
                        break
                    self._stop.wait(IDLE_SECONDS)
            session.commit()
            return session.left()

    def _report(self, left: int, error: str = "") -> MirrorReport:
        report = MirrorReport(self._copied, left, self._sessions, error)
        self._on_report(report)
        return report


def _warn_of_equal_names(options: MirrorOptions, routes: Iterable[tuple[TopicRoute, TopicRoute]]) -> None:
    shared = sorted({name for source, target in routes for name in source.brokers.keys() & target.brokers.keys()})
    if shared:
        log.warning(
            "%s and %s both have a broker named %s: `once` cannot tell their queues apart. If handlers use it, start "
            "the target's broker with another name",
            options.source, options.target, ", ".join(shared),
        )  # fmt: skip


class _Topic:
    """One topic in a session."""

    def __init__(self, mapping: QueueMapping, sources: tuple[MessageQueue, ...], from_target: OtherMirrors) -> None:
        self.mapping = mapping
        self.sources = sources
        self.arrivals: dict[MessageQueue, Arrivals] = {}
        self.read_end: dict[MessageQueue, int] = {}
        """Up to where each target queue was read when the session began."""
        self.done: dict[MessageQueue, int] = {}
        """Everything of a source queue below this offset is at the target."""
        self.marked: dict[MessageQueue, int] = {}
        """The offset of the newest watermarks in each target queue, if it is not committed yet."""
        self.from_target = from_target
        """Messages of the source that another mirror brought there from the target."""


class _Session:
    """From reading what the target has until an error."""

    def __init__(self, options: MirrorOptions, source: Side, target: Side, clock: Clock, ending: ExitStack) -> None:
        self._options = options
        self._mirror = options.mirror
        self._source = source
        self._target = target
        self._clock = clock
        self._links: dict[str, TargetLink] = {}
        self._builders: dict[MessageQueue, RequestBuilder] = {}
        self._earlier: deque[tuple[Millis, dict[MessageQueue, int]]] = deque()
        self._unconfirmed: set[str] = set()
        """Brokers of the target that stored something whose confirmation was late: a fail-over may lose it."""
        routes = {topic: (source.full_route(topic), target.route(topic)) for topic in options.topics}
        for here, there in routes.values():
            _check_different(here, there)
            _check_writable(there, options)
        for _, route in routes.values():
            for broker in sorted({queue.broker for queue in route.publish}):
                if broker not in self._links:
                    self._links[broker] = link = self._connect(route, broker)
                    ending.callback(link.close)
        _warn_of_equal_names(options, routes.values())
        for link in self._links.values():
            wait_for_earlier_sends(link, clock)
            wait_until_confirmed(link, clock)
        self._topics = {topic: self._begin(*found) for topic, found in routes.items()}

    def _connect(self, route: TopicRoute, broker: str) -> TargetLink:
        return wait_until_alone(
            lambda: TargetLink(route, broker, self._target.group, self._target, self._clock), self._clock
        )

    # what the target has

    def _begin(self, source: TopicRoute, target: TopicRoute) -> _Topic:
        from_target = OtherMirrors(self._mirror, source.topic, self._target)
        topic = _Topic(mapping_of(source, target), source.subscribe, from_target)
        others = OtherMirrors(self._mirror, source.topic, self._source)
        copied = {queue: self._source.committed(queue) or 0 for queue in topic.sources}
        starts = [(queue, max(copied[queue], self._source.bounds(queue)[0])) for queue in topic.sources]
        for broker, link in self._links.items():
            queues = [queue for queue in target.publish if queue.broker == broker]
            for queue, end in wait_until_readable(link, queues, self._clock).items():
                topic.read_end[queue] = end
                topic.arrivals[queue] = self._read_arrivals(queue, end, topic.mapping.counts, others)
                topic.arrivals[queue].begin(starts)
        check_not_at_target(others)
        for queue, needed in first_needed(topic.sources, topic.arrivals.values()).items():
            # A target queue without new messages has old watermarks; what is below `copied` is there nevertheless.
            start = max(needed, copied[queue])
            topic.done[queue] = start
            for arrivals in topic.arrivals.values():
                arrivals.passed(queue, start)
            self._source.seek(queue, start)
            if start > self._source.bounds(queue)[1]:
                raise OrderError(
                    f"{queue} ends before offset {start}, which was copied: the topic was deleted and created again; "
                    f"use another --name"
                )
        return topic

    def _read_arrivals(self, queue: MessageQueue, end: int, counts: tuple[int, int], others: OtherMirrors) -> Arrivals:
        """Reads the end of a target queue, from the last known watermarks on; all of it if they are not there."""
        first, _ = self._target.bounds(queue)
        known = self._target.committed(queue) or 0
        epoch = FIRST_EPOCH if end == 0 else self._clock.wall()
        for start in (known, first) if first < known < end else (first,):
            arrivals = Arrivals(self._mirror, queue.topic, counts, epoch)
            for message in self._target.read_range(queue, start, end):
                text = message.properties_text
                if start == known > first and message.queue_offset == known and not watermarks_of(text, self._mirror):
                    break  # the target lost messages, or the topic was created again
                arrivals.see(text)
                others.see(message)
            if start == first or arrivals.has_watermarks:
                break
        return arrivals

    # copying

    def round(self, stopped: Callable[[], bool]) -> tuple[int, int]:
        """Copies about a page of every source queue; the numbers of messages copied and read."""
        copied = read = 0
        for link in self._links.values():
            link.keep_alive()
        for topic in self._topics.values():
            for source in topic.sources:
                if stopped():
                    return copied, read
                expected = self._source.position(source)
                messages = self._source.read(source, PAGE)
                self._check_complete(source, expected, messages)
                if messages:
                    copied += self._copy(topic, source, messages)
                    read += len(messages)
        return copied, read

    def look_ahead(self) -> None:
        """Checks the next messages of every source queue without copying them."""
        for topic in self._topics.values():
            for source in topic.sources:
                self._check_origins(topic, self._source.read(source, PAGE))

    def _check_origins(self, topic: _Topic, messages: list[Message]) -> None:
        for message in messages:
            topic.from_target.see(message)
        check_not_from_target(topic.from_target)

    def left(self) -> int:
        """How many messages of the source are not at the target."""
        return sum(
            max(0, self._source.admin.max_offset(queue) - done)
            for topic in self._topics.values()
            for queue, done in topic.done.items()
        )

    def is_confirmed(self) -> bool:
        """Whether the target has confirmed every copy, by its replicas and disks.

        A broker that was late is asked with a marker: its log is confirmed in order, so a marker speaks for all that is
        before it.
        """
        self._unconfirmed = {broker for broker in self._unconfirmed if self._links[broker].mark() is None}
        return not self._unconfirmed

    def commit(self) -> None:
        """Stores hints: what is copied at the source, and where the newest watermarks are at the target."""
        now = self._clock.now()
        done = {queue: offset for topic in self._topics.values() for queue, offset in topic.done.items()}
        if self.is_confirmed():
            self._earlier.append((now, done))
        certain: dict[MessageQueue, int] = {}
        while self._earlier and now - self._earlier[0][0] >= CERTAIN_MS:
            _, certain = self._earlier.popleft()
        for queue, offset in certain.items():
            self._source.commit(queue, offset)
        for topic in self._topics.values():
            for queue, offset in topic.marked.items():
                self._target.commit(queue, offset)
            topic.marked.clear()

    def _check_complete(self, source: MessageQueue, expected: int, messages: list[Message]) -> None:
        first = messages[0].queue_offset if messages else self._source.position(source)
        if first == expected:
            return
        text = f"{source}: messages {expected} to {first - 1} were deleted at the source before they were copied"
        if not self._options.skip_missing:
            raise MissingMessages(f"{text}; to continue without them: --skip-missing")
        log.warning("%s", text)

    def _copy(self, topic: _Topic, source: MessageQueue, messages: list[Message]) -> int:
        self._check_origins(topic, messages)
        needed = copies_by_queue(messages, topic.mapping, topic.arrivals, self._mirror)
        for queue, copies in needed.items():
            for request in requests(copies):
                self._send(topic, source, queue, request)
        done = messages[-1].queue_offset + 1
        topic.done[source] = done
        for arrivals in topic.arrivals.values():
            arrivals.passed(source, done)
        return sum(map(len, needed.values()))

    def _send(self, topic: _Topic, source: MessageQueue, queue: MessageQueue, request: list[Copy]) -> None:
        """Stores one request, or raises. `TransportError`: it may be stored, now or later."""
        arrivals = topic.arrivals[queue]
        plain, last = request[-1].message.properties, request[-1].offset
        marked = add_watermarks(request, source, arrivals)
        for attempt in itertools.count():
            reply = self._links[queue.broker].send(self._command(queue, source, request, arrivals))
            if reply.code in STORED_CODES:
                break
            error = error_for(reply.code, reply.remark)
            if isinstance(error, SequenceGap) and reply.ext.get(LANE_EXPECTED) == "0" and attempt == 0:
                arrivals.forgotten(source)
                request[-1].message.properties = plain
                marked = add_watermarks(request, source, arrivals)
            elif isinstance(error, BrokerBusy):
                time.sleep(BUSY.delay(attempt) / 1000)
            else:
                raise error
        if reply.code in LATE_CODES and queue.broker not in self._unconfirmed:
            log.warning("%s has stored copies, and its replicas or disk have not confirmed them yet", queue.broker)
            self._unconfirmed.add(queue.broker)
        arrivals.stored(source, last, len(request))
        first = int(reply.ext.get("queueOffset", -1))
        if LANE_DUPLICATE in reply.ext:
            self._check_repeat(topic, queue, first)
        elif marked and first >= 0:
            topic.marked[queue] = first + len(request) - 1

    def _check_repeat(self, topic: _Topic, queue: MessageQueue, first: int) -> None:
        """A repeat of a late send is behind what was read. One before it means that reading missed something."""
        if 0 <= first < topic.read_end[queue]:
            raise OrderError(
                f"{queue} has a copy at offset {first} that was not found there: look at lanemq mirror verify"
            )

    def _command(self, queue: MessageQueue, source: MessageQueue, request: list[Copy], arrivals: Arrivals) -> Command:
        builder = self._builders.get(source)
        if builder is None:
            client_id = self._links[queue.broker].client_id
            builder = RequestBuilder(self._target.group, client_id, producer_id(self._mirror, source))
            self._builders[source] = builder
        at = arrivals.reached(source)
        return builder.send(
            queue,
            [copy.message for copy in request],
            epoch=at.epoch,
            sequence=at.sequence,
            born=request[-1].born_ms,
            creates=False,
        )


def _check_different(source: TopicRoute, target: TopicRoute) -> None:
    for broker in source.brokers.keys() & target.brokers.keys():
        address = source.master_of(broker)
        if address is not None and address == target.master_of(broker):
            raise InvalidOption(
                f"source and target have the same broker {broker!r} at {address}: a topic cannot be copied onto itself"
            )


def _check_writable(target: TopicRoute, options: MirrorOptions) -> None:
    """Raises `NotAllowed` if a broker of the target that is up refuses messages of the topic."""
    needed = {queue.broker for queue in target.publish or target.subscribe}
    if sealed := sorted(needed - target.away - {queue.broker for queue in target.writable}):
        raise NotAllowed(
            ResponseCode.NO_PERMISSION,
            f"topic {target.topic!r} may not be written at the target ({', '.join(sealed)}). If a cut-over sealed it "
            f"and you are on the way back: lanemq mirror unseal {target.topic} --from '{options.source}' "
            f"--to '{options.target}'",
        )
