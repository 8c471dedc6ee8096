"""A producer's settings, checked once when it is made."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypedDict, Unpack

from lanemq.client.codec import Codec
from lanemq.client.keyword_options import opened_history, refuse_unknown, wrong_kinds
from lanemq.client.security import security_of
from lanemq.clock import Clock
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_group
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The largest body RocketMQ's brokers take (MessageStoreConfig.maxMessageSize)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """What a producer does when it is not told otherwise. Every problem is reported at once."""

    group: str = "lanemq-producers"
    """Under this name the broker lists the producer."""
    codec: str | Codec = "json"
    linger_ms: int = 0
    """How long a message may wait for company. 0 sends at once; messages still share a batch while earlier
    ones are under way, so waiting pays only for many small messages from slow senders."""
    window: int = 4
    """Batches of one queue under way at once. A LaneMQ broker refuses the later ones when an earlier one is
    missing; an Apache broker would store them, so there it is always 1."""
    max_batch_messages: int = 1000
    max_batch_bytes: int = 1024 * 1024
    """A batch ends at either limit. Apache brokers refuse batches over 4 MiB."""
    buffer_bytes: int = 64 * 1024 * 1024
    """Messages waiting or under way. A full buffer makes senders wait; it never drops."""
    timeout: float = 10.0
    """Seconds from the send call to its receipt, retries included. Afterwards nobody knows whether the
    message was stored, and the send fails with `RequestTimedOut`."""
    request_timeout: float = 3.0
    """Seconds after which an unanswered request to a LaneMQ broker is sent again over a new connection. A broker
    of any kind that takes no bytes for once or twice as long is connected to anew. Too short, and a broker that is
    merely slow is asked again and again; too long, and a send uses up its `timeout` on a connection that is dead."""
    compress_above: int = 4096
    """Single bodies of this size or more are sent as zlib (RocketMQ's DefaultMQProducer). Batches are not."""
    max_body_bytes: int = MAX_BODY_BYTES
    tls: TlsOptions | None = None
    """Encrypted connections; None: as the environment says (docs/guides/security.md), else plain ones."""
    credentials: Credentials | None = None
    """Signs every request, for brokers with access control; None: as the environment says, else nothing."""
    history: History = NO_HISTORY
    """Where to write down what happens, for the checker."""

    def __post_init__(self) -> None:
        check_group(self.group)
        problems = wrong_kinds(self, _KINDS) or [text for wrong, text in self._rules() if wrong]
        if problems:
            raise InvalidOption("producer options: " + "; ".join(problems))

    @property
    def security(self) -> Security:
        """How connections are protected."""
        return security_of(self.tls, self.credentials)

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        return (
            (not 0 <= self.linger_ms <= 60_000, f"linger_ms is {self.linger_ms}, use 0 to 60000"),
            (not 1 <= self.window <= 100, f"window is {self.window}, use 1 to 100"),
            (
                not 1 <= self.max_batch_messages <= 10_000,
                f"max_batch_messages is {self.max_batch_messages}, use 1 to 10000",
            ),
            (
                not 1024 <= self.max_batch_bytes <= MAX_BODY_BYTES,
                f"max_batch_bytes is {self.max_batch_bytes}, use 1024 to {MAX_BODY_BYTES}",
            ),
            (
                self.buffer_bytes < self.max_body_bytes,
                f"buffer_bytes is {self.buffer_bytes}, but one message may take {self.max_body_bytes}",
            ),
            (self.timeout <= 0, f"timeout is {self.timeout:g} s, it must be positive"),
            (
                self.request_timeout <= 0,
                f"request_timeout is {self.request_timeout:g} s, it must be positive",
            ),
            (self.compress_above < 1, f"compress_above is {self.compress_above}, it must be positive"),
        )


_KINDS: dict[str, object] = {
    "tls": TlsOptions | None,
    "credentials": Credentials | None,
    "linger_ms": int,
    "window": int,
    "max_batch_messages": int,
    "max_batch_bytes": int,
    "buffer_bytes": int,
    "timeout": float,
    "request_timeout": float,
    "compress_above": int,
    "max_body_bytes": int,
}


class ProducerSettings(TypedDict, total=False):
    """The fields of `ProducerOptions` as keyword arguments of a producer."""

    group: str
    codec: str | Codec
    linger_ms: int
    window: int
    max_batch_messages: int
    max_batch_bytes: int
    buffer_bytes: int
    timeout: float
    request_timeout: float
    compress_above: int
    max_body_bytes: int
    tls: TlsOptions | None
    credentials: Credentials | None
    history: History | str | Path


def producer_options(clock: Clock, client_id: str, /, **settings: Unpack[ProducerSettings]) -> ProducerOptions:
    """Checked options; a history named by its folder is opened under the producer's client id."""
    refuse_unknown(settings, tuple(each.name for each in fields(ProducerOptions)), "producer")
    given = settings.pop("history", NO_HISTORY)
    options = ProducerOptions(**settings)  # type: ignore[arg-type]  # without history: that may be a path
    return replace(options, history=opened_history(given, client_id, clock, "producer"))
