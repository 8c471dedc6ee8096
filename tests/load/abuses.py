"""Clients that hurt a broker, carelessly or on purpose: `python -m tests.load.abuses NAME ADDRESS`, until it is killed.

Each prints `ready` when its abuse is in full swing. A refused or closed connection is part of the game: the abuser
tries again. With `tls` as a third argument, those that send frames encrypt them.
"""

import contextlib
import os
import random
import resource
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable

from tests.broker.raw_client import RawClient, lock_body, pull_ext, send_ext

from lanemq.model.errors import LaneError
from lanemq.net.address import parse_address
from lanemq.wire.codes import RequestCode

MIB = 1024 * 1024
SILENT = 1_100
CROWD = 300
TOPIC = "good"
HANDSHAKE_BEGUN = b"\x16\x03\x01\x02"


def silent_connections(address: str) -> None:
    """Connects as often as the operating system allows, and says nothing."""
    _hold(address, b"")


def half_handshakes(address: str) -> None:
    """As silent connections, after the first bytes of a TLS handshake."""
    _hold(address, HANDSHAKE_BEGUN)


def _hold(address: str, begun: bytes) -> None:
    held: list[socket.socket | None] = [None] * SILENT
    announced = False
    while True:
        for number, each in enumerate(held):
            try:
                if each is None:
                    each = held[number] = socket.create_connection(parse_address(address), timeout=5)
                    each.sendall(begun)
                    each.setblocking(False)
                gone = each.recv(1) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone and each is not None:
                each.close()
                held[number] = None
        if not announced:
            announced = True
            ready()
        time.sleep(0.05)


def handshakes(address: str) -> None:
    """Makes TLS connections and closes them, as fast as they are made."""
    ready()
    while True:
        with contextlib.suppress(OSError):
            encrypted(socket.create_connection(parse_address(address), timeout=5)).close()


def encrypted(plain: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def slow_frames(address: str) -> None:
    """Announces frames of a mebibyte and sends them byte by byte."""
    held: list[socket.socket] = []
    for _ in range(300):
        plain = socket.create_connection(parse_address(address), timeout=60)
        held.append(encrypted(plain) if "tls" in sys.argv[3:] else plain)
        held[-1].sendall(MIB.to_bytes(4, "big") + (MIB // 2).to_bytes(4, "big"))
    ready()
    while True:
        for each in held:
            with contextlib.suppress(OSError):
                each.sendall(b"{")
        time.sleep(0.01)


def deaf_readers(address: str) -> None:
    """Ask for messages and never read the answers."""
    held: list[RawClient] = []
    announced = False
    while True:
        held = [each for each in held if not _closed(each)]
        while len(held) < CROWD:
            try:
                each = RawClient(address)
            except (OSError, LaneError):
                break
            asked = [
                each.frame(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 0, most=4096, laneMaxBytes=str(MIB)))[1]
            ] * 100
            each.socket.setblocking(False)
            with contextlib.suppress(OSError):
                each.socket.send(b"".join(asked))
            held.append(each)
        if not announced:
            announced = True
            ready()
        time.sleep(0.2)


def greedy_readers(address: str) -> None:
    """Ask for as much as a pull can hold, read the answers, and ask again, all of them at the same time."""

    def pull(raw: RawClient) -> bytes:
        return raw.frame(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 0, most=4096, laneMaxBytes=str(4 * MIB)))[1]

    _many(address, pull)


def eager_senders(address: str) -> None:
    """Send messages of 4 KB one by one, and the next one as soon as one is acknowledged, all at the same time."""

    def send(raw: RawClient) -> bytes:
        return raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC), b"x" * 4_000)[1]

    _many(address, send)


def _many(address: str, request: Callable[[RawClient], bytes]) -> None:
    """Repeat a request on many connections, each as soon as it is answered."""
    waiting, buffer = selectors.DefaultSelector(), bytearray(MIB)
    left: dict[socket.socket, int] = {}
    for _ in range(CROWD):
        each = RawClient(address)
        each.socket.setblocking(True)
        frame = request(each)
        each.socket.sendall(frame)
        waiting.register(each.socket, selectors.EVENT_READ, (each, frame))
    ready()
    while True:
        for key, _ in waiting.select():
            each, frame = key.data
            if (due := left.get(each.socket, 0)) == 0:
                due = int.from_bytes(each.socket.recv(4, socket.MSG_WAITALL), "big")
            due -= each.socket.recv_into(buffer, min(due, MIB))
            left[each.socket] = due
            if due == 0:
                each.socket.sendall(frame)


def malformed(address: str) -> None:
    """Sends what is nearly a frame."""
    randomly = random.Random(7)
    ready()
    while True:
        with contextlib.suppress(OSError, EOFError, LaneError), RawClient(address) as raw:
            _, frame = raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC), b"x" * 100)
            for _ in range(50):
                changed = bytearray(frame)
                for _ in range(randomly.randrange(1, 8)):
                    changed[randomly.randrange(4, len(changed))] = randomly.randrange(256)
                raw.socket.sendall(changed)


def loose_json(address: str) -> None:
    """Heartbeats of nearly 4 MiB that no JSON parser accepts."""
    member = b'{"groupName":"g",0:[' + b"1 ," * 600_000 + b"1]}"
    body = b'{"clientID":"c","consumerDataSet":[' + member + b"]," + b'0:"' + b"x" * (MIB // 4) + b'"}'
    _repeat(address, lambda raw: raw.ask(RequestCode.HEART_BEAT, {}, body))


def invented_groups(address: str) -> None:
    """Joins, commits and pulls under group names that are new each time."""
    prefix, numbers = f"i{os.getpid()}-", iter(range(10**9))

    def invent(raw: RawClient) -> None:
        pending = []
        for _ in range(50):
            group = f"{prefix}{next(numbers)}"
            beat = heartbeat_of([f"{group}-{each}" for each in range(20)])
            pending.append(raw.post(RequestCode.HEART_BEAT, {}, beat))
            ext = {"consumerGroup": group, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
            pending.append(raw.post(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
            pending.append(raw.post_pull(TOPIC, 0, group=group, most=1))
        for opaque in pending:
            raw.answer(opaque)

    _repeat(address, invent)


def lock_flood(address: str) -> None:
    """Takes and releases locks under invented groups."""
    prefix, numbers = f"l{os.getpid()}-", iter(range(10**9))

    def flood(raw: RawClient) -> None:
        pending = []
        for _ in range(100):
            body = lock_body("flood", TOPIC, (0, 1, 2, 3), f"{prefix}{next(numbers)}")
            pending.append(raw.post(RequestCode.LOCK_BATCH_MQ, {}, body))
        for opaque in pending:
            raw.answer(opaque)

    _repeat(address, flood)


def searches(address: str) -> None:
    """Searches for keys that do not exist."""
    numbers = iter(range(10**9))

    def search(raw: RawClient) -> None:
        pending = []
        for _ in range(20):
            ext = {"topic": TOPIC, "key": f"nothing-{next(numbers)}", "maxNum": "64"}
            ext |= {"beginTimestamp": "0", "endTimestamp": str(2**62)}
            pending.append(raw.post(RequestCode.QUERY_MESSAGE, ext))
        for opaque in pending:
            raw.answer(opaque)

    _repeat(address, search)


def topic_creations(address: str) -> None:
    """Creates 2,500 topics as fast as they are answered, then starts over with new names."""
    prefix, numbers = f"t{os.getpid()}-", iter(range(10**9))

    def create(raw: RawClient) -> None:
        pending = []
        for _ in range(100):
            ext = {"topic": f"{prefix}{next(numbers)}", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            pending.append(raw.post(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
        for opaque in pending:
            raw.answer(opaque)

    _repeat(address, create)


def heartbeat_of(groups: list[str]) -> bytes:
    members = ",".join(f'{{"groupName":"{group}","subscriptionDataSet":[]}}' for group in groups)
    return f'{{"clientID":"{groups[0]}","consumerDataSet":[{members}]}}'.encode()


ABUSES: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (
        silent_connections,
        half_handshakes,
        handshakes,
        slow_frames,
        deaf_readers,
        greedy_readers,
        eager_senders,
        malformed,
        loose_json,
        invented_groups,
        lock_flood,
        searches,
        topic_creations,
    )
}


def _repeat(address: str, abuse: Callable[[RawClient], object]) -> None:
    ready()
    while True:
        with contextlib.suppress(OSError, EOFError, LaneError), RawClient(address) as raw:
            while True:
                abuse(raw)


def _closed(raw: RawClient) -> bool:
    try:
        return raw.socket.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def ready() -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ABUSES[sys.argv[1]](sys.argv[2])
