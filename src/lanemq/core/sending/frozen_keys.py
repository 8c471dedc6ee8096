"""Which keys of a queue may not be sent, why, and who has to hear of it before they may again.

Rule: a key whose message failed stays closed as long as anybody could send another message of it without knowing
of the failure. Whoever was told before sending on needs no freeze. A call that sends many is told when it ends:
until then its keys are closed, then they open by themselves. A call that ends with something else, before it can
tell, is told nothing. That and everything else waits for a person.

Memory: one entry per key that failed and was not opened since. Every one of them stands for at least one message
whose sender was told of a failure.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lanemq.model.units import Millis

W = TypeVar("W")
"""Who is told: a call that sends many."""


@dataclass(slots=True)
class Freeze(Generic[W]):
    """One key, or a whole queue, that is closed."""

    since: Millis
    """Wall time of the first failure."""
    why: Exception
    waits_for: set[W] = field(default_factory=set)
    """Calls that have not ended: their callers do not know it yet."""
    needs_resume: bool = False
    """Somebody may send on without knowing it: only a person opens it."""

    def concern(self, call: W | None) -> None:
        """One more message was given up or turned away; None: nobody knows when its sender will hear of it."""
        if call is None:
            self.needs_resume = True
        else:
            self.waits_for.add(call)

    def leave(self, call: W) -> None:
        """The call ended without its caller hearing of the failure."""
        if call in self.waits_for:
            self.waits_for.discard(call)
            self.needs_resume = True

    @property
    def everybody_knows(self) -> bool:
        return not self.needs_resume and not self.waits_for


class FrozenKeys(dict[str, Freeze[W]]):
    """The frozen keys of one queue. A dict, because every send asks whether there are any."""

    def freeze(self, key: str, why: Exception, call: W | None, *, wall: Millis) -> None:
        """A message of the key failed; the first failure is the one that is shown."""
        found = self.get(key)
        if found is None:
            found = self[key] = Freeze(wall, why)
        found.concern(call)

    def told(self, call: W) -> list[str]:
        """The call has ended; the keys that opened by that."""
        opened = []
        for key, freeze in tuple(self.items()):
            freeze.waits_for.discard(call)
            if freeze.everybody_knows:
                del self[key]
                opened.append(key)
        return opened

    def open(self, key: str) -> bool:
        """A person has decided; false if the key was open."""
        return self.pop(key, None) is not None
