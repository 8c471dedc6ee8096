"""A broker that looks like Apache's: LaneMQ's own without leases, epochs, an index of keys, or parked lanes.

It announces no features, refuses LaneMQ's requests, and finds no keys. It passes request 307 on to members.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

from lanemq.broker.config import BrokerOptions
from lanemq.broker.dispatch import Dispatch, Handler, answer_code
from lanemq.broker.handlers import routes
from lanemq.net.peer import Peer
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command


class _StockDispatch(Dispatch):
    def __init__(self, tables: Iterable[Mapping[int, Handler]], *others: Any) -> None:
        stock = [{code: found for code, found in table.items() if not _is_own(code)} for table in tables]
        super().__init__([{code: _found(code, each) for code, each in table.items()} for table in stock], *others)


def _is_own(code: int) -> bool:
    return RequestCode(code).name.startswith("LANE_")


def _found(code: int, handler: Handler) -> Handler:
    return _finds_nothing if code == RequestCode.QUERY_MESSAGE else handler


def _finds_nothing(peer: Peer, request: Command) -> None:
    answer_code(peer, request, ResponseCode.QUERY_NOT_FOUND, "no such key")


@contextlib.contextmanager
def stock_broker(options: BrokerOptions | None = None) -> Iterator[EmbeddedBroker]:
    features = {name: 0 for name in ("FEATURE_LEASES", "FEATURE_STAMPS", "FEATURE_PARKING")}
    with (
        patch.multiple(routes, **features),
        patch("lanemq.broker.app.Dispatch", _StockDispatch),
        EmbeddedBroker(options) as running,
    ):
        yield running
