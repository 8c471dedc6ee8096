"""What an answer, or a time that is up, means for the messages of a queue: stored, once more, or given up.

The rule guarded here: a message is called not stored only if that is certain, and what a failure closes is closed
before anybody hears of it (`send_freezes`). Other keys of the queue go on.
"""

import logging

from lanemq.client.producer.freezes import Freezes
from lanemq.client.producer.ledger import SendLedger
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import doubtful, failed_outcomes, forgotten, in_doubt, stored_outcomes, without
from lanemq.client.producer.requests import Parcel
from lanemq.client.producer.work import EngineLane, SendRequest, Work
from lanemq.clock import Clock
from lanemq.core.sending.batch import Failed, SendError
from lanemq.model.errors import BrokerReadOnly, BrokerRefused, LaneError, MessageRefused, SequenceGap
from lanemq.wire.codes import STORED_CODES, error_for
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_EXPECTED

log = logging.getLogger(__name__)


class Answers:
    """For all lanes of one producer. What follows for others goes into the `Work` that is passed in."""

    def __init__(self, options: ProducerOptions, clock: Clock, ledger: SendLedger, freezes: Freezes) -> None:
        self._options = options
        self._clock = clock
        self._ledger = ledger
        self._freezes = freezes

    def came(self, request: SendRequest, reply: Command | None, error: LaneError | None, work: Work) -> None:
        """The answer to a request, or why there is none."""
        lane = request.lane
        if reply is not None and reply.code in STORED_CODES:
            self._acknowledged(lane, request, reply, work)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._refused(lane, request, problem, reply, work)
        self._go_on(lane)

    def time_is(self, lane: EngineLane, work: Work) -> None:
        """Gives up what has waited too long."""
        failed = lane.sender.expire(now=self._clock.now())
        if failed is not None:
            lane.forget_answered()
            self._give_up(lane, failed, lane.last_error, work)
            self._go_on(lane)

    def _acknowledged(self, lane: EngineLane, request: SendRequest, reply: Command, work: Work) -> None:
        outcomes = stored_outcomes(request.batch.messages, lane.queue, reply)
        if not lane.sender.acknowledged(request.batch):
            return
        lane.under_way.pop(request.batch.first_sequence, None)
        lane.built.pop(request.batch.first_sequence, None)
        if request.batch.given_up:
            outcomes = without(outcomes, request.batch.given_up)
        for outcome in outcomes:
            self._ledger.stored(outcome)
            work.outcomes.append(outcome)

    def _refused(
        self, lane: EngineLane, request: SendRequest, problem: LaneError, reply: Command | None, work: Work
    ) -> None:
        if lane.under_way.get(request.batch.first_sequence) is not request:
            return  # an answer to an attempt that has been given up
        lane.last_error = problem
        if isinstance(problem, BrokerRefused) and problem.stale_route:
            work.stale_topics.append(lane.queue.topic)
        kind = _kind_of(problem, reply)
        if kind is SendError.REFUSED:
            lane.built.pop(request.batch.first_sequence, None)  # it is taken apart, if it goes out again at all
        failed = lane.sender.failed(request.batch, kind, now=self._clock.now())
        lane.forget_answered()
        if failed is None:
            lane.repeats = True
            return
        if kind is SendError.FORGOTTEN:
            problem = forgotten(lane.queue)
        elif isinstance(problem, BrokerReadOnly):
            failed = doubtful(failed)
        elif not failed.refused:
            problem = in_doubt(problem)
        self._give_up(lane, failed, problem, work)

    def _give_up(self, lane: EngineLane, failed: Failed[Parcel], reason: LaneError | None, work: Work) -> None:
        count, why = len(failed.everything), str(reason or failed.error.value)  # an error would keep its frames
        log.warning("queue %s: messages not stored: %d: %s", lane.queue, count, why)
        self._ledger.given_up(lane.queue, failed)
        outcomes = failed_outcomes(lane.queue, failed, reason, self._options.timeout)
        self._freezes.given_up(lane, outcomes)
        work.outcomes += outcomes
        lane.gather_anew()

    def _go_on(self, lane: EngineLane) -> None:
        """After a failure: other keys under a new epoch, or the queue again if everybody knows of it."""
        if lane.sender.must_renew:
            lane.recovering += lane.sender.renew()
            lane.forget_requests()
            lane.gather_anew()
            log.info("queue %s: %d messages go out again, in a new epoch", lane.queue, lane.recovering)
        if lane.freeze is not None:
            self._freezes.reopen(lane)


def _kind_of(problem: LaneError, reply: Command | None) -> SendError:
    """Whose fault it is: of the moment, of the message, or of the queue."""
    if problem.retriable:
        return SendError.RETRY
    if isinstance(problem, MessageRefused):
        return SendError.REFUSED
    if isinstance(problem, SequenceGap):
        forgot = reply is not None and reply.ext.get(LANE_EXPECTED) == "0"
        return SendError.FORGOTTEN if forgot else SendError.GAP
    return SendError.FATAL
