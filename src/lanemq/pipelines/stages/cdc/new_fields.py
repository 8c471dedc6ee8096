"""Fields of the source's rows that the declared table does not have: noticed when they are new, never a reason to stop.

Decoding skips such fields unread, which is most of its speed, so they are looked for in one message per queue and
batch, the last one. The rule guarded here: a column that the source got is told once, not discovered months later.
"""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.pipelines.batch import Batch
from lanemq.pipelines.stages.cdc.plan import Plan
from lanemq.pipelines.stages.cdc.shapes import UNREADABLE

log = logging.getLogger(__name__)

LOOKS = 3
"""Messages to look at before giving up: deletions and poison have no row."""


class NewFields:
    """What the rows of a run had so far; a declaration may leave out fields from the start, and is not told of them."""

    def __init__(self) -> None:
        self._seen: set[str] | None = None

    def count(self, skipped: Iterable[str], batch: Batch) -> int:
        """How many of a batch's skipped fields are new."""
        found = set(skipped)
        if self._seen is None:
            self._seen = found
            return 0
        fresh = sorted(found - self._seen)
        self._seen |= found
        if fresh:
            log.warning(
                "%s: rows have the new field %s, which is skipped: add it to the schema to keep it",
                batch,
                ", ".join(fresh),
            )
        return len(fresh)


def skipped_fields(plan: Plan, messages: pa.Table) -> list[str]:
    """Fields of the last message that has a row, as far as the table does not have them."""
    for place in range(messages.num_rows - 1, max(-1, messages.num_rows - 1 - LOOKS), -1):
        row = _row(plan.format, messages["value"][place].as_py())
        if row is not None:
            known = {*plan.table.columns, *(part.path.partition(".")[0] for part in plan.parts)}
            return sorted(set(row) - known - {(plan.deleted or "").partition(".")[0]})
    return []


def _row(format: str, value: bytes | None) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(value or b"null")
    except UNREADABLE:
        return None
    if isinstance(found, dict) and format == "debezium":
        found = found.get("payload", found)
        found = found.get("after") if isinstance(found, dict) else None
    elif isinstance(found, dict) and format != "json":
        found = found.get("data")
    if isinstance(found, list):
        found = found[-1] if found else None
    return found if isinstance(found, dict) else None
