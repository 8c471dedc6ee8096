"""Options of a broker: unit, default, and what goes wrong with values that are too small or too large."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from lanemq.core.brokering.topic_table import MAX_QUEUES
from lanemq.model.errors import InvalidOption
from lanemq.model.names import DEFAULT_BROKER_NAME
from lanemq.net.address import Address
from lanemq.net.serving.server_tls import ServerTls

MEBIBYTE = 1024 * 1024
UNKNOWN_ORIGIN = "set at its start"
"""The origin of an option that a program gave to the broker."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of one broker, checked when they are made; all problems are reported together."""

    data: Path
    """Folder of the log and the state database. One broker at a time may use it."""

    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 9876))
    """Address to listen on. Loopback by default, because a broker without `users` serves every client that reaches
    it."""

    advertise: str | None = None
    """Host that clients connect to; None: the listening host (127.0.0.1 for 0.0.0.0)."""

    tls: ServerTls | None = None
    """Certificate for encrypted connections on the same port; None: plain connections only."""

    users: Path | None = None
    """File of users and rights (docs/guides/security.md), read again when it changes; None: no access control."""

    name: str = DEFAULT_BROKER_NAME
    """Broker name in routes. It is part of a queue's identity for RocketMQ clients: renaming moves every queue."""

    cluster: str = "LaneMQ"
    """Cluster name for RocketMQ's tools."""

    durable: bool = True
    """Whether messages are acknowledged after fdatasync. False: after write; a power cut may lose the last moments, a
    crash of the broker process does not."""

    auto_create_topics: bool = True
    """Whether a topic is created on first use, as in RocketMQ. Off: a mistyped topic is an error."""

    default_queues: int = 8
    """Maximum number of queues of an automatically created topic (RocketMQ: TBW102). Few limit the number of
    parallel consumers."""

    segment_bytes: int = 256 * MEBIBYTE
    """Size of one log file in bytes. Small: many files. Large: retention frees space in coarse steps."""

    retention: float = 72 * 3600.0
    """Seconds after which log files are deleted (RocketMQ: fileReservedTime); only time in which a broker runs counts.
    Too short: unread messages are lost."""

    retention_bytes: int = 0
    """Log size in bytes above which the oldest files are deleted, read or not; 0: three quarters of the disk, whatever
    else is on it. Small: unread messages are lost. Large: the disk fills up, and sends stop (`min_free_bytes`)."""

    min_free_bytes: int = 512 * MEBIBYTE
    """Free bytes of the disk below which sends are refused as busy, until there is a quarter more; at most a tenth of
    the disk counts. 0: only when the disk is full. Small: other programs may fill the disk before offsets and leases
    are saved. Large: sends stop early."""

    max_body_bytes: int = 4 * MEBIBYTE
    """Largest message body in bytes (RocketMQ: maxMessageSize)."""

    max_connections: int = 10_000
    """Connections at once, half of them from one address; further ones are closed immediately. Fewer if the process may
    not open that many files beside those of the log; then the newest are closed when the log gains files."""

    max_pinned_bytes: int = 1024 * MEBIBYTE
    """Bytes of log files that are kept beyond their retention because they hold parked messages. Small: the parked
    messages are copied into state.db, which does not shrink when they are removed. Large: the disk fills up with
    files of which little is needed."""

    recover: bool = False
    """Whether to start although `state.db` or its write-ahead log was lost, or is an older copy: topics, their order
    and an epoch floor come from `recovery.json`, producers from the log. Groups whose offsets were lost begin at their
    start position. Also if the newest files of the log were lost: their messages are gone, their offsets are not given
    again."""

    monitor: Address | None = None
    """Address of the HTTP server for health checks and metrics (docs/reference/metrics.md); None: none. It shows
    the names of topics and groups to every client that reaches it, so `lanemq broker` listens on loopback."""

    monitor_required: bool = True
    """Whether the broker refuses to start if the monitor cannot listen. False: it starts without one."""

    history: Path | None = None
    """Folder for the history of leases and offsets, which `lanemq check` reads; None: no history."""

    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each option that was set came from, for people: `command line`, `file lanemq.toml`. Empty: not known."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)!r} must be at least {least}"
            for name, least in _LEAST.items()
            if getattr(self, name) < least
        ]
        problems += [
            f"{name}={getattr(self, name)!r} must be at most {most}: {why}"
            for name, (most, why) in _MOST.items()
            if getattr(self, name) > most
        ]
        if not self.name or "/" in self.name:
            problems.append(f"name={self.name!r} must not be empty or contain '/'")
        if problems:
            raise InvalidOption("; ".join(problems))

    @property
    def advertised_host(self) -> str:
        """The host in routes; a wildcard address is of no use to clients."""
        if self.advertise:
            return self.advertise
        return "127.0.0.1" if self.listen.host in ("0.0.0.0", "::", "", "localhost") else self.listen.host

    def shown(self, in_force: Mapping[str, object]) -> dict[str, tuple[str, str]]:
        """Every option as text, and where it came from; empty: the default. Files and folders are shown by their path.

        `in_force` has the values that a running broker uses instead of those given, such as the limit that 0 stands
        for.
        """
        options: dict[str, tuple[str, str]] = {}
        for each in fields(self):
            if each.name in ("monitor_required", "origins"):
                continue  # not options by themselves: they say how others were chosen
            chosen = getattr(self, each.name)
            value = in_force.get(each.name, chosen)
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            text = "" if value is None else str(value.cert) if isinstance(value, ServerTls) else str(value)
            is_set = chosen != default and (each.name != "monitor" or self.monitor_required)
            by_itself = UNKNOWN_ORIGIN if is_set and not self.origins else ""
            options[each.name] = text, self.origins.get(each.name, by_itself)
        return options


_MOST = {
    "default_queues": (MAX_QUEUES, "a topic has no more queues"),
    "max_body_bytes": (15 * MEBIBYTE, "a message must fit into a frame of 16 MiB"),
}
_LEAST = {
    "default_queues": 1,
    "segment_bytes": 64 * 1024,
    "retention": 0.0,
    "retention_bytes": 0,
    "min_free_bytes": 0,
    "max_body_bytes": 1,
    "max_connections": 1,
    "max_pinned_bytes": 0,
}
