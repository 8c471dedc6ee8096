"""Where a queue begins and ends, and which offset it had at a time."""

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.log.reading import Boundary
from lanemq.model.names import check_topic
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import QueueHeader, SearchOffsetHeader


class BoundsHandler:
    """Requests 29, 30, 31 and 32."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def _search(self, peer: Peer, request: Command) -> None:
        header = SearchOffsetHeader.from_ext(request.ext)
        check_topic(header.topic)
        boundary = Boundary.UPPER if header.boundary_type == "UPPER" else Boundary.LOWER
        offset = self._context.store.times.find(header.topic, header.queue_id, header.timestamp, boundary)
        answer(peer, request, {"offset": str(offset)})

    def _max(self, peer: Peer, request: Command) -> None:
        header = _queue_header(request)
        answer(peer, request, {"offset": str(self._context.store.bounds(header.topic, header.queue_id)[1])})

    def _min(self, peer: Peer, request: Command) -> None:
        header = _queue_header(request)
        answer(peer, request, {"offset": str(self._context.store.bounds(header.topic, header.queue_id)[0])})

    def _earliest(self, peer: Peer, request: Command) -> None:
        header = _queue_header(request)
        time = self._context.store.times.earliest(header.topic, header.queue_id)
        answer(peer, request, {"timestamp": str(-1 if time is None else time)})


def _queue_header(request: Command) -> QueueHeader:
    header = QueueHeader.from_ext(request.ext)
    check_topic(header.topic)
    return header
