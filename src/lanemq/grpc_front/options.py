"""The options of a front."""

from dataclasses import dataclass, field
from pathlib import Path

from lanemq.model.errors import InvalidOption
from lanemq.net.address import Address, Servers
from lanemq.net.serving.server_tls import ServerTls

DEFAULT_PORT = 8081
"""The port of RocketMQ's proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """What `lanemq grpc` is started with."""

    servers: Servers
    """Where the broker is, or the name servers of a cluster."""
    listen: Address = field(default_factory=lambda: Address("127.0.0.1", DEFAULT_PORT))
    advertise: Address | None = None
    """Where clients are told to send and receive; None: where they asked. Needed if several fronts share an address, so
    that a client decides about a message at the front that gave it."""
    retries: int = 16
    """Attempts after the first one, before a key is parked; -1 never parks it."""
    dead_letter_groups: frozenset[str] = frozenset()
    """Groups whose failed messages become dead letters, so that later ones of the key pass them."""
    longest_handler: float = 900.0
    """How many seconds a push consumer may have a message without a decision. Then another one gets it, even if the
    client is there: some clients lose acknowledgements, and would keep the key for ever."""
    max_body_bytes: int = 4 * 1024 * 1024
    """Largest body, which clients are told, too."""
    max_clients: int = 10_000
    """Clients at once; more are answered that the front is busy."""
    max_groups: int = 200
    """Groups at once. Each has a thread and its connections."""
    monitor: Address | None = None
    users: Path | None = None
    """The file of a broker's `--users`; None: everybody may do everything."""
    tls: ServerTls | None = None
    history: Path | None = None

    def __post_init__(self) -> None:
        if self.retries < -1:
            raise InvalidOption(f"retries={self.retries} must be 0 or more, or -1 to try for ever")
        for name in ("max_body_bytes", "max_clients", "max_groups"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be at least 1, is {getattr(self, name)}")
