"""A broker that looks like Apache's: LaneMQ's own without leases, epochs, an index of keys, or parked lanes.

It announces no features, refuses LaneMQ's requests, and finds no keys. It passes request 307 on to members.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lanemq.broker import app
from lanemq.broker.config import BrokerOptions
from lanemq.broker.dispatch import Dispatch, Handler, answer_code
from lanemq.broker.handlers import routes
from lanemq.core.brokering.dedup import Fresh, ProducerTable
from lanemq.net.serving.peer import Peer
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
def _replaced(owner: Any, **values: object) -> Iterator[None]:
    """Replaces attributes of a module or class for a while."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def stock_rules() -> Iterator[None]:
    """Makes every broker that starts in this process one that looks like Apache's."""
    features = dict.fromkeys(("FEATURE_LEASES", "FEATURE_STAMPS", "FEATURE_PARKING"), 0)
    with _replaced(routes, **features), _replaced(app, Dispatch=_StockDispatch):
        yield


@contextlib.contextmanager
def stores_repeats() -> Iterator[None]:
    """Makes brokers store every message that arrives, as Apache's do."""
    with _replaced(ProducerTable, judge=lambda *_: Fresh(), record=lambda *_, **__: None):
        yield


@contextlib.contextmanager
def stock_broker(options: BrokerOptions | None = None) -> Iterator[EmbeddedBroker]:
    with stock_rules(), EmbeddedBroker(options) as running:
        yield running
