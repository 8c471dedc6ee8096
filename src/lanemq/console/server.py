"""Serves the console with uvicorn, until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import cast

import uvicorn

from lanemq.console.app import console_app
from lanemq.console.connections import ConsoleProtocol, OpenConnections, console_limits
from lanemq.console.settings import ConsoleSettings
from lanemq.net.address import Address
from lanemq.net.serving.server import ConnectionLimits
from lanemq.signals import handled

TOKEN_BYTES = 18
STOP_SECONDS = 2
"""How long open requests may take to end. Event streams never end by themselves."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def listening_socket(address: Address) -> socket.socket:
    """A socket that listens on the address; port 0 chooses one. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((address.host, address.port))
    except BaseException:
        found.close()
        raise
    return found


def url_of(listener: socket.socket) -> str:
    """The address that a person on this machine opens."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}/"


class ConsoleServer(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def console_server(
    settings: ConsoleSettings, token: str, ready: Callable[[], None], limits: ConnectionLimits | None = None
) -> ConsoleServer:
    """A server that does not run yet. `ready` is called when the first request can be answered."""
    protocol = partial(ConsoleProtocol, connections=OpenConnections(limits or console_limits()))
    config = uvicorn.Config(
        console_app(settings, token),
        http=cast(type[asyncio.Protocol], protocol),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return ConsoleServer(config, ready)


def serve(settings: ConsoleSettings, listener: socket.socket, token: str, ready: Callable[[], None]) -> None:
    """Serves until a signal."""
    server = console_server(settings, token, ready)
    with _signals_end(server):
        asyncio.run(server.serve(sockets=[listener]))


@contextlib.contextmanager
def _signals_end(server: uvicorn.Server) -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the server and nothing else.

    When it has stopped, uvicorn raises the signal again, which would end the process as if it had failed.
    """

    def received(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    with handled(received):
        yield
