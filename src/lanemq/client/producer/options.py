"""A producer's settings, checked once when it is created."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack

from msgspec import Meta

from lanemq.client.codec import Codec
from lanemq.client.keyword_options import Interval, in_seconds, opened_history, problems_of, refuse_unknown
from lanemq.client.security import security_of
from lanemq.client.topics import NewTopic
from lanemq.clock import Clock
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_group
from lanemq.model.units import Seconds
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The largest body that RocketMQ's brokers take (MessageStoreConfig.maxMessageSize)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer and their defaults. All problems are reported at once."""

    group: str = "lanemq-producers"
    """The name under which the broker lists the producer."""
    codec: str | Codec = "json"
    """How values become bytes: "json", "text", "bytes", or an object with `encode` and `decode`."""
    buffer_bytes: Annotated[int, Meta(ge=1)] = 64 * 1024 * 1024
    """Bytes of messages that wait or are in flight. When the buffer is full, senders wait; no message is dropped."""
    delivery_timeout: Interval = 120.0
    """Seconds that an accepted message may wait for its broker, retries included. Then it fails with `RequestTimedOut`,
    and its key is frozen unless its sender learns of that first. A call waits no longer for the first route of its
    topic. Too short: a broker that restarts becomes an incident. Too long: programs learn late that one is gone."""
    timeout: Interval = 120.0
    """Seconds that a call may wait: for a route, for room in the buffer, and in `send` for the receipt. A `send` that
    gives up raises `RequestTimedOut`; its message still waits for the broker and may be stored."""
    max_body_bytes: Annotated[int, Meta(ge=1)] = MAX_BODY_BYTES
    """Bytes of the largest body; larger ones are refused when they are sent."""
    tls: TlsOptions | None = None
    """Encrypts connections. None: as the environment says (docs/guides/security.md), else not encrypted."""
    credentials: Credentials | None = None
    """Signs every request, for brokers with access control. None: as the environment says, else not signed."""
    create: tuple[NewTopic, ...] = ()
    """Topics that the program declares: created when it first sends to them, if they do not exist. Given as names, for
    topics ordered by key, or as `NewTopic`. A message with a key to any other topic that does not exist is refused."""
    on_queue_change: Literal["fail", "continue"] = "fail"
    """After a change of a topic's queues that would move keys: "fail" refuses messages with a key, with `OrderError`.
    "continue" sends them to their new queues, past messages in the old ones. A broker that is away changes nothing."""
    on_unconfirmed: Literal["accept", "retry"] = "retry"
    """After an answer that the master of an Apache broker has the message, but its disk or its replicas did not confirm
    it in time: "retry" sends it again, in its place before the next message of the queue, until it is confirmed or
    `delivery_timeout` has passed. Every attempt is stored; consumers with `drop_repeats=True` leave repeats out. While
    a replica is away, the queue waits until the cluster gives it up. "accept" gives a receipt that says
    `StoredAs.UNCONFIRMED`: a fail-over may lose the message. So does either for a master without any replica."""
    history: History = NO_HISTORY
    """The file that records what happens, for the checker; given as a folder."""

    def __post_init__(self) -> None:
        check_group(self.group)
        problems = problems_of(self)
        if not problems and self.buffer_bytes < self.max_body_bytes:
            problems = [f"buffer_bytes is {self.buffer_bytes}, but one message may take {self.max_body_bytes}"]
        if problems:
            raise InvalidOption("producer options: " + "; ".join(problems))

    @property
    def security(self) -> Security:
        """How connections are protected."""
        return security_of(self.tls, self.credentials)


class ProducerSettings(TypedDict, total=False):
    """The keyword arguments of a producer: the fields of `ProducerOptions`. Durations are seconds or a `timedelta`."""

    group: str
    codec: str | Codec
    buffer_bytes: int
    delivery_timeout: Seconds
    timeout: Seconds
    max_body_bytes: int
    tls: TlsOptions | None
    credentials: Credentials | None
    create: str | NewTopic | Iterable[str | NewTopic]
    on_queue_change: Literal["fail", "continue"]
    on_unconfirmed: Literal["accept", "retry"]
    history: History | str | Path | None


def producer_options(clock: Clock, client_id: str, /, **settings: Unpack[ProducerSettings]) -> ProducerOptions:
    """Checked options. A history that is given as a folder is opened under the producer's client id."""
    refuse_unknown(settings, tuple(each.name for each in fields(ProducerOptions)), "producer")
    rest = in_seconds(settings)
    history = rest.pop("history", NO_HISTORY)
    options = ProducerOptions(create=_declared(rest.pop("create", ())), **rest)
    return replace(options, history=opened_history(history, client_id, clock, "producer"))


def _declared(create: str | NewTopic | Iterable[str | NewTopic]) -> tuple[NewTopic, ...]:
    if not isinstance(create, str | NewTopic | Iterable):
        raise InvalidOption(f"create={create!r} must be the name of a topic, a NewTopic, or a list of those")
    each = (create,) if isinstance(create, str | NewTopic) else tuple(create)
    if wrong := [one for one in each if not isinstance(one, str | NewTopic)]:
        raise InvalidOption(f"create: {wrong[0]!r} is neither the name of a topic nor a NewTopic")
    return tuple(NewTopic(one) if isinstance(one, str) else one for one in each)
