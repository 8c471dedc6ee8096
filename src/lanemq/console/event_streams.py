"""Event streams of open pages, and how many of them there may be.

Each stream holds a connection, and its page is rendered again with every snapshot. A script that opens streams without
end, or a browser with hundreds of windows, would otherwise take the console's time and descriptors. Browsers close the
stream of a page that is not visible, so that people do not reach the limits.
"""

from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lanemq.console.reading import ConsoleBusy

MAX_STREAMS = 200
"""Event streams that may be open at a time, live tails included. Few: pages of a large team are not kept up to date.
Many: rendering them takes the console's time."""
MAX_STREAMS_PER_CLIENT = 50
"""Those of one address. Few: people behind a proxy that hides their addresses share them. Many: one client can take
those of all."""
RETRY_SECONDS = 10
"""After this time a page that was refused tries again; console.js has the same number."""

ADVICE = "close some of them, or reload this page to read it again"


class EventStreams:
    """Counts the open event streams, in all and of each client address. Used from one event loop."""

    def __init__(self, most: int = MAX_STREAMS, per_client: int = MAX_STREAMS_PER_CLIENT) -> None:
        self._most = most
        self._per_client = per_client
        self._open = Counter[str]()

    @property
    def open(self) -> int:
        return self._open.total()

    def take(self, client: str) -> None:
        """Counts a stream of this address. Raises `ConsoleBusy` if there may be no further one."""
        if self._open[client] >= self._per_client:
            raise ConsoleBusy(f"{self._per_client} pages are open at {client}, the limit for one address: {ADVICE}")
        if self.open >= self._most:
            raise ConsoleBusy(f"{self._most} pages are open, the limit of this console: {ADVICE}")
        self._open[client] += 1

    def leave(self, client: str) -> None:
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


class EventStream(StreamingResponse):
    """A response that counts as an open stream until it has ended, whatever ends it."""

    def __init__(self, events: AsyncIterator[str], streams: EventStreams, client: str) -> None:
        """Raises `ConsoleBusy` if the client may have no further one."""
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        streams.take(client)
        self._streams = streams
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.leave(self._client)
