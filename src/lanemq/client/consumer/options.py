"""The options of a consumer: units, defaults, and what goes wrong when a value is too small or too large."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict, Unpack

from lanemq.client.codec import Codec, codec_named
from lanemq.client.identity import new_client_id
from lanemq.client.keyword_options import in_seconds, opened_history, refuse_unknown, wrong_kinds
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.core.consuming.allocation import Allocate, averagely, averagely_by_circle, consistent_hash
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.queue_lease import CLUSTER_TIMES, LANE_TIMES, ROCKETMQ_TIMES, LeaseTimes
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_group
from lanemq.model.units import Seconds, to_millis
from lanemq.model.wording import shown
from lanemq.net.address import Address, Servers, parse_address, parse_addresses, servers_text
from lanemq.net.security import Security, TlsOptions
from lanemq.wire.signing import Credentials

STRATEGIES: dict[str, Allocate] = {
    "averagely": averagely,
    "averagely-by-circle": averagely_by_circle,
    "consistent-hash": consistent_hash(),
}
"""Allocation strategies that need no arguments, by name."""

LANE_PULL_BATCH = 1_000
"""Larger pulls save the broker time, but cost a busy consumer more in most measurements (`benchmarks/RESULTS.md`)."""
ROCKETMQ_PULL_BATCH = 32
"""The default of RocketMQ's DefaultMQPushConsumer; its brokers return no more, however many are requested."""


class Sharing(Enum):
    """How the members of a group divide the messages."""

    CLUSTERING = "CLUSTERING"
    """Each message goes to one member; the queues are divided among the members."""
    BROADCASTING = "BROADCASTING"
    """Each message goes to every member: each reads all queues, keeps its own offsets and needs no leases."""


class StartFrom(Enum):
    """Where a group starts in a queue that it has never read."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumerSettings(TypedDict, total=False):
    """The keyword arguments of `App`, `Consumer`, `AsyncConsumer` and `PushConsumer`.

    Each is a field of `ConsumerOptions`. Durations are seconds or a `timedelta`.
    """

    sharing: Sharing
    start: StartFrom
    start_timestamp: datetime | float | None
    compat: str
    lease_times: LeaseTimes | None
    allocation: str | Allocate
    codec: str | Codec
    pull_batch: int | None
    drop_repeats: bool
    pull_suspend: Seconds
    flow: FlowLimits | None
    request_timeout: Seconds
    lock_timeout: Seconds
    heartbeat_every: Seconds
    rebalance_every: Seconds
    rebalance_soon: Seconds
    pull_retry: Seconds
    commit_every: Seconds
    hand_over_timeout: Seconds
    stop_timeout: Seconds
    consume_timeout: Seconds
    offsets_folder: str | Path | None
    client_id: str | None
    monitor: str | None
    tls: TlsOptions | None
    credentials: Credentials | None
    clock: Clock
    history: History | str | Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Checked options of one member. All problems are reported in one error."""

    servers: str
    """Addresses of the name servers, or of a LaneMQ broker: `host:port`, several joined by `;`."""

    group: str
    """Name of the group. Members with the same group share the work; two applications need two groups."""

    sharing: Sharing = Sharing.CLUSTERING

    start: StartFrom = StartFrom.FIRST
    """FIRST reads what was sent before the group existed; LAST (RocketMQ's default) skips it."""

    start_timestamp: float | None = None
    """With TIMESTAMP: store time of the first message to read, in seconds since 1970; a `datetime` works too."""

    compat: str = "auto"
    """`auto`: short leases with epochs where the broker has them. `rocketmq`: RocketMQ's times everywhere."""

    lease_times: LeaseTimes | None = None
    """Overrides both presets. Short leases: fast take-over after a crash, but more renewals and no long pauses."""

    allocation: str | Allocate = "averagely"
    """Name of a strategy, or a function as in `core/consuming/allocation`. All members must use the same one."""

    codec: str | Codec = "json"
    """How bodies become values: "json", "text", "bytes", or an object with `encode` and `decode`."""

    pull_batch: int | None = None
    """Maximum number of messages per pull; None: 1000 from a LaneMQ broker, 32 from an Apache one."""

    drop_repeats: bool = False
    """Leaves out messages that an Apache broker stored twice because an answer was lost, as their producer stamps
    show. Looks back over the last 1000 messages when a queue is taken. A LaneMQ broker stores no repeats."""

    pull_suspend: float = 15.0
    """How long the broker may hold an empty pull (RocketMQ's DefaultMQPushConsumerImpl). Short: idle traffic."""

    flow: FlowLimits | None = None
    """Cache limits per queue; None: RocketMQ's 1000 messages, or four pulls where pulls are larger."""

    request_timeout: float = 3.0
    """How long a request waits for its answer (RocketMQ's ClientConfig.mqClientApiTimeout)."""

    lock_timeout: float = 3.0
    """How long a lease request or keep-alive waits: as long as a lease is used (RocketMQ: 1 s). Short: if
    the broker takes longer to answer, because of its disk or an overloaded machine, it grants leases, and no member
    waits for the answer."""

    heartbeat_every: float = 30.0
    """Interval of heartbeats (RocketMQ's ClientConfig). An Apache broker removes a member after 120 s without one;
    LaneMQ brokers go by the keep-alives."""

    rebalance_every: float = 20.0
    """Interval of rebalance rounds (RocketMQ's RebalanceService). Brokers announce changes at once; this catches
    announcements that were lost."""

    rebalance_soon: float = 0.5
    """Pause before the next round when a queue could not be taken or given up (RocketMQ's RebalanceImpl)."""

    pull_retry: float = 1.0
    """Pause after a failed pull (RocketMQ's ClientConfig.pullTimeDelayMillsWhenException)."""

    commit_every: float = 1.0
    """Interval of offset reports (RocketMQ: 5 s). Messages that a crash leaves unreported are delivered again."""

    hand_over_timeout: float = 5.0
    """How long a queue that moves to another member waits for its running handlers. If they take longer, the queue
    stays here until the next round: it is never taken away from a running handler."""

    stop_timeout: float = 30.0
    """How long a stop waits for running handlers before it leaves them behind and lets their leases expire."""

    consume_timeout: float = 15 * 60.0
    """Concurrent only: a message handled for longer is sent back to the broker (RocketMQ's consumeTimeout)."""

    offsets_folder: Path | None = None
    """Broadcasting: folder for the offsets; None keeps them in memory, so that a restart begins anew."""

    client_id: str | None = None
    """Identity of this member; None makes an id that no other process has."""

    monitor: str | None = None
    """Address for health checks and metrics over HTTP, `host:port` (docs/reference/metrics.md); port 0 takes any free
    one. None: no monitor. It shows the names of topics to every client that reaches it: use loopback."""

    tls: TlsOptions | None = None
    """Encrypts connections; None: as the environment says (docs/guides/security.md), else plain connections."""
    credentials: Credentials | None = None
    """Signs every request, for brokers with access control; None: as the environment says, else unsigned."""
    clock: Clock = field(default_factory=SystemClock)
    history: History = NO_HISTORY
    """Records what happens, for the checker."""

    def __post_init__(self) -> None:
        problems = wrong_kinds(self, _KINDS) or self._problems()
        if problems:
            raise InvalidOption("; ".join(problems))
        codec_named(self.codec)
        check_group(self.group)
        parse_addresses(self.servers)
        if self.monitor is not None:
            try:
                parse_address(self.monitor)
            except InvalidOption as error:
                raise InvalidOption(f"monitor: {error}") from None

    def _problems(self) -> list[str]:
        problems = [
            f"{name}={getattr(self, name)!r} must be at least {least}"
            for name, least in _LEAST.items()
            if (getattr(self, name) if getattr(self, name) is not None else least) < least
        ]
        if not isinstance(self.drop_repeats, bool):
            problems.append(f"drop_repeats={shown(self.drop_repeats)} must be True or False")
        if not callable(getattr(self.clock, "now", None)) or not callable(getattr(self.clock, "wall", None)):
            problems.append(f"clock={shown(self.clock)} must be a Clock, with `now` and `wall`")
        if self.compat not in ("auto", "rocketmq"):
            problems.append(f"compat={shown(self.compat)} must be 'auto' or 'rocketmq'")
        if self.allocation not in STRATEGIES if isinstance(self.allocation, str) else not callable(self.allocation):
            problems.append(
                f"allocation={shown(self.allocation)} must be one of {', '.join(STRATEGIES)}, or a function"
            )
        if self.start is StartFrom.TIMESTAMP and not (self.start_timestamp or 0) > 0:
            problems.append("start=TIMESTAMP needs start_timestamp: a datetime, or seconds since 1970")
        return problems

    @property
    def addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.servers)

    @property
    def security(self) -> Security:
        """TLS and credentials of all connections."""
        return security_of(self.tls, self.credentials)

    @property
    def allocate(self) -> Allocate:
        return STRATEGIES[self.allocation] if isinstance(self.allocation, str) else self.allocation

    @property
    def strategy(self) -> str:
        """The display name of the allocation."""
        chosen = self.allocation
        return chosen if isinstance(chosen, str) else getattr(chosen, "__qualname__", repr(chosen)).split(".")[0]

    @property
    def broadcasting(self) -> bool:
        return self.sharing is Sharing.BROADCASTING

    @property
    def start_timestamp_ms(self) -> int:
        return to_millis(self.start_timestamp or 0)

    def speaks_lane(self, broker_is_lane: bool) -> bool:
        """Whether this member uses LaneMQ's protocol additions with a broker."""
        return broker_is_lane and self.compat == "auto"

    def times(self, lane: bool) -> LeaseTimes:
        """The lease times for the queues of a broker."""
        if self.lease_times is not None:
            return self.lease_times
        stock = CLUSTER_TIMES if self.compat == "auto" else ROCKETMQ_TIMES
        return LANE_TIMES if lane else stock

    def batch_from(self, lane: bool) -> int:
        return self.pull_batch or (LANE_PULL_BATCH if lane else ROCKETMQ_PULL_BATCH)

    def limits(self, lane: bool) -> FlowLimits:
        if self.flow is not None:
            return self.flow
        messages = max(1_000, 4 * self.batch_from(lane))
        return FlowLimits(messages=messages, span=2 * messages)


def consumer_options(servers: Servers, group: str, /, **settings: Unpack[ConsumerSettings]) -> ConsumerOptions:
    """Checks the settings of a consumer. A history given as a folder is opened under the member's client id."""
    known = tuple(each.name for each in fields(ConsumerOptions) if each.name not in ("servers", "group"))
    refuse_unknown(settings, known, "consumer")
    rest = _normal(settings)
    history = rest.pop("history", NO_HISTORY)
    options = ConsumerOptions(servers=servers_text(servers), group=group, **rest)
    client_id = options.client_id or new_client_id()
    opened = opened_history(history, client_id, options.clock, "consumer")
    return replace(options, client_id=client_id, history=opened) if opened.on else options


def _normal(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Durations and times as seconds, the offsets folder as a path."""
    normal = in_seconds(settings)
    if isinstance(when := normal.get("start_timestamp"), datetime):
        normal["start_timestamp"] = when.timestamp()
    if isinstance(folder := normal.get("offsets_folder"), str):
        normal["offsets_folder"] = Path(folder)
    return normal


_MIN_SECONDS = 0.001
"""Shorter would be rounded to nothing, and a loop would never pause."""

_LEAST = {
    "pull_batch": 1,
    "pull_suspend": 0,
    "request_timeout": _MIN_SECONDS,
    "lock_timeout": _MIN_SECONDS,
    "heartbeat_every": _MIN_SECONDS,
    "rebalance_every": _MIN_SECONDS,
    "rebalance_soon": _MIN_SECONDS,
    "pull_retry": _MIN_SECONDS,
    "commit_every": _MIN_SECONDS,
    "hand_over_timeout": _MIN_SECONDS,
    "stop_timeout": 0,
    "consume_timeout": _MIN_SECONDS,
}

_KINDS: dict[str, object] = {
    **dict.fromkeys(_LEAST, float),
    "start_timestamp": float | None,
    "pull_batch": int | None,
    "tls": TlsOptions | None,
    "credentials": Credentials | None,
    "sharing": Sharing,
    "start": StartFrom,
    "flow": FlowLimits | None,
    "lease_times": LeaseTimes | None,
    "client_id": str | None,
    "monitor": str | None,
    "offsets_folder": Path | None,
}
