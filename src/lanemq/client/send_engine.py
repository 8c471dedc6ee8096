"""The send logic, once, for both producers: which batch goes out when, and what an answer means.

No sockets, threads or tasks here: parcels, replies and a clock come in, requests and outcomes go out, and the
shells carry them. Per queue there is a `SendLane` (core), which owns the order; this file gives it parcels,
turns its batches into requests, and translates replies, lost connections and deadlines into its events.

After a failure that cannot be retried a lane is frozen: what was sent behind the failed message must not pass
it. If everybody concerned is told before they can send anything else (they wait, or the messages have no key),
the lane opens again by itself, for a call that sends many when that call ends; otherwise it waits for `resume`.
"""

import logging
from collections.abc import Mapping, Sequence

from lanemq.client.producer_options import ProducerOptions
from lanemq.client.routes import TopicRoute
from lanemq.client.send_history import SendHistory
from lanemq.client.send_outcomes import NotStored, Outcome, doubtful, failed_outcomes, forgotten, stored_outcomes
from lanemq.client.send_requests import Parcel, RequestBuilder
from lanemq.client.send_tickets import Crowd
from lanemq.client.send_work import EngineLane, KnownBroker, Mark, SendRequest, Work
from lanemq.clock import Clock
from lanemq.core.send_lane import Failed, SendBatch, SendError, SendLane, SendOptions
from lanemq.model.errors import BrokerReadOnly, BrokerRefused, Closed, LaneError, LaneFrozen, SequenceGap
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.wire.codes import STORED_CODES, error_for
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_EXPECTED

log = logging.getLogger(__name__)

FIRST_EPOCH = Epoch(1)
_NEVER = Millis(2**62)

DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""How long to wait before the next attempt to connect, by failures in a row; the last one repeats."""


class SendEngine:
    """All lanes of one producer. Not thread-safe: the shell guards it."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._history = SendHistory(options.history)
        self._lanes: dict[MessageQueue, EngineLane] = {}
        # In the order in which they became active, so that a run can be repeated exactly.
        self._active: dict[EngineLane, None] = {}
        self._brokers: dict[str, KnownBroker] = {}
        # Frozen lanes that wait for the end of a call.
        self._held: dict[EngineLane, None] = {}
        self.buffered_bytes = 0

    # parcels in

    def offer(
        self,
        queue: MessageQueue,
        parcels: Sequence[Parcel],
        *,
        checks_stamps: bool,
        creates: bool = False,
        hurry: bool = True,
    ) -> EngineLane:
        """Gives the parcels their places. `LaneFrozen` if nothing may be sent there; nothing has changed then."""
        lane = self._lanes.get(queue) or self._open_lane(queue, checks_stamps)
        if lane.sender.frozen is not None:
            self._concern(lane, parcels)
            raise LaneFrozen(
                f"an earlier message to queue {queue} failed ({lane.last_error or lane.sender.frozen.value}): "
                f"decide what to do about it, then call resume({queue.topic!r}, key=...)"
            )
        now, lane.creates = self._clock.now(), creates
        if hurry:
            lane.linger_until = 0
        elif not lane.gathered and self._options.linger_ms:
            lane.linger_until = now + self._options.linger_ms
        self._place(lane, parcels, now)
        lane.accepted += len(parcels)
        if self._history.on:
            self._history.taken(queue, parcels)
        self._active[lane] = None
        return lane

    def _place(self, lane: EngineLane, parcels: Sequence[Parcel], now: Millis) -> None:
        # A parcel that cannot share a batch is declared larger than one: it then travels alone.
        too_large = self._options.max_batch_bytes + 1
        if len(parcels) == 1:
            parcel = parcels[0]
            total = parcel.size
            lane.sender.offer(parcel, too_large if parcel.alone else total, now=now)
        else:
            lane.sender.offer_all(parcels, [too_large if each.alone else each.size for each in parcels], now=now)
            total = sum([parcel.size for parcel in parcels])
        lane.gathered += len(parcels)
        lane.gathered_bytes += total
        self.buffered_bytes += total

    def offer_all(self, placed: Mapping[MessageQueue, Sequence[Parcel]], route: TopicRoute) -> list[EngineLane]:
        """All parcels of a run, or none: `LaneFrozen` if one of the lanes is."""
        for queue, parcels in placed.items():
            lane = self._lanes.get(queue)
            if lane is not None and lane.sender.frozen is not None:
                self.offer(queue, parcels, checks_stamps=lane.checks_stamps)  # says why, and raises
        return [
            self.offer(queue, parcels, checks_stamps=route.is_lane(queue.broker), creates=route.provisional)
            for queue, parcels in placed.items()
        ]

    def call_ended(self, crowd: Crowd) -> None:
        """Its caller knows what became of the messages now; lanes that were frozen for that open again."""
        crowd.over = True
        for lane in tuple(self._held):
            lane.waits_for.discard(crowd)
            self._reopen(lane)

    def pump(self, lane: EngineLane) -> list[SendRequest]:
        """What may go out on this lane now."""
        requests: list[SendRequest] = []
        if not self._may_send(lane):
            return requests
        options, now = self._options, self._clock.now()
        while self._may_send(lane):
            batch = lane.sender.take_batch(
                max_count=options.max_batch_messages, max_bytes=options.max_batch_bytes, now=now
            )
            if batch is None:
                break
            requests.append(self._request(lane, batch, now))
            if batch.attempt == 1:
                lane.repeats = False
                lane.gathered -= len(batch.messages)
                lane.gathered_bytes -= sum([parcel.size for parcel in batch.messages])
        return requests

    def _may_send(self, lane: EngineLane) -> bool:
        """A batch that is not full waits while an earlier one is under way (as in Nagle's algorithm).

        It leaves with the next answer at the latest, and meanwhile it gathers company: under load batches grow
        by themselves, without load nothing waits.
        """
        options = self._options
        full = lane.gathered >= options.max_batch_messages or lane.gathered_bytes >= options.max_batch_bytes
        if not full and not lane.repeats:
            if lane.linger_until and self._clock.now() >= lane.linger_until:
                lane.linger_until = 0
            if lane.linger_until or lane.under_way or not lane.gathered:
                return False
        return self._brokers[lane.queue.broker].connected

    def needs_keeper(self, lane: EngineLane) -> bool:
        """Nothing will happen on this lane by itself: somebody has to connect, or to watch the clock."""
        broker = self._brokers[lane.queue.broker]
        return lane.linger_until != 0 and lane.gathered == 1 if broker.connected else not broker.dialing

    def hurry(self) -> list[SendRequest]:
        """Everything goes out without waiting for company."""
        requests: list[SendRequest] = []
        for lane in self._active:
            lane.linger_until = 0
            requests += self.pump(lane)
        return requests

    # answers in

    def replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> Work:
        """The answer to a request, or why there is none."""
        work, lane = Work(), request.lane
        if reply is not None and reply.code in STORED_CODES:
            self._acknowledged(lane, request, reply, work)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._refused(lane, request, problem, reply, work)
        self._reopen(lane)
        work.requests += self.pump(lane)
        if lane.sender.idle:
            self._active.pop(lane, None)
        return work

    def connected(self, broker: str) -> list[SendRequest]:
        state = self._brokers[broker]
        state.connected, state.dialing, state.failures = True, False, 0
        return [request for lane in self._lanes_of(broker) for request in self.pump(lane)]

    def disconnected(self, broker: str) -> None:
        """The connection ended; what was unanswered is answered by the shell, one request after the other."""
        self._brokers[broker].connected = False

    def dial_failed(self, broker: str, error: LaneError) -> None:
        state = self._brokers[broker]
        state.failures += 1
        state.dialing = False
        wait = DIAL_BACKOFF_MILLIS[min(state.failures, len(DIAL_BACKOFF_MILLIS) - 1)]
        state.dial_at = self._clock.now() + wait
        for lane in self._lanes_of(broker):
            lane.last_error = error

    # time

    def tick(self) -> Work:
        """Deadlines, waits that are over, requests that nobody answers."""
        work, now = Work(), self._clock.now()
        for lane in tuple(self._active):
            failed = lane.sender.expire(now=now)
            if failed is not None:
                lane.under_way.clear()
                self._give_up(lane, failed, lane.last_error, work)
                self._reopen(lane)
            if self._is_unanswered(lane, now) and lane.queue.broker not in work.hang_up:
                work.hang_up.append(lane.queue.broker)
            work.requests += self.pump(lane)
            if lane.sender.idle:
                self._active.pop(lane, None)
        return work

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers to connect to now, each with a topic whose route knows it. `connected` or `dial_failed` follows."""
        now = self._clock.now()
        dial: list[tuple[str, str]] = []
        for name in {lane.queue.broker for lane in self._active}:
            broker = self._brokers[name]
            if not broker.connected and not broker.dialing and broker.dial_at <= now:
                broker.dialing = True
                dial.append((name, broker.topic))
        return dial

    def next_wake(self) -> int | None:
        """When `tick` and `to_dial` have something to do, if nothing happens before. Deadlines are not in it."""
        times: list[int] = []
        for lane in self._active:
            broker = self._brokers[lane.queue.broker]
            if not broker.connected:
                if not broker.dialing:
                    times.append(broker.dial_at)
            elif lane.linger_until:
                times.append(lane.linger_until)
            elif (deadline := lane.sender.next_deadline()) is not None:
                times.append(deadline)
        return min(times, default=None)

    # people

    def resume(self, queue: MessageQueue) -> bool:
        """Opens a frozen lane; false if it was not frozen."""
        lane = self._lanes.get(queue)
        if lane is None or lane.sender.frozen is None:
            return False
        self._open_again(lane)
        return True

    def frozen(self) -> list[MessageQueue]:
        return [queue for queue, lane in self._lanes.items() if lane.sender.frozen is not None]

    @property
    def is_idle(self) -> bool:
        return not self._active

    def mark(self) -> Mark:
        return Mark(self._active)

    def abandon(self) -> list[Outcome]:
        """The producer is closed: whatever is left is told so."""
        closed = Closed("the producer was closed before the broker answered: the message may be stored or not")
        outcomes: list[Outcome] = []
        for lane in self._active:
            left = lane.sender.expire(now=_NEVER)
            if left is not None:
                outcomes.append(NotStored((*left.unknown, *left.blocked), closed))
        self._active.clear()
        return outcomes

    # inside

    def _open_lane(self, queue: MessageQueue, checks_stamps: bool) -> EngineLane:
        window = self._options.window if checks_stamps else 1
        options = SendOptions(window, Millis(round(self._options.timeout * 1000)))
        lane = EngineLane(queue, checks_stamps, SendLane(options, epoch=FIRST_EPOCH))
        self._lanes[queue] = lane
        self._brokers.setdefault(queue.broker, KnownBroker(queue.topic))
        return lane

    def _lanes_of(self, broker: str) -> list[EngineLane]:
        return [lane for lane in self._active if lane.queue.broker == broker]

    def _request(self, lane: EngineLane, batch: SendBatch[Parcel], now: Millis) -> SendRequest:
        before = lane.built.get(batch.first_sequence)
        command = before or self._builder.send(
            lane.queue,
            batch.messages,
            epoch=batch.epoch,
            sequence=batch.first_sequence,
            born=self._clock.wall(),
            creates=lane.creates,
        )
        lane.built[batch.first_sequence] = command
        request = lane.under_way[batch.first_sequence] = SendRequest(lane, batch, command, now)
        return request

    def _acknowledged(self, lane: EngineLane, request: SendRequest, reply: Command, work: Work) -> None:
        if not lane.sender.acknowledged(request.batch):
            return
        lane.under_way.pop(request.batch.first_sequence, None)
        lane.built.pop(request.batch.first_sequence, None)
        parcels = request.batch.messages
        self.buffered_bytes -= sum([parcel.size for parcel in parcels])
        for outcome in stored_outcomes(parcels, lane.queue, reply):
            if self._history.on:
                self._history.stored(lane.queue, outcome.parcels, outcome.first_offset)
            work.outcomes.append(outcome)

    def _refused(
        self, lane: EngineLane, request: SendRequest, problem: LaneError, reply: Command | None, work: Work
    ) -> None:
        if lane.under_way.get(request.batch.first_sequence) is not request:
            return  # an answer to an attempt that has been given up
        lane.last_error = problem
        if isinstance(problem, BrokerRefused) and problem.stale_route:
            work.stale_topics.append(lane.queue.topic)
        kind = _kind_of(problem)
        failed = lane.sender.failed(request.batch, kind, now=self._clock.now())
        if failed is None:
            lane.under_way.clear()
            lane.repeats = True  # all of them will be sent again, from the first
        elif kind is SendError.GAP and reply is not None and reply.ext.get(LANE_EXPECTED) == "0":
            if request.batch.attempt == 1:
                self._start_over(lane, failed)
            else:
                self._give_up(lane, doubtful(failed), forgotten(lane.queue), work)
                lane.under_way.clear()
        else:
            if isinstance(problem, BrokerReadOnly):
                failed = doubtful(failed)
            self._give_up(lane, failed, problem, work)
            for sequence in [each for each in lane.under_way if each >= request.batch.first_sequence]:
                del lane.under_way[sequence]

    def _start_over(self, lane: EngineLane, failed: Failed[Parcel]) -> None:
        """The broker does not know this producer any more, and refused everything that was under way.

        The first batch was sent only once, and with it all behind it: nothing of them is stored, so all of it may
        go out again under a new epoch, from sequence 0. An attempt before could have been stored and forgotten.
        """
        log.warning("queue %s: the broker has forgotten this producer, starting a new epoch", lane.queue)
        lane.under_way.clear()
        lane.built.clear()
        lane.sender.resume()
        parcels = (*failed.refused, *failed.unknown, *failed.blocked)
        lane.gathered = lane.gathered_bytes = 0
        self.buffered_bytes -= sum([parcel.size for parcel in parcels])
        self._place(lane, parcels, self._clock.now())

    def _give_up(self, lane: EngineLane, failed: Failed[Parcel], reason: LaneError | None, work: Work) -> None:
        parcels = (*failed.refused, *failed.unknown, *failed.blocked)
        log.warning("queue %s: %d messages not stored: %s", lane.queue, len(parcels), reason or failed.error.value)
        self.buffered_bytes -= sum([parcel.size for parcel in parcels])
        if self._history.on:
            self._history.given_up(lane.queue, failed)
        work.outcomes += failed_outcomes(lane.queue, failed, reason, self._options.timeout)
        self._concern(lane, parcels)
        lane.gathered = lane.gathered_bytes = 0

    def _concern(self, lane: EngineLane, parcels: Sequence[Parcel]) -> None:
        lane.concern(parcels)
        if lane.waits_for:
            self._held[lane] = None

    def _reopen(self, lane: EngineLane) -> None:
        if lane.may_reopen:
            self._open_again(lane)

    def _open_again(self, lane: EngineLane) -> None:
        lane.sender.resume()
        lane.waits_for.clear()
        lane.needs_resume = False
        self._held.pop(lane, None)
        lane.repeats = False
        lane.under_way.clear()
        lane.built.clear()
        lane.last_error = None

    def _is_unanswered(self, lane: EngineLane, now: Millis) -> bool:
        """A broker that does not check stamps would store a repetition twice: there, only patience helps."""
        if not lane.checks_stamps or not lane.under_way:
            return False
        oldest = min(request.sent_at for request in lane.under_way.values())
        return now - oldest >= self._options.request_timeout * 1000


def _kind_of(problem: LaneError) -> SendError:
    if problem.retriable:
        return SendError.RETRY
    return SendError.GAP if isinstance(problem, SequenceGap) else SendError.FATAL
