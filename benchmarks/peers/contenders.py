"""Who takes part, with which client, and on which paths."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.peers import packages
from benchmarks.peers.processes import PeerServer
from benchmarks.peers.servers.kafka import KafkaServer
from benchmarks.peers.servers.lane import LaneServer
from benchmarks.peers.servers.nats import NatsServer
from benchmarks.peers.servers.redis import RedisServer
from benchmarks.peers.servers.rocketmq import RocketServer

OURS = "LaneMQ"
BLOCKING = ("one", "pipelined", "batch")


@dataclass(frozen=True)
class Contender:
    """A client with its server. A path that it does not have is a dash in the results."""

    name: str
    server: type[PeerServer]
    command: Callable[[], list[str]]
    """How its client starts; raises `UnavailableError` if that cannot be had."""
    settings: str
    """Of the client, in words."""
    ways: tuple[str, ...] = ()
    """Ways of sending."""
    reads: bool = True
    lanes: int = 0
    """Keys that it handles at once within one queue; 0: one after the other."""
    paces: bool = True
    takes_over: bool = True
    options: dict[str, int] = field(default_factory=dict)
    """Words of every job of its client."""
    grows: bool = False
    """Whether its cost over many queues and keys is measured."""
    session_ms: int = 0
    """Session time-out of its members that is set for the take-over; 0: its default."""
    helper: str = ""
    """The contender whose client creates its topics and fills them, if it cannot itself."""


def _python(module: str) -> Callable[[], list[str]]:
    return lambda: [str(packages.python_clients()), "-m", "benchmarks.peers.clients", module]


def _own(module: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", "benchmarks.peers.clients", module]


def _java(name: str) -> Callable[[], list[str]]:
    def command() -> list[str]:
        logs = f"{tempfile.gettempdir()}/lanemq-peers-logs"
        home = [f"-Duser.home={logs}", f"-Drocketmq.client.logRoot={logs}"]
        return ["java", "-Xmx2g", *home, "-cp", packages.java_client(name), f"{name.title()}Client"]

    return command


CONTENDERS = (
    Contender(
        OURS,
        LaneServer,
        _own("lane"),
        "`send`, `submit`, `send_many`; `App.ordered` with its defaults, 32 lanes for the slow handler",
        ways=(*BLOCKING, "async one", "async pipelined", "async tasks"),
        lanes=32,
        grows=True,
    ),
    Contender(
        "confluent-kafka",
        KafkaServer,
        _python("confluent"),
        "confluent-kafka 2.16.1, idempotent producer, a queue for all messages of a round; `produce` + `flush` with "
        "linger 0 (one at a time), a delivery callback each with `poll` every 100 messages (pipelined) and "
        "`produce_batch` of 1,000 (batches), both with the default linger of 5 ms; `AIOProducer` with its defaults "
        "(1,000 messages or a second); a producer for each of 50 threads; `consume(1000)` with automatic commits and "
        "`fetch.queue.backoff.ms=10`",
        ways=(*BLOCKING, "async pipelined"),
    ),
    Contender(
        "confluent-kafka (linger 50)",
        KafkaServer,
        _python("confluent"),
        "the same with `linger.ms=50` and `batch.num.messages=100000`; pipelined and batches only",
        ways=("pipelined", "batch"),
        options={"linger_ms": 50},
        reads=False,
        paces=False,
        takes_over=False,
    ),
    Contender(
        "confluent-kafka (prefetch)",
        KafkaServer,
        _python("confluent"),
        "the same consumer with `queued.min.messages=200000` and room for them; reading only",
        options={"prefetch": 200_000},
        paces=False,
        takes_over=False,
        grows=True,
    ),
    Contender(
        "aiokafka",
        KafkaServer,
        _python("aiokafka_client"),
        "aiokafka 0.14.0, idempotent producer, `max_batch_size` 1 MB instead of 16 KB, linger 50 ms with a future each "
        "and 0 otherwise; `getmany(max_records=1000)` with automatic commits",
        ways=("async one", "async pipelined", "async tasks"),
        helper="confluent-kafka",
    ),
    Contender(
        "Redis Streams",
        RedisServer,
        _python("redis_streams"),
        "redis-py 8.1.0 with hiredis; a stream per queue; `XADD`, pipelines of 1,000; 50 connections for tasks; "
        "`XREADGROUP` of 1,000 and one `XACK` for all",
        ways=("one", "batch", "async one", "async tasks"),
        takes_over=False,
    ),
    Contender(
        "NATS JetStream",
        NatsServer,
        _python("nats_jetstream"),
        "nats-py 2.16.0; key in the subject; `publish`, `publish_async`; pull consumer, 1,000 at a time, the last "
        "acknowledged for all; take-over with `max_ack_pending=1`, the only ordered way to share it",
        ways=("async one", "async pipelined", "async tasks"),
    ),
    Contender(
        "RocketMQ (Java)",
        RocketServer,
        _java("rocketmq"),
        "rocketmq-client 5.3.3, heap 2 GB; `send` to the queue of the key, 64 threads for pipelining (its async "
        "send keeps no order), batches of 1,000 in a thread for each queue; `MessageListenerOrderly`, 32 at a time",
        ways=BLOCKING,
    ),
    Contender(
        "Parallel Consumer (Java)",
        KafkaServer,
        _java("parallel"),
        "Confluent's parallel-consumer-core 0.5.3.2, order by key, 32 keys at once",
        lanes=32,
        paces=False,
        takes_over=False,
        helper="confluent-kafka",
    ),
    Contender(
        "confluent-kafka (session 6 s)",
        KafkaServer,
        _python("confluent"),
        "session time-out 6 s, the shortest that a broker accepts by default, instead of 45 s; take-over only",
        reads=False,
        paces=False,
        session_ms=6_000,
    ),
)
