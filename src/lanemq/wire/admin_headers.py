"""Ext fields of administration requests and of what brokers ask of clients.

Same rules as in `headers`; kept apart because a message never travels through here.
"""

from msgspec import field

from lanemq.wire.headers import Header, Int32, Int64


class RouteHeader(Header, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class TopicHeader(Header, frozen=True, kw_only=True):
    """A topic and nothing else: 202, 215, 216, 300, 351."""

    topic: str


class CreateTopicHeader(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). `attributes` is text such as `+k=v,-k2`."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicHeader(Header, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215), DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class GroupHeader(Header, frozen=True, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class DeleteGroupHeader(Header, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207); RocketMQ 4 says removeOffset, 5 says cleanOffset."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class ConsumeStatsHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


class ProducerGroupHeader(Header, frozen=True, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ResetOffsetHeader(Header, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220); -1 means the end."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = True
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumerStatusHeader(Header, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeDirectlyHeader(Header, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None
    broker_name: str | None = None


class ConsumeTimeSpanHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class ViewMessageHeader(Header, frozen=True, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33); `offset` is a log position."""

    offset: Int64
    topic: str | None = None


class QueryMessageHeader(Header, frozen=True, kw_only=True):
    """QUERY_MESSAGE (12): by key, or by unique id."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    by_unique_id: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageResponse(Header, frozen=True, kw_only=True):
    """Answers 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ClusterHeader(Header, frozen=True, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class BrokerNameHeader(Header, frozen=True, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class KvHeader(Header, frozen=True, kw_only=True):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102), GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
    key: str | None = None
    value: str | None = None


class KvResponse(Header, frozen=True, kw_only=True):
    """Answers 101."""

    value: str


class RegisterBrokerHeader(Header, frozen=True, kw_only=True):
    """REGISTER_BROKER (103), UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = None


class PushReplyHeader(Header, frozen=True, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Int64
