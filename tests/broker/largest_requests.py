"""The largest valid request of every code that a broker serves, and a broker with full tables that can answer it.

Each request is answered with success, so that all of its work is done: a refusal costs little and shows nothing.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from tests.broker.raw_client import BROKER, RawClient, pull_ext, send_ext
from tests.broker.running import RunningBroker
from tests.load.abuses import heartbeat_of
from tests.wire.encoding import encode_batch

from lanemq._fast import VARIANT
from lanemq.broker.body_limits import SMALL_BODY
from lanemq.broker.handlers.locks import MAX_QUEUES
from lanemq.broker.handlers.owner_parking import MAX_KEY_CHARS
from lanemq.broker.handlers.routes import MAX_KV_CHARS
from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.quotas import Quota, Quotas
from lanemq.core.lane_status import MAX_PARKED, Failure
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.batch import MAX_BATCH_MESSAGES
from lanemq.wire.bodies import LaneProgress
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import RESPONSE_BIT, Command, encode_command
from lanemq.wire.headers import _SEND_LONG
from lanemq.wire.lane_bodies import LaneBody, NextBody, ParkBody
from lanemq.wire.record import decode_offset_id
from lanemq.wire.route_bodies import SubscriptionGroupConfig

GROUPS, TOPICS, QUEUES, MEMBERS, LANES = 300, 300, 1_024, 300, 2_000
LARGEST_BODY = 4 << 20
LONG_MESSAGES = 40_001
"""In the queue of topic Long: as many as the largest number of finished ranges needs."""
BATCH = MAX_BATCH_MESSAGES if VARIANT == "compiled" else 1_000
"""The broker without compiled modules needs several times as long for the largest batch."""

Request: TypeAlias = tuple[dict[str, str], bytes]


class FullBroker:
    """A broker with many topics, groups, members, locks and parked lanes, and its clients.

    `T` and `U` have 1,024 queues, and `T` messages in all of them; `Big` a message of the largest size, `Long` a queue
    of many messages, `P` large ones that are parked.
    """

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.run = 0
        """The number of the last run, so that each can name what is new."""
        self.context = running.broker.running.context
        self.raw, self.member = running.connect(), running.connect()
        # What one party may have is another test's matter.
        most = 10**9
        self.context.charges.quotas = Quotas(dict.fromkeys(Quota, most), dict.fromkeys(Quota, most))
        self._fill_topics()
        self._fill_groups()
        self._fill_lanes()

    def _fill_topics(self) -> None:
        raw = self.raw
        for name, queues in (("T", QUEUES), ("U", QUEUES), ("Big", 1), ("Long", 1), ("P", 1)):
            assert raw.create(name, queues).code == 0
        for batch in range(0, TOPICS, 100):
            self._all_ok([self.post_create(f"t{number}", 1) for number in range(batch, batch + 100)])
        raw.send_batch("T", [(b"x" * 1_000, {"KEYS": "k"}) for _ in range(4_000)])
        self._all_ok([raw.post_send("T", queue=queue) for queue in range(1, QUEUES)])
        self.big = raw.send("Big", b"x" * LARGEST_BODY).ext["msgId"]
        for _ in range(LONG_MESSAGES // 10_000):
            raw.send_batch("Long", [(b"x", {})] * 10_000)
        raw.send_batch("Long", [(b"x", {})])
        for _ in range(3):
            raw.send_batch("P", [(b"x" * 32_000, {})] * 100)

    def _fill_groups(self) -> None:
        raw = self.raw
        groups = [f"g{number}" for number in range(GROUPS)]
        producers = [{"groupName": f"p{number}"} for number in range(GROUPS)]
        assert raw.ask(RequestCode.HEART_BEAT, {}, heartbeat_of(groups)).code == 0
        body = msgspec.json.encode({"clientID": "c", "producerDataSet": producers})
        assert raw.ask(RequestCode.HEART_BEAT, {}, body).code == 0
        assert self.member.heartbeat("m", topics={"T": "*"}).code == 0
        beat = {"crowd": GroupHeartbeat((GroupSubscription("T", ordered=False),))}
        members, now = self.context.members, self.context.clock.now()

        def join() -> None:
            for number in range(MEMBERS):
                members.heartbeat(ConnectionId(10**6 + number), f"m{number}", beat, now=now)

        self.running.call(join)
        self.put_kv(raw, 1_000)
        self.epochs = {topic: raw.lane_lock("c", topic).lane_leases[0].epoch for topic in ("Long", "P")}
        assert raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, *commit(self, 0)).code == 0
        self.have_offsets("g", "T")

    def _fill_lanes(self) -> None:
        now, failure = Millis(1), Failure("broken", 3)

        def park() -> None:
            for number in range(LANES):
                self.running.progress("g", "Long").park(f"k{number}", [number], failure, now=now)

        self.running.call(park)
        body = ParkBody(key="shown", offsets=list(range(256)), failed=True, held=True, reason="broken", attempts=1)
        assert self.raw.ask(RequestCode.LANE_PARK, self.claim("P"), body.encode()).code == 0

    def claim(self, topic: str) -> dict[str, str]:
        owner = {"laneClient": "c", "laneEpoch": str(self.epochs[topic])}
        return {"consumerGroup": "g", "topic": topic, "queueId": "0", "bname": BROKER, **owner}

    def have_offsets(self, group: str, topic: str) -> None:
        def commit_all() -> None:
            for queue in range(QUEUES):
                self.running.progress(group, topic, queue).move(QueueOffset(0), pending=False)

        self.running.call(commit_all)

    def put_kv(self, raw: RawClient, count: int) -> None:
        ext = {"namespace": "n", "value": "v"}
        self._all_ok([raw.post(RequestCode.PUT_KV_CONFIG, {**ext, "key": f"k{number}"}) for number in range(count)])

    def post_create(self, name: str, queues: int) -> int:
        return self.raw.post(RequestCode.UPDATE_AND_CREATE_TOPIC, created(name, queues))

    def _all_ok(self, asked: list[int]) -> None:
        assert {self.raw.answer(opaque).code for opaque in asked} == {0}

    def full_topic(self, name: str) -> None:
        """Create a topic with messages, offsets, locks and index files in all of its queues."""
        self._all_ok([self.post_create(name, QUEUES)])
        self._all_ok([self.raw.post_send(name, queue=queue) for queue in range(QUEUES)])
        self.have_offsets("g", name)
        assert len(self.raw.lock("c", name, tuple(range(QUEUES))).lock_ok_mq_set) == QUEUES
        store = self.context.store
        index = store._queues.find(name, QUEUES - 1)
        assert index is not None
        while self.running.call(lambda: index.filed_end) == 0:
            pass

    def answer_as_member(self, code: RequestCode) -> None:
        """Answer what the broker passes on to a member, with a large body."""
        asked = self.member.notice()
        while asked.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            asked = self.member.notice()
        large = b"" if code in REPLIES else b"x" * (1 << 20)
        self.member.socket.sendall(encode_command(Command(0, asked.opaque, RESPONSE_BIT, {}, large)))


def created(name: str, queues: int) -> dict[str, str]:
    return {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}


def lock(group: str) -> bytes:
    """All queues of T and U."""
    half = MAX_QUEUES // 2
    queues = [{"topic": topic, "brokerName": BROKER, "queueId": each} for topic in ("T", "U") for each in range(half)]
    return msgspec.json.encode({"clientId": "c", "consumerGroup": group, "mqSet": queues})


def commit(full: FullBroker, run: int) -> Request:
    """Every second message is finished; each run has another number of them."""
    ranges = ",".join(["1"] * (LONG_MESSAGES - 1 - 2 * run))
    return {**full.claim("Long"), "commitOffset": "0"}, LaneProgress(lane_finished=ranges).encode()


def heartbeat(_: FullBroker, run: int) -> Request:
    """As many groups with a topic each as the body may have, none of them known."""
    subscriptions = [{"topic": "T", "subString": "*", "laneOrdered": False}]
    groups = [{"groupName": f"h{run}-{each:080}", "subscriptionDataSet": subscriptions} for each in range(490)]
    return {}, msgspec.json.encode({"clientID": "c", "consumerDataSet": groups})


def unlock(full: FullBroker, run: int) -> Request:
    group = f"unlock{run}"
    assert full.raw.ask(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "60000"}, lock(group)).code == 0
    return {}, lock(group)


def park(full: FullBroker, run: int) -> Request:
    key, offsets = f"{run}".rjust(MAX_KEY_CHARS, "k"), list(range(MAX_PARKED))
    body = ParkBody(key=key, offsets=offsets, failed=True, reason="", attempts=1)
    body.reason = "r" * (256 * 1024 - len(body.encode()))
    return full.claim("Long"), body.encode()


def parked_lane(full: FullBroker, run: int, **more: int) -> bytes:
    """A new lane of the length that needs several requests."""
    key = f"operator {run}"

    def fill() -> None:
        full.running.progress("g", "Long").park(key, range(LONG_MESSAGES), Failure("broken", 3), now=Millis(1))

    full.running.call(fill)
    return LaneBody(group="g", topic="Long", any_key=False, key=key, **more).encode()  # type: ignore[arg-type]


def delete_group(full: FullBroker, run: int) -> Request:
    full.have_offsets(f"gone{run}", "T")
    return {"groupName": f"gone{run}", "cleanOffset": "true"}, b""


def delete_topic(full: FullBroker, run: int) -> Request:
    full.full_topic(f"gone{run}")
    return {"topic": f"gone{run}"}, b""


def settings(_: FullBroker, run: int) -> Request:
    attributes = {f"a{each}": "v" * 20 for each in range(450)}
    return {}, SubscriptionGroupConfig(group_name=f"s{run}", attributes=attributes).encode()


def reply(version: int) -> Callable[[FullBroker, int], Request]:
    ext = send_ext("T", properties={"REPLY_TO_CLIENT": "m"})
    return always(ext if version == 2 else long_names(ext), b"x" * LARGEST_BODY)


def long_names(ext: dict[str, str]) -> dict[str, str]:
    return {_SEND_LONG[short]: value for short, value in ext.items()}


def always(ext: dict[str, str] | None = None, body: bytes = b"") -> Callable[[FullBroker, int], Request]:
    return lambda full, run: (dict(ext or {}), body)


def relayed(body: bytes = b"") -> Callable[[FullBroker, int], Request]:
    return always({"consumerGroup": "g", "clientId": "m"}, body)


LONG_TEXT = "x" * MAX_KV_CHARS
SMALL = b'{"a":"' + b"x" * (SMALL_BODY - 20) + b'"}'
CLIENT_CONFIG = b'{"subscriptionData":{"topic":"T","tagsSet":["' + b'a","' * 4_000 + b'b"]}}'
QUEUE = {"topic": "T", "queueId": "0"}
PULL = pull_ext("T", 0, most=4096, laneMaxBytes=str(LARGEST_BODY))
SEARCH = {"topic": "T", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
RESET = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}

REPLIES = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
RELAYED = REPLIES | {
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.LANE_STATE,
    RequestCode.LANE_HELD,
}
"""Requests that a member answers."""

LARGEST: dict[RequestCode, Callable[[FullBroker, int], Request]] = {
    RequestCode.SEND_MESSAGE: always(long_names(send_ext("T")), b"x" * LARGEST_BODY),
    RequestCode.SEND_MESSAGE_V2: always(send_ext("T"), b"x" * LARGEST_BODY),
    RequestCode.SEND_BATCH_MESSAGE: always(send_ext("T", batch=True), encode_batch([(0, b"x", "")] * BATCH)),
    RequestCode.SEND_REPLY_MESSAGE: reply(1),
    RequestCode.SEND_REPLY_MESSAGE_V2: reply(2),
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda full, run: (
        {"offset": str(decode_offset_id(full.big).position), "group": "g", "delayLevel": "3"},
        b"",
    ),
    RequestCode.PULL_MESSAGE: always(PULL),
    RequestCode.LITE_PULL_MESSAGE: always(PULL),
    RequestCode.QUERY_MESSAGE: always(SEARCH),
    RequestCode.VIEW_MESSAGE_BY_ID: lambda full, run: ({"offset": str(decode_offset_id(full.big).position)}, b""),
    RequestCode.QUERY_CONSUMER_OFFSET: always(
        {"consumerGroup": "g", "topic": "Long", "queueId": "0", "laneFinished": "true"}, SMALL
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: commit,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: always({**QUEUE, "timestamp": "1"}, SMALL),
    RequestCode.GET_MAX_OFFSET: always(QUEUE, SMALL),
    RequestCode.GET_MIN_OFFSET: always(QUEUE, SMALL),
    RequestCode.GET_EARLIEST_MSG_STORETIME: always(QUEUE, SMALL),
    RequestCode.GET_ALL_CONSUMER_OFFSET: always(),
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: always({"clientID": "c", "consumerGroup": "g0", "producerGroup": "p0"}, SMALL),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: always({"consumerGroup": "crowd"}),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: always({"consumerGroup": "crowd"}),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: always({"producerGroup": "p1"}),
    RequestCode.GET_ALL_PRODUCER_INFO: always(),
    RequestCode.CHECK_CLIENT_CONFIG: always({}, CLIENT_CONFIG),
    RequestCode.LOCK_BATCH_MQ: lambda full, run: (
        {"laneLeaseMillis": "60000", "laneFinished": "true", "laneKeepAliveMillis": "3000"},
        lock(f"lock{run}"),
    ),
    RequestCode.UNLOCK_BATCH_MQ: unlock,
    RequestCode.LANE_LOCKS: always(),
    RequestCode.UPDATE_AND_CREATE_TOPIC: lambda full, run: (created(f"new{run}", QUEUES), SMALL),
    RequestCode.GET_ALL_TOPIC_CONFIG: always(),
    RequestCode.GET_TOPIC_CONFIG: always({"topic": "T"}, SMALL),
    RequestCode.GET_TOPIC_STATS_INFO: always({"topic": "T"}),
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: always({"topic": "T"}, SMALL),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: always({"topic": "T"}),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: settings,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: always(),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: always({"group": "g"}, SMALL),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_CONSUME_STATS: always({"consumerGroup": "g"}),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: always(RESET),
    RequestCode.GET_CONSUMER_RUNNING_INFO: relayed(SMALL),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda full, run: (
        {"consumerGroup": "g", "clientId": "m", "msgId": full.big},
        b"",
    ),
    RequestCode.LANE_STATE: relayed(SMALL),
    RequestCode.LANE_HELD: relayed(SMALL),
    RequestCode.VIEW_BROKER_STATS_DATA: always({"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}, SMALL),
    RequestCode.GET_BROKER_CONFIG: always({}, SMALL),
    RequestCode.GET_BROKER_RUNTIME_INFO: always(),
    RequestCode.GET_BROKER_CLUSTER_INFO: always(),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: always({"topic": "T"}, SMALL),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: always(),
    RequestCode.GET_TOPICS_BY_CLUSTER: always({"cluster": "LaneMQ"}),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: always(),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: always(),
    RequestCode.PUT_KV_CONFIG: always({"namespace": LONG_TEXT, "key": LONG_TEXT, "value": LONG_TEXT}),
    RequestCode.GET_KV_CONFIG: always({"namespace": "n", "key": "k0"}),
    RequestCode.DELETE_KV_CONFIG: always({"namespace": LONG_TEXT, "key": LONG_TEXT}),
    RequestCode.GET_KVLIST_BY_NAMESPACE: always({"namespace": "n"}),
    RequestCode.LANE_PARK: park,
    RequestCode.LANE_PARK_NEXT: lambda full, run: (full.claim("P"), NextBody(key="shown", wanted=32).encode()),
    RequestCode.LANE_PARKED: always({}, LaneBody().encode()),
    RequestCode.LANE_PARKED_SHOW: always({}, LaneBody(group="g", topic="P", any_key=False, key="shown").encode()),
    RequestCode.LANE_PARKED_REDRIVE: lambda full, run: ({}, parked_lane(full, run)),
    RequestCode.LANE_PARKED_DISCARD: lambda full, run: ({}, parked_lane(full, 100 + run, through=LONG_MESSAGES)),
}
"""By code; called with the number of the run."""
