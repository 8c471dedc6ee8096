"""What this member knows about its right to consume one queue.

The broker grants a queue to one member for a while. The member must stop using it strictly before the
broker could give it to another, without asking and even when the network is gone. Three rules make that
hold:

1. A lease counts from when its request was *sent*: the broker counts from when it arrived, which is later.
2. renewal interval < client lease < broker lease, checked once when the times are chosen.
3. A broker that finds our connection lost gives the queue away long before the lease is over, and we may not hear
   of the loss. So turns start only within a short *trust*, counted from the last request that it answered; the
   broker knows the trust and waits for its end. Signs of life between the renewals keep it up. A trust that ran
   out is a pause and nothing more: an answer that comes within it ends it.

A running handler cannot be stopped by a lease. What it writes outside is protected only if the receiver
compares the epoch.
"""

from dataclasses import dataclass
from enum import Enum

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, Millis

TRUST_MS, SHOW_EVERY_MS = Millis(800), Millis(250)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How often a lease is renewed, how long this side trusts it, how long the broker keeps it."""

    renew_every: Millis
    client_lease: Millis
    broker_lease: Millis
    trust: Millis = TRUST_MS
    """How long turns may start after a request that was answered, where the broker knows of it. Long: the queues of
    a killed member wait longer. Short: a member that is busy, or far away from its broker, pauses between answers."""
    show_every: Millis = SHOW_EVERY_MS
    """How often the trust is refreshed between renewals; a third of it, so that one late answer makes no pause."""

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
        if not 0 < self.show_every < self.trust:
            problems.append(
                f"show_every ({self.show_every} ms) must be positive and below trust ({self.trust} ms), "
                f"or turns pause between two signs of life"
            )
        if problems:
            raise InvalidOption("lease times do not fit: " + "; ".join(problems))

    @property
    def start_trust(self) -> Millis:
        """The trust that counts, which the broker is told: never longer than the lease is trusted anyway."""
        return min(self.trust, self.client_lease)


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

    __slots__ = ("_asked_at", "_client_lease", "_epoch", "_trust", "_until", "serial")

    def __init__(self, client_lease_ms: Millis) -> None:
        self._client_lease = client_lease_ms
        self._epoch = Epoch(0)
        # None: not ours. Never moves back while the epoch stays the same.
        self._until: Millis | None = None
        # When the newest request was sent that the broker answered with yes, be it a renewal or a sign of life.
        self._asked_at = Millis(0)
        # None: the broker knows of no trust, and the lease itself counts.
        self._trust: Millis | None = None
        self.serial = 0
        """Names the grant in signs of life; 0: the broker waits for none."""

    @property
    def epoch(self) -> Epoch:
        """The newest epoch granted; 0 where the broker knows no epochs."""
        return self._epoch

    @property
    def asked_at(self) -> Millis:
        """Since when the trust counts."""
        return self._asked_at

    @property
    def usable_until(self) -> Millis | None:
        """The first moment at which no turn may start any more; None without a lease."""
        if self._until is None or self._trust is None:
            return self._until
        return min(self._until, Millis(self._asked_at + self._trust))

    def usable(self, *, now: Millis) -> bool:
        until = self.usable_until
        return until is not None and now < until

    def granted(self, epoch: Epoch, *, asked_at: Millis, trust: Millis | None = None, serial: int = 0) -> Grant:
        """The broker's yes to the request sent at `asked_at`, with a serial if it has taken notice of the trust."""
        until = Millis(asked_at + self._client_lease)
        held = self._until
        if epoch < self._epoch or (held is not None and epoch == self._epoch and until <= held):
            return Grant.STALE
        unbroken = held is not None and epoch == self._epoch
        # Without epochs nobody can tell who owned the queue after our lease ran out.
        if epoch == 0 and held is not None and asked_at >= held:
            unbroken = False
        self._epoch, self._until = epoch, until
        self._asked_at = max(self._asked_at, asked_at) if unbroken else asked_at
        self._trust, self.serial = trust if serial else None, serial
        return Grant.RENEWED if unbroken else Grant.NEW

    def trusted(self, serial: int, *, asked_at: Millis) -> None:
        """The broker's yes to a sign of life sent at `asked_at`. It lengthens the trust, never the lease, and says
        nothing about a grant with another serial."""
        if serial == self.serial:
            self._asked_at = max(self._asked_at, asked_at)

    def refused(self) -> None:
        """The broker's answer left this queue out: another member owns it."""
        self._until = None

    def lost(self) -> None:
        """Given up, fenced, or the broker forgot it. An unanswered request is not a loss: time decides."""
        self._until = None
