"""The options of a consumer: units, defaults, and what goes wrong when a value is too small or too large."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from lanemq.client.codec import Codec, codec_named
from lanemq.client.coordination import named_coordinators
from lanemq.client.identity import new_client_id
from lanemq.client.keyword_options import Interval, Wait, in_seconds, opened_history, problems_of, refuse_unknown
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.core.consuming.allocation import Allocate, averagely, averagely_by_circle, consistent_hash
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.queue_lease import CLUSTER_TIMES, LANE_TIMES, ROCKETMQ_TIMES, LeaseTimes
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_group
from lanemq.model.units import Seconds
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
    """Reads what was sent before the group existed."""
    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Skips it; RocketMQ's default."""


class ConsumerSettings(TypedDict, total=False):
    """The keyword arguments of `App`, `Consumer`, `AsyncConsumer` and `PushConsumer`.

    Each is a field of `ConsumerOptions`. Durations are seconds or a `timedelta`.
    """

    sharing: Sharing
    start: StartFrom | datetime
    compat: Literal["auto", "rocketmq"]
    lease_times: LeaseTimes | None
    allocation: str | Allocate
    codec: str | Codec
    coordinator: str | None
    drop_repeats: bool | None
    flow: FlowLimits | None
    commit_every: Seconds
    hand_over_timeout: Seconds
    stop_timeout: Seconds
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

    start: StartFrom | datetime = StartFrom.FIRST
    """Where the group starts in a queue that it has never read. A `datetime` is the store time of the first message."""

    compat: Literal["auto", "rocketmq"] = "auto"
    """`auto`: short leases with epochs where the broker has them. `rocketmq`: RocketMQ's times everywhere."""

    lease_times: LeaseTimes | None = None
    """Overrides both presets. Short leases: fast take-over after a crash, but more renewals and no long pauses."""

    allocation: str | Allocate = "averagely"
    """Name of a strategy, or a function as in `core/consuming/allocation`. All members must use the same one."""

    codec: str | Codec = "json"
    """How bodies become values: "json", "text", "bytes", or an object with `encode` and `decode`."""

    coordinator: str | None = None
    """Address of the group's coordinator, `host:port`, or several joined by `;`, if members must reach them at others
    than they told the name servers. None: as the environment says (`LANEMQ_COORDINATOR`), else the name servers."""

    drop_repeats: bool | None = None
    """Leaves out messages that an Apache broker stored twice because an answer was lost, as their producer stamps
    show. None: where a coordinator remembers the stamps; `True`: elsewhere too, which looks back over the last 1000
    messages when a queue is taken. A LaneMQ broker stores no repeats."""

    flow: FlowLimits | None = None
    """Cache limits per queue; None: RocketMQ's 1000 messages, or four pulls where pulls are larger."""

    commit_every: Interval = 1.0
    """Interval of offset reports (RocketMQ: 5 s). Messages that a crash leaves unreported are delivered again."""

    hand_over_timeout: Interval = 5.0
    """How long a queue that moves to another member waits for its running handlers. If they take longer, the queue
    stays here until the next round: it is never taken away from a running handler."""

    stop_timeout: Wait = 30.0
    """How long a stop waits for running handlers before it leaves them behind and lets their leases expire."""

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
        problems = problems_of(self)
        if not callable(getattr(self.clock, "now", None)) or not callable(getattr(self.clock, "wall", None)):
            problems.append(f"clock={shown(self.clock)} must be a Clock, with `now` and `wall`")
        if self.allocation not in STRATEGIES if isinstance(self.allocation, str) else not callable(self.allocation):
            names = ", ".join(STRATEGIES)
            problems.append(f"allocation={shown(self.allocation)} must be one of {names}, or a function")
        if isinstance(self.start, datetime):
            try:
                self.start.timestamp()
            except (ValueError, OverflowError, OSError):
                problems.append(f"start={shown(self.start)} is too long ago or too far ahead for this machine")
        if problems:
            raise InvalidOption("; ".join(problems))
        codec_named(self.codec)
        check_group(self.group)
        parse_addresses(self.servers)
        named_coordinators(self.coordinator)
        if self.monitor is not None:
            try:
                parse_address(self.monitor)
            except InvalidOption as error:
                raise InvalidOption(f"monitor: {error}") from None

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
        """Messages of one pull: fewer where `flow` allows fewer, since a cache exceeds its limit by up to one pull."""
        batch = LANE_PULL_BATCH if lane else ROCKETMQ_PULL_BATCH
        return batch if self.flow is None else min(batch, self.flow.messages)

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
    """Durations as seconds, the offsets folder as a path."""
    normal = in_seconds(settings)
    if isinstance(folder := normal.get("offsets_folder"), str):
        normal["offsets_folder"] = Path(folder)
    return normal
