"""What a person decided about stopped lanes, as a pass carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verb: TypeAlias = Literal["redrive", "discard", "discard_first"]


@dataclass(frozen=True, slots=True)
class Orders:
    """By lane. `everything` is for the lanes that are not named."""

    named: Mapping[str, Verb]
    everything: Verb | None = None

    def verb(self, name: str) -> Verb | None:
        """What to do with a stopped lane; None: nothing was said."""
        return self.named.get(name, self.everything)


NONE = Orders({})
