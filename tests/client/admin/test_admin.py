"""Admin calls against an embedded LaneMQ broker and against an Apache broker."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from tests.client.fake_broker import FakeBroker
from tests.client.fake_cluster import FakeCluster

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import AtOffset, AtTime
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.brokering.topic_table import TopicOrder
from lanemq.model.errors import InvalidName, InvalidOption, LaneError, TopicNotFound, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.bodies import ConsumerData, HeartbeatData, LockRequest, QueueBody, SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import UpdateOffsetHeader
from lanemq.wire.record import encode_offset_id
from lanemq.wire.route_bodies import (
    BrokerData,
    ClusterInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
)
from lanemq.wire.stats_bodies import ConsumerConnection, ConsumeStats


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.address) as each:
        yield each


def test_ensuring_a_topic_creates_it_once_and_never_changes_it(admin: Admin) -> None:
    assert admin.ensure_topic("ensured", ordered=True)
    assert not admin.ensure_topic("ensured", ordered=True)
    assert not admin.ensure_topic("ensured", 8, ordered=True)
    assert (len(admin.describe_topic("ensured").queues), admin.describe_topic("ensured").ordered) == (8, True)
    with pytest.raises(UsageError, match="has 8 queues and is ordered, but this program declares it with 4 queues"):
        admin.ensure_topic("ensured", 4, ordered=True)
    with pytest.raises(UsageError, match="declares it with 8 queues, not ordered"):
        admin.ensure_topic("ensured")
    assert len(admin.describe_topic("ensured").queues) == 8


def test_many_programs_may_ensure_a_topic_at_once(broker: EmbeddedBroker) -> None:
    def ensure() -> bool:
        with Admin(broker.address) as admin:
            return admin.ensure_topic("together", 3, ordered=True)

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(lambda _: ensure(), range(8)))


R = TypeVar("R")
WAIT = 60.0


def true_at_last(look: Callable[[], R]) -> R:
    """Polls `look` until it returns something: the broker updates indexes and members with a short delay."""
    pause = threading.Event()
    for _ in range(int(WAIT * 100)):
        if seen := look():
            return seen
        pause.wait(0.01)
    raise AssertionError("it did not come true in time")


def queue_of(admin: Admin, topic: str, number: int = 0) -> MessageQueue:
    return admin.describe_topic(topic).queues[number].queue


def fill(broker: EmbeddedBroker, topic: str, count: int) -> None:
    with Producer(broker.address) as producer:
        producer.send_many(topic, [("k", number) for number in range(count)])


@contextmanager
def stock_cluster(*names: str) -> Iterator[tuple[FakeBroker, list[Command]]]:
    """Fake Apache brokers with these names, all at one address, and the create requests they received."""
    created: list[Command] = []

    def create(command: Command) -> tuple[int, dict[str, str], bytes]:
        created.append(command)
        return 0, {}, b""

    with FakeBroker(lane=False) as stock:
        address = {0: str(stock.address)}
        table = {name: BrokerData(broker_name=name, broker_addrs=address) for name in names}
        stock.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda _: (
            0,
            {},
            ClusterInfo(broker_addr_table=table).encode(),
        )
        stock.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = create
        stock.answers[RequestCode.PUT_KV_CONFIG] = lambda _: (0, {}, b"")
        yield stock, created


def test_created_topic_has_its_queues_and_its_order(admin: Admin) -> None:
    admin.create_topic("a-orders", 3, ordered=True)
    admin.create_topic("a-plain", 2)
    described = admin.describe_topic("a-orders")
    assert (described.ordered, len(described.queues)) == (True, 3)
    assert not admin.describe_topic("a-plain").ordered
    assert {"a-orders", "a-plain"} <= set(admin.topics())


def test_a_topic_has_eight_queues_by_default(admin: Admin) -> None:
    """The same default as `lanemq topic create`."""
    admin.create_topic("a-default")
    assert len(admin.describe_topic("a-default").queues) == 8


@pytest.mark.row("A1")
def test_a_globally_ordered_topic_is_stored_as_such_by_the_broker(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topic("a-global", ordered="global")
    assert len(admin.describe_topic("a-global").queues) == 1
    topics = broker.broker.running.context.topic_keeper
    assert broker.call(lambda: topics.existing("a-global")).order is TopicOrder.GLOBAL


@pytest.mark.row("A1")
def test_globally_ordered_topic_with_two_queues_is_refused(admin: Admin) -> None:
    with pytest.raises(InvalidOption, match="a globally ordered topic has 1"):
        admin.create_topic("a-torn", 2, ordered="global")
    assert "a-torn" not in admin.topics()


@pytest.mark.row("A1")
def test_globally_ordered_topic_on_two_brokers_is_refused() -> None:
    """One queue on each broker makes two queues, which are not ordered among each other."""
    with (
        stock_cluster("one", "two") as (stock, created),
        Admin(str(stock.address)) as admin,
        pytest.raises(UsageError, match="cannot be globally ordered on 2 brokers"),
    ):
        admin.create_topic("a-torn", ordered="global")
    assert created == []


def test_apache_broker_is_not_sent_attributes_it_would_refuse() -> None:
    with stock_cluster("one") as (stock, created), Admin(str(stock.address)) as admin:
        admin.create_topic("a-global", ordered="global")
    (request,) = created
    assert (request.ext["order"], request.ext["readQueueNums"]) == ("true", "1")
    assert "attributes" not in request.ext


def test_illegal_topic_name_is_refused_without_a_request(admin: Admin) -> None:
    with pytest.raises(InvalidName):
        admin.describe_topic("bad name!")
    with pytest.raises(InvalidName):
        admin.reset_offsets("g", "bad name!", to="first")


def test_deleted_topic_is_gone(admin: Admin) -> None:
    admin.create_topic("a-gone", 1, ordered=True)
    admin.delete_topic("a-gone")
    assert "a-gone" not in admin.topics()
    with pytest.raises(TopicNotFound):
        admin.describe_topic("a-gone")


def test_internal_topics_are_listed_only_on_request(admin: Admin) -> None:
    assert "TBW102" not in admin.topics()
    assert "TBW102" in admin.topics(internal=True)


@pytest.mark.parametrize(("name", "queues", "error"), [("no spaces", 1, InvalidName), ("fine", 0, InvalidOption)])
def test_impossible_topic_is_refused_without_a_request(
    admin: Admin, name: str, queues: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.create_topic(name, queues)


def test_bounds_show_what_a_queue_holds(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-bounds", 1)
    fill(broker, "a-bounds", 5)
    (bounds,) = admin.describe_topic("a-bounds").queues
    assert (bounds.first, bounds.end, bounds.messages) == (0, 5, 5)
    assert bounds.last_stored_at is not None
    assert bounds.last_stored_at.tzinfo is UTC
    assert admin.min_offset(bounds.queue) == 0
    assert admin.max_offset(bounds.queue) == 5
    assert admin.offset_at(bounds.queue, 0.0) == admin.offset_at(bounds.queue, datetime(1970, 1, 1, tzinfo=UTC)) == 0


def test_messages_are_found_by_key_by_unique_id_and_by_offset_id(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-find", 1)
    with Producer(broker.address) as producer:
        receipt = producer.send("a-find", b"first", key="k", keys=["invoice-1", "eu"])
        producer.send("a-find", b"second", key="k", keys="invoice-2")
    true_at_last(lambda: admin.find_key("a-find", "invoice-2"))
    assert [each.body for each in admin.find_key("a-find", "invoice-1")] == [b"first"]
    (found,) = admin.find_id("a-find", receipt.message_id)
    assert found.body == b"first"
    assert admin.find_key("a-find", "invoice-3") == []
    seen = admin.view(found.stored_id)
    assert (seen.body, seen.offset, seen.properties) == (b"first", receipt.offset, found.properties)
    assert seen.queue == found.queue == receipt.queue


def test_a_message_is_found_by_the_key_that_orders_it(broker: EmbeddedBroker, admin: Admin) -> None:
    """Not only by the additional search keys."""
    admin.create_topic("a-find-key", 1, ordered=True)
    with Producer(broker.address) as producer:
        for number in range(3):
            producer.send("a-find-key", {"n": number}, key="order-7")
        producer.send("a-find-key", {"n": 3}, key="order-8", keys="order-7")
        last = producer.send("a-find-key", {"n": 4}, key="order-9", tag="order-7")
    true_at_last(lambda: admin.find_id("a-find-key", last.message_id))
    assert [each.queue_offset for each in admin.find_key("a-find-key", "order-7")] == [0, 1, 2, 3]


def test_an_id_of_no_stored_message_is_refused(broker: EmbeddedBroker, admin: Admin) -> None:
    host, _, port = broker.address.rpartition(":")
    with pytest.raises(LaneError):
        admin.view(encode_offset_id(host, int(port), 2**40))


class Member:
    """A RocketMQ client that is connected as a member of a group and owns a queue."""

    def __init__(self, address: str, group: str, topic: str, queue: MessageQueue) -> None:
        self.link = BlockingConnection(parse_address(address))
        subscription = SubscriptionData(topic=topic)
        data = ConsumerData(group_name=group, subscription_data_set=[subscription])
        beat = HeartbeatData(client_id="member-1", consumer_data_set=[data])
        self.link.request(Command(RequestCode.HEART_BEAT, 0, body=beat.encode()))
        lock = LockRequest(client_id="member-1", consumer_group=group, mq_set=[QueueBody.of(queue)])
        self.link.request(Command(RequestCode.LOCK_BATCH_MQ, 0, body=lock.encode()))

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        self.link.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext()))


def test_group_shows_members_lag_owner_and_epoch(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-group", 1, ordered=True)
    fill(broker, "a-group", 7)
    queue = queue_of(admin, "a-group")
    member = Member(broker.address, "a-billing", "a-group", queue)
    member.commit("a-billing", queue, 3)
    described = admin.describe_group("a-billing")
    (lease,) = admin.locks("a-billing")
    member.link.close()
    assert [each.client_id for each in described.members] == ["member-1"]
    assert described.subscriptions["a-group"] == "*"
    (place,) = [each for each in described.queues if each.queue == queue]
    assert (place.offset, place.end, place.lag) == (3, 7, 4)
    assert (place.owner, place.epoch) == ("member-1", lease.epoch)
    assert lease.epoch >= 1
    assert 0 < lease.remaining < 60
    assert described.note == ""
    assert "a-billing" in admin.groups()


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("first", 0),
        ("last", 6),
        (AtOffset(QueueOffset(2)), 2),
        (AtOffset(QueueOffset(99)), 6),
        (AtTime(0.0), 0),
    ],
)
def test_reset_moves_an_offline_group_and_a_dry_run_does_not(
    broker: EmbeddedBroker, admin: Admin, to: object, after: int
) -> None:
    topic = f"a-reset-{after}-{type(to).__name__}"
    admin.create_topic(topic, 1)
    fill(broker, topic, 6)
    queue = queue_of(admin, topic)
    member = Member(broker.address, "a-resetting", topic, queue)
    member.commit("a-resetting", queue, 4)
    member.link.close()
    (change,) = admin.reset_offsets("a-resetting", topic, to=to, dry_run=True)  # type: ignore[arg-type]
    assert (change.before, change.after) == (4, after)
    assert admin.committed("a-resetting", queue) == 4
    admin.reset_offsets("a-resetting", topic, to=to)  # type: ignore[arg-type]
    assert admin.committed("a-resetting", queue) == after


def test_a_group_that_never_read_has_no_offset(broker: EmbeddedBroker, admin: Admin) -> None:
    """RocketMQ returns 0 here, which looks like a group at the first message."""
    admin.create_topic("a-unread", 1)
    fill(broker, "a-unread", 3)
    assert admin.committed("a-unread-group", queue_of(admin, "a-unread")) is None
    (change,) = admin.reset_offsets("a-unread-group", "a-unread", to="last", dry_run=True)
    assert (change.before, change.after) == (None, 3)


def test_reset_moves_the_named_queues_only(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-some", 3)
    (change,) = admin.reset_offsets("a-halves", "a-some", to="first", queues=[1])
    assert change.queue.queue_id == 1
    known = [admin.committed("a-halves", queue_of(admin, "a-some", number)) for number in range(3)]
    assert known == [None, 0, None]
    assert admin.reset_offsets("a-halves", "a-some", to="first", queues=[9]) == ()


def test_a_reset_moves_connected_members_and_leaves_other_queues_alone(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-online", 2, ordered=True)
    with Producer(broker.address) as producer:
        for number in range(4):
            producer.send("a-online", number, key="left", queue=0)
            producer.send("a-online", number, key="right", queue=1)
    seen: dict[str, list[int]] = {"left": [], "right": []}
    app = App(broker.address, group="a-movers")

    @app.ordered("a-online")
    def note(value: int, message: Message) -> None:
        seen[str(message.key)].append(value)

    with app:
        true_at_last(lambda: len(seen["left"]) == len(seen["right"]) == 4)
        admin.reset_offsets("a-movers", "a-online", to=AtOffset(QueueOffset(2)), queues=[1])
        true_at_last(lambda: len(seen["right"]) == 6)
        queue = queue_of(admin, "a-online", 1)
        true_at_last(lambda: admin.committed("a-movers", queue) == 4)
    assert seen == {"left": [0, 1, 2, 3], "right": [0, 1, 2, 3, 2, 3]}


def test_reset_to_an_unknown_position_is_refused(broker: EmbeddedBroker, admin: Admin) -> None:
    admin.create_topic("a-nowhere", 1)
    with pytest.raises(InvalidOption, match="to='yesterday' must be"):
        admin.reset_offsets("g", "a-nowhere", to="yesterday")  # type: ignore[arg-type]


def test_an_apache_broker_reports_no_leases_and_the_note_says_so() -> None:
    """Its answer 'request code not supported' is not an error here."""
    with FakeBroker(lane=False) as stock:
        cluster = ClusterInfo(
            broker_addr_table={"fake": BrokerData(broker_name="fake", broker_addrs={0: str(stock.address)})}
        )
        stock.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda command: (0, {}, cluster.encode())
        stock.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda command: (206, {}, b"")
        stock.answers[RequestCode.GET_CONSUME_STATS] = lambda command: (0, {}, ConsumeStats().encode())
        with Admin(str(stock.address)) as admin:
            assert admin.locks() == ()
            described = admin.describe_group("g")
    assert described.members == ()
    assert described.note == (
        "fake is not a LaneMQ broker: owners are as the members report them, and there are no leases, epochs or keys "
        "parked at a broker."
    )


def test_a_group_that_has_committed_nothing_at_an_apache_broker_has_no_known_lag() -> None:
    """The broker leaves its queues out, so they would count as a lag of 0."""
    online = ConsumerConnection(subscription_table={each: SubscriptionData(topic=each) for each in ("t", "%RETRY%g")})
    with FakeBroker(lane=False) as stock:
        cluster = ClusterInfo(
            broker_addr_table={"fake": BrokerData(broker_name="fake", broker_addrs={0: str(stock.address)})}
        )
        stock.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda command: (0, {}, cluster.encode())
        stock.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda command: (0, {}, online.encode())
        stock.answers[RequestCode.GET_CONSUME_STATS] = lambda command: (0, {}, ConsumeStats().encode())
        with Admin(str(stock.address)) as admin:
            described = admin.describe_group("g")
    assert described.note.endswith("Nothing is committed in t yet, so the lag there is not known.")


def test_a_topic_that_a_broker_deletes_with_an_error_is_gone_from_the_name_servers() -> None:
    """RocketMQ 5.3 without timer messages. One that is still there was not deleted, and that is an error."""
    with FakeCluster(["broker-a"]) as cluster, Admin(cluster.address) as admin:
        broker = cluster.brokers["broker-a"]
        broker.answers[RequestCode.DELETE_TOPIC_IN_BROKER] = lambda _: (ResponseCode.SYSTEM_ERROR, {}, b"")
        cluster.create("stays")
        with pytest.raises(LaneError, match="the broker refused"):
            admin.delete_topic("stays")
        assert cluster.servers[0].codes[RequestCode.DELETE_TOPIC_IN_NAMESRV] == 0
        admin.delete_topic("deleted")
        assert cluster.servers[0].codes[RequestCode.DELETE_TOPIC_IN_NAMESRV] == 1


def test_topics_and_groups_of_an_apache_broker_itself_are_not_listed() -> None:
    """Its name server knows only some of the topics, so the broker is asked."""
    groups = dict.fromkeys(
        ["orders", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL", "%DLQ%orders"], SubscriptionGroupConfig()
    )
    with FakeCluster(["broker-a"]) as cluster, Admin(cluster.address) as admin:
        names = ["orders", "SELF_TEST_TOPIC", "broker-a", "DefaultCluster_REPLY_TOPIC", "%RETRY%g", "rmq_sys_REVIVE"]
        cluster.servers[0].answers |= {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _: (0, {}, TopicList(topic_list=names).encode()),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _: (0, {}, TopicList(topic_list=["broker-a"]).encode()),
        }
        own = TopicList(topic_list=["DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE"])
        cluster.brokers["broker-a"].answers |= {
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: lambda _: (0, {}, own.encode()),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda _: (
                0, {}, SubscriptionGroupTable(subscription_group_table=groups).encode()
            ),
        }  # fmt: skip
        assert admin.topics() == ["orders"]
        assert admin.topics(internal=True) == sorted(names)
        assert admin.groups() == ["orders"]


def test_a_commit_creates_a_group_that_an_apache_broker_does_not_know() -> None:
    """Apache 5.3 refuses the offset of such a group, so a mirror could not move groups to a new cluster."""
    groups: set[str] = set()
    offsets: dict[str, int] = {}

    def create(command: Command) -> tuple[int, dict[str, str], bytes]:
        groups.add(SubscriptionGroupConfig.decode(command.body).group_name)
        return 0, {}, b""

    def commit(command: Command) -> tuple[int, dict[str, str], bytes]:
        group = command.ext["consumerGroup"]
        if group not in groups:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, {}, b""
        offsets[group] = int(command.ext["commitOffset"])
        return 0, {}, b""

    with FakeCluster(["broker-a"]) as cluster, Admin(cluster.address) as admin:
        cluster.create("orders", 1)
        cluster.brokers["broker-a"].answers |= {
            RequestCode.UPDATE_CONSUMER_OFFSET: commit,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create,
        }
        admin.commit("billing", MessageQueue("orders", "broker-a", 0), 7)
    assert (groups, offsets) == ({"billing"}, {"billing": 7})
