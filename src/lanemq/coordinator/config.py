"""Options of a coordinator: unit, default, and what goes wrong with other values."""

from dataclasses import dataclass, field
from pathlib import Path

from lanemq.net.address import Address
from lanemq.net.security import OPEN, Security
from lanemq.net.serving.server_tls import ServerTls


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Options of one coordinator."""

    cluster: tuple[Address, ...]
    """The name servers of the Apache RocketMQ cluster, all of them: settings are kept at each."""

    data: Path | None = None
    """Folder of leases, offsets and lanes. One coordinator at a time may use it, always for the same cluster."""

    state: str | None = None
    """Address of a PostgreSQL database for leases, offsets and lanes, in place of a folder. All coordinators of a
    cluster use the same one, and one of them leads. Its groups are those of one cluster."""

    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 9870))
    """Address to listen on. Loopback by default, because a coordinator serves every client that reaches it."""

    advertise: str | None = None
    """Host under which members find it; None: the listening host (127.0.0.1 for 0.0.0.0)."""

    tls: ServerTls | None = None
    """Certificate for encrypted connections on the same port; None: plain connections only."""

    users: Path | None = None
    """File of users and rights (docs/guides/security.md), read again when it changes; None: no access control. Members
    need the same rights as at a broker."""

    monitor: Address | None = None
    """Address of the HTTP server for health checks and metrics; None: none. It shows the names of groups and topics to
    every client that reaches it."""

    monitor_required: bool = True
    """Whether it refuses to start if the monitor cannot listen. False: it starts without one."""

    history: Path | None = None
    """Folder for the history of leases and offsets, which `lanemq check` reads; None: no history."""

    security: Security = OPEN
    """TLS and credentials of its connections to the cluster."""

    def advertised(self, port: int) -> Address:
        """Where members connect."""
        wildcard = self.listen.host in ("0.0.0.0", "::", "", "localhost")
        return Address(self.advertise or ("127.0.0.1" if wildcard else self.listen.host), port)
