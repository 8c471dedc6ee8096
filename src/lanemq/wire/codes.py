"""Request and response codes, and which error a refused request becomes.

Numbers and names are RocketMQ's (RequestCode, ResponseCode, RemotingSysResponseCode); those from 4101 on are
LaneMQ's own and answer only requests that use LaneMQ's additions, because a stock client would not understand them.
"""

from enum import IntEnum

from lanemq.model.errors import (
    BrokerBusy,
    BrokerReadOnly,
    BrokerRefused,
    GroupConflict,
    GroupNotFound,
    LaneError,
    LeaseLost,
    MessageRefused,
    NotAllowed,
    NotLeader,
    OffsetNotFound,
    OrderError,
    ProducerFenced,
    SequenceGap,
    TopicNotFound,
)


class RequestCode(IntEnum):
    """Request codes. From client to broker unless a comment says otherwise."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39  # broker to client
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # broker to client
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    CHECK_CLIENT_CONFIG = 46

    # Name server.
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904

    # Administration.
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    RESET_CONSUMER_CLIENT_OFFSET = 220  # broker to client
    GET_CONSUMER_STATUS_FROM_CLIENT = 221  # broker to client
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307  # relayed to the client
    CONSUME_MESSAGE_DIRECTLY = 309  # relayed to the client
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    QUERY_CONSUME_QUEUE = 321
    GET_ALL_PRODUCER_INFO = 328
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352

    # Further ways to send and to receive.
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  # broker to client
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    BATCH_ACK_MESSAGE = 200151

    # LaneMQ's own.
    LANE_LOCKS = 4201
    LANE_PARK = 4202
    LANE_PARK_NEXT = 4203
    LANE_PARKED = 4204
    LANE_PARKED_SHOW = 4205
    LANE_PARKED_REDRIVE = 4206
    LANE_PARKED_DISCARD = 4207
    LANE_STATE = 4208  # relayed to the client
    LANE_HELD = 4209  # relayed to the client
    LANE_COORDINATE = 4210  # to a coordinator
    LANE_SEEN = 4211  # to a coordinator
    LANE_COMPARE = 4212  # to a coordinator
    LANE_LEADER = 4213  # to a coordinator


class ResponseCode(IntEnum):
    """Response codes. Only the code decides about success: brokers also send 0 with leftover remarks."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002

    SEQUENCE_GAP = 4101
    PRODUCER_FENCED = 4102
    LEASE_REFUSED = 4103
    GROUP_CONFLICT = 4104
    NOT_LEADER = 4105  # of a coordinator


STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Codes that say that the message is stored; the last three add that a replica or a flush was late."""
LATE_CODES = frozenset({ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT})
"""Of these, the codes that another attempt may do better than. A master without a replica cannot."""

_REFUSALS: dict[int, type[BrokerRefused]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerReadOnly,
    ResponseCode.NO_PERMISSION: NotAllowed,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.QUERY_NOT_FOUND: OffsetNotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.CONSUMER_NOT_ONLINE: GroupNotFound,
}

_ORDER_ERRORS: dict[int, type[OrderError]] = {
    ResponseCode.SEQUENCE_GAP: SequenceGap,
    ResponseCode.PRODUCER_FENCED: ProducerFenced,
    ResponseCode.LEASE_REFUSED: LeaseLost,
    ResponseCode.GROUP_CONFLICT: GroupConflict,
}


_FOR_NOW = (
    "service not available now",
    "in-sync replicas not enough",
    "broker unable to service",
    "create mapped file failed",
    "[PC_SYNCHRONIZED]",
    "the broker[",
)
"""How Apache brokers begin the remark of a refusal that is over soon, whatever its code: a replica that is not, or not
yet, the master; a master that waits for replicas; a broker that starts, or may not take ordered messages at the moment
(SendMessageProcessor, AbstractSendMessageProcessor)."""


def unconfirmed(code: int) -> BrokerBusy:
    """For a producer that does not accept what only the master has: the answer to an attempt that is repeated."""
    who = "its disk" if code == ResponseCode.FLUSH_DISK_TIMEOUT else "its replicas"
    return BrokerBusy(code, f"the master has the message, but {who} did not confirm it in time")


def error_for(code: int, remark: str | None) -> LaneError:
    """The error for a refused request. Retry loops look at the error, not at the code."""
    if code == ResponseCode.NOT_LEADER:
        return NotLeader(remark or "this coordinator does not lead")
    order_error = _ORDER_ERRORS.get(code)
    if order_error is not None:
        return order_error(remark or f"the broker refused ({code}) and gave no reason")
    if remark is not None and remark.startswith(_FOR_NOW):
        return BrokerBusy(code, remark)
    return _REFUSALS.get(code, BrokerRefused)(code, remark or "")
