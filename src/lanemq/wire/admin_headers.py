"""Ext fields of administration requests and of what brokers ask of clients.

The rules of `headers` apply. No message passes through these requests.
"""

from msgspec import field

from lanemq.wire.headers import Header, Int32, Int64
from lanemq.wire.prepared import prepare_structs


class RouteHeader(Header, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class TopicHeader(Header, frozen=True, kw_only=True):
    """A topic and nothing else: 202, 300, 351."""

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


class BrokerStatsHeader(Header, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


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
    broker_name: str | None = field(name="bname", default=None)
    offset: Int64 | None = None


class RunningInfoHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None
    lane_held: bool | None = None
    lane_state: bool | None = None


class ConsumeDirectlyHeader(Header, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None
    broker_name: str | None = None


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


class KvHeader(Header, frozen=True, kw_only=True):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102), GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
    key: str | None = None
    value: str | None = None


prepare_structs(__name__)
