"""`format="debezium"`: change events of Debezium's connectors, with or without the `schema`/`payload` envelope.

`op` is c, u, r (read in a snapshot) or d. An update of the key normally comes as deletion, tombstone and creation; one
that comes as a single update is split in the same way. A tombstone repeats the deletion before it. Truncation (t)
empties the table. Schema changes, heartbeats and transaction marks change no row.

Invariants for values: the mark of an untouched column is never taken for a value, in whatever form it comes; a decimal
is decoded as Base64 only if the schema in the message or the user says so, because digits alone are Base64 too and
would be another number.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from lanemq.pipelines.stages.cdc.changes import KeyNames, RowChanges, belongs
from lanemq.pipelines.stages.cdc.documents import Document, RowTypes, object_type, path_getter, with_paths
from lanemq.pipelines.stages.cdc.sequence import Part
from lanemq.pipelines.stages.cdc.table import ReplicaTable

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""The mark of a large (TOAST) column of PostgreSQL that an update did not touch; the log does not have its value."""
_AS_BYTES: Final = b64encode(UNAVAILABLE.encode()).decode()
_NO_SCHEMA: Final = msgspec.Raw()


class DebeziumFormat:
    """Reads events that have the row before and after."""

    def __init__(self, table: ReplicaTable, parts: Sequence[Part], only_table: str | None = None) -> None:
        self.row_types = RowTypes(table)
        fields: dict[str, Any] = {
            "op": str | None, "before": self.row_types.only_key | None, "after": self.row_types.full | None,
            "ddl": Any, "tableChanges": Any, "status": Any, "ts_ms": Any,
        }  # fmt: skip
        names = ("source.db", "source.schema", "source.table") if only_table else ()
        event = object_type(with_paths(fields, [*(part.path for part in parts), *names]))
        self.document = (
            msgspec.defstruct(
                "Envelope",
                [("payload", event | None, None), ("schema", msgspec.Raw, _NO_SCHEMA)],
                bases=(event,),
                gc=False,
            )
            | None
        )
        self._only_table = only_table
        self._sequenced = bool(parts)

    def path(self, path: str) -> Any:
        return path_getter(path)

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        return [each if each is None or each.payload is None else each.payload for each in documents]

    def schemas(self, documents: Sequence[Document | None]) -> list[bytes] | None:
        found = [_NO_SCHEMA if each is None else each.schema for each in documents]
        return list(map(bytes, found)) if any(found) else None

    def read(self, documents: Sequence[Document | None], names: KeyNames, changes: RowChanges) -> None:
        for message, event in enumerate(documents):
            if message in changes.poison:
                continue
            if event is None:
                self._tombstone(message, names, changes)
            elif event.op is None:
                self._no_row(message, event, changes)
            elif self._only_table is not None and not self._is_wanted(event):
                changes.ignored.append(message)
            elif event.op in ("c", "u", "r"):
                self._put(message, event, changes)
            elif event.op == "d":
                self._delete(message, event, names, changes)
            elif event.op == "t":
                changes.truncations.append(message)
            elif event.op == "m":
                changes.ignored.append(message)
            else:
                changes.poison[message] = f"operation {event.op!r} is unknown"

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        key, none = self.row_types.key, self.row_types.no_key
        return [
            index
            for index, (event, mine) in enumerate(zip(documents, keys, strict=True))
            if event is not None
            and (
                event.op == "t"
                or (event.after is not None and key(event.after) != mine)
                or (event.before is not None and key(event.before) not in (mine, none))
            )
        ]

    def _is_wanted(self, event: Document) -> bool:
        return belongs(self._only_table, event.source.db, event.source.schema, event.source.table)

    def _put(self, message: int, event: Document, changes: RowChanges) -> None:
        before, after = event.before, event.after
        if after is None:
            changes.poison[message] = f"operation {event.op!r} without the row after it"
        elif before is None or event.op != "u" or self.row_types.key(before) == self.row_types.key(after):
            changes.put(message, after)
        elif self.row_types.has_key(before):
            changes.move(message, before, after)
        else:
            changes.put(message, after)

    def _delete(self, message: int, event: Document, names: KeyNames, changes: RowChanges) -> None:
        row = event.before
        if row is None or not self.row_types.has_key(row):
            row = names.row(message)
        if row is None:
            changes.poison[message] = "a deletion without the row before it, and its message key does not name the row"
        else:
            changes.delete(message, row)

    def _tombstone(self, message: int, names: KeyNames, changes: RowChanges) -> None:
        """A tombstone has no sequence and no table name; if either is needed, only the deletion before it counts."""
        row = None if self._sequenced or self._only_table else names.row(message)
        if row is None:
            changes.ignored.append(message)
        else:
            changes.delete(message, row)

    def _no_row(self, message: int, event: Document, changes: RowChanges) -> None:
        if event.ddl is not None or event.tableChanges is not None:
            changes.ddl.append(message)
        elif event.after is None and event.before is None and (event.ts_ms is not None or event.status is not None):
            changes.ignored.append(message)
        else:
            changes.poison[message] = "no operation (op): not a Debezium event"


def unavailable_marks(wanted: pa.DataType) -> tuple[Any, ...]:
    """The forms of the mark of an untouched column. Only text, bytes, decimals and nested columns can be too large."""
    if pt.is_binary(wanted):
        return UNAVAILABLE, _AS_BYTES
    if pt.is_nested(wanted):
        return UNAVAILABLE, [UNAVAILABLE], {UNAVAILABLE: UNAVAILABLE}
    return (UNAVAILABLE,) if pt.is_string(wanted) or pt.is_decimal(wanted) else ()
