"""A cluster as Apache RocketMQ's: name servers that forget brokers which are away, and brokers without stamps.

As by default there, the name servers keep layouts but do not put them into routes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from tests.client.fake_broker import FakeBroker, FakeTopic, Stored

from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import BrokerData, ClusterInfo, QueueData, TopicConfigBody, TopicList, TopicRouteData
from lanemq.wire.stats_bodies import TopicOffset, TopicStatsTable

Answer = tuple[int, dict[str, str], bytes]


class FakeCluster:
    """Use as a context manager; `address` names all name servers."""

    def __init__(self, brokers: Sequence[str] = ("broker-a", "broker-b"), *, servers: int = 1) -> None:
        self.brokers = {name: FakeBroker(lane=False) for name in brokers}
        self.servers = [FakeBroker(lane=False) for _ in range(servers)]
        self.layouts: list[dict[str, str]] = [{} for _ in range(servers)]
        self.flags: dict[str, set[str]] = {name: set() for name in brokers}
        """Topics with the order flag, by broker."""
        self.layouts_in_routes = False
        self.replicas: dict[str, FakeBroker] = {}
        """A replica of some brokers, by broker. It has the topics that a test gives it."""
        self._up = set(brokers)
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        return ";".join(str(server.address) for server in self.servers)

    def create(self, topic: str, queues: int = 4, layout: str | None = None, *, on: Sequence[str] = ()) -> None:
        """Creates a topic on all brokers, or some; with its layout at all name servers."""
        for name in on or self.brokers:
            self.brokers[name].create(topic, queues)
        for table in self.layouts if layout is not None else ():
            table[topic] = layout or ""

    def kill(self, broker: str) -> None:
        self._up.discard(broker)
        self.brokers[broker].stop()

    def restart(self, broker: str) -> None:
        self.brokers[broker].start()
        self._up.add(broker)

    def add_replica(self, broker: str) -> FakeBroker:
        """A replica that runs beside the broker's master, without topics."""
        replica = self.replicas[broker] = self._stack.enter_context(FakeBroker(lane=False))
        replica.answers[RequestCode.GET_TOPIC_CONFIG] = lambda command: self._config_of(replica, broker, command)
        return replica

    def promote(self, broker: str) -> FakeBroker:
        """Another replica becomes the broker's master, at another address. Returns the former one, which still runs."""
        former = self.brokers[broker]
        replica = self.brokers[broker] = self._stack.enter_context(FakeBroker(lane=False))
        replica.topics = former.topics
        return former

    def stored(self, topic: str) -> dict[MessageQueue, list[Stored]]:
        return {
            MessageQueue(topic, name, number): messages
            for name, broker in self.brokers.items()
            for number, messages in broker.topics.get(topic, FakeTopic()).messages.items()
            if messages
        }

    def queues_of_keys(self, topic: str) -> dict[str, set[MessageQueue]]:
        """In which queues the messages of each key are."""
        found: dict[str, set[MessageQueue]] = {}
        for queue, messages in self.stored(topic).items():
            for message in messages:
                found.setdefault(message.properties["__SHARDINGKEY"], set()).add(queue)
        return found

    def __enter__(self) -> Self:
        for name, broker in self.brokers.items():
            self._stack.enter_context(broker)
            broker.answers |= {
                RequestCode.UPDATE_AND_CREATE_TOPIC: lambda command, name=name: self._create(name, command),
                RequestCode.GET_TOPIC_CONFIG: lambda command, name=name: self._config(name, command),
                RequestCode.GET_TOPIC_STATS_INFO: lambda command, name=name: self._stats(name, command),
                RequestCode.DELETE_TOPIC_IN_BROKER: lambda command, name=name: self._delete_topic(name, command),
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: lambda _: (0, {}, TopicList().encode()),
            }
        for number, server in enumerate(self.servers):
            self._stack.enter_context(server)
            server.answers |= {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda command, number=number: self._route(number, command),
                RequestCode.GET_BROKER_CLUSTER_INFO: lambda _: (0, {}, self._info().encode()),
                RequestCode.PUT_KV_CONFIG: lambda command, number=number: self._put(number, command),
                RequestCode.GET_KV_CONFIG: lambda command, number=number: self._get(number, command),
                RequestCode.DELETE_KV_CONFIG: lambda command, number=number: self._delete(number, command),
                RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda _: (0, {}, b""),
                RequestCode.GET_NAMESRV_CONFIG: lambda _: (
                    0,
                    {},
                    f"listenPort=9876\norderMessageEnable={str(self.layouts_in_routes).lower()}\n".encode(),
                ),
            }
        return self

    def __exit__(self, *_: object) -> None:
        for name in set(self.brokers) - self._up:
            self.restart(name)  # what is stopped twice fails
        self._stack.close()

    # brokers

    def _create(self, name: str, command: Command) -> Answer:
        topic = command.ext["topic"]
        self.brokers[name].create(topic, int(command.ext["writeQueueNums"]))
        if command.ext.get("order") == "true":
            self.flags[name].add(topic)
        else:
            self.flags[name].discard(topic)
        return 0, {}, b""

    def _config(self, name: str, command: Command) -> Answer:
        return self._config_of(self.brokers[name], name, command)

    def _config_of(self, broker: FakeBroker, name: str, command: Command) -> Answer:
        topic = command.ext["topic"]
        known = broker.topics.get(topic)
        if known is None:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        body = TopicConfigBody(
            topic_name=topic,
            read_queue_nums=known.queues,
            write_queue_nums=known.queues,
            order=topic in self.flags[name],
        )
        return 0, {}, body.encode()

    def _delete_topic(self, name: str, command: Command) -> Answer:
        self.brokers[name].topics.pop(command.ext["topic"], None)
        return 0, {}, b""

    def _stats(self, name: str, command: Command) -> Answer:
        topic = self.brokers[name].topics.get(command.ext["topic"])
        if topic is None:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        table = {
            MessageQueue(command.ext["topic"], name, number): TopicOffset(max_offset=len(topic.messages[number]))
            for number in range(topic.queues)
        }
        return 0, {}, TopicStatsTable(offset_table=table).encode()

    # name servers

    def _data(self, name: str) -> BrokerData:
        addresses = {0: str(self.brokers[name].address)} if name in self._up else {}
        if name in self.replicas:
            addresses[1] = str(self.replicas[name].address)
        return BrokerData(broker_name=name, broker_addrs=addresses)

    def _info(self) -> ClusterInfo:
        return ClusterInfo(broker_addr_table={name: self._data(name) for name in sorted({*self._up, *self.replicas})})

    def _route(self, number: int, command: Command) -> Answer:
        topic = command.ext["topic"]
        names = [name for name in sorted({*self._up, *self.replicas}) if topic in self.brokers[name].topics]
        if not names:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        counts = {name: self.brokers[name].topics[topic].queues for name in names}
        route = TopicRouteData(
            broker_datas=[self._data(name) for name in names],
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count)
                for name, count in counts.items()
            ],
            order_topic_conf=self.layouts[number].get(topic, "") if self.layouts_in_routes else "",
        )
        return 0, {}, route.encode()

    def _put(self, number: int, command: Command) -> Answer:
        self.layouts[number][command.ext["key"]] = command.ext["value"]
        return 0, {}, b""

    def _get(self, number: int, command: Command) -> Answer:
        layout = self.layouts[number].get(command.ext["key"])
        return (ResponseCode.QUERY_NOT_FOUND, {}, b"") if layout is None else (0, {"value": layout}, b"")

    def _delete(self, number: int, command: Command) -> Answer:
        self.layouts[number].pop(command.ext["key"], None)
        return 0, {}, b""
