"""Everything that can be set on a consumer: unit, default, and what goes wrong at either end."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from lanemq.client.codec import Codec, codec_named
from lanemq.client.identity import new_client_id
from lanemq.client.keyword_options import opened_history, refuse_unknown
from lanemq.client.option_kinds import wrong_kinds
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.core.consuming.allocation import Allocate, averagely, averagely_by_circle, consistent_hash
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.queue_lease import LANE_TIMES, ROCKETMQ_TIMES, LeaseTimes
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_group
from lanemq.net.address import Address, parse_addresses
from lanemq.net.security import Security
from lanemq.net.tls import TlsOptions
from lanemq.wire.signing import Credentials

STRATEGIES: dict[str, Allocate] = {
    "averagely": averagely,
    "averagely-by-circle": averagely_by_circle,
    "consistent-hash": consistent_hash(),
}
"""Strategies that need no settings, by name."""

LANE_PULL_BATCH = 1_000
ROCKETMQ_PULL_BATCH = 32
"""RocketMQ's DefaultMQPushConsumer; its brokers give no more, whatever is asked."""


class Sharing(Enum):
    """Who gets a message of the group's topics."""

    CLUSTERING = "CLUSTERING"
    """One member of the group: queues are divided among them."""
    BROADCASTING = "BROADCASTING"
    """Every member: each reads all queues and keeps its own offsets. No competition, so no leases."""


class StartFrom(Enum):
    """Where a group begins in a queue that it has never read."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Checked as a whole when made; every problem found is reported at once."""

    servers: str
    """Name servers, or a LaneMQ broker: `host:port`, several joined by `;`."""

    group: str
    """Members with the same group share the work. Two applications need two groups."""

    sharing: Sharing = Sharing.CLUSTERING

    start: StartFrom = StartFrom.FIRST
    """FIRST reads what was sent before the group existed; LAST (RocketMQ's default) passes over it."""

    start_timestamp_ms: int = 0
    """With TIMESTAMP: wall time of the first message wanted."""

    compat: str = "auto"
    """`auto`: short leases with epochs where the broker has them. `rocketmq`: RocketMQ's times everywhere."""

    lease_times: LeaseTimes | None = None
    """Overrides both presets. Short: fast take-over after a crash, more renewals, sensitive to pauses."""

    allocation: str | Allocate = "averagely"
    """Name of a strategy, or a function of `core/consuming/allocation`. All members must use the same one."""

    codec: str | Codec = "json"

    pull_batch: int | None = None
    """Messages asked for in one pull; None: 1000 from a LaneMQ broker, 32 from an Apache one."""

    pull_suspend_ms: int = 15_000
    """How long the broker may hold an empty pull (RocketMQ's DefaultMQPushConsumerImpl). Short: idle traffic."""

    flow: FlowLimits | None = None
    """Most that is cached per queue; None: RocketMQ's 1000 messages, or four pulls where pulls are larger."""

    request_timeout_ms: int = 3_000
    """RocketMQ's ClientConfig.mqClientApiTimeout."""

    lock_timeout_ms: int = 1_000
    """RocketMQ's RebalanceImpl. Longer than the renewal interval would let one slow broker eat the margin."""

    heartbeat_every_ms: int = 30_000
    """RocketMQ's ClientConfig. A broker forgets a member after 120 s of silence."""

    rebalance_every_ms: int = 20_000
    """RocketMQ's RebalanceService. Changes are announced at once; this catches announcements that were lost."""

    rebalance_soon_ms: int = 500
    """Until the next round when a queue could not be taken or given up (RocketMQ's RebalanceImpl)."""

    pull_retry_ms: int = 1_000
    """After a failed pull (RocketMQ's ClientConfig.pullTimeDelayMillsWhenException)."""

    commit_every_ms: int = 1_000
    """How often offsets are reported (RocketMQ: 5 s). What a crash leaves unreported is delivered again."""

    hand_over_ms: int = 5_000
    """How long a queue that moves to another member waits for its running handlers. When they take longer
    the queue stays here and is offered again in the next round: it is never taken from a running handler."""

    stop_ms: int = 30_000
    """How long a stop waits for running handlers before it gives up on them and leaves their lease to expire."""

    consume_timeout_ms: int = 15 * 60_000
    """Concurrent only: a message handled for longer is sent back to the broker (RocketMQ's consumeTimeout)."""

    offsets_folder: Path | None = None
    """Broadcasting: where offsets are kept; None keeps them in memory, so a restart begins anew."""

    client_id: str | None = None
    """Who this member is; None makes an id that no other process has."""

    tls: TlsOptions | None = None
    """Encrypted connections; None: as the environment says (docs/guides/security.md), else plain ones."""
    credentials: Credentials | None = None
    """Signs every request, for brokers with access control; None: as the environment says, else nothing."""
    clock: Clock = field(default_factory=SystemClock)
    history: History = NO_HISTORY
    """Where to write down what happens, for the checker."""

    def __post_init__(self) -> None:
        problems = wrong_kinds(self, _KINDS) or self._problems()
        if problems:
            raise InvalidOption("; ".join(problems))
        codec_named(self.codec)
        check_group(self.group)
        parse_addresses(self.servers)

    def _problems(self) -> list[str]:
        problems = [
            f"{name}={getattr(self, name)!r} must be at least {least}"
            for name, least in _LEAST.items()
            if (getattr(self, name) if getattr(self, name) is not None else least) < least
        ]
        if self.compat not in ("auto", "rocketmq"):
            problems.append(f"compat={self.compat!r} must be 'auto' or 'rocketmq'")
        if isinstance(self.allocation, str) and self.allocation not in STRATEGIES:
            problems.append(f"allocation={self.allocation!r} must be one of {', '.join(STRATEGIES)}, or a function")
        if self.start is StartFrom.TIMESTAMP and self.start_timestamp_ms <= 0:
            problems.append("start=TIMESTAMP needs start_timestamp_ms: milliseconds since 1970")
        return problems

    @property
    def addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.servers)

    @property
    def security(self) -> Security:
        """How connections are protected."""
        return security_of(self.tls, self.credentials)

    @property
    def allocate(self) -> Allocate:
        return STRATEGIES[self.allocation] if isinstance(self.allocation, str) else self.allocation

    @property
    def strategy(self) -> str:
        """The allocation's name, for people."""
        chosen = self.allocation
        return chosen if isinstance(chosen, str) else getattr(chosen, "__qualname__", repr(chosen)).split(".")[0]

    @property
    def broadcasting(self) -> bool:
        return self.sharing is Sharing.BROADCASTING

    def speaks_lane(self, broker_is_lane: bool) -> bool:
        """Whether LaneMQ's additions are used with a broker."""
        return broker_is_lane and self.compat == "auto"

    def times(self, lane: bool) -> LeaseTimes:
        """How leases of a broker's queues are kept."""
        return self.lease_times or (LANE_TIMES if lane else ROCKETMQ_TIMES)

    def batch_from(self, lane: bool) -> int:
        return self.pull_batch or (LANE_PULL_BATCH if lane else ROCKETMQ_PULL_BATCH)

    def limits(self, lane: bool) -> FlowLimits:
        if self.flow is not None:
            return self.flow
        messages = max(1_000, 4 * self.batch_from(lane))
        return FlowLimits(messages=messages, span=2 * messages)


_LEAST = {
    "pull_batch": 1,
    "pull_suspend_ms": 0,
    "request_timeout_ms": 1,
    "lock_timeout_ms": 1,
    "heartbeat_every_ms": 1,
    "rebalance_every_ms": 1,
    "rebalance_soon_ms": 1,
    "pull_retry_ms": 1,
    "commit_every_ms": 1,
    "hand_over_ms": 1,
    "stop_ms": 0,
    "consume_timeout_ms": 1,
}

_KINDS: dict[str, object] = {
    **dict.fromkeys((*_LEAST, "start_timestamp_ms"), int),
    "pull_batch": int | None,
    "tls": TlsOptions | None,
    "credentials": Credentials | None,
    "sharing": Sharing,
    "start": StartFrom,
}


def consumer_options(servers: str, group: str, given: Mapping[str, Any]) -> ConsumerOptions:
    """Checked options; a history named by its folder is opened under the member's client id."""
    refuse_unknown(given, tuple(each.name for each in fields(ConsumerOptions)), "consumer")
    rest = dict(given)
    history = rest.pop("history", NO_HISTORY)
    if isinstance(rest.get("offsets_folder"), str):
        rest["offsets_folder"] = Path(rest["offsets_folder"])
    options = ConsumerOptions(servers=servers, group=group, **rest)
    client_id = options.client_id or new_client_id()
    opened = opened_history(history, client_id, options.clock, "consumer")
    return replace(options, client_id=client_id, history=opened) if opened.on else options
