"""Free loopback ports, and waiting for a server."""

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")

HOST = "127.0.0.1"
GET_ROUTEINFO_BY_TOPIC = 105
"""RequestCode."""
MQ_VERSION = 473
"""MQVersion.V5_3_0: asks for strict JSON, and no GO_AWAY."""


def free_port(neighbours: tuple[int, ...] = ()) -> int:
    """A port that is free together with those at the given distances (a broker opens three in a row)."""
    while True:
        with socket.create_server((HOST, 0)) as found:
            port = int(found.getsockname()[1])
            if all(_is_free(port + distance) for distance in neighbours):
                return port


def lasting_port(neighbours: tuple[int, ...] = ()) -> int:
    """As `free_port`, for a server that starts later and may be started again: outside the range from which the system
    takes the ports of clients, so that none of them is in the way."""
    while True:
        port = random.randrange(12_000, 32_000)
        if all(_is_free(port + distance) for distance in (0, *neighbours)):
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def eventually(attempt: Callable[[], Answer | None], within: float, what: str, every: float = 0.2) -> Answer:
    """Asks until the answer is true; raises TimeoutError, which names the condition, after the deadline."""
    until = time.monotonic() + within
    pause = threading.Event()
    while True:
        answer = attempt()
        if answer:
            return answer
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {within:.0f} s; last answer {answer!r}")
        pause.wait(every)


def route(port: int, topic: str) -> dict[str, Any] | None:
    """The topic's route from the name server at the port; None while there is none."""
    try:
        code, body, _ = ask(port, GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    except OSError:
        return None
    if code != 0:
        return None
    found: dict[str, Any] = json.loads(body)
    return found


def ask(port: int, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
    """One request on its own connection; code, body and fields of the response."""
    header = {
        "code": code, "language": "OTHER", "version": MQ_VERSION, "opaque": 1, "flag": 0, "extFields": ext,
        "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    encoded = json.dumps(header).encode()
    with socket.create_connection((HOST, port), timeout=15) as connection:
        connection.sendall(struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        length, head = struct.unpack(">II", _exactly(connection, 8))
        answer = _exactly(connection, length - 4)
    response = json.loads(answer[:head])
    return int(response["code"]), answer[head:], response.get("extFields") or {}


def listens(port: int) -> bool | None:
    """True once something accepts connections there, else None."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return None
    return True


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed before the answer was complete")
        data += more
    return data
