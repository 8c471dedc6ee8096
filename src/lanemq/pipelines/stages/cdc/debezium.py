"""`format="debezium"`: change events of Debezium's connectors, with or without the `schema`/`payload` envelope.

`op` is c, u, r (read in a snapshot) or d. An update of the key normally comes as deletion, tombstone and creation;
one that comes as a single update is split the same way. A tombstone repeats the deletion before it. Truncation (t)
concerns rows that no message names, so it is set aside for a person. Schema changes, heartbeats and transaction marks
change no row.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from lanemq.pipelines.stages.cdc.changes import Changes, KeyNames, belongs
from lanemq.pipelines.stages.cdc.sequence import Part
from lanemq.pipelines.stages.cdc.shapes import Document, RowShape, object_type, path_getter, with_paths
from lanemq.pipelines.stages.cdc.table import Table


class DebeziumFormat:
    """Events with the row before and after."""

    opening = r'^\{"before":null,"after":\{'

    def __init__(self, table: Table, parts: Sequence[Part], only: str | None = None) -> None:
        self.shape = RowShape(table)
        fields: dict[str, Any] = {
            "op": str | None, "before": self.shape.only_key | None, "after": self.shape.full | None,
            "ddl": Any, "tableChanges": Any, "status": Any, "ts_ms": Any,
        }  # fmt: skip
        names = ("source.db", "source.schema", "source.table") if only else ()
        event = object_type(with_paths(fields, [*(part.path for part in parts), *names]))
        self.document = (
            msgspec.defstruct("Envelope", [("payload", event | None, None)], bases=(event,), gc=False) | None
        )
        self._only = only
        self._sequenced = bool(parts)

    def path(self, path: str) -> Any:
        return path_getter(path)

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        return [each if each is None or each.payload is None else each.payload for each in documents]

    def read(self, documents: Sequence[Document | None], names: KeyNames, changes: Changes) -> None:
        for message, event in enumerate(documents):
            if message in changes.poison:
                continue
            if event is None:
                self._tombstone(message, names, changes)
            elif event.op is None:
                self._no_row(message, event, changes)
            elif self._only is not None and not self._is_ours(event):
                changes.ignored.append(message)
            elif event.op in ("c", "u", "r"):
                self._put(message, event, changes)
            elif event.op == "d":
                self._delete(message, event, names, changes)
            elif event.op == "m":
                changes.ignored.append(message)
            else:
                changes.poison[message] = f"operation {event.op!r} concerns rows that the event does not name"

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        key, none = self.shape.key, self.shape.no_key
        return [
            place
            for place, (event, mine) in enumerate(zip(documents, keys, strict=True))
            if event is not None
            and (
                (event.after is not None and key(event.after) != mine)
                or (event.before is not None and key(event.before) not in (mine, none))
            )
        ]

    def _is_ours(self, event: Document) -> bool:
        return belongs(self._only, event.source.db, event.source.schema, event.source.table)

    def _put(self, message: int, event: Document, changes: Changes) -> None:
        before, after = event.before, event.after
        if after is None:
            changes.poison[message] = f"operation {event.op!r} without the row after it"
        elif before is None or event.op != "u" or self.shape.key(before) == self.shape.key(after):
            changes.put(message, after)
        elif self.shape.has_key(before):
            changes.move(message, before, after)
        else:
            changes.put(message, after)

    def _delete(self, message: int, event: Document, names: KeyNames, changes: Changes) -> None:
        row = event.before
        if row is None or not self.shape.has_key(row):
            row = names.row(message)
        if row is None:
            changes.poison[message] = "a deletion without the row before it, and its message key does not name the row"
        else:
            changes.delete(message, row)

    def _tombstone(self, message: int, names: KeyNames, changes: Changes) -> None:
        """It has no sequence and does not say its table; where either is asked for, the deletion before it must do."""
        row = None if self._sequenced or self._only else names.row(message)
        if row is None:
            changes.ignored.append(message)
        else:
            changes.delete(message, row)

    def _no_row(self, message: int, event: Document, changes: Changes) -> None:
        if event.ddl is not None or event.tableChanges is not None:
            changes.ddl.append(message)
        elif event.after is None and event.before is None and (event.ts_ms is not None or event.status is not None):
            changes.ignored.append(message)
        else:
            changes.poison[message] = "no operation (op): not an event of Debezium"
