"""`format="canal"` (flat messages) and `format="maxwell"`: rows of MySQL's binary log.

Both carry the rows after the change and, for updates, the former values of the columns that changed; if a key column is
among those, the row has moved. Canal puts several rows into one message and writes all values as text. DDL changes no
row. TRUNCATE empties the table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from lanemq.pipelines.stages.cdc.changes import KeyNames, RowChanges, belongs
from lanemq.pipelines.stages.cdc.documents import Document, RowTypes, object_type, path_getter, with_paths
from lanemq.pipelines.stages.cdc.sequence import Part
from lanemq.pipelines.stages.cdc.table import ReplicaTable


class BinlogFormat(ABC):
    """What both formats have in common."""

    puts: tuple[str, ...]
    marks: tuple[str, ...] = ()
    """Types of messages that concern no row."""

    def __init__(self, table: ReplicaTable, parts: Sequence[Part], only_table: str | None = None) -> None:
        self.row_types = RowTypes(table)
        fields = {"type": str | None, "database": Any, "table": Any, "sql": Any, **self.rows()}
        self.document = object_type(with_paths(fields, [part.path for part in parts])) | None
        self._only_table = only_table

    @abstractmethod
    def rows(self) -> dict[str, Any]:
        """The types of `data` and `old`."""

    @abstractmethod
    def pairs(self, event: Document) -> Iterable[tuple[Document, Document | None]]:
        """Each row with its former values."""

    def is_paired(self, event: Document) -> bool:
        """Whether every row has its own former values, or none has."""
        return True

    @abstractmethod
    def is_ddl(self, event: Document) -> bool:
        """Whether the event changes tables instead of rows."""

    def path(self, path: str) -> Any:
        return path_getter(path)

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        return documents

    def schemas(self, documents: Sequence[Document | None]) -> list[bytes] | None:
        return None

    def read(self, documents: Sequence[Document | None], names: KeyNames, changes: RowChanges) -> None:
        for message, event in enumerate(documents):
            if message not in changes.poison:
                self._event(message, event, changes)

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        """All: a message may hold several rows, so no message key stands for one row."""
        return list(range(len(documents)))

    def _event(self, message: int, event: Document | None, changes: RowChanges) -> None:
        kind = (event.type or "").lower() if event is not None else ""
        if event is None or not kind:
            changes.poison[message] = "no type: not an event of this format"
        elif kind in self.marks or (self._only_table and not belongs(self._only_table, event.database, event.table)):
            changes.ignored.append(message)
        elif "truncate" in kind:
            changes.truncations.append(message)
        elif self.is_ddl(event):
            changes.ddl.append(message)
        elif event.data is None or kind not in (*self.puts, "update", "delete"):
            changes.poison[message] = f"type {event.type!r} is unknown, or its rows are missing"
        elif not self.is_paired(event):
            changes.poison[message] = "it has former values (old) for another number of rows than it has rows (data)"
        else:
            self._rows(message, kind, event, changes)

    def _rows(self, message: int, kind: str, event: Document, changes: RowChanges) -> None:
        for row, old in self.pairs(event):
            if kind == "delete":
                changes.delete(message, row)
            elif old is None or kind != "update" or self.row_types.key(old) == self.row_types.no_key:
                changes.put(message, row)
            else:
                self._maybe_moved(message, self.row_types.former(old, row), row, changes)

    def _maybe_moved(self, message: int, before: Document, row: Document, changes: RowChanges) -> None:
        if self.row_types.key(before) == self.row_types.key(row):
            changes.put(message, row)
        else:
            changes.move(message, before, row)


class CanalFormat(BinlogFormat):
    """Reads canal's flat messages."""

    puts = ("insert",)

    def rows(self) -> dict[str, Any]:
        full: Any = self.row_types.full
        only_key: Any = self.row_types.only_key
        return {"isDdl": bool | None, "data": list[full] | None, "old": list[only_key | None] | None}

    def pairs(self, event: Document) -> Iterable[tuple[Document, Document | None]]:
        old = event.old or [None] * len(event.data)
        return zip(event.data, old, strict=True)

    def is_paired(self, event: Document) -> bool:
        return not event.old or len(event.old) == len(event.data)

    def is_ddl(self, event: Document) -> bool:
        return bool(event.isDdl) or (event.data is None and event.type.lower() in ("query", "alter", "create"))


class MaxwellFormat(BinlogFormat):
    """Reads the messages of Maxwell's daemon, one row each."""

    puts = ("insert", "bootstrap-insert")
    marks = ("bootstrap-start", "bootstrap-complete")

    def rows(self) -> dict[str, Any]:
        return {"data": self.row_types.full | None, "old": self.row_types.only_key | None}

    def pairs(self, event: Document) -> Iterable[tuple[Document, Document | None]]:
        return [(event.data, event.old)]

    def is_ddl(self, event: Document) -> bool:
        return bool(event.type.lower().startswith(("table-", "database-")))
