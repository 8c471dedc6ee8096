"""What of a stage must stay as it is for as long as its state lives: `stage.json`.

The rule guarded here: state is never read with other eyes than those it was made with. With another number of shards
keys lose their state; with other numbers, or numbers where there were none, new events are taken for repeats, or wait
for events that came long ago.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.atomic_files import read_json, write_json


class Fixed(msgspec.Struct, frozen=True, omit_defaults=True):
    """As the first run noted it."""

    shards: Literal["queue"] | int
    sequence: str | msgspec.UnsetType = msgspec.UNSET
    """`none`, `field <name>` or `function`: of a function nobody can say whether it is the same."""
    first_number: int | msgspec.UnsetType | None = msgspec.UNSET
    """Not noted where there are no numbers."""


def fixed(shards: Literal["queue"] | int, sequence: object, first_number: int | None) -> Fixed:
    """What these options fix."""
    if sequence is None:
        return Fixed(shards, "none")
    return Fixed(shards, f"field {sequence}" if isinstance(sequence, str) else "function", first_number)


def keep_fixed(place: Path, wanted: Fixed) -> None:
    """Notes it at the first start, and refuses what is different at a later one."""
    path = place / "stage.json"
    if not path.exists():
        write_json(path, wanted)
    found: Any = read_json(path, Fixed)
    _check(place, found, wanted)
    if found.sequence is msgspec.UNSET:  # of a version that did not note it
        write_json(path, wanted)


def _check(place: Path, found: Fixed, wanted: Fixed) -> None:
    if found.shards != wanted.shards:
        raise InvalidOption(
            f"shards={wanted.shards!r}, but the state in {place} was made with shards={found.shards!r}: keys would "
            f"lose their state. Keep the number, or start anew with an empty checkpoint"
        )
    if found.sequence not in (wanted.sequence, msgspec.UNSET):
        raise InvalidOption(
            f"sequence is {wanted.sequence}, but the state in {place} was made with {found.sequence}: events would be "
            f"taken for repeats, or wait for numbers that were applied. Keep sequence=, or start anew with an empty "
            f"checkpoint"
        )
    # To begin with any number is no contradiction to a key that has begun.
    if wanted.first_number is not None and found.first_number not in (wanted.first_number, msgspec.UNSET):
        raise InvalidOption(
            f"first_number={wanted.first_number}, but the state in {place} was made with {found.first_number}: keep "
            f"it, say first_number=None if a key may begin with any number, or start anew with an empty checkpoint"
        )
