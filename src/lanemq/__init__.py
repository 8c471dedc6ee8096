"""LaneMQ: ordered messaging for Python. Every key has its lane; nothing overtakes.

The public names, each imported when it is first used: whoever only sends need not wait for the consumer to load,
and the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanemq.client.admin import Admin
    from lanemq.client.admin_views import AtOffset, AtTime
    from lanemq.client.app import App
    from lanemq.client.async_consumer import AsyncConsumer
    from lanemq.client.async_producer import AsyncProducer
    from lanemq.client.consumer import Consumer
    from lanemq.client.consumer_options import Sharing, StartFrom
    from lanemq.client.listener import (
        ConcurrentlyContext,
        ConcurrentlyStatus,
        OrderlyContext,
        OrderlyStatus,
        Retry,
        Skip,
        ToDeadLetter,
    )
    from lanemq.client.message import Message
    from lanemq.client.parked_admin import ParkedAdmin
    from lanemq.client.producer import Producer
    from lanemq.client.pull_consumer import PullConsumer
    from lanemq.client.push_consumer import PushConsumer
    from lanemq.client.receipt import Receipt, StoredAs
    from lanemq.core.retry_policy import Backoff, DeadLetter, HoldKey, HoldQueue, Park
    from lanemq.core.sharding import by_hash, by_int_modulo
    from lanemq.errors import (
        BrokerRefused,
        Closed,
        CodecError,
        ConnectFailed,
        ConnectionLost,
        Dropped,
        InvalidOption,
        LaneError,
        LaneFrozen,
        MessageTooLarge,
        MissingKey,
        NotAllowed,
        OrderError,
        ProducerFenced,
        RequestTimedOut,
        TlsFailed,
        TopicNotFound,
        TransportError,
        Undecodable,
        UsageError,
    )
    from lanemq.model.queue import MessageQueue
    from lanemq.net.tls import TlsOptions
    from lanemq.wire.signing import Credentials

_HOMES = {
    "lanemq.client.admin": ("Admin",),
    "lanemq.client.admin_views": ("AtOffset", "AtTime"),
    "lanemq.client.app": ("App",),
    "lanemq.client.async_consumer": ("AsyncConsumer",),
    "lanemq.client.async_producer": ("AsyncProducer",),
    "lanemq.client.consumer": ("Consumer",),
    "lanemq.client.consumer_options": ("Sharing", "StartFrom"),
    "lanemq.client.listener": (
        "ConcurrentlyContext",
        "ConcurrentlyStatus",
        "OrderlyContext",
        "OrderlyStatus",
        "Retry",
        "Skip",
        "ToDeadLetter",
    ),
    "lanemq.client.message": ("Message",),
    "lanemq.client.parked_admin": ("ParkedAdmin",),
    "lanemq.client.producer": ("Producer",),
    "lanemq.client.pull_consumer": ("PullConsumer",),
    "lanemq.client.push_consumer": ("PushConsumer",),
    "lanemq.client.receipt": ("Receipt", "StoredAs"),
    "lanemq.core.retry_policy": ("Backoff", "DeadLetter", "HoldKey", "HoldQueue", "Park"),
    "lanemq.core.sharding": ("by_hash", "by_int_modulo"),
    "lanemq.errors": (
        "BrokerRefused",
        "Closed",
        "CodecError",
        "ConnectFailed",
        "ConnectionLost",
        "Dropped",
        "InvalidOption",
        "LaneError",
        "LaneFrozen",
        "MessageTooLarge",
        "MissingKey",
        "NotAllowed",
        "OrderError",
        "ProducerFenced",
        "RequestTimedOut",
        "TlsFailed",
        "TopicNotFound",
        "TransportError",
        "Undecodable",
        "UsageError",
    ),
    "lanemq.model.queue": ("MessageQueue",),
    "lanemq.net.tls": ("TlsOptions",),
    "lanemq.wire.signing": ("Credentials",),
}
"""The same for the running program."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Admin",
    "App",
    "AsyncConsumer",
    "AsyncProducer",
    "AtOffset",
    "AtTime",
    "Backoff",
    "BrokerRefused",
    "Closed",
    "CodecError",
    "ConcurrentlyContext",
    "ConcurrentlyStatus",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "Credentials",
    "DeadLetter",
    "Dropped",
    "HoldKey",
    "HoldQueue",
    "InvalidOption",
    "LaneError",
    "LaneFrozen",
    "Message",
    "MessageQueue",
    "MessageTooLarge",
    "MissingKey",
    "NotAllowed",
    "OrderError",
    "OrderlyContext",
    "OrderlyStatus",
    "Park",
    "ParkedAdmin",
    "Producer",
    "ProducerFenced",
    "PullConsumer",
    "PushConsumer",
    "Receipt",
    "RequestTimedOut",
    "Retry",
    "Sharing",
    "Skip",
    "StartFrom",
    "StoredAs",
    "TlsFailed",
    "TlsOptions",
    "ToDeadLetter",
    "TopicNotFound",
    "TransportError",
    "Undecodable",
    "UsageError",
    "by_hash",
    "by_int_modulo",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"lanemq has no public name {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
