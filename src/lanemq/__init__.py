"""LaneMQ: ordered messaging for Python. Every key has its lane; nothing overtakes."""

from lanemq.client.app import App
from lanemq.client.async_consumer import AsyncConsumer
from lanemq.client.async_producer import AsyncProducer
from lanemq.client.consumer import Consumer
from lanemq.client.message import Message
from lanemq.client.producer import Producer
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.core.retry_policy import Backoff, DeadLetter, HoldKey, HoldQueue
from lanemq.core.sharding import by_hash, by_int_modulo
from lanemq.model.errors import LaneError, MissingKey
from lanemq.model.queue import MessageQueue

__all__ = [
    "App",
    "AsyncConsumer",
    "AsyncProducer",
    "Backoff",
    "Consumer",
    "DeadLetter",
    "HoldKey",
    "HoldQueue",
    "LaneError",
    "Message",
    "MessageQueue",
    "MissingKey",
    "Producer",
    "Receipt",
    "StoredAs",
    "by_hash",
    "by_int_modulo",
]
