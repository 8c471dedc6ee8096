"""The clients of a front: what each said of itself, what it subscribes to, and the settings that it is told.

Settings are hints. After a restart of the front some clients do not send theirs again, so a client is also known by its
calls: a ReceiveMessage names group, topic and filter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lanemq.broker.access.users import User
from lanemq.core.fronting.liveness import Clients
from lanemq.core.fronting.packing import Packing
from lanemq.grpc_front.answers import CallFailed
from lanemq.grpc_front.port import CallHead
from lanemq.model.units import Millis
from lanemq.wire.grpc.messages import (
    ClientType,
    Code,
    CustomizedBackoff,
    Duration,
    ExponentialBackoff,
    FilterExpression,
    FilterType,
    Language,
    MetricSettings,
    Publishing,
    RetryPolicy,
    Settings,
)

RECEIVE_BATCH = 32
LONG_POLL_MS = 5_000
"""How long a receive waits for messages. Java, Node and Go end only after their open receives, so it is short."""
SEND_ATTEMPTS = 3
ALL = "*"

_LANGUAGES = {"JAVA": Language.JAVA, "PYTHON": Language.PYTHON, "GO": Language.GOLANG, "CPP": Language.CPP,
              "DOT_NET": Language.DOT_NET, "RUST": Language.RUST, "HTTP": Language.NODE_JS}  # fmt: skip
"""What clients write into the metadata."""


@dataclass(slots=True)
class GrpcClient:
    """One client, as far as it is known."""

    id: str
    language: Language = Language.UNSPECIFIED
    version: str = ""
    type: int = ClientType.UNSPECIFIED
    user: User | None = None
    group: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    """What it subscribes to: tags by topic."""
    packing: Packing = field(default_factory=Packing)

    @property
    def name(self) -> str:
        """As operators see it."""
        language = "gRPC" if self.language is Language.UNSPECIFIED else self.language.name.lower()
        return f"{self.id} ({language} {self.version})"


class ClientTable:
    """All clients by id."""

    def __init__(self, most: int) -> None:
        self.alive = Clients()
        self._most = most
        self._known: dict[str, GrpcClient] = {}

    def of_call(self, head: CallHead, user: User | None, *, now: Millis) -> GrpcClient:
        """The client of a call; it counts as seen. One that gives no id is its connection: Go's recovery does so.

        A client's id belongs to the user that came with it first: nobody else can end it or take its messages.
        """
        name = head.metadata.get("x-mq-client-id") or head.connection
        known = self._known.get(name)
        if known is not None and known.user is not None and (user is None or user.access_key != known.user.access_key):
            raise CallFailed(Code.FORBIDDEN, f"client id {name!r} belongs to another user")
        if known is None and len(self._known) >= self._most:
            raise CallFailed(Code.TOO_MANY_REQUESTS, f"this front has {self._most} clients already")
        self.alive.seen(name, now=now, connection=head.connection)
        client = known or self._known.setdefault(name, GrpcClient(name))
        client.user = user
        if client.language is Language.UNSPECIFIED:
            language = head.metadata.get("x-mq-language", "")
            client.language = _LANGUAGES.get(language, Language.UNSPECIFIED)
            client.version = head.metadata.get("x-mq-client-version", "")[:64]
            client.packing.alone = client.language is Language.CPP
        return client

    def known(self, client: str) -> GrpcClient | None:
        return self._known.get(client)

    def forget(self, client: str) -> None:
        self._known.pop(client, None)
        self.alive.forget(client)

    def gone(self, *, now: Millis) -> list[GrpcClient]:
        """Forgets and returns the clients that are not there any more."""
        names = self.alive.gone(now=now)
        return [client for name in names if (client := self._known.pop(name, None)) is not None]

    def of_group(self, group: str) -> list[GrpcClient]:
        return [client for client in self._known.values() if client.group == group]

    def tags_of(self, group: str) -> Mapping[str, str]:
        """What the clients of a group subscribe to, together."""
        return {topic: tags for client in self.of_group(group) for topic, tags in client.tags.items()}

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)


def tags_in(expression: FilterExpression | None) -> str:
    """The tags of a filter; raises `CallFailed` for one of SQL."""
    if expression is None or not expression.expression:
        return ALL
    if expression.type == FilterType.SQL:
        raise CallFailed(Code.ILLEGAL_FILTER_EXPRESSION, "filters of SQL are not supported, only tags such as 'a || b'")
    return expression.expression


def answer_to(settings: Settings, language: Language, *, ordered: bool, max_body_bytes: int, retries: int) -> Settings:
    """What a client is told: its own settings with the missing parts. Each client fails in its own way without one."""
    settings.metric = MetricSettings(on=False)
    if settings.subscription is not None:
        settings.subscription.fifo = ordered
        settings.subscription.receive_batch_size = RECEIVE_BATCH
        settings.subscription.long_polling_timeout = Duration.of_ms(LONG_POLL_MS)
        settings.backoff_policy = _consumer_policy(language, ordered, retries)
    elif settings.publishing is not None or settings.client_type == ClientType.PRODUCER:
        publishing = settings.publishing or Publishing()
        publishing.max_body_size, publishing.validate_message_type = max_body_bytes, True
        settings.publishing = publishing
        settings.backoff_policy = RetryPolicy(
            SEND_ATTEMPTS,
            exponential=ExponentialBackoff(Duration.of_ms(100), Duration.of_ms(1000), 2.0),
        )
    return settings


def _consumer_policy(language: Language, ordered: bool, retries: int) -> RetryPolicy:
    """One attempt for ordered consumers: the front itself retries, so a failure is to come back at once.

    Node knows only the exponential strategy, Python only the customized one, and Go fails without an element in it.
    """
    attempts = 1 if ordered or retries < 0 else retries + 1
    if language is Language.NODE_JS:
        return RetryPolicy(attempts, exponential=ExponentialBackoff(Duration(1), Duration(1), 1.0))
    return RetryPolicy(attempts, customized=CustomizedBackoff((Duration(1),)))
