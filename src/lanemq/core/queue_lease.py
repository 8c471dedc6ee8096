"""What this member knows about its right to consume one queue.

The broker grants a queue to one member for a while. The member must stop using it strictly before the
broker could give it to another, without asking and even when the network is gone. Two rules make that
hold:

1. A lease counts from when its request was *sent*: the broker counts from when it arrived, which is later.
2. renewal interval < client lease < broker lease, checked once when the times are chosen.

A running handler cannot be stopped by a lease. What it writes outside is protected only if the receiver
compares the epoch.
"""

from dataclasses import dataclass
from enum import Enum

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, Millis


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How often a lease is renewed, how long this side trusts it, how long the broker keeps it."""

    renew_every: Millis
    client_lease: Millis
    broker_lease: Millis

    def __post_init__(self) -> None:
        problems = []
        if self.renew_every <= 0:
            problems.append(f"renew_every must be positive, is {self.renew_every} ms")
        if self.renew_every >= self.client_lease:
            problems.append(
                f"renew_every ({self.renew_every} ms) must be below client_lease ({self.client_lease} ms), "
                f"or the lease runs out between two renewals"
            )
        if self.client_lease >= self.broker_lease:
            problems.append(
                f"client_lease ({self.client_lease} ms) must be below broker_lease ({self.broker_lease} ms), "
                f"or two members may consume the queue at once"
            )
        if problems:
            raise InvalidOption("lease times do not fit: " + "; ".join(problems))


ROCKETMQ_TIMES = LeaseTimes(Millis(20_000), Millis(30_000), Millis(60_000))
"""RocketMQ's ProcessQueue (20 s and 30 s) and RebalanceLockManager (60 s)."""

LANE_TIMES = LeaseTimes(Millis(1_000), Millis(3_000), Millis(5_000))
"""LaneMQ's own: a crashed member is replaced within seconds, and two lost renewals are survived."""


class Grant(Enum):
    """What a granted answer changed."""

    NEW = "new"
    """Another member may have been owner meanwhile: read the offset again before pulling."""
    RENEWED = "renewed"
    """Ours without a break."""
    STALE = "stale"
    """An answer overtaken by a newer one; nothing changed."""


class QueueLease:
    """One queue's lease, from first grant to loss. Reused after a loss; epochs tell the lives apart."""

    def __init__(self, client_lease_ms: Millis) -> None:
        self._client_lease = client_lease_ms
        self._epoch = Epoch(0)
        # None: not ours. Never moves back while the epoch stays the same.
        self._until: Millis | None = None

    @property
    def epoch(self) -> Epoch:
        """The newest epoch granted; 0 where the broker knows no epochs."""
        return self._epoch

    @property
    def usable_until(self) -> Millis | None:
        """The first moment at which no turn may start any more; None without a lease."""
        return self._until

    def usable(self, *, now: Millis) -> bool:
        return self._until is not None and now < self._until

    def granted(self, epoch: Epoch, *, asked_at: Millis) -> Grant:
        """The broker's yes to the request sent at `asked_at`."""
        until = Millis(asked_at + self._client_lease)
        held = self._until
        if epoch < self._epoch or (held is not None and epoch == self._epoch and until <= held):
            return Grant.STALE
        unbroken = held is not None and epoch == self._epoch
        # Without epochs nobody can tell who owned the queue after our lease ran out.
        if epoch == 0 and held is not None and asked_at >= held:
            unbroken = False
        self._epoch, self._until = epoch, until
        return Grant.RENEWED if unbroken else Grant.NEW

    def refused(self) -> None:
        """The broker's answer left this queue out: another member owns it."""
        self._until = None

    def lost(self) -> None:
        """Given up, fenced, or the broker forgot it. An unanswered request is not a loss: time decides."""
        self._until = None
