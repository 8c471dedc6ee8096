"""Until when owners of leases go on starting turns, as far as the broker can know.

A lease is cut short when its owner's connection is lost. The owner may not hear of that: a middlebox tells one side
only, or its goodbye gets lost. So an owner says how long after a request it starts turns (its trust), and refreshes
that by signs of life, which name no queues and lengthen no lease. The rule guarded here: nothing is given away
before the trust of the last request that was answered with yes is over.

A grant comes with its owner's serial, which changes whenever leases of that owner were cut short. A sign of life names
the serial and speaks only for what was granted under it: what was cut is trusted again when it was renewed, not before.
"""

from lanemq.model.units import Millis

MARGIN = 8
"""An eighth of the trust is waited in addition: clocks that run 6 % too fast or too slow do no harm."""


class OwnerTrust:
    """Serials and signs of life, by owner. No serial comes back, so every life of a broker needs another `first`."""

    def __init__(self, first: int = 1) -> None:
        self._newest = first
        self._serials: dict[str, int] = {}
        self._seen: dict[str, Millis] = {}

    def serial(self, owner: str) -> int:
        """Under which the owner is granted something now."""
        return self._serials.setdefault(owner, self._newest)

    def alive(self, owner: str, serial: int, *, now: Millis) -> bool:
        """A sign of life; whether the owner may go on for another trust, in what it has under that serial."""
        if self._serials.get(owner) != serial:
            return False
        self._seen[owner] = now
        return True

    def until(self, owner: str, trust: Millis, renewed: Millis) -> Millis:
        """When the owner certainly starts nothing any more in a queue whose renewals alone say `renewed`."""
        seen = self._seen.get(owner)
        return renewed if seen is None else max(renewed, trust_end(seen, trust))

    def cut(self, owner: str) -> None:
        """Leases of the owner end earlier than it believes."""
        self._newest += 1
        self._serials[owner] = self._newest

    def forget(self, owner: str) -> None:
        """It owns nothing any more."""
        self._serials.pop(owner, None)
        self._seen.pop(owner, None)

    def known(self) -> set[str]:
        return {*self._serials, *self._seen}


def trust_end(heard: Millis, trust: Millis) -> Millis:
    """When a trust is over that was refreshed by a request heard then."""
    return Millis(heard + trust + trust // MARGIN)
