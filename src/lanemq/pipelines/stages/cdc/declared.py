"""What of a replicated table must stay as it is for as long as its checkpoint lives: `table.json`.

The rule guarded here: rows are compared only with rows that were made the same way. With other keys the rows that the
table has are no longer found and stay beside the new ones; with another sequence all newer changes may lose.
"""

from pathlib import Path
from typing import Any

import msgspec

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.atomic_files import read_json, write_json
from lanemq.pipelines.stages.cdc.plan import Plan


class Declared(msgspec.Struct, frozen=True):
    """As the run noted it that made the first batch; a start that never came so far fixes nothing."""

    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    """Its parts with their kinds; none: queue offsets."""


def declared(plan: Plan) -> Declared:
    return Declared(tuple(sorted(plan.table.keys)), tuple(f"{part.path}:{part.kind}" for part in plan.parts))


def note(place: Path, plan: Plan) -> None:
    """Before the first rows leave the stage."""
    path = place / "table.json"
    if not path.exists():
        write_json(path, declared(plan))


def check(place: Path, plan: Plan) -> None:
    """`InvalidOption` if the checkpoint's rows were made in another way."""
    path = place / "table.json"
    if not path.exists():
        return
    found: Any = read_json(path, Declared)
    wanted = declared(plan)
    if found.keys != wanted.keys:
        raise InvalidOption(
            f"keys is {', '.join(wanted.keys)}, but the rows of the checkpoint {place} have the key "
            f"{', '.join(found.keys)}: the table would keep them beside the new ones. Keep keys=, or begin with an "
            f"empty table and an empty checkpoint"
        )
    if found.sequence != wanted.sequence:
        raise InvalidOption(
            f"sequence is {_said(wanted)}, but the rows of the checkpoint {place} have {_said(found)}: old and new "
            f"ones cannot be compared, and newer changes would lose. Keep sequence=, or begin with an empty table and "
            f"an empty checkpoint"
        )


def _said(what: Declared) -> str:
    return ", ".join(what.sequence) or "none (queue offsets)"
