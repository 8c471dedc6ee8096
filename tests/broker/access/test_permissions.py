"""Which user may send which request: a default right never reaches the messages or progress of a group."""

import pytest

from lanemq.broker.access.permissions import needs
from lanemq.broker.access.users import Right, User
from lanemq.model.names import dead_letter_topic, retry_topic
from lanemq.wire.bodies import ConsumerData, HeartbeatData, LockRequest, QueueBody, SubscriptionData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, SendBackHeader, SendHeader, UnregisterHeader, UpdateOffsetHeader
from lanemq.wire.lane_bodies import LaneBody
from lanemq.wire.record import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION

SUB, BOTH = Right.SUB, Right.ANY
GENEROUS = User("u", "secret", topics={"orders": SUB}, default_group=BOTH)
"""A user that lists no group."""
MEMBER = User("u", "secret", topics={"orders": SUB}, groups={"billing": SUB}, default_group=Right.DENY)
OUTSIDER = User("u", "secret", topics={"other": SUB}, groups={"billing": SUB})
"""A user of the group without a right to the topic."""


def may(user: User, command: Command) -> bool:
    return all(need.given_to(user) for need in needs(command, lambda _: "orders"))


def send(topic: str) -> Command:
    header = SendHeader(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, 0, ext=header.to_ext_v2())


def pull(topic: str, group: str = "billing", flags: int = PULL_SUBSCRIPTION) -> Command:
    header = PullHeader(consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=flags)
    return Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext())


def lane(code: RequestCode, topic: str = "orders") -> Command:
    return Command(code, 0, body=LaneBody(group="billing", topic=topic, any_key=False, key="k").encode())


def lock(code: RequestCode) -> Command:
    queues = [QueueBody(broker_name="b", topic="orders")]
    return Command(code, 0, body=LockRequest(client_id="c", consumer_group="billing", mq_set=queues).encode())


def heartbeat() -> Command:
    data = ConsumerData(group_name="billing", subscription_data_set=[SubscriptionData(topic="orders")])
    return Command(RequestCode.HEART_BEAT, 0, body=HeartbeatData(client_id="c", consumer_data_set=[data]).encode())


def named(code: RequestCode) -> Command:
    """A request with group and topic in the header fields of commits and parking."""
    header = UpdateOffsetHeader(consumer_group="billing", topic="orders", queue_id=0, commit_offset=9)
    return Command(code, 0, ext=header.to_ext())


def send_back() -> Command:
    header = SendBackHeader(offset=0, group="billing", delay_level=0, origin_topic="orders")
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, 0, ext=header.to_ext())


CHANGING = [
    lock(RequestCode.LOCK_BATCH_MQ),
    lock(RequestCode.UNLOCK_BATCH_MQ),
    lane(RequestCode.LANE_PARKED),
    lane(RequestCode.LANE_PARKED_SHOW),
    lane(RequestCode.LANE_PARKED_REDRIVE),
    lane(RequestCode.LANE_PARKED_DISCARD),
    named(RequestCode.UPDATE_CONSUMER_OFFSET),
    named(RequestCode.LANE_PARK),
    named(RequestCode.LANE_PARK_NEXT),
    pull("orders", flags=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET),
    send_back(),
    heartbeat(),
]
"""A group's messages, progress and members."""


@pytest.mark.parametrize("command", CHANGING, ids=lambda command: RequestCode(command.code).name)
def test_a_groups_messages_need_the_listed_group_and_the_topic(command: Command) -> None:
    assert may(MEMBER, command)
    assert not may(GENEROUS, command)
    assert not may(OUTSIDER, command)


def test_unregistering_a_client_needs_the_listed_group() -> None:
    header = UnregisterHeader(client_id="c", consumer_group="billing")
    leave = Command(RequestCode.UNREGISTER_CLIENT, 0, ext=header.to_ext())
    assert (may(MEMBER, leave), may(GENEROUS, leave)) == (True, False)


def test_a_default_right_is_enough_to_read_and_inspect() -> None:
    looks = [Command(RequestCode.GET_CONSUME_STATS, 0, ext={"consumerGroup": "billing"})]
    looks += [named(RequestCode.QUERY_CONSUMER_OFFSET), pull("orders")]
    assert all(may(GENEROUS, look) for look in looks)
    denied = User("u", "secret", topics={"orders": SUB}, default_group=Right.DENY)
    assert not any(may(denied, look) for look in looks)


@pytest.mark.parametrize("topic", [retry_topic("billing"), dead_letter_topic("billing"), "%RETRY%%LEFT%billing"])
def test_a_groups_own_topics_need_the_listed_group(topic: str) -> None:
    everything = User("u", "secret", default_topic=BOTH, default_group=BOTH)
    named_itself = User("u", "secret", topics={topic: BOTH}, default_group=BOTH)
    assert may(MEMBER, pull(topic))
    for other in (everything, named_itself, GENEROUS):
        assert not may(other, pull(topic, group="another"))
        assert not may(other, send(topic))


def test_a_dead_letter_is_written_only_with_the_right_to_send() -> None:
    writer = User("u", "secret", groups={"billing": Right.PUB})
    topic = dead_letter_topic("billing")
    assert (may(writer, send(topic)), may(MEMBER, send(topic))) == (True, False)
    assert not may(writer, pull(topic))


def test_a_member_may_send_to_its_retry_topic_with_sub_alone() -> None:
    """Ordered consumers, RocketMQ's and LaneMQ's, dead-letter a message that way."""
    assert may(MEMBER, send(retry_topic("billing")))


def test_a_list_of_parked_lanes_needs_no_topic_and_a_lane_does() -> None:
    assert may(MEMBER, lane(RequestCode.LANE_PARKED, topic=""))
    assert not may(MEMBER, lane(RequestCode.LANE_PARKED_SHOW, topic=""))
    assert not may(GENEROUS, lane(RequestCode.LANE_PARKED, topic=""))


def test_offsets_of_spark_queries_belong_to_their_group() -> None:
    """Spark queries store them as offsets of a group whose name has a prefix."""
    note = named(RequestCode.UPDATE_CONSUMER_OFFSET)
    note.ext["consumerGroup"] = "%LEFT%billing"
    assert (may(MEMBER, note), may(GENEROUS, note)) == (True, False)
