"""What a console asks again and again: all groups, all brokers, the lanes that members hold.

The requests are those of `Admin`, with as few of them as possible: owners are asked for once, not once per group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lanemq.client.admin.admin import OWNER_TIMEOUT, Admin, lane_view
from lanemq.client.admin.views import GroupDescription, LaneStateView, LeaseView, NoAnswer
from lanemq.model.errors import BrokerRefused, LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds, to_millis, to_seconds
from lanemq.net.blocking import BlockingConnection
from lanemq.wire.admin_headers import RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import HeldLanesBody
from lanemq.wire.route_bodies import KVTable

LANE_OPTION = "lane."
LANE_ORIGIN = "laneFrom."
"""Begins the names of a LaneMQ broker's options in the answer to GET_BROKER_CONFIG."""


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


@dataclass(frozen=True, slots=True)
class HeldLaneView:
    """A lane that waits in its member for the next attempt."""

    group: str
    owner: str
    queue: MessageQueue
    key: str | None
    state: LaneStateView


class WatchAdmin(Admin):
    """`Admin` with the questions of a console. Blocking; not thread-safe."""

    def brokers(self) -> tuple[BrokerView, ...]:
        """Every broker, those that do not answer too. Raises only if no name server answers."""
        found = []
        for name, (address, lane) in sorted(self._calls.masters().items()):
            try:
                reply = self._calls.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                found.append(BrokerView(name, str(address), lane, KVTable.decode(reply.body).table))
            except LaneError as error:
                found.append(BrokerView(name, str(address), lane, {}, str(error)))
        return tuple(found)

    def broker_settings(self) -> tuple[BrokerSetting, ...]:
        """The options of every broker."""
        found: list[BrokerSetting] = []
        for name, (address, lane) in sorted(self._calls.masters().items()):
            body = self._calls.ask(address, RequestCode.GET_BROKER_CONFIG).body.decode("utf-8", "replace")
            lines = dict(line.split("=", 1) for line in body.splitlines() if "=" in line and not line.startswith("#"))
            changed = lines.pop("laneSet", "").split(",")
            for option, value in lines.items():
                own = option.removeprefix(LANE_OPTION)
                if not lane:
                    found.append(BrokerSetting(name, option, value, None))
                elif own != option:
                    found.append(BrokerSetting(name, own, value, own not in changed, lines.get(LANE_ORIGIN + own, "")))
        return tuple(found)

    def describe_groups(self) -> tuple[tuple[GroupDescription, ...], tuple[LeaseView, ...]]:
        """All groups with their owners, and all leases."""
        leases, note = self.leases(None)
        owners: dict[str, dict[MessageQueue, LeaseView]] = {}
        for lease in leases:
            owners.setdefault(lease.group, {})[lease.queue] = lease
        found = tuple(
            replace(_with_owners(self.group_progress(name), owners.get(name, {})), note=note) for name in self.groups()
        )
        return found, leases

    def held_lanes(
        self, group: str, owner: str, broker: str, *, timeout: Seconds = OWNER_TIMEOUT
    ) -> Sequence[HeldLaneView] | NoAnswer:
        """Asks a member, through a broker, which lanes it holds after a failure.

        A member that is frozen or not a LaneMQ client must not delay the caller, so the timeout is short.
        """
        address, lane = self._calls.masters().get(broker, (None, False))
        if address is None or not lane:
            return NoAnswer(f"broker {broker} is not a LaneMQ broker")
        header = RunningInfoHeader(consumer_group=group, client_id=owner)
        link = BlockingConnection(address, security=self._calls.security)
        try:
            reply = link.request(Command(RequestCode.LANE_HELD, 0, ext=header.to_ext()), to_seconds(timeout))
        except RequestTimedOut:
            return NoAnswer(f"{owner} did not answer within {to_millis(timeout)} ms", silent=True)
        except (LaneError, BrokerRefused) as error:
            return NoAnswer(f"{owner} could not be asked: {error}")
        finally:
            link.close()
        if reply.code != ResponseCode.SUCCESS:
            return NoAnswer(f"{owner} does not report its held lanes: {reply.remark}")
        return [
            HeldLaneView(
                group, owner, MessageQueue(each.topic, each.broker, each.queue_id), each.key, lane_view(each.state)
            )
            for each in HeldLanesBody.decode(reply.body).lanes
        ]


def _with_owners(group: GroupDescription, owners: Mapping[MessageQueue, LeaseView]) -> GroupDescription:
    queues = tuple(
        replace(each, owner=owners[each.queue].owner, epoch=owners[each.queue].epoch) if each.queue in owners else each
        for each in group.queues
    )
    return replace(group, queues=queues)
