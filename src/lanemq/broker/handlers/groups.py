"""Groups: heartbeats, members, settings."""

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import msgspec

from lanemq.broker.context import ConnectedClient, GroupContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_saved
from lanemq.broker.group_rules import free_progress, is_reported, members_changed, use_groups
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.core.brokering.lock_table import MIN_LEASE_MS
from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.members.lost_members import LostFilter, shown_member
from lanemq.core.brokering.members.membership import Changes
from lanemq.core.brokering.members.tag_filters import ALL, shown
from lanemq.core.brokering.quotas import MAX_CLIENT_ID_CHARS, MAX_HEARTBEAT_NAMES, Quota
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import BrokerRefused, GroupNotFound, LaneError, StorageError
from lanemq.model.names import check_group, check_topic
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.peer import Peer
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
from lanemq.wire.lane_fields import REPORTED
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

    def __init__(self, context: GroupContext, answers: LongAnswers) -> None:
        self._context = context
        self._answers = answers
        self._producers: dict[str, dict[ConnectionId, _Producer]] = {}
        self._warnings = RateLimitedLog(log, context.clock)
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
        self._context.clients.pop(connection, None)
        self._context.charges.give_back(Quota.SEATS, peer, None)

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
            # The client may not show the error: it would only seem to receive no messages.
            client = f"{request.language[:32]} client at {peer.remote.host}"
            self._warnings.warn(peer.remote.host, f"a heartbeat of a {client} is refused: {error}")
            raise
        if sum(map(self._context.queues.lacks_retry_topic, beat.groups)) > NEW_AT_ONCE:
            self._answers.begin(peer, request, self._join_steps(peer, request, beat), in_order=True)
        else:
            for _ in self._join_steps(peer, request, beat):
                pass

    def _join_steps(self, peer: Peer, request: Command, beat: _Heartbeat) -> Steps:
        """Create the retry topics of new groups, then let the client join its groups.

        The answer waits for the row of its filters: a broker that was killed before would not wait for a member that
        knows that it has joined.
        """
        for name, group in beat.groups.items():
            if group.message_model != BROADCASTING:
                self._context.queues.ensure_retry_topic(name)
                yield
        changes, charges = self._join(peer, request, beat), self._context.charges
        counted = charges.take_if_free(Quota.ROWS, peer, request)

        def saved() -> None:
            if counted:
                charges.give_back(Quota.ROWS, peer)
            answer(peer, request)
            members_changed(self._context, changes.groups)

        self._context.saved_filters.save(saved)
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
        for name in beat.producers:
            known = _Producer(beat.client_id, peer.remote, self._context.clock.wall())
            self._producers.setdefault(name, {})[connection] = known
            self._groups_of.setdefault(connection, set()).add(name)
        language = request.language if request.language in LANGUAGES else "OTHER"
        payer = self._context.charges.party(peer, request)
        self._context.clients[connection] = ConnectedClient(language, request.version, payer)
        expiry = self._expiry(HeartbeatHeader.from_ext(request.ext))
        now = self._context.clock.now()
        changes = self._context.members.heartbeat(
            connection, beat.client_id, beat.groups, expiry=expiry, now=now, payer=payer
        )
        self._warn_of_filters(beat.groups)
        for name in changes.groups:
            if (queues := self._context.members.retry_queues(name)) > 1:
                self._context.queues.ensure_retry_topic(name, queues)
        return changes

    def _warn_of_filters(self, groups: Mapping[str, GroupHeartbeat]) -> None:
        """Warn of the first topic of each group that its members filter differently."""
        members = self._context.members
        for name, beat in groups.items():
            topics = [each.topic for each in beat.subscriptions]
            lost = [member for topic in topics if (member := members.waited_for(name, topic)) is not None]
            if lost:
                self._warn_of_lost(lost[0])
                continue
            mixed = [(topic, some) for topic in topics if (some := members.mixed_filters(name, topic)) is not None]
            if not mixed:
                continue
            topic, filters = mixed[0]
            begins = f"group {name}: members read {topic} with different tags"
            if filters.stock:
                text = (
                    f"{begins}, and some are RocketMQ clients, which take their queues all the same: each member skips "
                    f"what it does not select. Give all members the same tags, or use another group"
                )
            else:
                widest = shown(filters.widest or ALL)
                text = f"{begins}: those with fewer than {widest!r} get no queue of it until the others have left"
            self._warnings.warn(name, text)

    def _warn_of_lost(self, lost: LostFilter) -> None:
        """Warn that members wait for a lost one, how long, and how to end it."""
        filters = self._context.members.filters(lost.group, lost.topic)
        fewer, tags = shown(ALL if filters is None or filters.widest is None else filters.widest), shown(lost.tags)
        self._warnings.warn(
            lost.group,
            f"group {lost.group}: {shown_member(lost.member)}, which reads {lost.topic} with tags {tags!r}, was lost "
            f"(silent, cut off or killed). Members with {fewer!r} would skip its messages, so they get no queue of "
            f"{lost.topic} until {self._time(lost.until)}. To end this earlier, start a member with {tags!r}; if "
            f"those messages are not needed, stop it again, with SIGTERM",
        )

    def _time(self, at: Millis) -> str:
        """A time of the broker's clock as an operator reads it."""
        clock = self._context.clock
        return datetime.fromtimestamp((clock.wall() - clock.now() + at) // 1000, UTC).strftime("%H:%M:%S UTC")

    def _charge(
        self,
        peer: Peer,
        request: Command,
        client_id: str,
        groups: Mapping[str, GroupHeartbeat],
        producers: Collection[str],
    ) -> None:
        """Charge a heartbeat's subscriptions, seats and groups; one that is refused is charged nothing."""
        members, connection, charges = self._context.members, ConnectionId(peer.number), self._context.charges
        party = charges.party(peer, request)
        charges.refuse_if_taken(Quota.ROWS, peer, request)  # taken while the row of its filters is written
        size = members.bytes_with(party, client_id, groups)
        charges.refuse(charges.quotas.over(Quota.SUBSCRIPTIONS, party, size))
        sending = self._groups_of.get(connection, set())
        before = members.seats_with(connection, client_id, ()) + len(sending)
        seats = members.seats_with(connection, client_id, groups) + len(sending.union(producers))
        charges.take_in_all(Quota.SEATS, peer, request, seats)
        try:
            use_groups(self._context, peer, request, groups)
        except BrokerRefused:
            charges.take_in_all(Quota.SEATS, peer, request, before)
            raise

    def _refuse_many_names(self, peer: Peer, beat: HeartbeatData) -> None:
        consumers, producers = beat.consumer_data_set, beat.producer_data_set
        named = sum(1 + len(data.subscription_data_set) for data in consumers) + len(producers)
        held = self._groups_of.get(ConnectionId(peer.number), ())
        if named > MAX_HEARTBEAT_NAMES or len(held) + len(producers) > 2 * MAX_HEARTBEAT_NAMES:
            self._context.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat names {named} groups and topics, and a connection may name {MAX_HEARTBEAT_NAMES}: "
                f"use more clients",
            )

    def _refuse_conflict(self, client_id: str, groups: dict[str, GroupHeartbeat]) -> None:
        for group in groups:
            if is_reported(self._context, group):
                raise BrokerRefused(
                    ResponseCode.GROUP_CONFLICT,
                    f"group {group}: its offsets are those of a Spark query, which is no member, so {client_id} would "
                    f"skip what the query has read: use another group, or stop the query and delete this one with "
                    f"`lanemq group delete {group}`",
                )
        conflict = self._context.members.conflict(client_id, groups)
        if conflict is not None:
            theirs, ours = ("in order", "concurrently") if conflict.member_is_ordered else ("concurrently", "in order")
            raise BrokerRefused(
                ResponseCode.GROUP_CONFLICT,
                f"group {conflict.group}: member {conflict.member} consumes {conflict.topic or 'its topics'} {theirs}, "
                f"so {client_id} cannot consume {ours}: stop that member, or use another group",
            )
        other = self._context.members.filter_conflict(client_id, groups)
        if other is not None:
            mine, theirs, both = shown(other.mine), shown(other.theirs), shown(other.theirs | other.mine)
            if other.until is None:
                remedy = f"Deploy {both!r} first, and {mine!r} when no member with {theirs!r} is left"
            else:
                remedy = (
                    f"That member was lost (silent, cut off or killed), and counts until {self._time(other.until)}: "
                    f"wait, or start a member with {theirs!r} and stop it with SIGTERM, or deploy {both!r}"
                )
            raise BrokerRefused(
                ResponseCode.GROUP_CONFLICT,
                f"group {other.group}: {shown_member(other.member)} reads {other.topic} with tags {theirs!r}, so "
                f"{client_id} cannot read it with {mine!r}: each would skip messages of the other. {remedy}, or use "
                f"another group.",
            )

    def _expiry(self, header: HeartbeatHeader) -> Millis | None:
        """How long the client may be silent; never shorter than its leases, whose length has a minimum too."""
        stated = header.lane_expiry_millis
        return None if stated is None else Millis(max(stated, MIN_LEASE_MS))

    def _unregister(self, peer: Peer, request: Command) -> None:
        header = UnregisterHeader.from_ext(request.ext)
        connection = ConnectionId(peer.number)
        if header.producer_group:
            self._forget_producer(header.producer_group, connection)
        if header.consumer_group:
            changes = self._context.members.leave(connection, header.client_id, header.consumer_group)
            members_changed(self._context, changes.groups)
        self._context.saved_filters.save(partial(answer, peer, request))

    def _members(self, peer: Peer, request: Command) -> None:
        header = ConsumerListHeader.from_ext(request.ext)
        group, topic, known = header.consumer_group, header.lane_topic, self._context.members
        members = known.members(group) if topic is None else known.members_of(group, topic)
        if not members and (topic is None or known.subscription(group, topic) is None):
            answer_code(peer, request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
            return
        answer(peer, request, {}, ConsumerIdList(consumer_id_list=list(members)).encode())

    def _configure(self, peer: Peer, request: Command) -> None:
        settings = SubscriptionGroupConfig.of_request(request.body)
        group = check_group(settings.group_name)
        if is_reported(self._context, group):
            settings = msgspec.structs.replace(settings, attributes={**settings.attributes, REPORTED: "true"})
        text = settings.encode().decode()
        use_groups(self._context, peer, request, (group,))
        self._context.charges.take(Quota.ROWS, peer, request)

        def saved(_: object, error: StorageError | None) -> None:
            self._context.charges.give_back(Quota.ROWS, peer)
            if error is None:
                self._context.groups[group] = settings
            answer_saved(peer, request, error)

        state = self._context.state
        self._context.row_thread.submit_rows(state, lambda: state.save_group(group, text), saved)

    def _all_settings(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._settings_steps())

    def _settings_steps(self) -> Steps:
        known = {*self._context.groups, *self._context.members.groups(), *self._context.progress.groups()}
        for group in self._context.locks.groups():
            if group not in known and self._context.locks.has_owner(group):
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
        return self._context.groups.get(group) or SubscriptionGroupConfig(group_name=group)

    def _delete(self, peer: Peer, request: Command) -> None:
        header = DeleteGroupHeader.from_ext(request.ext)
        group = header.group_name
        if self._context.members.members(group):
            raise GroupNotFound(ResponseCode.SYSTEM_ERROR, f"group {group} has members; stop them first")
        self._context.charges.take(Quota.ROWS, peer, request)
        self._context.groups.pop(group, None)
        self._context.charges.forget_group(group)
        self._context.members.forget(group)
        self._context.saved_filters.save()  # before the rows of the group
        state = self._context.state
        if header.clean_offset or header.remove_offset:
            free_progress(self._context, self._context.progress_keeper.forget_group(group))

        def deleted(_: object, error: StorageError | None) -> None:
            if error is None:
                self._context.progress_keeper.settled(answered)
            else:
                answered(error)

        def answered(error: StorageError | None) -> None:
            self._context.charges.give_back(Quota.ROWS, peer)
            answer_saved(peer, request, error)

        self._context.row_thread.submit_rows(state, lambda: state.delete_group(group), deleted)

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
                language=self._context.clients[connection].language,
                version=self._context.clients[connection].version,
            )
            for connection, each in self._producers.get(group, {}).items()
        ]
        if not connections:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        answer(peer, request, {}, ProducerConnection(connection_set=connections).encode())

    def _all_producers(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._producer_steps())

    def _producer_steps(self) -> Steps:
        table: dict[str, list[ProducerInfo]] = {}
        for group in sorted(self._producers):
            for connection, each in tuple(self._producers.get(group, {}).items()):
                client = self._context.clients.get(connection)
                if client is not None:  # else it has gone in between
                    producer = ProducerInfo(
                        client_id=each.client_id,
                        remote_ip=each.address.host,
                        language=client.language,
                        version=client.version,
                        last_update_timestamp=each.last_heartbeat,
                    )
                    table.setdefault(group, []).append(producer)
                yield
        return ProducerTableInfo(data=table).encode()


def _group_of(data: ConsumerData) -> GroupHeartbeat:
    message_model = enum_text(MESSAGE_MODELS, data.message_model)
    shared = message_model != BROADCASTING
    subscriptions = tuple(
        GroupSubscription(
            check_topic(item.topic),
            item.sub_string,
            item.expression_type,
            item.sub_version,
            frozenset(item.tags_set),
            frozenset(item.code_set),
            None if item.lane_ordered is msgspec.UNSET or not shared else item.lane_ordered,
            shared,
        )
        for item in data.subscription_data_set
    )
    return GroupHeartbeat(
        subscriptions,
        enum_text(CONSUME_TYPES, data.consume_type),
        message_model,
        enum_text(CONSUME_FROM, data.consume_from_where),
    )
