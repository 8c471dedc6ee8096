"""The pulls of one queue over one connection, each sent where the answer of the one before is read.

The consumer looks at an answer while it is read from the socket and says where the next pull begins. That pull leaves
in the same iteration of the event loop, and no task is woken in between: a wake-up for each message would delay its
handler. A LaneMQ broker may answer one pull in parts (`laneMore`); the next pull leaves after the last part.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lanemq.model.errors import ConnectionLost, LaneError, TransportError
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.calling.connection import Connection, ConnectionPool
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, PullResponse

PULL_MARGIN_MS = 15_000
"""How much longer a pull waits than the broker may hold it (RocketMQ: 30 s against 15 s)."""

_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Pulled(NamedTuple):
    """The answer to a pull."""

    code: int
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    body: bytes
    more: bool = False
    """This is a part of the answer, and another one follows."""


Following: TypeAlias = Callable[[Pulled, QueueOffset], QueueOffset | None]
"""Called with an answer, or a part of one, and the offset where it begins. Returns the offset of the next pull, or of
the next part if one follows; None ends the stream."""


def one_pull(_: Pulled, __: QueueOffset) -> None:
    """Ends the stream after its first answer."""


class PullStream:
    """One use: make it, then `run` it."""

    def __init__(
        self,
        pool: ConnectionPool,
        address: Address,
        first: PullHeader,
        following: Following,
        is_master: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._address = address
        self._following = following
        self._is_master = is_master
        self._fields = first.to_ext()
        self._offset = QueueOffset(first.queue_offset)
        self._timeout = (first.suspend_timeout_millis + PULL_MARGIN_MS) / 1000
        self._connection: Connection
        self._opaque = 0
        self._ended: asyncio.Future[Pulled] = asyncio.get_running_loop().create_future()

    async def run(self) -> Pulled:
        """Pulls until `following` returns None, or the broker's master is elsewhere, and returns the last answer.

        What `following` raises is raised here.
        """
        self._connection = await self._pool.get(self._address)
        self._pull()
        try:
            return await self._ended
        except asyncio.CancelledError:
            self._connection.forget(self._opaque)
            raise
        except TransportError as error:
            self._pool.outages.failed(self._address, error)
            raise

    def _pull(self) -> None:
        command = Command(RequestCode.PULL_MESSAGE, 0, ext=PullHeader.at(self._offset, self._fields))
        self._connection.post(command, self._replied, self._timeout, in_parts=True)
        self._opaque = command.opaque

    def _replied(self, reply: Command | None, error: LaneError | None) -> None:
        if self._ended.done():
            return
        if reply is None:
            self._ended.set_exception(error or ConnectionLost("the connection ended"))
            return
        if self._pool.outages.away:
            self._pool.outages.answered(self._address)
        try:
            pulled = _pulled(reply)
            offset = self._following(pulled, self._offset)
        except Exception as raised:  # noqa: BLE001 - raised again by the task that waits
            self._connection.forget(self._opaque)
            self._ended.set_exception(raised)
            return
        if self._ended.done():
            return  # it was cancelled by what `following` did
        if offset is None or not self._is_master():
            self._connection.forget(self._opaque)
            self._ended.set_result(pulled)
            return
        self._offset = offset
        if not pulled.more:
            self._pull()


def _pulled(reply: Command) -> Pulled:
    """The answer to a pull; raises what any other answer means."""
    if reply.code not in _ANSWERS:
        raise error_for(reply.code, reply.remark)
    answer = PullResponse.from_ext(reply.ext)
    return Pulled(
        reply.code,
        QueueOffset(answer.next_begin_offset),
        QueueOffset(answer.min_offset),
        QueueOffset(answer.max_offset),
        reply.body,
        bool(answer.lane_more),
    )
