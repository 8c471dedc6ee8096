"""One member's lease of one queue: until when the member may start turns there.

The broker grants a queue to one member for a limited time. The member must stop using the queue before the broker could
grant it to another member, even when the network is down. Three rules ensure that:

1. The lease counts from when its request was *sent*. The broker counts from when the request arrived, which is later.
2. renewal interval < client lease < broker lease; `LeaseTimes` checks it.
3. A broker that loses the member's connection gives the queue away long before the lease ends, and the member may not
   notice the loss. So turns start only before the *keep-alive deadline*, which is `keep_alive_timeout` after the last
   request that the broker answered; the broker knows the timeout and waits for it. Keep-alive requests between the
   renewals move the deadline. A deadline that has passed pauses the queue; the next answer resumes it.

A lease cannot interrupt a running handler. What the handler writes elsewhere is protected only if the receiver compares
epochs.
"""

from dataclasses import dataclass
from enum import Enum

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, Millis, Seconds, to_millis, to_seconds


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How often a lease is renewed, how long this member uses it and how long the broker keeps it, in seconds."""

    renew_every: Seconds
    """Interval between renewals. Short: more requests. Long: fewer lost renewals are survived."""
    client_lease: Seconds
    """How long this member uses a lease after the request that renewed it. Short: pauses are likelier."""
    broker_lease: Seconds
    """How long the broker keeps the queue for this member, and a silent member in its group. Long: others wait longer
    after a silent loss. Short: a pause costs the member its queues."""
    keep_alive_timeout: Seconds = 0.8
    """How long turns may start after a request that the broker answered. Long: the queues of a killed member wait
    longer. Short: a member that is busy, or far away from its broker, pauses between answers."""
    keep_alive_every: Seconds = 0.25
    """Interval between keep-alive requests. About a third of the timeout lets one answer be late without a pause."""

    def __post_init__(self) -> None:
        renew, client, broker = (
            to_seconds(self.renew_every),
            to_seconds(self.client_lease),
            to_seconds(self.broker_lease),
        )
        every, timeout = to_seconds(self.keep_alive_every), to_seconds(self.keep_alive_timeout)
        problems = []  # compared as the milliseconds that the code counts in
        if self.renew_every_ms <= 0:
            problems.append(f"renew_every must be positive, is {renew:g} s")
        if self.renew_every_ms >= self.client_lease_ms:
            problems.append(
                f"renew_every ({renew:g} s) must be below client_lease ({client:g} s), "
                f"or the lease runs out between two renewals"
            )
        if self.client_lease_ms >= self.broker_lease_ms:
            problems.append(
                f"client_lease ({client:g} s) must be below broker_lease ({broker:g} s), "
                f"or two members may consume the queue at once"
            )
        if not 0 < self.keep_alive_every_ms < to_millis(self.keep_alive_timeout):
            problems.append(
                f"keep_alive_every ({every:g} s) must be positive and below "
                f"keep_alive_timeout ({timeout:g} s), or turns pause between two keep-alives"
            )
        if problems:
            raise InvalidOption("lease times do not fit: " + "; ".join(problems))

    @property
    def renew_every_ms(self) -> Millis:
        return to_millis(self.renew_every)

    @property
    def client_lease_ms(self) -> Millis:
        return to_millis(self.client_lease)

    @property
    def broker_lease_ms(self) -> Millis:
        return to_millis(self.broker_lease)

    @property
    def keep_alive_every_ms(self) -> Millis:
        return to_millis(self.keep_alive_every)

    @property
    def keep_alive_timeout_ms(self) -> Millis:
        """The timeout as the broker is given it: never longer than the client lease."""
        return min(to_millis(self.keep_alive_timeout), self.client_lease_ms)


ROCKETMQ_TIMES = LeaseTimes(renew_every=20, client_lease=30, broker_lease=60)
"""RocketMQ's ProcessQueue (20 s and 30 s) and RebalanceLockManager (60 s)."""

CLUSTER_TIMES = LeaseTimes(renew_every=2, client_lease=6, broker_lease=60)
"""For an Apache cluster, whose brokers keep a lock for 60 s, but forget it when they restart or another replica becomes
the master. A controller replaces a silent master after 10 s (controllerHeartBeatTimeoutMills); by then a member must
have stopped using what the old master granted."""

LANE_TIMES = LeaseTimes(renew_every=1, client_lease=3, broker_lease=5)
"""LaneMQ's own: a crashed member is replaced within seconds, and two lost renewals are survived."""


class Grant(Enum):
    """What a granted answer changed."""

    NEW = "new"
    """Another member may have owned the queue in between: read the offset again before pulling."""
    RENEWED = "renewed"
    """Ours without a break."""
    STALE = "stale"
    """An answer overtaken by a newer one; nothing changed."""


class QueueLease:
    """One queue's lease, from the first grant to its loss. Reused after a loss; the epoch tells the grants apart."""

    __slots__ = ("_client_lease", "_keep_alive_timeout", "_until", "asked_at", "epoch", "serial", "usable_until")

    def __init__(self, client_lease_ms: Millis) -> None:
        self._client_lease = client_lease_ms
        self.epoch = Epoch(0)
        """The newest epoch granted; 0 if the broker has no epochs."""
        # None: not ours. Never moves back while the epoch stays the same.
        self._until: Millis | None = None
        self.asked_at = Millis(0)
        """When the newest request that the broker confirmed was sent, be it a renewal or a keep-alive. The keep-alive
        timeout counts from here."""
        # None: the broker does not wait for keep-alives, and the lease itself counts.
        self._keep_alive_timeout: Millis | None = None
        self.serial = 0
        """Names the grant in keep-alives; 0: the broker does not wait for them."""
        self.usable_until: Millis | None = None
        """The first moment at which no turn may start any more; None without a lease."""

    def usable(self, *, now: Millis) -> bool:
        return self.usable_until is not None and now < self.usable_until

    def granted(
        self, epoch: Epoch, *, asked_at: Millis, keep_alive_timeout: Millis | None = None, serial: int = 0
    ) -> Grant:
        """Records the broker's grant of the request sent at `asked_at`.

        The answer has a serial if the broker waits for this member's keep-alive timeout.
        """
        until = Millis(asked_at + self._client_lease)
        held = self._until
        if epoch < self.epoch or (held is not None and epoch == self.epoch and until <= held):
            return Grant.STALE
        unbroken = held is not None and epoch == self.epoch
        # Without epochs the member cannot tell who owned the queue after its lease ran out.
        if epoch == 0 and held is not None and asked_at >= held:
            unbroken = False
        self.epoch, self._until = epoch, until
        self.asked_at = max(self.asked_at, asked_at) if unbroken else asked_at
        self._keep_alive_timeout, self.serial = keep_alive_timeout if serial else None, serial
        self._set_deadline()
        return Grant.RENEWED if unbroken else Grant.NEW

    def kept_alive(self, serial: int, *, asked_at: Millis) -> None:
        """Records the broker's answer to a keep-alive sent at `asked_at`.

        It moves the keep-alive deadline, never the end of the lease, and does not affect grants with another serial.
        """
        if serial == self.serial:
            self.asked_at = max(self.asked_at, asked_at)
            self._set_deadline()

    def lost(self) -> None:
        """Ends the lease: refused, fenced, or forgotten by the broker. An unanswered request does not end it."""
        self._until = self.usable_until = None

    def _set_deadline(self) -> None:
        self.usable_until = self._until
        if self._until is not None and self._keep_alive_timeout is not None:
            self.usable_until = min(self._until, Millis(self.asked_at + self._keep_alive_timeout))
