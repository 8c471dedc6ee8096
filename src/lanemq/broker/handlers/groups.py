"""Groups: heartbeats, members, settings."""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from lanemq.broker.dispatch import Handler, answer, answer_code, answer_saved
from lanemq.broker.parts import ClientVersion, Parts
from lanemq.broker.sliced_answers import SlicedAnswers, Steps
from lanemq.core.brokering.membership import Changes, ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.quotas import MAX_CLIENT_ID_CHARS, MAX_HEARTBEAT_NAMES, Quota
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import BrokerRefused, GroupNotFound, LaneError, StorageError
from lanemq.model.names import check_group, check_topic, retry_topic
from lanemq.model.units import Millis, to_millis
from lanemq.net.address import Address
from lanemq.net.peer import Peer
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire import bodies as wire
from lanemq.wire.admin_headers import DeleteGroupHeader, GroupHeader, ProducerGroupHeader
from lanemq.wire.binary_header import LANGUAGES
from lanemq.wire.bodies import (
    CONSUME_FROM,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    Body,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    enum_text,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ConsumerListHeader, HeartbeatHeader, UnregisterHeader
from lanemq.wire.route_bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from lanemq.wire.stats_bodies import ClientConnection, ProducerConnection, ProducerInfo, ProducerTableInfo

log = logging.getLogger(__name__)

BROADCASTING = "BROADCASTING"
NEW_AT_ONCE = 50
"""New groups in a heartbeat above which they are taken in slices: each gets a retry topic, which takes some 50
microseconds."""


class _ClientConfig(Body):
    """The part of CHECK_CLIENT_CONFIG's body that the broker reads."""

    subscription_data: wire.SubscriptionData = msgspec.field(default_factory=wire.SubscriptionData)


class _Producer(NamedTuple):
    """A connection of a producer group."""

    client_id: str
    address: Address
    last_heartbeat: Millis
    """Wall time."""


class _Heartbeat(NamedTuple):
    """What a heartbeat says of its client."""

    client_id: str
    groups: dict[str, GroupHeartbeat]
    producers: list[str]


class GroupHandler:
    """Requests 34, 35, 38, 46, 200, 201, 204, 207, 328 and 352."""

    def __init__(self, parts: Parts, sliced: SlicedAnswers) -> None:
        self._parts = parts
        self._sliced = sliced
        self._producers: dict[str, dict[ConnectionId, _Producer]] = {}
        self._warnings = RateLimitedLog(log, parts.clock)
        self._groups_of: dict[ConnectionId, set[str]] = {}
        """The producer groups of each connection, so that a disconnect touches no others."""

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._configure,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_settings,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._settings,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_client,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
        }

    def disconnected(self, peer: Peer) -> None:
        connection = ConnectionId(peer.number)
        for group in tuple(self._groups_of.get(connection, ())):
            self._forget_producer(group, connection)
        self._parts.versions.pop(connection, None)
        self._parts.parties.pop(connection, None)
        self._parts.quotas.let_go(Quota.SEATS, f"connection {peer.number}")

    def _forget_producer(self, group: str, connection: ConnectionId) -> None:
        members = self._producers.get(group, {})
        members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        own = self._groups_of.get(connection, set())
        own.discard(group)
        if not own:
            self._groups_of.pop(connection, None)

    def _heartbeat(self, peer: Peer, request: Command) -> None:
        try:
            beat = self._checked(peer, request)
        except LaneError as error:
            # The client may show nothing of it, and would only seem to receive no messages.
            client = f"{request.language[:32]} client at {peer.remote.host}"
            self._warnings.warn(peer.remote.host, f"a heartbeat of a {client} is refused: {error}")
            raise
        if sum(self._parts.topics.get(retry_topic(name)) is None for name in beat.groups) > NEW_AT_ONCE:
            self._sliced.begin(peer, request, self._join_steps(peer, request, beat), in_order=True)
        else:
            for _ in self._join_steps(peer, request, beat):
                pass

    def _join_steps(self, peer: Peer, request: Command, beat: _Heartbeat) -> Steps:
        """Create the retry topics of new groups, then let the client join its groups."""
        for name, group in beat.groups.items():
            if group.message_model != BROADCASTING:
                self._parts.topic_keeper.take(self._parts.topics.ensure_retry(name))
                yield
        changes = self._join(peer, request, beat)
        answer(peer, request)
        self._parts.notices.group_changed(changes.groups)
        return None

    def _checked(self, peer: Peer, request: Command) -> _Heartbeat:
        """What a heartbeat says, charged to its party; raises if it is refused."""
        beat = HeartbeatData.of_request(request.body)
        if not 0 < len(beat.client_id) <= MAX_CLIENT_ID_CHARS:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"clientID must have 1 to {MAX_CLIENT_ID_CHARS} characters")
        self._refuse_many_names(peer, beat)
        groups = {check_group(data.group_name): _group_of(data) for data in beat.consumer_data_set}
        producers = [check_group(data.group_name) for data in beat.producer_data_set]
        self._refuse_conflict(beat.client_id, groups)
        self._charge(peer, request, beat.client_id, groups, producers)
        return _Heartbeat(beat.client_id, groups, producers)

    def _join(self, peer: Peer, request: Command, beat: _Heartbeat) -> Changes:
        connection = ConnectionId(peer.number)
        self._parts.parties[connection] = self._parts.party(peer, request)
        for name in beat.producers:
            known = _Producer(beat.client_id, peer.remote, self._parts.clock.wall())
            self._producers.setdefault(name, {})[connection] = known
            self._groups_of.setdefault(connection, set()).add(name)
        language = request.language if request.language in LANGUAGES else "OTHER"
        self._parts.versions[connection] = ClientVersion(language, request.version)
        expiry = self._expiry(HeartbeatHeader.from_ext(request.ext))
        now = self._parts.clock.now()
        payer = self._parts.parties[connection]
        changes = self._parts.members.heartbeat(
            connection, beat.client_id, beat.groups, expiry=expiry, now=now, payer=payer
        )
        for name in changes.groups:
            if (queues := self._parts.members.retry_queues(name)) > 1:
                self._parts.topic_keeper.take(self._parts.topics.ensure_retry(name, queues))
        return changes

    def _charge(
        self,
        peer: Peer,
        request: Command,
        client_id: str,
        groups: Mapping[str, GroupHeartbeat],
        producers: Collection[str],
    ) -> None:
        """Charge a heartbeat's subscriptions, seats and groups; one that is refused is charged nothing."""
        members, connection, party = self._parts.members, ConnectionId(peer.number), self._parts.party(peer, request)
        size = members.bytes_with(party, client_id, groups)
        self._parts.refuse_over(self._parts.quotas.over(Quota.SUBSCRIPTIONS, party, size))
        sending = self._groups_of.get(connection, set())
        before = members.seats_with(connection, client_id, ()) + len(sending)
        seats = members.seats_with(connection, client_id, groups) + len(sending.union(producers))
        self._parts.charge_seats(peer, request, seats)
        try:
            self._parts.use_groups(peer, request, groups)
        except BrokerRefused:
            self._parts.charge_seats(peer, request, before)
            raise

    def _refuse_many_names(self, peer: Peer, beat: HeartbeatData) -> None:
        consumers, producers = beat.consumer_data_set, beat.producer_data_set
        named = sum(1 + len(data.subscription_data_set) for data in consumers) + len(producers)
        held = self._groups_of.get(ConnectionId(peer.number), ())
        if named > MAX_HEARTBEAT_NAMES or len(held) + len(producers) > 2 * MAX_HEARTBEAT_NAMES:
            self._parts.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat names {named} groups and topics, and a connection may name {MAX_HEARTBEAT_NAMES}: "
                f"use more clients",
            )

    def _refuse_conflict(self, client_id: str, groups: dict[str, GroupHeartbeat]) -> None:
        clustering = {name: each for name, each in groups.items() if each.message_model != BROADCASTING}
        found = self._parts.members.conflict(client_id, clustering)
        if found is not None:
            theirs, ours = ("in order", "concurrently") if found.member_is_ordered else ("concurrently", "in order")
            raise BrokerRefused(
                ResponseCode.GROUP_CONFLICT,
                f"group {found.group}: member {found.member} consumes {found.topic or 'its topics'} {theirs}, so "
                f"{client_id} cannot consume {ours}: stop that member, or use another group",
            )

    def _expiry(self, header: HeartbeatHeader) -> Millis | None:
        """How long the client may be silent; never shorter than its leases, whose length has a minimum too."""
        stated = header.lane_expiry_millis
        return None if stated is None else Millis(max(stated, to_millis(self._parts.options.min_lane_lease)))

    def _unregister(self, peer: Peer, request: Command) -> None:
        header = UnregisterHeader.from_ext(request.ext)
        connection = ConnectionId(peer.number)
        if header.producer_group:
            self._forget_producer(header.producer_group, connection)
        if header.consumer_group:
            changes = self._parts.members.leave(connection, header.client_id, header.consumer_group)
            self._parts.notices.group_changed(changes.groups)
        answer(peer, request)

    def _members(self, peer: Peer, request: Command) -> None:
        header = ConsumerListHeader.from_ext(request.ext)
        group, topic, known = header.consumer_group, header.lane_topic, self._parts.members
        members = known.members(group) if topic is None else known.members_of(group, topic)
        if not members:
            answer_code(peer, request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
            return
        answer(peer, request, {}, ConsumerIdList(consumer_id_list=list(members)).encode())

    def _configure(self, peer: Peer, request: Command) -> None:
        settings = SubscriptionGroupConfig.of_request(request.body)
        group = check_group(settings.group_name)
        text = settings.encode().decode()
        self._parts.use_group(peer, request, group)
        self._parts.begin_row(peer)

        def saved(_: object, error: StorageError | None) -> None:
            self._parts.end_row(peer)
            if error is None:
                self._parts.groups[group] = settings
            answer_saved(peer, request, error)

        state = self._parts.state
        self._parts.row_thread.submit_rows(state, lambda: state.save_group(group, text), saved)

    def _all_settings(self, peer: Peer, request: Command) -> None:
        self._sliced.begin(peer, request, self._settings_steps())

    def _settings_steps(self) -> Steps:
        known = {*self._parts.groups, *self._parts.members.groups(), *self._parts.offsets.groups()}
        for group in self._parts.locks.groups():
            if group not in known and self._parts.locks.has_owner(group):
                known.add(group)  # its members died before they committed
            yield
        table: dict[str, SubscriptionGroupConfig] = {}
        for group in sorted(known):
            table[group] = self._settings_of(group)
            yield
        return SubscriptionGroupTable(subscription_group_table=table).encode()

    def _settings(self, peer: Peer, request: Command) -> None:
        group = GroupHeader.from_ext(request.ext).group
        answer(peer, request, {}, self._settings_of(group).encode())

    def _settings_of(self, group: str) -> SubscriptionGroupConfig:
        return self._parts.groups.get(group) or SubscriptionGroupConfig(group_name=group)

    def _delete(self, peer: Peer, request: Command) -> None:
        header = DeleteGroupHeader.from_ext(request.ext)
        group = header.group_name
        if self._parts.members.members(group):
            raise GroupNotFound(ResponseCode.SYSTEM_ERROR, f"group {group} has members; stop them first")
        self._parts.begin_row(peer)
        self._parts.groups.pop(group, None)
        self._parts.group_use.forget(group)
        self._parts.quotas.let_go(Quota.GROUPS, group)
        state, with_offsets = self._parts.state, header.clean_offset or header.remove_offset
        if with_offsets:
            self._parts.forget_offsets(group=group)
            self._parts.forget_parked(group=group)

        def delete() -> None:
            state.delete_group(group)
            if with_offsets:
                state.delete_group_offsets(group)

        def deleted(_: object, error: StorageError | None) -> None:
            self._parts.end_row(peer)
            answer_saved(peer, request, error)

        self._parts.row_thread.submit_rows(state, delete, deleted)

    def _check_client(self, peer: Peer, request: Command) -> None:
        """Refuse unsupported filters when the client starts, not at each pull.

        Sent only for filters other than tags.
        """
        kind = _ClientConfig.of_request(request.body).subscription_data.expression_type
        if kind != "TAG":
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR, f"the broker filters by tag only; filters of type {kind} are not supported"
            )
        answer(peer, request)

    def _producer_connections(self, peer: Peer, request: Command) -> None:
        group = ProducerGroupHeader.from_ext(request.ext).producer_group
        connections = [
            ClientConnection(
                client_id=each.client_id,
                client_addr=str(each.address),
                language=self._parts.versions[connection].language,
                version=self._parts.versions[connection].version,
            )
            for connection, each in self._producers.get(group, {}).items()
        ]
        if not connections:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        answer(peer, request, {}, ProducerConnection(connection_set=connections).encode())

    def _all_producers(self, peer: Peer, request: Command) -> None:
        self._sliced.begin(peer, request, self._producer_steps())

    def _producer_steps(self) -> Steps:
        table: dict[str, list[ProducerInfo]] = {}
        for group in sorted(self._producers):
            for connection, each in tuple(self._producers.get(group, {}).items()):
                version = self._parts.versions.get(connection)
                if version is not None:  # else it has gone in between
                    shown = ProducerInfo(
                        client_id=each.client_id,
                        remote_ip=each.address.host,
                        language=version.language,
                        version=version.version,
                        last_update_timestamp=each.last_heartbeat,
                    )
                    table.setdefault(group, []).append(shown)
                yield
        return ProducerTableInfo(data=table).encode()


def _group_of(data: ConsumerData) -> GroupHeartbeat:
    subscriptions = tuple(
        GroupSubscription(
            check_topic(item.topic),
            item.sub_string,
            item.expression_type,
            item.sub_version,
            frozenset(item.tags_set),
            frozenset(item.code_set),
            None if item.lane_ordered is msgspec.UNSET else item.lane_ordered,
        )
        for item in data.subscription_data_set
    )
    return GroupHeartbeat(
        subscriptions,
        enum_text(CONSUME_TYPES, data.consume_type),
        enum_text(MESSAGE_MODELS, data.message_model),
        enum_text(CONSUME_FROM, data.consume_from_where),
    )
