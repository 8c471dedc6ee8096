"""ReceiveMessage and the decisions of clients: runs go out, acknowledgements and failures come back.

Everything here runs on the front's event loop. What a client has is in `HandOuts`; how a run ends is told to the
group's member. A receive that finds nothing waits in a line of its topic, and is answered when there is a run.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Container
from dataclasses import dataclass, field

from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import DONE, FAILED, STOPPED, LaneRun, Outcome, Suspend, Why
from lanemq.core.fronting.hand_outs import Decision, HandOut, HandOuts, Ruling
from lanemq.core.fronting.packing import travels_alone
from lanemq.grpc_front.clients import GrpcClient
from lanemq.grpc_front.groups import FrontGroup, LaneMember
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

MessageHandOut = HandOut[Message]


class ClientFailed(LaneError):
    """A client could not process a message; the text is what operators see."""


@dataclass(eq=False, slots=True)
class Receive:
    """One call of ReceiveMessage."""

    client: GrpcClient
    group: FrontGroup
    topic: str
    batch: int
    invisible: Millis | None
    """For how long a client without renewal has the messages; None: as long as it is there."""
    attempt_id: str
    connection: str = ""
    answered: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hand_outs: list[MessageHandOut] = field(default_factory=list)


class Handing:
    """All messages that are at clients, and the receives that wait for some."""

    def __init__(self, boot: str, clock: Clock, longest: Millis) -> None:
        self.hand_outs: HandOuts[Message] = HandOuts(boot)
        self._clock = clock
        self._warnings = RateLimitedLog(log, clock)
        self._longest = longest
        self._waiting: dict[tuple[str, str], deque[Receive]] = {}
        self._waiting_of: Counter[str] = Counter()
        """How many of them each client has."""
        self._members: dict[int, tuple[LaneMember, FrontGroup]] = {}
        """The member, and its group, of each hand-out by number."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self.draining = False
        self._decided = asyncio.Event()
        self.handed_out = self.acknowledged = self.failures = self.stale = self.returned = 0

    # handing out

    async def receive(self, call: Receive, seconds: float) -> None:
        """Waits for messages for a call; it has none if none came in time."""
        place = call.group.name, call.topic
        again = self.hand_outs.of_attempt(call.client.id, call.attempt_id, *place, now=self._clock.now())
        if again:
            call.hand_outs += again
            for each in again:  # the answer to the first call is lost, and cannot return them any more
                each.answer, each.connection = call, call.connection
            return
        line = self._waiting.setdefault(place, deque())
        line.append(call)
        self._waiting_of[call.client.id] += 1
        try:
            self.serve(call.group)
            async with asyncio.timeout(seconds):
                await call.answered
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.not_received(call)
            raise
        finally:
            self._waiting_of -= Counter((call.client.id,))  # forgets a client without any
            with contextlib.suppress(ValueError):
                line.remove(call)

    def serve(self, group: FrontGroup) -> None:
        """Gives runs to the receives that wait for them, in the order in which they came."""
        for (name, topic), line in list(self._waiting.items()):
            if name == group.name:
                self._serve_line(group, topic, line)
                if not line:
                    self._waiting.pop((name, topic), None)

    def _serve_line(self, group: FrontGroup, topic: str, line: "deque[Receive]") -> None:
        for _ in range(len(line)):
            if not line or group.member is None or self.draining:
                return
            call = line.popleft()
            is_more = self._fill(group, group.member, call)
            if not call.hand_outs:
                line.append(call)  # it has its share already, or there is nothing
            elif not call.answered.done():
                call.answered.set_result(None)
            if not is_more:
                return

    def _fill(self, group: FrontGroup, member: LaneMember, call: Receive) -> bool:
        """Takes runs for a call; returns whether there may be some for other calls."""
        messages, lanes = call.batch, self._lanes_for(call)
        while lanes > 0 and messages > 0:
            run = member.take(call.topic, messages if call.invisible is not None else 1)
            if not isinstance(run, LaneRun):
                if run is not None:
                    self._look_at(group, call.topic, run)
                return False
            if travels_alone(run) and call.hand_outs:
                member.put_back(run)
                return True
            now = self._clock.now()
            until = Millis(now + (self._longest if call.invisible is None else call.invisible))
            renewed = call.invisible is None
            handed = self.hand_outs.add(
                run, call.group.name, call.topic, call.client.id,
                now=now, until=until, renewed=renewed, attempt_id=call.attempt_id, connection=call.connection,
            )  # fmt: skip
            handed.answer = call
            self._members[handed.number] = member, call.group
            call.hand_outs.append(handed)
            member.begun(run, call.client.name)
            self.handed_out += len(run.messages)
            lanes, messages = lanes - 1, messages - len(run.messages)
            if travels_alone(run):
                break
        return True

    def _lanes_for(self, call: Receive) -> int:
        """A client that renews nothing asks for what it wants; another one for as much as it can get."""
        if call.invisible is not None:
            return call.batch
        held = sum(len(each.handles) for each in self.hand_outs.of_client(call.client.id))
        return min(call.batch, call.client.packing.lanes(held))

    def _look_at(self, group: FrontGroup, topic: str, time: Millis) -> None:
        """Looks again when a held lane may run."""
        place, loop = (group.name, topic), asyncio.get_running_loop()
        last = self._timers.pop(place, None)
        if last is not None:
            last.cancel()
        seconds = max(0.001, (time - self._clock.now()) / 1000)
        self._timers[place] = loop.call_later(min(seconds, 3600.0), group.look)

    # decisions

    def acknowledge(self, client: GrpcClient, handle: str, group: str, topic: str) -> Ruling:
        decision = self.hand_outs.acknowledge(handle, group, topic, now=self._clock.now())
        self._count(decision, handle)
        hand_out = decision.hand_out
        if hand_out is not None and decision.verdict in (Ruling.COUNTED, Ruling.ENDED):
            self.acknowledged += 1
            if hand_out.renewed:
                ahead = len(self.hand_outs.of_client(client.id))
                client.packing.finished(hand_out.began, self._clock.now(), ahead)
            if decision.verdict is Ruling.COUNTED:
                self._members[hand_out.number][0].progressed(hand_out.run, hand_out.done)
            elif self._finish(hand_out, DONE) is Why.QUEUE_GONE:  # since we looked, on the member's thread
                return Ruling.STALE
        return decision.verdict

    def fail(self, client: GrpcClient, handle: str, group: str, topic: str, delay: Millis | None) -> Ruling:
        """A handler failed. `delay` is what the client asks to wait; None leaves it to the policy."""
        decision = self.hand_outs.fail(handle, group, topic, now=self._clock.now())
        self._count(decision, handle)
        if decision.verdict is Ruling.ENDED and decision.hand_out is not None:
            self.failures += 1
            client.packing.failed()
            error = ClientFailed(f"the handler of {client.name} failed")
            self._finish(decision.hand_out, FAILED if delay is None else Suspend(delay), error)
        return decision.verdict

    def change(self, client: GrpcClient, handle: str, group: str, topic: str, invisible: Millis) -> tuple[Ruling, str]:
        """A client asks to have a message for another time; returns the handle that is valid from now on.

        A client that has it for as long as it is there says so that its handler failed, and when to try again.
        """
        if self.hand_outs.is_renewed(handle):
            return self.fail(client, handle, group, topic, invisible), handle
        now = self._clock.now()
        decision = self.hand_outs.change(handle, group, topic, now=now, until=Millis(now + invisible))
        self._count(decision, handle)
        if decision.hand_out is not None and decision.counts:
            handle = decision.hand_out.handles[decision.at]
        return decision.verdict, handle

    def _count(self, decision: Decision[Message], handle: str) -> None:
        self.stale += decision.verdict is Ruling.STALE
        if decision.verdict is Ruling.STALE and not self.hand_outs.is_own(handle):
            self._warnings.warn(
                "handles",
                "a client decided about a message that another front gave it, or this one before its restart, and is "
                "refused; if it repeats, fronts share an address without --advertise, or calls are balanced one by one",
            )

    # without a decision

    def not_received(self, call: Receive) -> None:
        """The answer to a call did not reach its client: the messages are for others now, unless a repeated call has
        them."""
        for each in call.hand_outs:
            if each.number in self._members and each.answer is call:
                self._return(each)

    def client_gone(self, client: str) -> None:
        """What a client has is for others now, and its receives get nothing any more."""
        for line in self._waiting.values():
            for call in [each for each in line if each.client.id == client]:
                line.remove(call)
                if not call.answered.done():
                    call.answered.set_result(None)
        for each in self.hand_outs.of_client(client):
            self._return(each)

    def connection_lost(self, client: str, connection: str, since: Millis) -> None:
        """The last answers over a connection may not have reached the client, and it has not repeated its calls: those
        messages are for others now, or for a new call of the client itself."""
        for each in self.hand_outs.uncertain(client, connection, since):
            self._return(each)

    def tidy(self, present: Container[str]) -> None:
        """Ends what is with clients that are not present, and what has reached its time.

        A message that a client without renewal kept too long has failed once.
        """
        for client in self.hand_outs.clients():
            if client not in present:
                self.client_gone(client)
        for each in self.hand_outs.over(self._clock.now()):
            if each.renewed or each.run.permit.dropped:
                self._return(each)
            else:
                seconds = (each.until - each.began) / 1000
                why = ClientFailed(f"{each.client} did not acknowledge it within {seconds:g} s")
                self._return(each, Suspend(Millis(0)), why)

    def _return(self, hand_out: MessageHandOut, outcome: Outcome = STOPPED, error: Exception | None = None) -> None:
        """Ends a run without a decision. Nobody waits for the result, and others are to be returned, too."""
        self.hand_outs.end(hand_out)
        self.returned += 1
        try:
            self._finish(hand_out, outcome, error)
        except Exception:
            log.exception("run %d of %s could not be returned to its lane", hand_out.number, hand_out.run.queue)

    def _finish(self, hand_out: MessageHandOut, outcome: Outcome, error: Exception | None = None) -> Why:
        member, group = self._members.pop(hand_out.number, (None, None))
        if member is None or group is None:
            return Why.QUEUE_GONE
        done = 0 if outcome is DONE else hand_out.done
        if outcome is not DONE and done == len(hand_out.handles):
            outcome, done = DONE, 0
        try:
            return member.finish(hand_out.run, outcome, done, error)
        finally:
            self._decided.set()
            group.look()

    async def all_decided(self, group: str) -> None:
        """Waits until no client has a message of a group."""
        while any(each.group == group for each in self.hand_outs):
            self._decided.clear()
            await self._decided.wait()

    def answer_all(self) -> None:
        """Answers the receives that wait, without messages."""
        for line in self._waiting.values():
            for call in line:
                if not call.answered.done():
                    call.answered.set_result(None)

    def waiting_of(self, client: str) -> int:
        """How many receives of a client wait."""
        return self._waiting_of[client]

    @property
    def waiting(self) -> int:
        """Receives that wait for messages."""
        return sum(len(line) for line in self._waiting.values())
