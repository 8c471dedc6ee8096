"""Which keys of a queue are frozen, why, and which callers have to learn of it first.

Invariant: a key whose message failed stays frozen as long as a caller could send another message of it without knowing
of the failure. A `send_many` call learns of it when it ends: until then its keys are frozen, then they resume by
themselves. If the call is interrupted, its caller never learns of it, and the keys wait for the user's `resume`, as
they do after a failed `submit`.

Memory: one entry per key that failed and has not been resumed.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lanemq.model.units import Millis

C = TypeVar("C")
"""A call that sends many messages."""


@dataclass(slots=True)
class Freeze(Generic[C]):
    """One frozen key, or a frozen queue."""

    since: Millis
    """Wall time of the first failure."""
    why: Exception
    waits_for: set[C] = field(default_factory=set)
    """Running calls whose callers do not know of the failure yet."""
    needs_resume: bool = False
    """A caller may not know of the failure: only the user resumes it."""

    def add(self, call: C | None) -> None:
        """Another message was given up or refused; without a call, its sender may learn of it at any time."""
        if call is None:
            self.needs_resume = True
        else:
            self.waits_for.add(call)

    def call_interrupted(self, call: C) -> None:
        """The call ended, and its caller did not learn of the failure."""
        if call in self.waits_for:
            self.waits_for.discard(call)
            self.needs_resume = True

    @property
    def is_known(self) -> bool:
        """All callers concerned know of the failure."""
        return not self.needs_resume and not self.waits_for


class FrozenKeys(dict[str, Freeze[C]]):
    """The frozen keys of one queue. A dict, because every send asks whether there are any."""

    def freeze(self, key: str, why: Exception, call: C | None, *, wall: Millis) -> None:
        """A message of the key failed. The first failure is the one that is shown."""
        freeze_of_key = self.get(key)
        if freeze_of_key is None:
            freeze_of_key = self[key] = Freeze(wall, why)
        freeze_of_key.add(call)

    def call_ended(self, call: C) -> list[str]:
        """The call has returned the outcome to its caller; returns the keys that resume."""
        resumed = []
        for key, freeze in tuple(self.items()):
            freeze.waits_for.discard(call)
            if freeze.is_known:
                del self[key]
                resumed.append(key)
        return resumed

    def resume(self, key: str | None) -> bool:
        """Resumes one key, or all of them. False if none was frozen."""
        was_frozen = bool(self) if key is None else key in self
        if key is None:
            self.clear()
        else:
            self.pop(key, None)
        return was_frozen
