"""JSON bodies about where things are: routes, clusters, topics, groups.

Every client must be able to read a route: `brokerDatas`, `queueDatas` and `filterServerTable` are always present (Java
has no default for them), and broker ids are written without quotes for clients older than version 401, on which Go
clients before 2.1.1 depend.
"""

import msgspec
from msgspec import Raw, field

from lanemq.wire.bodies import Body, encode_json
from lanemq.wire.lane_fields import LANE_FEATURES
from lanemq.wire.prepared import prepare_structs

STRICT_JSON_VERSION = 401
"""V4_9_4 in RocketMQ's MQVersion: from here on clients read routes in strict JSON."""

PERM_READ = 4
PERM_WRITE = 2
"""Permission bits of a topic (RocketMQ's PermName)."""


class BrokerData(Body):
    """Addresses of one broker name by broker id; 0 is the master. `lane_features` is LaneMQ's."""

    broker_addrs: dict[int, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    lane_features: int = 0


class QueueData(Body):
    """How many queues a topic has on one broker name. Old brokers also write `topicSynFlag`, which is not used."""

    broker_name: str = ""
    perm: int = 6
    read_queue_nums: int = 4
    topic_sys_flag: int = 0
    write_queue_nums: int = 4


class TopicRouteData(Body):
    """Answers 105."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str = ""
    queue_datas: list[QueueData] = field(default_factory=list)

    def encode(self) -> bytes:
        return encode_route(self, strict=True)


class ClusterInfo(Body):
    """Answers 106."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        members = msgspec.to_builtins(self)
        for broker in members["brokerAddrTable"].values():
            _shape_broker(broker, strict=True)
        return encode_json(members)


class DataVersion(Body):
    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfigBody(Body):
    """One topic of a broker; also the answer to 351."""

    attributes: dict[str, str] = field(default_factory=dict)
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class TopicConfigTable(Body):
    """Answers 21."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfigBody] = field(default_factory=dict)


class SubscriptionGroupConfig(Body):
    """One consumer group; defaults are those of RocketMQ's class of this name."""

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupTable(Body):
    """Answers 201."""

    data_version: DataVersion = field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class TopicList(Body):
    """Answers 206, 224, 304 and 305."""

    left_out = ("brokerAddr",)

    broker_addr: str = ""
    topic_list: list[str] = field(default_factory=list)


class GroupList(Body):
    """Answers 300."""

    group_list: list[str] = field(default_factory=list)


class KVTable(Body):
    """Answers 28 and 219; all values are text."""

    table: dict[str, str] = field(default_factory=dict)


def encode_route(route: TopicRouteData, strict: bool) -> bytes:
    """Encodes a route for the asking client: broker ids quoted (`strict`) or bare, as fastjson writes them."""
    members = msgspec.to_builtins(route)
    for broker in members["brokerDatas"]:
        _shape_broker(broker, strict=strict)
    if not route.order_topic_conf:
        del members["orderTopicConf"]
    return encode_json(members)


def _shape_broker(broker: dict[str, object], *, strict: bool) -> None:
    if not broker[LANE_FEATURES]:
        del broker[LANE_FEATURES]
    if not strict:
        addresses = broker["brokerAddrs"]
        assert isinstance(addresses, dict)
        bare = b",".join(b"%d:%b" % (number, encode_json(address)) for number, address in addresses.items())
        broker["brokerAddrs"] = Raw(b"{%b}" % bare)


prepare_structs(__name__)
