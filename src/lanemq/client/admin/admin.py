"""Administration: topics, groups, offsets, locks, finding messages.

The calls use RocketMQ's request codes wherever they exist, so they work on an Apache cluster too. What only a LaneMQ
broker knows (leases and epochs) is missing there, and the result says so. Owners are asked of the members themselves.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import msgspec

from lanemq.background_log import ClientLog
from lanemq.client.admin.group_offsets import OffsetAdmin
from lanemq.client.admin.members import MemberQuestions, MemberReports, lane_view, name_owners, narrower_notes
from lanemq.client.admin.message_search import MessageAdmin
from lanemq.client.admin.order import OrderRepair, OrderReport, plan_repair, read_order, repair
from lanemq.client.admin.views import (
    BrokerFigures,
    GroupDescription,
    GroupMember,
    GroupQueue,
    LaneStateView,
    LeaseView,
    NoAnswer,
    QueueBounds,
    TopicDescription,
)
from lanemq.client.topics import NewTopic, Order, checked, create, ensure, forget
from lanemq.clock import wall_time
from lanemq.model.checks import (
    check_each,
    check_flag,
    check_kind,
    check_queue,
    check_text,
    seconds,
)
from lanemq.model.errors import UsageError
from lanemq.model.keys import Key, key_text
from lanemq.model.names import (
    DEFAULT_TOPIC,
    NOT_SENDABLE,
    RETRY_PREFIX,
    check_group,
    check_topic,
    is_internal_group,
)
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset, Seconds
from lanemq.net.address import Address
from lanemq.wire.admin_headers import (
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteTopicHeader,
    TopicHeader,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import FrontClientBody, LaneStateBody
from lanemq.wire.lane_fields import FRONT_SUFFIX, REPORTED
from lanemq.wire.route_bodies import (
    PERM_WRITE,
    KVTable,
    SubscriptionGroupTable,
    TopicConfigBody,
    TopicList,
)
from lanemq.wire.stats_bodies import ConsumeStats, TopicStatsTable

log = ClientLog(__name__)

OWNER_TIMEOUT = 0.5
"""Seconds to wait for a queue owner's answer. With less, a member on a busy machine is taken for a frozen one; with
more, a frozen one delays the caller."""


class _Lease(msgspec.Struct, rename="camel"):
    """One entry of the answer to LANE_LOCKS."""

    group: str = ""
    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    owner: str = ""
    epoch: int = 0
    remaining_millis: int = 0
    stock: bool = False


class _LeaseTable(msgspec.Struct):
    leases: list[_Lease] = []


_decode_leases = msgspec.json.Decoder(_LeaseTable).decode


BROADCASTING_NOTE = (
    "The group is broadcasting: each member gets all messages and keeps its own offsets, so there is no lag and no "
    "owner."
)


class Admin(OffsetAdmin, MessageAdmin):
    """Inspects and changes topics, groups and offsets. Blocking; not thread-safe. `timeout` is in seconds."""

    @cached_property
    def _members(self) -> MemberQuestions:
        return MemberQuestions(self._calls.security, self._calls.clock)

    # topics

    def create_topic(self, name: str, queues: int | None = None, *, ordered: Order = False) -> None:
        """Creates the topic on every broker, or changes it. `queues` is the number per broker; the default is 8.

        The queues of an ordered topic cannot be changed: keys would move to other queues, past older messages in the
        former ones. A LaneMQ broker refuses it. On an Apache cluster this call does; other tools can change them.

        With `ordered="global"` all messages are ordered, not only those of a key: one queue on one broker.
        """
        missed = self._calls.run(create(NewTopic(name, queues, ordered), self._calls.routes.servers))
        self._warn_of_missed(name, missed)
        self._calls.routes.forget(name)

    def ensure_topic(self, name: str, queues: int | None = None, *, ordered: Order = False) -> bool:
        """Creates the topic if it does not exist; true if so. Any number of programs may call it at once.

        Raises `UsageError` if the topic exists and is ordered differently, or has another number of queues than asked
        for. Never changes a topic.
        """
        created = self._calls.run(ensure(NewTopic(name, queues, ordered), self._calls.routes.servers))
        self._calls.routes.forget(name)
        return created

    def delete_topic(self, name: str) -> None:
        """Deletes the topic and every message in it, on every broker."""
        header = DeleteTopicHeader(topic=check_topic(name))
        for address, _ in self._calls.masters().values():
            reply = self._calls.request(address, Command(RequestCode.DELETE_TOPIC_IN_BROKER, 0, ext=header.to_ext()))
            if reply.code != ResponseCode.SYSTEM_ERROR or self._has_topic(address, name):
                checked(reply)
        self._warn_of_missed(name, self._calls.run(forget(name, self._calls.routes.servers)))
        self._calls.routes.forget(name)

    def _has_topic(self, address: Address, name: str) -> bool:
        """Whether a broker has the topic. RocketMQ 5.3 without timer messages deletes one, and then answers with an
        error."""
        stats = Command(RequestCode.GET_TOPIC_STATS_INFO, 0, ext=TopicHeader(topic=name).to_ext())
        return self._calls.request(address, stats).code != ResponseCode.TOPIC_NOT_EXIST

    def topic_order(self, name: str) -> OrderReport:
        """What every name server and broker has of the topic's order. Asks all of them."""
        return self._calls.run(read_order(check_topic(name), self._calls.routes.servers))

    def repair_order(self, name: str, *, layout: str | None = None, dry_run: bool = False) -> OrderRepair:
        """Makes a topic of an Apache cluster ordered: its layout at every name server, the flag at every broker.

        Without a layout, one that a name server has is given to the others; if none has one, it becomes what the
        brokers have now, so all of them must be up. With `dry_run`, only returns what would be done.

        A layout that differs from the queues in use moves keys past messages that wait in their old queues.
        """
        if layout is not None:
            check_text("layout", layout)
        check_flag("dry_run", dry_run)
        servers = self._calls.routes.servers
        plan = plan_repair(self.topic_order(name), layout)
        if not dry_run:
            self._warn_of_missed(name, self._calls.run(repair(name, plan, servers)))
            self._calls.routes.forget(name)
        return plan

    def _warn_of_missed(self, topic: str, missed: Collection[Address]) -> None:
        for server in missed:
            log.warning(
                "name server %s was not reached, and has the old order of topic %s: when it is back, run "
                "lanemq topic order %s",
                server,
                topic,
                topic,
            )

    def set_writable(self, name: str, *, writable: bool) -> None:
        """Makes all brokers of the topic take messages, or refuse them. Reading continues either way."""
        check_flag("writable", writable)
        for _, address in self._calls.masters_of(check_topic(name)):
            reply = self._calls.ask(address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic=name))
            config = TopicConfigBody.decode(reply.body)
            header = CreateTopicHeader(
                topic=name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm | PERM_WRITE if writable else config.perm & ~PERM_WRITE,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()) or None,
            )
            self._calls.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self._calls.routes.stale(name)

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics; system and retry topics only with `internal`."""
        names = TopicList.decode(self._calls.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
        if internal:
            return sorted(names.topic_list)
        hidden = self._system_topics()
        return sorted(each for each in names.topic_list if each not in hidden and not each.startswith(RETRY_PREFIX))

    def _system_topics(self) -> set[str]:
        """The topics that brokers have for themselves. An Apache name server knows only some; its brokers know all."""
        system = TopicList.decode(self._calls.ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
        topics = {*system.topic_list, DEFAULT_TOPIC, *NOT_SENDABLE}
        for address, lane in self._calls.masters().values():
            if not lane:
                reply = self._calls.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
                topics.update(TopicList.decode(reply.body).topic_list)
        return topics

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic's queues and the offsets they hold. Queues of a broker that is away are missing."""
        bounds: list[QueueBounds] = []
        created: dict[str, int] = {}
        route = self._calls.fresh_route(check_topic(name))
        brokers = route.broker_names
        away = route.away | self._calls.skipped
        for broker in brokers - away:
            address = route.master(broker)
            reply = self._calls.ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=name))
            table = TopicStatsTable.decode(reply.body)
            if table.lane_created:
                created[broker] = table.lane_created
            for queue, each in table.offset_table.items():
                first, end = QueueOffset(max(0, each.min_offset)), QueueOffset(each.max_offset)
                newest = each.last_update_timestamp
                bounds.append(QueueBounds(queue, first, end, wall_time(newest) if newest > 0 else None))
        queues = tuple(sorted(bounds, key=lambda each: each.queue))
        return TopicDescription(name, route.ordered, queues, tuple(sorted(brokers & away)), created)

    # groups

    def groups(self) -> list[str]:
        """The names of all groups that the brokers know.

        Without those that mark discarded dead letters, and those that Apache brokers have for themselves.
        """
        return sorted(self.known_groups())

    def known_groups(self) -> dict[str, bool]:
        """The groups, and whether a program that is no member reports the offsets, such as a pipeline."""
        groups: dict[str, bool] = {}
        for address, _ in self._calls.masters().values():
            reply = self._calls.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            for name, settings in SubscriptionGroupTable.decode(reply.body).subscription_group_table.items():
                if not is_internal_group(name):
                    groups[name] = groups.get(name, False) or REPORTED in settings.attributes
        return groups

    def describe_group(self, group: str) -> GroupDescription:
        """Members, queues, offsets, lag and owners of a group."""
        return self.with_owners(self.group_progress(group))

    def with_owners(self, group: GroupDescription) -> GroupDescription:
        """What `group_progress` returned, with the owner of each queue."""
        check_kind("group", group, GroupDescription, "what `group_progress` returns")
        leases, silent = self.leases(group.group)
        return name_owners(group, leases, silent, self.member_reports([group]) if silent else {})

    def member_reports(self, groups: Iterable[GroupDescription]) -> MemberReports:
        """What the members of the groups report about themselves. Asks each of them, through a broker."""
        groups = check_each("groups", groups, GroupDescription, "a list of what `group_progress` returns")
        masters = self._calls.masters()
        return self._members.reports(
            [
                (group.group, member.client_id, masters[member.broker][0])
                for group in groups
                for member in group.members
                if member.broker in masters and not group.broadcasting
            ]
        )

    def front_clients(self, group: GroupDescription) -> tuple[FrontClientBody, ...]:
        """The gRPC clients of a group, each with what it has. Asks the members that are fronts."""
        check_kind("group", group, GroupDescription, "what `group_progress` returns")
        fronts = replace(group, members=tuple(each for each in group.members if each.client_id.endswith(FRONT_SUFFIX)))
        reports = self.member_reports([fronts]) if fronts.members else {}
        return tuple(client for report in reports.values() for client in report.clients)

    def group_progress(self, group: str) -> GroupDescription:
        """A group's description without owners."""
        check_group(group)
        members: dict[str, GroupMember] = {}
        subscriptions: dict[str, str] = {}
        queues: dict[MessageQueue, GroupQueue] = {}
        broadcasting, notes = False, list[str]()
        for name, (address, _) in self._calls.masters().items():
            online = self._connections(address, group)
            broadcasting |= online.message_model == "BROADCASTING"
            for each in online.connection_set:
                members[each.client_id] = GroupMember(
                    each.client_id, each.client_addr, each.language, each.version, name
                )
            subscriptions |= {topic: each.sub_string for topic, each in online.subscription_table.items()}
            notes += narrower_notes(online)
            header = ConsumeStatsHeader(consumer_group=group)
            reply = self._calls.ask(address, RequestCode.GET_CONSUME_STATS, header)
            for queue, at in ConsumeStats.decode(reply.body).offset_table.items():
                queues[queue] = GroupQueue(
                    queue,
                    QueueOffset(max(0, at.consumer_offset)),
                    QueueOffset(at.broker_offset),
                    finished=at.lane_finished,
                )
        if (coordinator := self._calls.coordinator_of(group)) is not None:
            online = self._connections(coordinator, group)
            members = {
                each.client_id: GroupMember(each.client_id, each.client_addr, each.language, each.version, "")
                for each in online.connection_set
            }
            subscriptions = {topic: each.sub_string for topic, each in online.subscription_table.items()}
            queues = self._coordinated_queues(coordinator, group)
        return GroupDescription(
            group,
            tuple(members.values()),
            subscriptions,
            () if broadcasting else tuple(queues[queue] for queue in sorted(queues)),
            note=BROADCASTING_NOTE if broadcasting else "; ".join(dict.fromkeys(notes)),
            broadcasting=broadcasting,
            coordinator="" if coordinator is None else str(coordinator),
            leader=None if coordinator is None else self._calls.leader(coordinator),
        )

    def _coordinated_queues(self, coordinator: Address, group: str) -> dict[MessageQueue, GroupQueue]:
        """The offsets that a coordinator keeps, with the ends that the brokers know."""
        header = ConsumeStatsHeader(consumer_group=group)
        reply = self._calls.ask(coordinator, RequestCode.GET_CONSUME_STATS, header)
        return {
            queue: GroupQueue(
                queue, QueueOffset(max(0, at.consumer_offset)), self.max_offset(queue), finished=at.lane_finished
            )
            for queue, at in ConsumeStats.decode(reply.body).offset_table.items()
        }

    def delete_group(self, group: str) -> None:
        """Deletes a group's settings, offsets and parked lanes on every broker; its dead letters stay.

        A broker refuses to delete a group that has members.
        """
        header = DeleteGroupHeader(group_name=check_group(group), clean_offset=True, remove_offset=True)
        if self._calls.coordinator_of(group) is not None:
            raise UsageError(f"group {group} is coordinated: first move it out, lanemq group coordinate {group} --out")
        for address, _ in self._calls.masters().values():
            self._calls.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    def figures(self) -> tuple[BrokerFigures, ...]:
        """What every broker reports about itself: health, rates, disk, clients, lag."""
        figures, replicas = [], self._calls.replicas()
        for name, (address, lane) in sorted(self._calls.masters().items()):
            table = self._runtime_info(address, lane=lane)
            figures.append(BrokerFigures(name, str(address), lane, table, len(replicas.get(name, ()))))
        return tuple(figures)

    def _runtime_info(self, address: Address, *, lane: bool) -> Mapping[str, str]:
        """The figures of a broker. An Apache broker has none in its first seconds, and answers with an error then."""
        reply = self._calls.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO, 0))
        if reply.code == ResponseCode.SYSTEM_ERROR and not lane:
            return {}
        return KVTable.decode(checked(reply).body).table

    def locks(self, group: str | None = None) -> tuple[LeaseView, ...]:
        """The lease of each queue. Empty on an Apache broker, which does not report leases."""
        return self.leases(group)[0]

    def lane_state(
        self, group: str, owner: str, queue: MessageQueue, key: Key | None, *, timeout: Seconds = OWNER_TIMEOUT
    ) -> LaneStateView | NoAnswer:
        """Asks a queue's owner, through the broker, what the lane of a key is doing.

        A member that is stuck, frozen or not a LaneMQ client must not delay the caller, so the timeout is short.
        """
        check_group(group)
        check_text("owner", owner)
        check_queue(queue)
        key = None if key is None else key_text(key)
        timeout = seconds("timeout", timeout)
        address, lane = self._calls.keeper(group, queue.broker)
        if address is None:
            return NoAnswer(f"its owner could not be asked: broker {queue.broker} is away")
        wanted = LaneStateBody(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id, key=key)
        if lane:
            answer = self._members.lane(address, group, owner, wanted, timeout)
        else:
            answer = self._members.lane_through_apache(address, group, owner, wanted)
        return answer if isinstance(answer, NoAnswer) else lane_view(answer)

    def leases(self, group: str | None) -> tuple[tuple[LeaseView, ...], tuple[str, ...]]:
        """The leases of a group, or of all, and the brokers that do not report them.

        Those of a coordinated group are at its coordinator, and what a broker could report does not matter.
        """
        leases: list[LeaseView] = []
        silent: list[str] = []
        coordinator = self._calls.coordinator() if group is None else self._calls.coordinator_of(check_group(group))
        keepers = {} if coordinator is None else {"the coordinator": coordinator}
        if group is None or coordinator is None:
            keepers |= {name: address for name, (address, _) in self._calls.masters().items()}
        for name, address in keepers.items():
            ext = {} if group is None else {"consumerGroup": group}
            reply = self._calls.request(address, Command(RequestCode.LANE_LOCKS, 0, ext=ext))
            if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                silent.append(name)
                continue
            leases += map(_lease_view, _decode_leases(checked(reply).body).leases)
        return tuple(sorted(leases, key=lambda each: (each.group, each.queue))), tuple(silent)


def _lease_view(lease: _Lease) -> LeaseView:
    queue = MessageQueue(lease.topic, lease.broker_name, lease.queue_id)
    return LeaseView(lease.group, queue, lease.owner, Epoch(lease.epoch), lease.remaining_millis / 1000, lease.stock)
