"""How fast a broker refuses requests that carry no right signature.

A refusal costs the broker as much time as a small request. Without a limit, a client without credentials could keep the
event loop busy with refusals, and could try secrets as fast as the broker checks them. So the requests of one address
that are refused for their signature share an allowance for each window of time. A connection that is refused beyond it
waits for the next window before the broker looks at its next request. Connections with right signatures never wait, not
even those of the same address.
"""

from lanemq.model.units import Millis

WINDOW_MS = 200
MAX_REFUSALS = 20
"""In one window, for all connections of an address. Low: a program with a wrong secret and many requests under way gets
time-outs before it gets the reason. High: refusals delay the requests of others."""


class RefusalPace:
    """Counts refusals by address, in the present window."""

    def __init__(self, now: Millis) -> None:
        self._began = now
        self._counts: dict[str, int] = {}

    def refused(self, address: str, now: Millis) -> Millis:
        """Counts a refusal; returns for how long its connection has to wait, 0 within the allowance."""
        if not 0 <= now - self._began < WINDOW_MS:
            self._began = now
            self._counts.clear()
        count = self._counts[address] = self._counts.get(address, 0) + 1
        return Millis(0) if count <= MAX_REFUSALS else Millis(self._began + WINDOW_MS - now)
