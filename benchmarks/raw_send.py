"""How many single sends the broker alone can take: one request each, as many in flight as the connection holds.

    python -m benchmarks raw_send

The client writes bytes that were prepared before the measurement, and counts the frames of the replies.
"""

import socket
import threading

from benchmarks.harness import TOPIC, BrokerProcess, report_rounds, timed
from lanemq.client.producer.batches import PendingMessage, RequestBuilder, properties_text
from lanemq.model.queue import MessageQueue
from lanemq.net.address import parse_address
from lanemq.wire.command import encode_command

ROUNDS, MESSAGES, CHUNK = 5, 50_000, 256 * 1024


def main() -> None:
    for size in (100, 1000):
        with BrokerProcess() as broker:
            broker.create_topic(queues=1)
            with socket.create_connection(parse_address(broker.address)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                rounds = []
                for number in range(ROUNDS):
                    stream = requests(size, number * MESSAGES)
                    rounds.append(timed(broker, MESSAGES, lambda data=stream: pipeline(connection, data)))
                report_rounds("broker/pipelined_single_sends", rounds, mode=broker.mode, bytes=size)


def requests(size: int, first: int) -> bytes:
    """The frames of stamped single sends, as a LaneMQ producer would write them."""
    builder, queue, frames = RequestBuilder("bench", "bench-client", "bench-producer"), MessageQueue(TOPIC, "b", 0), []
    for sequence in range(first, first + MESSAGES):
        message = PendingMessage(b"x" * size, properties_text(f"key-{sequence % 100}", f"{sequence:032X}"), "")
        command = builder.send(queue, (message,), epoch=1, sequence=sequence, born=1)
        command.opaque = sequence
        frames.append(encode_command(command))
    return b"".join(frames)


def pipeline(connection: socket.socket, stream: bytes) -> None:
    writer = threading.Thread(target=connection.sendall, args=(stream,))
    writer.start()
    seen, rest = 0, b""
    while seen < MESSAGES:
        data = rest + connection.recv(CHUNK)
        at = 0
        while at + 4 <= len(data):
            length = 4 + int.from_bytes(data[at : at + 4], "big")
            if at + length > len(data):
                break
            assert data.startswith(b'{"code":0,', at + 8), data[at : at + length]
            at += length
            seen += 1
        rest = data[at:]
    writer.join()
