"""Runs that are with clients: handles, acknowledgements, expiry.

A front takes a run of a lane and hands its messages to a client. Each message gets a handle, a text that the client
gives back with its decision. A run ends once: when all its messages are acknowledged, when the client says that one of
them failed, when its time is over, or when its client is gone. From then on its handles are unknown, so a late
decision can neither commit nor free a lane.

Invariants:

1. A lane has at most one run at clients (the scheduler sees to it), and a message at most one valid handle.
2. A handle that is unknown, of another group or topic, or of a queue that was lost changes nothing.
3. A decision counts only while the queue may be used: a front that was frozen confirms nothing.
4. Every run ends, at the latest at `until`. Only a client without renewal can ask for a later one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Generic, NamedTuple

from lanemq.core.consuming.runs import LaneRun, M
from lanemq.model.units import Millis


class Ruling(Enum):
    """What becomes of a decision."""

    COUNTED = "counted"
    """Noted; the run has other messages that are not decided."""
    ENDED = "ended"
    """The run has ended with it; the caller finishes it."""
    STALE = "stale"
    """The handle is none of a run that is here: nothing happened."""
    NOT_NOW = "not now"
    """The queue may not be used at the moment: the client decides again a little later."""


@dataclass(eq=False, slots=True)
class HandOut(Generic[M]):
    """One run at one client."""

    number: int
    """Grows with each hand-out of this front."""
    run: LaneRun[M]
    group: str
    topic: str
    client: str
    began: Millis
    until: Millis
    """When it ends without a decision."""
    renewed: bool
    """It lasts as long as its client: the client asked for that, and `until` is only the last limit."""
    attempt_id: str = ""
    connection: str = ""
    """The one of the call whose answer brings it to the client."""
    handles: list[str] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    answer: object = None
    """The call whose answer brings it to the client, the last one if the client repeated its call."""

    @property
    def done(self) -> int:
        """How many messages at its beginning are acknowledged: those are done, whatever becomes of the others."""
        return next((at for at in range(len(self.handles)) if at not in self.acknowledged), len(self.handles))


class Decision(NamedTuple, Generic[M]):
    """The answer to a decision, and the hand-out that it concerned, with the place of the message in its run."""

    verdict: Ruling
    hand_out: HandOut[M] | None = None
    at: int = 0

    @property
    def counts(self) -> bool:
        return self.hand_out is not None and self.verdict is Ruling.COUNTED


class HandOuts(Generic[M]):
    """All runs that are at clients."""

    def __init__(self, boot: str) -> None:
        """`boot` names this start of the front, so that handles of another one are unknown."""
        self._boot = boot
        self._numbers = count(1)
        self._renewals = count(1)
        self._by_handle: dict[str, tuple[HandOut[M], int]] = {}
        self._by_client: dict[str, dict[int, HandOut[M]]] = {}

    def add(
        self,
        run: LaneRun[M],
        group: str,
        topic: str,
        client: str,
        *,
        now: Millis,
        until: Millis,
        renewed: bool,
        attempt_id: str = "",
        connection: str = "",
    ) -> HandOut[M]:
        """Notes that a client gets the messages of a run, and makes their handles."""
        number = next(self._numbers)
        hand_out = HandOut(number, run, group, topic, client, now, until, renewed, attempt_id, connection)
        for at in range(len(run.messages)):
            self._make_handle(hand_out, at, "0")
        self._by_client.setdefault(client, {})[number] = hand_out
        return hand_out

    def _make_handle(self, hand_out: HandOut[M], at: int, renewal: str) -> str:
        offset = hand_out.run.messages[at].queue_offset
        handle = f"{self._boot}.{hand_out.number}.{hand_out.run.queue.queue_id}.{offset}.{renewal}"
        if at < len(hand_out.handles):
            self._by_handle.pop(hand_out.handles[at], None)
            hand_out.handles[at] = handle
        else:
            hand_out.handles.append(handle)
        self._by_handle[handle] = hand_out, at
        return handle

    # decisions of clients

    def acknowledge(self, handle: str, group: str, topic: str, *, now: Millis) -> Decision[M]:
        """The client has processed a message. With the last of its run, the run ends."""
        decision = self._judge(handle, group, topic, now)
        if decision.hand_out is None or not decision.counts:
            return decision
        hand_out = decision.hand_out
        hand_out.acknowledged.add(decision.at)
        if len(hand_out.acknowledged) < len(hand_out.handles):
            return decision
        self.end(hand_out)
        return decision._replace(verdict=Ruling.ENDED)

    def fail(self, handle: str, group: str, topic: str, *, now: Millis) -> Decision[M]:
        """The client could not process a message: its run ends."""
        decision = self._judge(handle, group, topic, now)
        if decision.hand_out is None or not decision.counts:
            return decision
        self.end(decision.hand_out)
        return decision._replace(verdict=Ruling.ENDED)

    def change(self, handle: str, group: str, topic: str, *, now: Millis, until: Millis) -> Decision[M]:
        """The client asks for another end of its time, for the whole run. The message's handle is replaced."""
        decision = self._judge(handle, group, topic, now)
        if decision.hand_out is not None and decision.counts:
            decision.hand_out.until = until
            self._make_handle(decision.hand_out, decision.at, str(next(self._renewals)))
        return decision

    def is_own(self, handle: str) -> bool:
        """Whether this start of the front made a handle."""
        return handle.startswith(f"{self._boot}.")

    def is_renewed(self, handle: str) -> bool:
        """Whether the client of a message has it for as long as it is there."""
        known = self._by_handle.get(handle)
        return known is not None and known[0].renewed

    def _judge(self, handle: str, group: str, topic: str, now: Millis) -> Decision[M]:
        known = self._by_handle.get(handle)
        if known is None:
            return Decision(Ruling.STALE)
        hand_out, at = known
        run = hand_out.run
        if (hand_out.group, hand_out.topic) != (group, topic):
            return Decision(Ruling.STALE)
        if run.permit.dropped or not run.running or now >= hand_out.until:
            return Decision(Ruling.STALE, hand_out, at)
        if now >= run.usable_until:
            return Decision(Ruling.NOT_NOW, hand_out, at)
        return Decision(Ruling.COUNTED, hand_out, at)

    # what ends without a decision

    def end(self, hand_out: HandOut[M]) -> None:
        """Forgets a hand-out and its handles."""
        for handle in hand_out.handles:
            self._by_handle.pop(handle, None)
        of_client = self._by_client.get(hand_out.client, {})
        of_client.pop(hand_out.number, None)
        if not of_client:
            self._by_client.pop(hand_out.client, None)

    def over(self, now: Millis) -> list[HandOut[M]]:
        """Ends and returns what has reached the end of its time, or whose queue was lost."""
        ended = [each for each in self if now >= each.until or each.run.permit.dropped]
        for each in ended:
            self.end(each)
        return ended

    def clients(self) -> Sequence[str]:
        """Who has something."""
        return tuple(self._by_client)

    def of_client(self, client: str) -> Sequence[HandOut[M]]:
        """What a client has, the oldest first."""
        return tuple(self._by_client.get(client, {}).values())

    def uncertain(self, client: str, connection: str, since: Millis) -> Sequence[HandOut[M]]:
        """What went to a client over a connection since then, and nothing of it is decided."""
        return tuple(
            each
            for each in self.of_client(client)
            if each.connection == connection and each.began >= since and not each.acknowledged
        )

    def of_attempt(self, client: str, attempt_id: str, group: str, topic: str, *, now: Millis) -> Sequence[HandOut[M]]:
        """What a client got by a call that it repeats, if all of it may run and nothing is decided; empty otherwise."""
        wanted = attempt_id, group, topic
        same = [each for each in self.of_client(client) if (each.attempt_id, each.group, each.topic) == wanted]
        if not attempt_id or any(each.acknowledged or not _may_run(each, now) for each in same):
            return ()
        return same

    def __iter__(self) -> Iterator[HandOut[M]]:
        return (each for of_client in list(self._by_client.values()) for each in list(of_client.values()))

    def __len__(self) -> int:
        return sum(len(of_client) for of_client in self._by_client.values())


def _may_run(hand_out: HandOut[M], now: Millis) -> bool:
    run = hand_out.run
    return run.running and not run.permit.dropped and now < min(run.usable_until, hand_out.until)
