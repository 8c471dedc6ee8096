"""ReceiveMessage and the decisions of clients: runs go out, acknowledgements and failures come back.

Everything here runs on the front's event loop. What a client has is in `HandOuts`; how a run ends is told to the
group's member. A receive that finds nothing waits in a line of its topic, and is answered when there is a run.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import DONE, FAILED, STOPPED, LaneRun, Outcome, Suspend
from lanemq.core.fronting.hand_outs import Decision, HandOut, HandOuts, Ruling
from lanemq.core.fronting.packing import travels_alone
from lanemq.grpc_front.clients import GrpcClient
from lanemq.grpc_front.groups import FrontGroup, LaneMember
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis

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
    until: Millis
    """When its messages return by themselves."""
    invisible: Millis | None
    """For how long a client without renewal has the messages; None: as long as it is there."""
    attempt_id: str
    answered: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hand_outs: list[MessageHandOut] = field(default_factory=list)


class Handing:
    """All messages that are at clients, and the receives that wait for some."""

    def __init__(self, boot: str, clock: Clock, longest: Millis) -> None:
        self.hand_outs: HandOuts[Message] = HandOuts(boot)
        self._clock = clock
        self._longest = longest
        self._waiting: dict[tuple[str, str], deque[Receive]] = {}
        self._members: dict[int, tuple[LaneMember, FrontGroup]] = {}
        """The member, and its group, of each hand-out by number."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self.draining = False
        self._decided = asyncio.Event()
        self.handed_out = self.acknowledged = self.failures = self.stale = self.returned = 0

    # handing out

    async def receive(self, call: Receive, seconds: float) -> list[MessageHandOut]:
        """Waits for messages; empty if none came in time."""
        again = self.hand_outs.of_attempt(call.client.id, call.attempt_id)
        if again:
            return list(again)
        place = call.group.name, call.topic
        line = self._waiting.setdefault(place, deque())
        line.append(call)
        self.serve(call.group)
        try:
            async with asyncio.timeout(seconds):
                await call.answered
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.give_back(call.hand_outs)
            raise
        finally:
            with contextlib.suppress(ValueError):
                line.remove(call)
        return call.hand_outs

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
            wait = self._fill(group.member, call)
            if call.hand_outs:
                if not call.answered.done():
                    call.answered.set_result(None)
                continue
            line.append(call)  # it has its share already, or there is nothing
            if wait is not None:
                self._look_at(group, topic, wait)

    def _fill(self, member: LaneMember, call: Receive) -> Millis | None:
        """Takes runs for a call; if there are none, returns when a held lane may run again."""
        messages, lanes = call.batch, self._lanes_for(call)
        while lanes > 0 and messages > 0:
            run = member.take(call.topic, messages if call.invisible is not None else 1)
            if not isinstance(run, LaneRun):
                return run
            if travels_alone(run) and call.hand_outs:
                member.put_back(run)
                return None
            now = self._clock.now()
            until = Millis(now + (self._longest if call.invisible is None else call.invisible))
            renewed = call.invisible is None
            handed = self.hand_outs.add(
                run, call.group.name, call.topic, call.client.id,
                now=now, until=until, renewed=renewed, attempt_id=call.attempt_id,
            )  # fmt: skip
            member.begun(run, call.client.name)
            self._members[handed.number] = member, call.group
            call.hand_outs.append(handed)
            self.handed_out += len(run.messages)
            lanes, messages = lanes - 1, messages - len(run.messages)
            if travels_alone(run):
                return None
        return None

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
        self._count(decision)
        hand_out = decision.hand_out
        if hand_out is not None and decision.verdict in (Ruling.COUNTED, Ruling.ENDED):
            self.acknowledged += 1
            if hand_out.renewed:
                ahead = len(self.hand_outs.of_client(client.id))
                client.packing.finished(hand_out.began, self._clock.now(), ahead)
            if decision.verdict is Ruling.ENDED:
                self._finish(hand_out, DONE)
        return decision.verdict

    def fail(self, client: GrpcClient, handle: str, group: str, topic: str, delay: Millis | None) -> Ruling:
        """A handler failed. `delay` is what the client asks to wait; None leaves it to the policy."""
        decision = self.hand_outs.fail(handle, group, topic, now=self._clock.now())
        self._count(decision)
        if decision.verdict is Ruling.ENDED and decision.hand_out is not None:
            self.failures += 1
            client.packing.failed()
            error = ClientFailed(f"the handler of {client.name} failed")
            self._finish(decision.hand_out, FAILED if delay is None else Suspend(delay), error)
        return decision.verdict

    def change(self, handle: str, group: str, topic: str, invisible: Millis) -> Decision[Message]:
        """A client asks to have a message longer, or for a shorter time."""
        now = self._clock.now()
        decision = self.hand_outs.change(handle, group, topic, now=now, until=Millis(now + invisible))
        self._count(decision)
        return decision

    def _count(self, decision: Decision[Message]) -> None:
        self.stale += decision.verdict is Ruling.STALE

    # without a decision

    def give_back(self, hand_outs: "list[MessageHandOut]") -> None:
        """Messages that a client did not get, or that it cannot process any more: they are for others now."""
        for each in hand_outs:
            if each.number in self._members:
                self._return(each)

    def client_gone(self, client: str) -> None:
        self.give_back(list(self.hand_outs.of_client(client)))

    def tidy(self) -> None:
        """Ends what has reached its time. A message that a client without renewal kept too long has failed once."""
        for each in self.hand_outs.over(self._clock.now()):
            if each.renewed or each.run.permit.dropped:
                self._finish(each, STOPPED)
            else:
                seconds = (each.until - each.began) / 1000
                why = ClientFailed(f"{each.client} did not acknowledge it within {seconds:g} s")
                self._finish(each, Suspend(Millis(0)), why)
            self.returned += 1

    def _return(self, hand_out: MessageHandOut) -> None:
        self.hand_outs.end(hand_out)
        self.returned += 1
        self._finish(hand_out, STOPPED)

    def _finish(self, hand_out: MessageHandOut, outcome: Outcome, error: Exception | None = None) -> None:
        member, group = self._members.pop(hand_out.number, (None, None))
        if member is None or group is None:
            return
        done = 0 if outcome is DONE else hand_out.done
        if outcome is not DONE and done == len(hand_out.handles):
            outcome, done = DONE, 0
        member.finish(hand_out.run, outcome, done, error)
        self._decided.set()
        group.look()

    async def all_decided(self) -> None:
        """Waits until no client has a message."""
        while len(self.hand_outs):
            self._decided.clear()
            await self._decided.wait()

    @property
    def waiting(self) -> int:
        """Receives that wait for messages."""
        return sum(len(line) for line in self._waiting.values())
