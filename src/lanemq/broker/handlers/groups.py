"""Groups: heartbeats, members, settings."""

import logging

from lanemq.broker.dispatch import Handler
from lanemq.broker.parts import Parts
from lanemq.broker.reply import answer, answer_code
from lanemq.core.membership import ConnectionId, GroupHeartbeat, Subscription
from lanemq.model.errors import BrokerRefused, GroupNotFound, StorageError
from lanemq.model.names import check_group
from lanemq.net.server import Peer
from lanemq.wire.admin_headers import DeleteGroupHeader, GroupHeader
from lanemq.wire.bodies import ConsumerData, ConsumerIdList, HeartbeatData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ConsumerListHeader, UnregisterHeader
from lanemq.wire.route_bodies import SubscriptionGroupConfig, SubscriptionGroupTable

log = logging.getLogger(__name__)

BROADCASTING = "BROADCASTING"


class GroupHandler:
    """Requests 34, 35, 38, 200, 201, 207, 352 and 46."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._producers: dict[str, dict[ConnectionId, tuple[str, str, int]]] = {}

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
        }

    def producers_of(self, group: str) -> dict[ConnectionId, tuple[str, str, int]]:
        """Connection → client id, language, version."""
        return self._producers.get(group, {})

    def disconnected(self, peer: Peer) -> None:
        connection = ConnectionId(peer.number)
        for members in self._producers.values():
            members.pop(connection, None)

    def _heartbeat(self, peer: Peer, request: Command) -> None:
        beat = HeartbeatData.decode(request.body)
        if not beat.client_id:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "clientID is missing in the heartbeat")
        groups = {check_group(data.group_name): _group_of(data) for data in beat.consumer_data_set}
        connection = ConnectionId(peer.number)
        for data in beat.consumer_data_set:
            if data.message_model != BROADCASTING:
                self._parts.topics.take(self._parts.topics.table.ensure_retry(data.group_name))
        for producer in beat.producer_data_set:
            members = self._producers.setdefault(check_group(producer.group_name), {})
            members[connection] = (beat.client_id, request.language, request.version)
        changes = self._parts.members.heartbeat(connection, beat.client_id, groups, now=self._parts.clock.now())
        answer(peer, request)
        self._parts.notices.group_changed(changes.groups)

    def _unregister(self, peer: Peer, request: Command) -> None:
        header = UnregisterHeader.from_ext(request.ext)
        connection = ConnectionId(peer.number)
        if header.producer_group:
            self._producers.get(header.producer_group, {}).pop(connection, None)
        if header.consumer_group:
            changes = self._parts.members.leave(connection, header.client_id, header.consumer_group)
            self._parts.notices.group_changed(changes.groups)
        answer(peer, request)

    def _members(self, peer: Peer, request: Command) -> None:
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        members = self._parts.members.members(group)
        if not members:
            answer_code(peer, request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
            return
        answer(peer, request, {}, ConsumerIdList(consumer_id_list=list(members)).encode())

    def _configure(self, peer: Peer, request: Command) -> None:
        settings = SubscriptionGroupConfig.decode(request.body)
        group = check_group(settings.group_name)
        self._parts.groups[group] = settings
        text = settings.encode().decode()

        def saved(_: object, error: StorageError | None) -> None:
            if error is None:
                answer(peer, request)
            else:
                answer_code(peer, request, ResponseCode.SYSTEM_ERROR, str(error))

        self._parts.thread.submit(lambda: self._parts.state.save_group(group, text), saved)

    def _all_settings(self, peer: Peer, request: Command) -> None:
        known = {*self._parts.groups, *self._parts.members.groups(), *self._parts.offsets.groups()}
        table = {group: self._settings_of(group) for group in sorted(known)}
        answer(peer, request, {}, SubscriptionGroupTable(subscription_group_table=table).encode())

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
        self._parts.groups.pop(group, None)
        if header.clean_offset or header.remove_offset:
            self._parts.offsets.forget(group=group)
        self._parts.thread.submit(lambda: self._parts.state.delete_group(group), lambda _, __: None)
        answer(peer, request)

    def _check_client(self, peer: Peer, request: Command) -> None:
        """Sent only for filters other than tags, before the client starts: better told now than at each pull."""
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "the broker filters by tag only; SQL filters are not supported")


def _group_of(data: ConsumerData) -> GroupHeartbeat:
    subscriptions = tuple(
        Subscription(
            item.topic,
            item.sub_string,
            item.expression_type,
            item.sub_version,
            frozenset(item.tags_set),
            frozenset(item.code_set),
        )
        for item in data.subscription_data_set
    )
    return GroupHeartbeat(subscriptions, data.consume_type, data.message_model, data.consume_from_where)
