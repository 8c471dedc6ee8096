"""One asyncio connection per address, opened on first use and again after a loss."""

import asyncio

from lanemq.model.errors import Closed
from lanemq.net.address import Address, parse_address
from lanemq.net.connection import Connection, OnLost, OnRequest, open_connection
from lanemq.net.security import OPEN, Security


class ConnectionPool:
    """Shares connections; two askers for one address wait for the same attempt."""

    def __init__(
        self, on_request: OnRequest | None = None, on_lost: OnLost | None = None, *, security: Security = OPEN
    ) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._security = security
        self._open: dict[Address, Connection] = {}
        self._locks: dict[Address, asyncio.Lock] = {}
        self._closed = False

    async def get(self, address: Address | str) -> Connection:
        """A live connection to the address, or `ConnectFailed`."""
        if isinstance(address, str):
            address = parse_address(address)
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        async with self._locks.setdefault(address, asyncio.Lock()):
            connection = self._open.get(address)
            if connection is None or not connection.is_open:
                connection = await self._connect(address)
            return connection

    async def _connect(self, address: Address) -> Connection:
        if self._closed:
            raise Closed("this client is closed")
        connection = await open_connection(
            address, on_request=self._on_request, on_lost=self._on_lost, security=self._security
        )
        self._open[address] = connection
        return connection

    def live(self) -> list[Connection]:
        return [connection for connection in self._open.values() if connection.is_open]

    def close(self) -> None:
        self._closed = True
        for connection in self.live():
            connection.close()
