"""What this machine allows without LaneMQ: the limits that its figures are compared with.

    python -m benchmarks limits

- `limits/round_trip`: a request of 548 bytes and its answer of 269, as a single send has them, between two Python
  processes that do nothing else. The server waits in a blocking read, or on the broker's event loop, or there and
  writes a record of 303 bytes to a file. The client reads its answer itself, or, with `reader`, in a second thread,
  as a producer does.
- `limits/page_cache`: writing a file of 256 MiB for the first time, and the same bytes again. On a virtual machine,
  memory that was never used before costs many times more to write to.
"""

import asyncio
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.harness import report

REQUEST, ANSWER, RECORD = bytes(548), bytes(269), bytes(303)
ROUNDS, TRIPS, FILE_MIB = 5, 2_000, 256
_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    for server, reader in (("blocking", False), ("loop", False), ("loop+write", False), ("loop+write", True)):
        measure_round_trip(server, reader=reader)
    measure_page_cache()


def measure_round_trip(server: str, *, reader: bool) -> None:
    """The median round of the wall time, and the CPU time of both processes over all rounds."""
    command = [sys.executable, "-c", f"from benchmarks.limits import serve; serve({server!r})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask = _with_reader(connection) if reader else lambda: _ask(connection)
            _trips(ask)
            cpu, theirs = time.process_time(), _cpu_seconds(process.pid)
            rounds = sorted(_trips(ask) for _ in range(ROUNDS))
            cpu, theirs = time.process_time() - cpu, _cpu_seconds(process.pid) - theirs
            connection.shutdown(socket.SHUT_RDWR)  # a close alone would not end the reader's wait
    micros = {"client_cpu_us": cpu, "server_cpu_us": theirs}
    more = {name: round(seconds / ROUNDS / TRIPS * 1e6, 1) for name, seconds in micros.items()}
    median, best = rounds[ROUNDS // 2], rounds[0]
    report("limits/round_trip", median * 1e6, "us", best=round(best * 1e6, 1), server=server, reader=reader, **more)


def _trips(ask: Callable[[], None]) -> float:
    """Seconds of one round trip."""
    began = time.perf_counter()
    for _ in range(TRIPS):
        ask()
    return (time.perf_counter() - began) / TRIPS


def _ask(connection: socket.socket) -> None:
    connection.sendall(REQUEST)
    _receive(connection, len(ANSWER))


def _receive(connection: socket.socket, size: int) -> bool:
    """Reads that many bytes; false at the end of the connection."""
    while size:
        data = connection.recv(size)
        if not data:
            return False
        size -= len(data)
    return True


def _with_reader(connection: socket.socket) -> Callable[[], None]:
    arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def read() -> None:
        while _receive(connection, len(ANSWER)):
            arrived.put(True)

    threading.Thread(target=read, daemon=True).start()

    def ask() -> None:
        connection.sendall(REQUEST)
        arrived.get()

    return ask


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


# the other process


def serve(kind: str) -> None:
    """Answers one connection until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile() as file:
        print(listener.getsockname()[1], flush=True)
        if kind == "blocking":
            connection, _ = listener.accept()
            with connection:
                while _receive(connection, len(REQUEST)):
                    connection.sendall(ANSWER)
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(listener, file.fileno() if kind == "loop+write" else None))


async def _serve(listener: socket.socket, file: int | None) -> None:
    over = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: _Answering(file, over), sock=listener)
    await over.wait()
    server.close()


class _Answering(asyncio.Protocol):
    def __init__(self, file: int | None, over: asyncio.Event) -> None:
        self._file, self._over = file, over
        self._open = self._at = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._open += len(data)
        if self._open < len(REQUEST) or self._transport is None:
            return
        self._open = 0
        if self._file is not None:
            self._at += os.pwrite(self._file, RECORD, self._at)
        self._transport.write(ANSWER)

    def connection_lost(self, error: Exception | None) -> None:
        self._over.set()


# the page cache


def measure_page_cache() -> None:
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryFile() as file:
        for pages in ("new", "again"):
            began = time.process_time()
            for at in range(FILE_MIB):
                os.pwrite(file.fileno(), piece, at << 20)
            report("limits/page_cache", (time.process_time() - began) / FILE_MIB * 1e3, "ms CPU/MiB", pages=pages)
