"""What the console and `lanemq group list` ask: all groups, all brokers, the lanes that members hold.

The requests are those of `Admin`, with as few of them as possible: owners are asked for once, not once per group.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from lanemq.client.admin.admin import OWNER_TIMEOUT, Admin
from lanemq.client.admin.members import MemberReport, MemberReports, lane_view, name_owners
from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.retries import GroupRetry
from lanemq.client.admin.views import GroupDescription, GroupQueue, LaneStateView, LeaseView
from lanemq.core.consuming.runs import Order
from lanemq.core.consuming.views import LaneActivity
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds, to_millis, to_seconds
from lanemq.model.wording import plural
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.admin_headers import RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import HeldLanesBody

ASKED_AT_ONCE = 4
"""Members that are asked for their held lanes at the same time. More would load the broker that passes the questions
on; with fewer, members that do not answer delay the reading more."""
FULL_TIMEOUT_SECONDS = 2.0
"""Seconds after which one reading waits only `SHORT_TIMEOUT` for each further member, so that a hundred frozen
members delay it by three seconds and not by twelve."""
SHORT_TIMEOUT = 0.05
"""Seconds to wait for a member's answer when a reading has lasted for `FULL_TIMEOUT_SECONDS`."""
MAX_ASKED_MEMBERS = 1_000
"""Members that one reading asks. Those beyond it are named as not asked."""
LANE_OPTION = "lane."
LANE_ORIGIN = "laneFrom."
"""Begins the names of a LaneMQ broker's options in the answer to GET_BROKER_CONFIG."""

NOT_SHOWN = "(not shown)"
_SECRET = re.compile(r"password|secret|credential|access_?key|authenticationuser", re.IGNORECASE)
"""Options of an Apache broker that have a secret in them, such as `innerClientAuthenticationCredentials`. It tells them
to everyone who may ask for its options; people who look at the console are more than these."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker that the name server lists, and its figures. `info` is empty if it did not answer; `error` says why."""

    name: str
    address: str
    lane: bool
    """Whether it is a LaneMQ broker."""
    info: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """An option of a broker as it is in use."""

    broker: str
    name: str
    value: str
    is_default: bool | None
    """None: the broker does not say."""
    origin: str = ""
    """Where the value came from, such as `command line`; empty if it is the default, or the broker does not say."""


class UserView(msgspec.Struct, frozen=True):
    """A user of a broker and what it may do, without its secret. Rights are `PUB`, `SUB`, `PUB|SUB` or `DENY`."""

    access_key: str
    admin: bool
    """Whether the user may do everything."""
    topics: dict[str, str]
    groups: dict[str, str]
    default_topic: str
    """The right for topics that are not listed."""
    default_group: str


@dataclass(frozen=True, slots=True)
class BrokerUsers:
    """The users of a broker; None if everything is allowed to everyone, or the broker does not say."""

    broker: str
    users: tuple[UserView, ...] | None


@dataclass(frozen=True, slots=True)
class HeldLaneView:
    """A lane that waits in its member, for the next attempt or, if it is parked there, for a person."""

    group: str
    owner: str
    queue: MessageQueue
    key: str | None
    state: LaneStateView

    @property
    def is_parked(self) -> bool:
        return self.state.state == LaneActivity.PARKED.value

    @property
    def is_whole_queue(self) -> bool:
        """Whether it is a queue in offset order, of which a failed message holds all keys."""
        return self.state.order == Order.QUEUE.value


@dataclass(frozen=True, slots=True)
class UnknownMember:
    """A member whose held lanes are not known, and why."""

    group: str
    owner: str
    why: str


@dataclass(frozen=True, slots=True)
class MemberHeldLanes:
    """The lanes that members hold, and the members that may hold others."""

    lanes: tuple[HeldLaneView, ...] = ()
    unknown: tuple[UnknownMember, ...] = ()


_USERS = msgspec.json.Decoder(tuple[UserView, ...])


class WatchAdmin(Admin):
    """`Admin` with the questions of a console. Blocking; not thread-safe."""

    _reports: MemberReports = MappingProxyType({})
    """What members said when the groups were described last, where brokers do not report owners."""

    def brokers(self) -> tuple[BrokerView, ...]:
        """Every broker, those that do not answer too. Raises only if no name server answers.

        Until it is called again, what is asked of all brokers is not asked of those that did not answer.
        """
        brokers = []
        self._calls.skipped = frozenset()
        for name, (address, lane) in sorted(self._calls.masters().items()):
            try:
                brokers.append(BrokerView(name, str(address), lane, self._runtime_info(address, lane=lane)))
            except LaneError as error:
                brokers.append(BrokerView(name, str(address), lane, {}, str(error)))
        if any(not each.error for each in brokers):
            self._calls.skipped = frozenset(each.name for each in brokers if each.error)
        return tuple(brokers)

    def broker_settings(self) -> tuple[BrokerSetting, ...]:
        """The options of every broker."""
        settings: list[BrokerSetting] = []
        for name, (lane, lines) in self._configs():
            changed = lines.pop("laneSet", "").split(",")
            for option, value in lines.items():
                own = option.removeprefix(LANE_OPTION)
                if not lane:
                    shown = NOT_SHOWN if _SECRET.search(option) else value
                    settings.append(BrokerSetting(name, option, shown, None))
                elif own != option:
                    settings.append(
                        BrokerSetting(name, own, value, own not in changed, lines.get(LANE_ORIGIN + own, ""))
                    )
        return tuple(settings)

    def broker_users(self) -> tuple[BrokerUsers, ...]:
        """The users of every LaneMQ broker."""
        return tuple(
            BrokerUsers(name, _USERS.decode(lines["laneUsers"]) if "laneUsers" in lines else None)
            for name, (lane, lines) in self._configs()
            if lane
        )

    def _configs(self) -> Iterator[tuple[str, tuple[bool, dict[str, str]]]]:
        """The configuration of every broker, and whether it is a LaneMQ broker."""
        for name, (address, lane) in sorted(self._calls.masters().items()):
            body = self._calls.ask(address, RequestCode.GET_BROKER_CONFIG).body.decode("utf-8", "replace")
            lines = (line.split("=", 1) for line in body.split("\n") if "=" in line and not line.startswith("#"))
            yield name, (lane, {option: value.rstrip("\r") for option, value in lines})

    def describe_groups(self, group: str | None = None) -> tuple[tuple[GroupDescription, ...], tuple[LeaseView, ...]]:
        """All groups with their owners, and all leases; or those of one group."""
        leases, silent = self.leases(group)
        by_group: dict[str, list[LeaseView]] = {}
        for lease in leases:
            by_group.setdefault(lease.group, []).append(lease)
        known = self.known_groups() if group is None else {group: False}
        groups = [replace(self.group_progress(name), reported=known[name]) for name in sorted(known)]
        self._reports = self.member_reports(groups) if silent else {}
        return tuple(name_owners(each, by_group.get(each.group, ()), silent, self._reports) for each in groups), leases

    def parked_in_members(self, group: str | None = None, topic: str | None = None) -> MemberHeldLanes:
        """The lanes that are parked in the memory of members, of all groups or one, and of all topics or one.

        Those are lanes of Apache brokers, which store none, and of members that park them so: `HoldQueue`,
        `Park(at_broker=False)`.
        """
        groups, _ = self.describe_groups(group)
        held = self.all_held_lanes((each.group, at) for each in groups for at in each.queues)
        lanes = tuple(each for each in held.lanes if each.is_parked and topic in (None, each.queue.topic))
        return replace(held, lanes=lanes)

    def all_held_lanes(self, queues: Iterable[tuple[str, GroupQueue]]) -> MemberHeldLanes:
        """The lanes that the owners of these queues hold; each queue has its group's name.

        Only owners of queues with a lag are asked: a held lane always leaves one. Members of Apache brokers were asked
        when the groups were described.
        """
        masters = self._calls.masters()
        owners: dict[tuple[str, str], Address] = {}
        for group, at in queues:
            if at.lag > 0 and at.owner is not None:
                keeper, is_lanemq = self._calls.keeper(group, at.queue.broker, masters)
                if keeper is not None and is_lanemq:
                    owners[group, at.owner] = keeper
        asked = list(owners.items())[:MAX_ASKED_MEMBERS]
        full_until = self._calls.clock.now() + to_millis(FULL_TIMEOUT_SECONDS)

        def ask(asked: tuple[tuple[str, str], Address]) -> MemberHeldLanes:
            (group, owner), keeper = asked
            timeout = OWNER_TIMEOUT if self._calls.clock.now() < full_until else SHORT_TIMEOUT
            return self._held_lanes(group, owner, keeper, timeout)

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="lanemq-held") as threads:
            answers = list(threads.map(ask, asked))
        answers += (_reported_lanes(each, report, masters) for each, report in self._reports.items())
        not_asked = f"not asked, because {MAX_ASKED_MEMBERS:,} others were"
        return MemberHeldLanes(
            tuple(lane for answer in answers for lane in answer.lanes),
            (
                *(each for answer in answers for each in answer.unknown),
                *(UnknownMember(group, owner, not_asked) for group, owner in list(owners)[MAX_ASKED_MEMBERS:]),
            ),
        )

    def _held_lanes(
        self,
        group: str,
        owner: str,
        keeper: Address,
        timeout: Seconds,
    ) -> MemberHeldLanes:
        """Asks a member, through a broker or a coordinator, which lanes wait in it after a failure. Runs on any thread.

        Clients other than LaneMQ's hold no lanes, so nothing is unknown about one that refuses the question.
        """
        header = RunningInfoHeader(consumer_group=group, client_id=owner)
        link = BlockingConnection(keeper, security=self._calls.security)
        try:
            reply = link.request(Command(RequestCode.LANE_HELD, 0, ext=header.to_ext()), to_seconds(timeout))
        except RequestTimedOut:
            return MemberHeldLanes(unknown=(UnknownMember(group, owner, f"no answer within {to_millis(timeout)} ms"),))
        except LaneError as error:
            return MemberHeldLanes(unknown=(UnknownMember(group, owner, str(error)),))
        finally:
            link.close()
        if reply.code != ResponseCode.SUCCESS:
            return MemberHeldLanes()
        return _held_lanes(group, owner, HeldLanesBody.decode(reply.body))


def _held_lanes(group: str, owner: str, body: HeldLanesBody) -> MemberHeldLanes:
    """What a member has answered."""
    more = f"it holds {plural(body.more, 'further key')}, which it does not list"
    return MemberHeldLanes(
        tuple(
            HeldLaneView(
                group, owner, MessageQueue(each.topic, each.broker, each.queue_id), each.key, lane_view(each.state)
            )
            for each in body.lanes
        ),
        (UnknownMember(group, owner, more),) if body.more else (),
    )


def _reported_lanes(
    member: tuple[str, str], report: MemberReport, masters: Mapping[str, tuple[Address, bool]]
) -> MemberHeldLanes:
    """What a member of an Apache broker reports. The lanes of its queues on LaneMQ brokers are asked for there."""
    if report.why:
        return MemberHeldLanes(unknown=(UnknownMember(*member, report.why),))
    if report.held is None:
        return MemberHeldLanes()
    reported = _held_lanes(*member, report.held)
    there = tuple(lane for lane in reported.lanes if not masters.get(lane.queue.broker, (None, False))[1])
    return replace(reported, lanes=there)


def waiting_keys(
    parked: Iterable[ParkedLaneView], held: Iterable[HeldLaneView], retries: Iterable[GroupRetry] = ()
) -> Counter[tuple[str, bool]]:
    """How many keys wait, by group and whether they are parked. The others are tried again by themselves.

    A lane that is held both by its member and at a broker counts once. Messages in retry count once for each key.
    """
    lanes = {(lane.group, lane.queue, lane.key): lane.status is LaneStatus.PARKED for lane in parked}
    for each in held:
        lanes.setdefault((each.group, each.queue, each.key), each.is_parked)
    delayed = {(each.group, each.topic, each.key) for each in retries}
    return Counter((group, is_parked) for (group, _, _), is_parked in lanes.items()) + Counter(
        (group, False) for group, _, _ in delayed
    )
