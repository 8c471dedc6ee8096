"""The name server: where topics are, which is always this broker.

An ordered topic is announced with RocketMQ's own order configuration, from which clients of every language derive the
same list of queues. It is part of the topic: RocketMQ's tools can read it as a config item, and setting it to anything
else is refused.
"""

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.model.errors import BrokerRefused, OffsetNotFound, TopicNotFound
from lanemq.net.serving.peer import Peer
from lanemq.wire.admin_headers import KvHeader, RouteHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import FEATURE_LEASES, FEATURE_PARKING, FEATURE_STAMPS
from lanemq.wire.route_bodies import (
    STRICT_JSON_VERSION,
    BrokerData,
    ClusterInfo,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
    encode_route,
)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""The namespace in which RocketMQ's tools keep the order configuration of topics."""
MAX_KV_ITEMS = 10_000
MAX_KV_CHARS = 1_024
"""Characters of the namespace, the key and the value of a config item each: anyone may set them, and they stay in
memory."""
MAX_ALL_KV_CHARS = 1024 * 1024
"""Characters of all config items together: a list of them is one answer."""


class RouteHandler:
    """Requests 100 to 102, 105, 106, 206, 219, 224, 304."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._kv: dict[tuple[str, str], str] = {}
        self._kv_chars = 0

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
        }

    def _route(self, peer: Peer, request: Command) -> None:
        header = RouteHeader.from_ext(request.ext)
        topic = self._context.topics.get(header.topic)
        if topic is None:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}; create it first",
            )
        strict = bool(header.accept_standard_json_only) or request.version >= STRICT_JSON_VERSION
        answer(peer, request, {}, encode_route(self._route_of(topic), strict))

    def _route_of(self, topic: TopicConfig) -> TopicRouteData:
        name = self._context.options.name
        return TopicRouteData(
            broker_datas=[self._broker()],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=int(topic.permission),
                    read_queue_nums=topic.read_queues,
                    write_queue_nums=topic.write_queues,
                    topic_sys_flag=topic.sys_flag,
                )
            ],
            order_topic_conf=self._layout(topic),
        )

    def _broker(self) -> BrokerData:
        return BrokerData(
            broker_addrs={0: str(self._context.advertised)},
            broker_name=self._context.options.name,
            cluster=self._context.options.cluster,
            lane_features=FEATURE_LEASES | FEATURE_STAMPS | FEATURE_PARKING,
        )

    def _cluster(self, peer: Peer, request: Command) -> None:
        name, cluster = self._context.options.name, self._context.options.cluster
        info = ClusterInfo(broker_addr_table={name: self._broker()}, cluster_addr_table={cluster: [name]})
        answer(peer, request, {}, info.encode())

    def _topics(self, peer: Peer, request: Command) -> None:
        topics = [topic.name for topic in self._context.topics.topics()]
        answer(peer, request, {}, TopicList(topic_list=topics).encode())

    def _system_topics(self, peer: Peer, request: Command) -> None:
        table = self._context.topics
        topics = [topic.name for topic in table.topics() if table.is_system(topic.name)]
        body = TopicList(topic_list=topics, broker_addr=str(self._context.advertised))
        answer(peer, request, {}, body.encode())

    def _put_kv(self, peer: Peer, request: Command) -> None:
        header = KvHeader.from_ext(request.ext)
        self._check_order_stays(header, header.value or "")
        if any(len(text) > MAX_KV_CHARS for text in (header.namespace, header.key or "", header.value or "")):
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"a config item has at most {MAX_KV_CHARS} characters")
        name, value = (header.namespace, header.key or ""), header.value or ""
        if len(self._kv) >= MAX_KV_ITEMS and name not in self._kv:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"already {MAX_KV_ITEMS} config items; delete some")
        chars = self._kv_chars + sum(map(len, (*name, value))) - self._chars_of(name)
        if chars > MAX_ALL_KV_CHARS:
            raise BrokerRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the config items would have more than {MAX_ALL_KV_CHARS} characters together; delete some",
            )
        self._kv[name], self._kv_chars = value, chars
        answer(peer, request)

    def _chars_of(self, name: tuple[str, str]) -> int:
        value = self._kv.get(name)
        return 0 if value is None else sum(map(len, (*name, value)))

    def _get_kv(self, peer: Peer, request: Command) -> None:
        header = KvHeader.from_ext(request.ext)
        topic = self._topic_of(header)
        value = self._layout(topic) if topic is not None else self._kv.get((header.namespace, header.key or ""))
        if not value:
            raise OffsetNotFound(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        answer(peer, request, {"value": value})

    def _delete_kv(self, peer: Peer, request: Command) -> None:
        header = KvHeader.from_ext(request.ext)
        self._check_order_stays(header, "")
        name = (header.namespace, header.key or "")
        self._kv_chars -= self._chars_of(name)
        self._kv.pop(name, None)
        answer(peer, request)

    def _list_kv(self, peer: Peer, request: Command) -> None:
        namespace = KvHeader.from_ext(request.ext).namespace
        table = {key: value for (space, key), value in self._kv.items() if space == namespace}
        if namespace == ORDER_NAMESPACE:
            # What a topic is, not what was set before it was created.
            table |= {topic.name: self._layout(topic) for topic in self._context.topics.topics()}
        table = {key: value for key, value in table.items() if value}
        if not table:
            raise OffsetNotFound(ResponseCode.QUERY_NOT_FOUND, f"No config items in namespace {namespace}")
        answer(peer, request, {}, KVTable(table=table).encode())

    # the order configuration

    def _topic_of(self, header: KvHeader) -> TopicConfig | None:
        """The topic whose order configuration this is; None before it exists, and for any other item."""
        return self._context.topics.get(header.key or "") if header.namespace == ORDER_NAMESPACE else None

    def _layout(self, topic: TopicConfig) -> str:
        return f"{self._context.options.name}:{topic.write_queues}" if topic.ordered else ""

    def _check_order_stays(self, header: KvHeader, wanted: str) -> None:
        """Refuses to change what clients derive queues from. Programs set it before they create a topic, and tools
        afterwards; both set what the topic has."""
        topic = self._topic_of(header)
        if topic is None or self._layout(topic) == wanted:
            return
        raise BrokerRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic {topic.name} has the order configuration {self._layout(topic) or 'none'}, which this broker keeps "
            f"itself; to order a topic: lanemq topic create {topic.name} --ordered",
        )
