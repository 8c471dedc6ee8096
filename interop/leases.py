"""How soon another member gets the queues of a dead one, by kind of member and broker."""

from typing import NamedTuple

SECOND_US = 1_000_000
LEASE_US = 60 * SECOND_US
"""RebalanceLockManager: how long a lock lives without renewal."""
RENEWAL_US = 20 * SECOND_US
"""ProcessQueue: how often an owner renews; RebalanceService: how often a member asks for what it should have."""
BUSY_US = 5 * SECOND_US
"""All cases run at the same time on one machine."""


class TakeOver(NamedTuple):
    """From the last keep-alive to the first turn of the new owner."""

    least_us: int
    most_us: int


STOCK = TakeOver(LEASE_US - RENEWAL_US - BUSY_US, LEASE_US + 2 * RENEWAL_US + 2 * BUSY_US)
LANE = TakeOver(0, 2 * BUSY_US)
"""A LaneMQ broker sees the connection end, and a LaneMQ client's lease is 5 s long even if it does not."""


def take_over(backend: str, victim: str, heir: str) -> TakeOver:
    """Short if broker and dead member are LaneMQ's; a Java member that was refused asks again only later."""
    if backend != "lane" or victim != "lane":
        return STOCK
    return LANE if heir == "lane" else LANE._replace(most_us=LANE.most_us + RENEWAL_US)
