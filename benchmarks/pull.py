"""How fast the broker hands out stored messages: raw answers to pulls, not looked into.

    python -m benchmarks pull

One connection, one pull at a time, one queue from its start to its end.
"""

from benchmarks.harness import TOPIC, BrokerProcess, made_messages, report_rounds, timed
from lanemq.client.producer.producer import Producer
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, PullResponse
from lanemq.wire.record import PULL_SUBSCRIPTION

ROUNDS, MESSAGES = 5, 100_000
MEBIBYTE = 2**20


def main() -> None:
    for size, most in ((100, MEBIBYTE), (1000, MEBIBYTE), (1000, 4 * MEBIBYTE)):
        with BrokerProcess() as broker:
            broker.create_topic(queues=1)
            with Producer(broker.address, codec="bytes") as producer:
                producer.send_many(TOPIC, made_messages(MESSAGES, size))
            measure(broker, size, most)


def measure(broker: BrokerProcess, size: int, most: int) -> None:
    with BlockingConnection(parse_address(broker.address)) as connection:
        total = pull_all(connection, most)
        rounds = [timed(broker, MESSAGES, lambda: pull_all(connection, most)) for _ in range(ROUNDS)]
    more = {"bytes": size, "pull_mib": most // MEBIBYTE}
    report_rounds("broker/pull", rounds, unit="MB/s", scale=total / MESSAGES / 1e6, **more)


def pull_all(connection: BlockingConnection, most: int) -> int:
    """Reads the queue from its start; the bytes that came."""
    offset = total = 0
    while True:
        header = PullHeader(
            consumer_group="bench",
            topic=TOPIC,
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=4096,
            sys_flag=PULL_SUBSCRIPTION,
            subscription="*",
            lane_max_bytes=most,
        )
        reply = connection.request(Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()))
        if not reply.body:
            return total
        total += len(reply.body)
        offset = PullResponse.from_ext(reply.ext).next_begin_offset
