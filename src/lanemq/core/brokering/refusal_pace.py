"""How fast a broker refuses requests that carry no right signature.

A refusal costs the broker as much time as a small request. Without a limit, a client without credentials could keep the
event loop busy with refusals. So each address may have a number of refusals at once, and then one in each interval.
After a refusal beyond that, the connection waits until the address may have the next one; the broker does not look at
its next request before. Connections of the same address wait one behind the other, so they do not continue all at once.

A request with a right signature waits only behind wrong ones of its own connection. Not limited are connections that
are opened for each request, frames whose header cannot be read, and responses, which ask for nothing.
"""

from lanemq.model.units import Millis

MAX_REFUSALS = 20
"""Of an address, before its connections wait. Low: a program with a wrong secret and many requests under way gets
time-outs before it gets the reason. High: refusals delay the requests of others."""

INTERVAL_MS = 10
"""Between two further refusals of an address."""

MAX_WAIT_MS = 1_000
"""Longest wait of a connection, however many wait. Long: a client that opens connections and leaves them fills the
connections of its address, because the broker does not notice the end of one that waits. Short: with thousands of
connections, refusals take more of the broker's time."""

FEW_ADDRESSES = 1_000
"""Up to this number of addresses, none is forgotten."""

_ALLOWANCE_MS = MAX_REFUSALS * INTERVAL_MS


class RefusalPace:
    """When each address may have its next refusal."""

    def __init__(self) -> None:
        self._next: dict[str, Millis] = {}
        self._clean_at = FEW_ADDRESSES

    def refused(self, address: str, now: Millis) -> Millis:
        """Counts a refusal; returns for how long its connection has to wait, 0 within the allowance."""
        if len(self._next) >= self._clean_at:
            self._forget_old(now)
        after = max(self._next.get(address, 0), now - _ALLOWANCE_MS) + INTERVAL_MS
        after = self._next[address] = Millis(min(after, now + MAX_WAIT_MS))
        return Millis(max(0, after - now))

    def _forget_old(self, now: Millis) -> None:
        """Forgets addresses that have their whole allowance again."""
        self._next = {address: time for address, time in self._next.items() if time > now - _ALLOWANCE_MS}
        self._clean_at = max(FEW_ADDRESSES, 2 * len(self._next))
