"""How long a connection of the console may be silent, and how many there may be.

Uvicorn closes a connection that is idle between two requests, but waits without end for a first request, for the rest
of one, and for a client that does not read its answer. Looking needs no sign-in, so anybody could hold all connections.
Here each of these waits has a limit. When there are too many connections, the one that has waited longest for a request
makes room: a browser sends its request at once, so that people do not notice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lanemq.net.address import origin_of
from lanemq.net.serving.descriptors import OTHER_FILES, connections_within, open_files_limit
from lanemq.net.serving.server import ConnectionLimits

MAX_CONNECTIONS = 512
"""Connections that may be open; half of them of one address. 200 may be event streams. Few: a large team cannot open
further pages. Many: each takes a descriptor."""
REQUEST_SECONDS = 10.0
"""Within this time a request must be complete up to its body. Short: clients with a slow line are cut off. Long: silent
connections take the place of others."""
STALL_SECONDS = 30.0
"""After this time without progress a connection is closed whose client sends the rest of a body, or reads an answer."""


def console_limits() -> ConnectionLimits:
    """The limits of a console, within the descriptors that the process may have."""
    total = connections_within(open_files_limit(), wanted=MAX_CONNECTIONS, files=OTHER_FILES)
    return ConnectionLimits(total, first_request=REQUEST_SECONDS)


class OpenConnections:
    """The connections of one server. Used from one event loop."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open = Counter[str]()
        self._silent: dict[ConsoleProtocol, None] = {}
        """Those that wait for a request, the oldest first."""

    def join(self, joining: "ConsoleProtocol") -> "ConsoleProtocol | None":
        """Counts a connection. Returns the one that must be closed for it, which may be itself."""
        self._open[joining.origin] += 1
        self.waits(joining)
        if self._open[joining.origin] > self.limits.of_one_address:
            return next(each for each in self._silent if each.origin == joining.origin)
        return next(iter(self._silent)) if self._open.total() > self.limits.total else None

    def waits(self, connection: "ConsoleProtocol") -> None:
        """The connection waits for a request from now on."""
        self._silent[connection] = None

    def works(self, connection: "ConsoleProtocol") -> None:
        """The connection has a request."""
        self._silent.pop(connection, None)

    def leave(self, connection: "ConsoleProtocol") -> None:
        self.works(connection)
        self._open[connection.origin] -= 1
        if not self._open[connection.origin]:
            del self._open[connection.origin]


class ConsoleProtocol(H11Protocol):
    """Uvicorn's protocol, with limits."""

    def __init__(self, *given: Any, connections: OpenConnections, **named: Any) -> None:
        super().__init__(*given, **named)
        self.origin = ""
        self._all = connections
        self._is_silent = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.origin = origin_of(self.client[0]) if self.client else ""
        self._end_after(self._all.limits.first_request, self.end)
        if (surplus := self._all.join(self)) is not None:
            surplus.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_after(STALL_SECONDS, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer()
        self._look()

    def end(self) -> None:
        """Closes the connection, whatever waits to be sent."""
        self._all.works(self)
        self.transport.abort()

    def _stalled(self) -> None:
        """Closes the connection, unless it is the console that has not taken what the client sent."""
        if self.flow.read_paused and not self.flow.write_paused:
            self._end_after(STALL_SECONDS, self._stalled)
        else:
            self.end()

    def _look(self) -> None:
        """Sets the time limit by what the client has sent so far."""
        if self.flow.write_paused:
            return  # the limit for reading the answer is running
        is_silent = self.conn.their_state is h11.IDLE
        if is_silent and not self._is_silent:
            self._all.waits(self)
            self._end_after(self._all.limits.first_request, self.end)
        elif not is_silent:
            self._all.works(self)
            self._stop_timer()
            if self.conn.their_state is h11.SEND_BODY:
                self._end_after(STALL_SECONDS, self._stalled)
        self._is_silent = is_silent

    def _end_after(self, seconds: float, end: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
