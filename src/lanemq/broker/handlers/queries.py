"""Finding messages by id and by key, and giving one to a member at once.

Searches by key take long. One runs at a time, and users, addresses and connections take turns, so that a client waits
for one search of each other user or address at most, however many those have asked for.
"""

from collections.abc import Callable
from typing import NamedTuple

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error
from lanemq.broker.group_rules import relay
from lanemq.core.brokering.fair_queue import FairQueue
from lanemq.core.brokering.quotas import Quota
from lanemq.model.errors import StorageError
from lanemq.model.names import check_topic
from lanemq.net.serving.peer import Peer
from lanemq.wire.admin_headers import (
    ConsumeDirectlyHeader,
    QueryMessageHeader,
    QueryMessageResponse,
    ViewMessageHeader,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.record import decode_offset_id

MAX_FOUND = 64
"""RocketMQ: MessageStoreConfig.maxMsgsNumBatch."""
MAX_FOUND_BY_ID = 32
"""RocketMQ: MessageStoreConfig.defaultQueryMaxNum, for searches by unique id."""


class _Search(NamedTuple):
    look: Callable[[], list[bytes]]
    """Called on the search thread."""
    found: Callable[[list[bytes] | None, StorageError | None], None]
    """Called on the loop with what was found."""


class QueryHandler:
    """Requests 12, 33 and 309."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._searches = FairQueue[_Search]()
        """The searches that wait for the one that runs."""
        self._searching = False

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.QUERY_MESSAGE: self._query,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _view(self, peer: Peer, request: Command) -> None:
        position = ViewMessageHeader.from_ext(request.ext).offset
        answer(peer, request, {}, self._context.store.read_at(position))

    def _consume_directly(self, peer: Peer, request: Command) -> None:
        """The request names a message; the member gets the message itself."""
        header = ConsumeDirectlyHeader.from_ext(request.ext)
        record = self._context.store.read_at(decode_offset_id(header.msg_id or "").position)
        ext = {**request.ext, "brokerName": self._context.options.name}
        relay(self._context, peer, request, (header.consumer_group, header.client_id), ext, record)

    def _query(self, peer: Peer, request: Command) -> None:
        header = QueryMessageHeader.from_ext(request.ext)
        check_topic(header.topic)
        limit = MAX_FOUND_BY_ID if header.by_unique_id else max(1, min(header.max_num, MAX_FOUND))
        begin, end = header.begin_timestamp, header.end_timestamp

        def answer_with(records: list[bytes] | None, error: StorageError | None) -> None:
            self._context.charges.give_back(Quota.SEARCHES, peer)
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
                    index_last_update_timestamp=self._context.clock.wall(),
                    index_last_update_phyoffset=self._context.store.log_end,
                ).to_ext()
                answer(peer, request, ext, b"".join(records))

        self._context.charges.take(Quota.SEARCHES, peer, request)
        search = _Search(lambda: self._context.store.query(header.topic, header.key, limit, begin, end), answer_with)
        self._searches.add(self._context.charges.party(peer, request), peer.number, search)
        self._next_search()

    def _next_search(self) -> None:
        """Start the next search unless one runs. The others wait in the fair queue, not at the thread."""
        search = None if self._searching else self._searches.next()
        if search is None:
            return
        self._searching = True

        def ended(records: list[bytes] | None, error: StorageError | None) -> None:
            self._searching = False
            self._next_search()
            search.found(records, error)

        self._context.search_thread.submit(search.look, ended)
