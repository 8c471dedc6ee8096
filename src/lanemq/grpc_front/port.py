"""The narrow port between the transport and the service: methods, metadata, bytes in and out, and connections.

The service knows nothing of HTTP/2. What it needs of a transport besides calls: the name of the connection that carries
a call, an open call that ends with its connection or when the peer does not answer pings, and calls of one connection
begun in the order in which they arrive.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallHead:
    """What is known of a call besides its message."""

    method: str
    """Its name without the service's."""
    metadata: Mapping[str, str]
    connection: str
    """Names the connection for as long as it is open."""
    seconds_left: float | None
    """How long the client waits for the answer; None: it does not say."""


class CallRefused(Exception):
    """The call has no answer but a status of gRPC itself."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        """The name of the code, such as INVALID_ARGUMENT."""


class Parts(Protocol):
    """An answer in several parts."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def ended(self, *, complete: bool) -> None:
        """Called once: whether the transport has taken all parts and the call was not broken off before."""
        ...


class Service(Protocol):
    """What a transport serves. All calls come from its event loop."""

    async def answer(self, head: CallHead, body: bytes) -> bytes:
        """One message for one message; raises `CallRefused`."""
        ...

    def stream(self, head: CallHead, body: bytes) -> Parts:
        """Several messages for one."""
        ...

    def converse(self, head: CallHead, messages: AsyncIterator[bytes]) -> Parts:
        """Messages in both directions."""
        ...
