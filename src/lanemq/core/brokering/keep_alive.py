"""Until when lease owners may start turns, as far as the broker can know.

The broker cuts a lease short when its owner's connection is lost. The owner may not notice the loss: a middlebox may
close one side only. So an owner states for how long after a request it starts turns (its keep-alive timeout), and
refreshes that with keep-alive requests, which name no queues and extend no lease.

Invariant: no queue is granted to another owner before the keep-alive deadline of the last confirmed request has passed.

A grant carries its owner's serial, which changes whenever leases of that owner were cut short. A keep-alive names the
serial and covers only what was granted under it: a lease that was cut must be renewed first.
"""

from lanemq.model.units import Millis

MARGIN = 8
"""The broker waits an eighth of the timeout longer: clocks that run 6 % too fast or too slow do no harm."""


class KeepAlives:
    """Serials and last keep-alives, by owner. Serials are never reused, so each broker start needs another `first`."""

    def __init__(self, first: int = 1) -> None:
        self._newest = first
        self._serials: dict[str, int] = {}
        self._seen: dict[str, Millis] = {}

    def serial(self, owner: str) -> int:
        """The serial under which the owner's grants are made now."""
        return self._serials.setdefault(owner, self._newest)

    def keep_alive(self, owner: str, serial: int, *, now: Millis) -> bool:
        """Records a keep-alive; false if leases of this owner were cut since it was granted them under the serial."""
        if self._serials.get(owner) != serial:
            return False
        self._seen[owner] = now
        return True

    def until(self, owner: str, timeout: Millis, renewed: Millis) -> Millis:
        """When the owner certainly starts no more turns in a queue whose renewals alone say `renewed`."""
        seen = self._seen.get(owner)
        return renewed if seen is None else max(renewed, keep_alive_deadline(seen, timeout))

    def cut(self, owner: str) -> None:
        """Voids the owner's serial: its leases end earlier than it assumes."""
        self._newest += 1
        self._serials[owner] = self._newest

    def forget(self, owner: str) -> None:
        """Removes an owner that has no leases left."""
        self._serials.pop(owner, None)
        self._seen.pop(owner, None)


def keep_alive_deadline(heard: Millis, timeout: Millis) -> Millis:
    """When an owner that was last heard at `heard` certainly starts no more turns."""
    return Millis(heard + timeout + timeout // MARGIN)
