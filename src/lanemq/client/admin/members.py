"""What the members of groups report about themselves, for brokers that do not know it.

An Apache broker does not say which member has locked a queue, and knows nothing of keys. But it passes request 307 on
to a member, with all fields and the body, and returns the member's answer as it is. RocketMQ's clients answer with the
queues that they have locked. A LaneMQ member adds what the fields ask for: the lanes that it holds, or what one lane
is doing.

Invariant: the members that do not answer one process take fewer than `MAX_STUCK` + `ASKED_AT_ONCE` threads of a broker.
An Apache broker waits for a member for `RELAY_SECONDS`, on one of 16 threads that also serve other requests.
"""

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from lanemq.client.admin.views import GroupDescription, GroupQueue, LaneStateView, LeaseView, NoAnswer
from lanemq.clock import Clock
from lanemq.forking import tell_child
from lanemq.model.errors import LaneError, ProtocolError, RequestTimedOut
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset, Seconds, to_millis, to_seconds
from lanemq.model.wording import plural
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.net.security import Security
from lanemq.wire.admin_headers import RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import (
    UNKNOWN,
    FrontClientBody,
    FrontClientsBody,
    HeldLanesBody,
    LaneStateAnswer,
    LaneStateBody,
)
from lanemq.wire.lane_fields import LANE_CLIENTS, LANE_HELD, LANE_STATE
from lanemq.wire.stats_bodies import ConsumerConnection, ConsumerRunningInfo

TIMEOUT = 0.5
"""Seconds to wait for a member's answer. Less takes a busy member, or a busy broker, for one that does not answer; more
delays the caller."""
RELAY_SECONDS = 10.0
"""How long an Apache broker waits for the answer of a member (`Broker2Client.callClient`)."""
MAX_STUCK = 4
"""Members for which a broker may wait at a time. While there are so many, no other is asked through it."""
SILENT_SECONDS = 30.0
"""How long a member that did not answer is not asked again."""
ASKED_AT_ONCE = 4
"""Members that one process asks at the same time."""
MAX_ASKED = 200
"""Members that one reading asks. Those beyond it are named as not asked."""
NO_KEYS = "its owner is a RocketMQ client, or an older one, and does not report on single keys"
MAX_NAMED = 3
"""Members that a note names."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What one member says about itself."""

    owned: frozenset[MessageQueue] = frozenset()
    """Queues that it has locked."""
    held: HeldLanesBody | None = None
    """Lanes that wait in it after a failure; None if it is not a LaneMQ client, or did not answer."""
    why: str = ""
    """Why there is no answer; empty if there is one."""
    clients: tuple[FrontClientBody, ...] = ()
    """Its own clients, if it is a front."""


Who: TypeAlias = tuple[str, str]
"""A group and the client id of a member."""

MemberReports: TypeAlias = Mapping[Who, MemberReport]


class SilentMembers:
    """How many members are asked at once, and which did not answer. One for a process: see `_ALL`."""

    def __init__(self) -> None:
        self._silent: dict[Address, dict[Who, Millis]] = {}
        """When members did not answer, by the broker that waits for them."""
        self.forked()
        tell_child(self)

    def forked(self) -> None:
        """In a child process: other threads of the parent may have held these."""
        self.asking = threading.BoundedSemaphore(ASKED_AT_ONCE)
        self._guard = threading.Lock()

    def refusal(self, broker: Address, who: Who, now: Millis) -> str:
        """Why a member is not asked; empty if it is."""
        with self._guard:
            known = self._silent.get(broker, {})
            recent = {each: at for each, at in known.items() if now - at < SILENT_SECONDS * 1000}
            self._silent[broker] = recent
        if who in recent:
            return "did not answer a moment ago"
        stuck = sum(now - at < RELAY_SECONDS * 1000 for at in recent.values())
        return f"was not asked, because {plural(stuck, 'other member')} did not answer" if stuck >= MAX_STUCK else ""

    def did_not_answer(self, broker: Address, who: Who, now: Millis) -> None:
        with self._guard:
            self._silent.setdefault(broker, {})[who] = now


_ALL = SilentMembers()
"""Of all administrators in this process: the console makes one for each page."""


class _Links:
    """Connections to brokers that several threads use in turn. They end with the block."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._idle: dict[Address, list[BlockingConnection]] = {}

    def request(self, broker: Address, command: Command) -> Command:
        """The answer to a request, on an idle connection or a new one. After an error a connection is closed."""
        idle = self._idle.setdefault(broker, [])
        try:
            link = idle.pop()
        except IndexError:
            link = BlockingConnection(broker, security=self._security)
        reply = link.request(command, TIMEOUT)
        idle.append(link)
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for links in self._idle.values():
            for link in links:
                link.close()


class MemberQuestions:
    """Asks members through brokers. Its methods may run on several threads."""

    def __init__(self, security: Security, clock: Clock) -> None:
        self._security = security
        self._clock = clock

    def reports(self, members: Sequence[tuple[str, str, Address]]) -> MemberReports:
        """What each member reports, named by its group, its client id and a broker that it is connected to."""
        reports = {
            (group, name): MemberReport(why=f"not asked, because {MAX_ASKED} others were") for group, name, _ in members
        }
        asked = members[:MAX_ASKED]
        with (
            _Links(self._security) as links,
            ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="lanemq-members") as threads,
        ):
            answers = threads.map(lambda each: self._report(links, each[2], each[0], each[1]), asked)
            reports |= {(group, name): answer for (group, name, _), answer in zip(asked, answers, strict=True)}
        return reports

    def lane(
        self, broker: Address, group: str, member: str, wanted: LaneStateBody, timeout: Seconds
    ) -> LaneStateAnswer | NoAnswer:
        """What a member reports about one lane. The broker must be a LaneMQ broker, which relays request 4208."""
        header = RunningInfoHeader(consumer_group=group, client_id=member)
        command = Command(RequestCode.LANE_STATE, 0, ext=header.to_ext(), body=wanted.encode())
        try:
            with contextlib.closing(BlockingConnection(broker, security=self._security)) as link:
                reply = link.request(command, to_seconds(timeout))
        except RequestTimedOut:
            return NoAnswer(f"its owner did not answer within {to_millis(timeout)} ms", silent=True)
        except LaneError as error:
            return NoAnswer(f"its owner could not be asked: {error}")
        if reply.code == ResponseCode.SUCCESS:
            return LaneStateAnswer.decode(reply.body)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return NoAnswer(NO_KEYS)
        return NoAnswer(f"its owner answered: {reply.remark}")

    def lane_through_apache(
        self, broker: Address, group: str, member: str, wanted: LaneStateBody
    ) -> LaneStateAnswer | NoAnswer:
        """As `lane`, through an Apache broker."""
        header = RunningInfoHeader(consumer_group=group, client_id=member, lane_state=True)
        with _Links(self._security) as links:
            reply = self._ask(links, broker, header, wanted.encode())
        if isinstance(reply, NoAnswer):
            return replace(reply, why=f"its owner {reply.why}")
        if LANE_STATE not in reply.properties:
            return NoAnswer(NO_KEYS)
        try:
            return LaneStateAnswer.decode(reply.properties[LANE_STATE].encode())
        except ProtocolError as error:
            return NoAnswer(f"its owner answered what cannot be read: {error}")

    def _report(self, links: _Links, broker: Address, group: str, member: str) -> MemberReport:
        reply = self._ask(links, broker, RunningInfoHeader(consumer_group=group, client_id=member, lane_held=True))
        if isinstance(reply, NoAnswer):
            return MemberReport(why=reply.why)
        owned = frozenset(queue for queue, state in reply.mq_table.items() if state.locked and not state.droped)
        if LANE_HELD not in reply.properties:
            return MemberReport(owned)
        try:
            clients = FrontClientsBody.decode(reply.properties.get(LANE_CLIENTS, "{}").encode()).clients
            held = HeldLanesBody.decode(reply.properties[LANE_HELD].encode())
            return MemberReport(owned, held, clients=tuple(clients))
        except ProtocolError as error:
            return MemberReport(owned, why=f"answered what cannot be read: {error}")

    def _ask(
        self, links: _Links, broker: Address, header: RunningInfoHeader, body: bytes = b""
    ) -> ConsumerRunningInfo | NoAnswer:
        who = (header.consumer_group, header.client_id)
        command = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, 0, ext=header.to_ext(), body=body)
        with _ALL.asking:
            refusal = _ALL.refusal(broker, who, self._clock.now())
            if refusal:
                return NoAnswer(refusal, silent=True)
            try:
                reply = links.request(broker, command)
            except RequestTimedOut:
                _ALL.did_not_answer(broker, who, self._clock.now())
                return NoAnswer(f"did not answer within {TIMEOUT * 1000:.0f} ms", silent=True)
            except LaneError as error:
                return NoAnswer(f"could not be asked: {error}")
        if reply.code != ResponseCode.SUCCESS:
            return NoAnswer(f"could not be asked: {reply.remark or f'the broker answered with code {reply.code}'}")
        try:
            return ConsumerRunningInfo.decode(reply.body)
        except ProtocolError as error:
            return NoAnswer(f"answered what cannot be read: {error}")


def name_owners(
    group: GroupDescription, leases: Iterable[LeaseView], silent: Collection[str], reports: MemberReports
) -> GroupDescription:
    """The group with the owner of each queue: of its lease or, on the `silent` brokers, as members report it."""
    if group.coordinator:
        silent = ()
    leased = {lease.queue: lease for lease in leases if lease.group == group.group}
    own = {member: report for (name, member), report in reports.items() if name == group.group}
    reported = {queue: member for member, report in own.items() for queue in report.owned if queue.broker in silent}
    missing = _named([f"{member} {report.why}" for member, report in own.items() if report.why])
    return replace(
        group,
        queues=tuple(_owned(each, leased.get(each.queue), reported.get(each.queue)) for each in group.queues),
        note=group.note or (owners_note(silent, missing) + _uncommitted_note(group) if silent else ""),
        owners_unknown=missing,
    )


def _named(missing: Sequence[str]) -> str:
    more = len(missing) - MAX_NAMED
    return "; ".join(missing[:MAX_NAMED]) + (f"; and {plural(more, 'other member')}" if more > 0 else "")


def _owned(queue: GroupQueue, lease: LeaseView | None, reported: str | None) -> GroupQueue:
    return replace(queue, owner=reported) if lease is None else replace(queue, owner=lease.owner, epoch=lease.epoch)


def narrower_notes(online: ConsumerConnection) -> list[str]:
    """For each topic that members of a group filter differently: what that means for those with fewer tags."""
    counts = {topic: each.lane_narrower for topic, each in online.subscription_table.items()}
    return [
        f"topic {topic}: {plural(count, 'member')} with fewer tags than others: a LaneMQ member gets no queue "
        f"until the members with more tags have left; a RocketMQ client skips messages in its queues"
        for topic, count in sorted(counts.items())
        if isinstance(count, int)
    ]


def owners_note(silent: Collection[str], missing: str) -> str:
    """What is different about brokers that do not report owners, in words."""
    names = ", ".join(sorted(silent))
    which = f"{names} is not a LaneMQ broker" if len(silent) == 1 else f"{names} are not LaneMQ brokers"
    text = (
        f"{which}: owners are as the members report them, and there are no leases, epochs or keys parked at a broker."
    )
    return f"{text} Owners may be missing: {missing}." if missing else text


def _uncommitted_note(group: GroupDescription) -> str:
    """An Apache broker reports a group's queues of a topic only after the group's first commit there."""
    known = {each.queue.topic for each in group.queues}
    topics = sorted(each for each in group.subscriptions if each not in known and not each.startswith(RETRY_PREFIX))
    return f" Nothing is committed in {', '.join(topics)} yet, so the lag there is not known." if topics else ""


def lane_view(answer: LaneStateAnswer) -> LaneStateView:
    """The report of a member about one lane."""
    return LaneStateView(
        state=answer.state,
        order=answer.order,
        head=None if answer.head == UNKNOWN else QueueOffset(answer.head),
        attempts=answer.attempts,
        retry_in=_span(answer.retry_in),
        running_for=_span(answer.running_for),
        blocked_for=_span(answer.blocked_for),
        reason=answer.reason,
        waiting=answer.waiting,
        committable=QueueOffset(answer.committable),
        next_offset=QueueOffset(answer.next_offset),
        lease=_span(answer.lease),
        client=answer.client,
    )


def _span(millis: int) -> float | None:
    return None if millis == UNKNOWN else millis / 1000
