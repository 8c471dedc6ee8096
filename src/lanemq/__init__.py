"""LaneMQ: ordered messaging for Python. Every key has its lane; nothing overtakes.

The public names, each imported on first use, so that a program that only sends does not load the consumer and the
command line starts quickly.
"""

from typing import TYPE_CHECKING

from lanemq.model.environment import install_extra
from lanemq.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from lanemq.client.admin.admin import Admin as Admin
    from lanemq.client.admin.async_admin import AsyncAdmin as AsyncAdmin
    from lanemq.client.admin.async_admin import AsyncParkedAdmin as AsyncParkedAdmin
    from lanemq.client.admin.parked import ParkedAdmin as ParkedAdmin
    from lanemq.client.admin.parked import ParkedLaneView as ParkedLaneView
    from lanemq.client.admin.views import AtOffset as AtOffset
    from lanemq.client.admin.views import AtTime as AtTime
    from lanemq.client.admin.views import GroupDescription as GroupDescription
    from lanemq.client.admin.views import GroupMember as GroupMember
    from lanemq.client.admin.views import GroupQueue as GroupQueue
    from lanemq.client.admin.views import LaneStateView as LaneStateView
    from lanemq.client.admin.views import LeaseView as LeaseView
    from lanemq.client.admin.views import NoAnswer as NoAnswer
    from lanemq.client.admin.views import OffsetChange as OffsetChange
    from lanemq.client.admin.views import QueueBounds as QueueBounds
    from lanemq.client.admin.views import TopicDescription as TopicDescription
    from lanemq.client.codec import Codec as Codec
    from lanemq.client.consumer.app import App as App
    from lanemq.client.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from lanemq.client.consumer.consumer import Consumer as Consumer
    from lanemq.client.consumer.inspection import ConsumerSnapshot as ConsumerSnapshot
    from lanemq.client.consumer.inspection import QueueSnapshot as QueueSnapshot
    from lanemq.client.consumer.options import ConsumerSettings as ConsumerSettings
    from lanemq.client.consumer.options import Sharing as Sharing
    from lanemq.client.consumer.options import StartFrom as StartFrom
    from lanemq.client.consumer.pull_consumer import PullConsumer as PullConsumer
    from lanemq.client.consumer.push_consumer import PushConsumer as PushConsumer
    from lanemq.client.consumer.turns.arguments import Depends as Depends
    from lanemq.client.consumer.turns.handler import ConcurrentListener as ConcurrentListener
    from lanemq.client.consumer.turns.handler import ConcurrentlyContext as ConcurrentlyContext
    from lanemq.client.consumer.turns.handler import ConcurrentlyStatus as ConcurrentlyStatus
    from lanemq.client.consumer.turns.handler import MessageFailed as MessageFailed
    from lanemq.client.consumer.turns.handler import OrderlyContext as OrderlyContext
    from lanemq.client.consumer.turns.handler import OrderlyListener as OrderlyListener
    from lanemq.client.consumer.turns.handler import OrderlyStatus as OrderlyStatus
    from lanemq.client.consumer.turns.handler import Retry as Retry
    from lanemq.client.consumer.turns.handler import Skip as Skip
    from lanemq.client.consumer.turns.handler import ToDeadLetter as ToDeadLetter
    from lanemq.client.message import Message as Message
    from lanemq.client.producer.async_producer import AsyncProducer as AsyncProducer
    from lanemq.client.producer.batches import Outgoing as Outgoing
    from lanemq.client.producer.batches import SendArguments as SendArguments
    from lanemq.client.producer.freezes import Frozen as Frozen
    from lanemq.client.producer.options import ProducerSettings as ProducerSettings
    from lanemq.client.producer.producer import Producer as Producer
    from lanemq.client.receipt import Receipt as Receipt
    from lanemq.client.receipt import Receipts as Receipts
    from lanemq.client.receipt import StoredAs as StoredAs
    from lanemq.client.security import SecuritySettings as SecuritySettings
    from lanemq.client.topics import NewTopic as NewTopic
    from lanemq.client.tracing import trace_send as trace_send
    from lanemq.client.tracing import trace_turns as trace_turns
    from lanemq.clock import Clock as Clock
    from lanemq.core.backoff import Backoff as Backoff
    from lanemq.core.consuming.flow_control import FlowLimits as FlowLimits
    from lanemq.core.consuming.queue_lease import LeaseTimes as LeaseTimes
    from lanemq.core.consuming.retry_policy import RETRY_FOREVER as RETRY_FOREVER
    from lanemq.core.consuming.retry_policy import DeadLetter as DeadLetter
    from lanemq.core.consuming.retry_policy import FailurePolicy as FailurePolicy
    from lanemq.core.consuming.retry_policy import HoldKey as HoldKey
    from lanemq.core.consuming.retry_policy import HoldQueue as HoldQueue
    from lanemq.core.consuming.retry_policy import Park as Park
    from lanemq.core.lane_status import LaneStatus as LaneStatus
    from lanemq.core.sending.sharding import by_hash as by_hash
    from lanemq.core.sending.sharding import by_int_modulo as by_int_modulo
    from lanemq.errors import BrokerRefused as BrokerRefused
    from lanemq.errors import Closed as Closed
    from lanemq.errors import CodecError as CodecError
    from lanemq.errors import ConnectFailed as ConnectFailed
    from lanemq.errors import ConnectionLost as ConnectionLost
    from lanemq.errors import Dropped as Dropped
    from lanemq.errors import InvalidOption as InvalidOption
    from lanemq.errors import LaneError as LaneError
    from lanemq.errors import LaneFrozen as LaneFrozen
    from lanemq.errors import MessageTooLarge as MessageTooLarge
    from lanemq.errors import MissingKey as MissingKey
    from lanemq.errors import NotAllowed as NotAllowed
    from lanemq.errors import OrderError as OrderError
    from lanemq.errors import ProducerFenced as ProducerFenced
    from lanemq.errors import RequestTimedOut as RequestTimedOut
    from lanemq.errors import TlsFailed as TlsFailed
    from lanemq.errors import TopicNotFound as TopicNotFound
    from lanemq.errors import TransportError as TransportError
    from lanemq.errors import Undecodable as Undecodable
    from lanemq.errors import UsageError as UsageError
    from lanemq.model.keys import Key as Key
    from lanemq.model.queue import MessageQueue as MessageQueue
    from lanemq.model.stamp import Stamp as Stamp
    from lanemq.net.security import TlsOptions as TlsOptions
    from lanemq.pipelines.running.tracing import trace_batches as trace_batches
    from lanemq.wire.signing import Credentials as Credentials
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lanemq.client.admin.admin": ("Admin",),
            "lanemq.client.admin.async_admin": ("AsyncAdmin", "AsyncParkedAdmin"),
            "lanemq.client.admin.parked": (
                "ParkedAdmin",
                "ParkedLaneView",
            ),
            "lanemq.client.admin.views": (
                "AtOffset",
                "AtTime",
                "GroupDescription",
                "GroupMember",
                "GroupQueue",
                "LaneStateView",
                "LeaseView",
                "NoAnswer",
                "OffsetChange",
                "QueueBounds",
                "TopicDescription",
            ),
            "lanemq.client.codec": ("Codec",),
            "lanemq.client.consumer.app": ("App",),
            "lanemq.client.consumer.async_consumer": ("AsyncConsumer",),
            "lanemq.client.consumer.consumer": ("Consumer",),
            "lanemq.client.consumer.inspection": (
                "ConsumerSnapshot",
                "QueueSnapshot",
            ),
            "lanemq.client.consumer.options": (
                "ConsumerSettings",
                "Sharing",
                "StartFrom",
            ),
            "lanemq.client.consumer.pull_consumer": ("PullConsumer",),
            "lanemq.client.consumer.push_consumer": ("PushConsumer",),
            "lanemq.client.consumer.turns.arguments": ("Depends",),
            "lanemq.client.consumer.turns.handler": (
                "ConcurrentListener",
                "ConcurrentlyContext",
                "ConcurrentlyStatus",
                "MessageFailed",
                "OrderlyContext",
                "OrderlyListener",
                "OrderlyStatus",
                "Retry",
                "Skip",
                "ToDeadLetter",
            ),
            "lanemq.client.message": ("Message",),
            "lanemq.client.producer.async_producer": ("AsyncProducer",),
            "lanemq.client.producer.batches": ("Outgoing", "SendArguments"),
            "lanemq.client.producer.freezes": ("Frozen",),
            "lanemq.client.producer.options": ("ProducerSettings",),
            "lanemq.client.producer.producer": ("Producer",),
            "lanemq.client.receipt": (
                "Receipt",
                "Receipts",
                "StoredAs",
            ),
            "lanemq.client.security": ("SecuritySettings",),
            "lanemq.client.topics": ("NewTopic",),
            "lanemq.client.tracing": ("trace_send", "trace_turns"),
            "lanemq.pipelines.running.tracing": ("trace_batches",),
            "lanemq.clock": ("Clock",),
            "lanemq.core.backoff": ("Backoff",),
            "lanemq.core.consuming.flow_control": ("FlowLimits",),
            "lanemq.core.consuming.queue_lease": ("LeaseTimes",),
            "lanemq.core.consuming.retry_policy": (
                "DeadLetter",
                "FailurePolicy",
                "HoldKey",
                "HoldQueue",
                "Park",
                "RETRY_FOREVER",
            ),
            "lanemq.core.lane_status": ("LaneStatus",),
            "lanemq.core.sending.sharding": (
                "by_hash",
                "by_int_modulo",
            ),
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
            "lanemq.model.keys": ("Key",),
            "lanemq.model.queue": ("MessageQueue",),
            "lanemq.model.stamp": ("Stamp",),
            "lanemq.net.security": ("TlsOptions",),
            "lanemq.wire.signing": ("Credentials",),
        },
        install=install_extra("otel"),
        extra_packages=("opentelemetry",),
    )
