"""A server whose request codes name its manners."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Self

from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.net.serving.server import Listener, Server
from lanemq.wire.command import Command, Frame, decode_command, encode_command, encode_response


class EchoServer:
    """Runs on a loop in a thread of its own."""

    ECHO: ClassVar = 1
    SILENT: ClassVar = 2
    HANG_UP: ClassVar = 3
    NONSENSE: ClassVar = 4
    NOISY: ClassVar = 5

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, **limits: Any) -> None:
        self.address = Address("127.0.0.1", 0)
        self.seen: list[bytes] = []
        self.peers = 0
        self.server: Server | None = None
        self._limits = limits
        self._loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server is not None
        asyncio.run_coroutine_threadsafe(self.server.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self.server = Server(self, **self._limits)
        listener = Listener(self.address)
        self.server.accept_from(listener)
        self.address = listener.address

    def call(self, function: Callable[[], object]) -> None:
        """Runs the function on the server's loop and waits for it."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def connected(self, peer: Peer) -> None:
        self.peers += 1

    def closed(self, peer: Peer) -> None:
        self.peers -= 1

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        command = decode_command(frames.popleft())
        self.seen.append(command.body)
        if command.code == self.HANG_UP:
            peer.close("as asked")
        elif command.code == self.NONSENSE:
            peer.send(b"\x7f\xff\xff\xff" * 4)
        elif command.code != self.SILENT:
            if command.code == self.NOISY:
                peer.send(encode_command(Command(40, 7)))
                peer.send(encode_response(command.opaque + 1000))
            peer.send(encode_response(command.opaque, body=command.body))
