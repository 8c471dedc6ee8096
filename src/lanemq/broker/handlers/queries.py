"""Finding messages by id and by key."""

from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error
from lanemq.broker.parts import Parts
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.model.names import check_topic
from lanemq.net.server import Peer
from lanemq.wire.admin_headers import QueryMessageHeader, QueryMessageResponse, ViewMessageHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

MAX_FOUND = 64
"""RocketMQ: MessageStoreConfig.maxMsgsNumBatch."""
MAX_SEARCHES = 100
"""Searches that wait for their turn; further ones are refused as busy."""
MAX_FOUND_BY_ID = 32
"""RocketMQ: MessageStoreConfig.defaultQueryMaxNum, for searches by unique id."""


class QueryHandler:
    """Requests 12 and 33."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._searches = 0
        """Searches that were not answered yet."""

    def table(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_MESSAGE_BY_ID: self._view, RequestCode.QUERY_MESSAGE: self._query}

    def _view(self, peer: Peer, request: Command) -> None:
        position = ViewMessageHeader.from_ext(request.ext).offset
        answer(peer, request, {}, self._parts.store.read_at(position))

    def _query(self, peer: Peer, request: Command) -> None:
        header = QueryMessageHeader.from_ext(request.ext)
        check_topic(header.topic)
        limit = MAX_FOUND_BY_ID if header.by_unique_id else max(1, min(header.max_num, MAX_FOUND))
        begin, end = header.begin_timestamp, header.end_timestamp

        def found(records: list[bytes] | None, error: StorageError | None) -> None:
            self._searches -= 1
            if error is not None:
                answer_error(peer, request, error)
            elif not records:
                answer_code(
                    peer,
                    request,
                    ResponseCode.QUERY_NOT_FOUND,
                    "can not find message, maybe time range not correct",
                )
            else:
                ext = QueryMessageResponse(
                    index_last_update_timestamp=self._parts.clock.wall(),
                    index_last_update_phyoffset=self._parts.store.log_end,
                ).to_ext()
                answer(peer, request, ext, b"".join(records))

        if self._searches >= MAX_SEARCHES:
            self._parts.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"{MAX_SEARCHES} searches are waiting already; try again")
        self._searches += 1
        self._parts.search_thread.submit(
            lambda: self._parts.store.query(header.topic, header.key, limit, begin, end), found
        )
