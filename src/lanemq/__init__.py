"""LaneMQ: ordered messaging for Python. Every key has its lane; nothing overtakes.

The public names, each imported on first use, so that a program that only sends does not load the consumer and the
command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanemq.client.admin.admin import Admin
    from lanemq.client.admin.parked import ParkedAdmin
    from lanemq.client.admin.views import AtOffset, AtTime
    from lanemq.client.consumer.app import App
    from lanemq.client.consumer.async_consumer import AsyncConsumer
    from lanemq.client.consumer.consumer import Consumer
    from lanemq.client.consumer.options import Sharing, StartFrom
    from lanemq.client.consumer.pull_consumer import PullConsumer
    from lanemq.client.consumer.push_consumer import PushConsumer
    from lanemq.client.consumer.turns.handler import (
        ConcurrentlyContext,
        ConcurrentlyStatus,
        OrderlyContext,
        OrderlyStatus,
        Retry,
        Skip,
        ToDeadLetter,
    )
    from lanemq.client.message import Message
    from lanemq.client.producer.async_producer import AsyncProducer
    from lanemq.client.producer.producer import Producer
    from lanemq.client.receipt import Receipt, StoredAs
    from lanemq.core.backoff import Backoff
    from lanemq.core.consuming.flow_control import FlowLimits
    from lanemq.core.consuming.queue_lease import LeaseTimes
    from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey, HoldQueue, Park
    from lanemq.core.sending.sharding import by_hash, by_int_modulo
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
    from lanemq.net.security import TlsOptions
    from lanemq.wire.signing import Credentials

_HOMES = {
    "lanemq.client.admin.admin": ("Admin",),
    "lanemq.client.admin.views": ("AtOffset", "AtTime"),
    "lanemq.client.consumer.app": ("App",),
    "lanemq.client.consumer.async_consumer": ("AsyncConsumer",),
    "lanemq.client.producer.async_producer": ("AsyncProducer",),
    "lanemq.client.consumer.consumer": ("Consumer",),
    "lanemq.client.consumer.options": ("Sharing", "StartFrom"),
    "lanemq.client.consumer.turns.handler": (
        "ConcurrentlyContext",
        "ConcurrentlyStatus",
        "OrderlyContext",
        "OrderlyStatus",
        "Retry",
        "Skip",
        "ToDeadLetter",
    ),
    "lanemq.client.message": ("Message",),
    "lanemq.client.admin.parked": ("ParkedAdmin",),
    "lanemq.client.producer.producer": ("Producer",),
    "lanemq.client.consumer.pull_consumer": ("PullConsumer",),
    "lanemq.client.consumer.push_consumer": ("PushConsumer",),
    "lanemq.client.receipt": ("Receipt", "StoredAs"),
    "lanemq.core.backoff": ("Backoff",),
    "lanemq.core.consuming.flow_control": ("FlowLimits",),
    "lanemq.core.consuming.queue_lease": ("LeaseTimes",),
    "lanemq.core.consuming.retry_policy": ("DeadLetter", "HoldKey", "HoldQueue", "Park"),
    "lanemq.core.sending.sharding": ("by_hash", "by_int_modulo"),
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
    "lanemq.net.security": ("TlsOptions",),
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
    "FlowLimits",
    "HoldKey",
    "HoldQueue",
    "InvalidOption",
    "LaneError",
    "LaneFrozen",
    "LeaseTimes",
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
