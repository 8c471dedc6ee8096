"""`format="json"`: a message is the row itself; one without a value deletes it.

The message is the whole row, so a column without a field is null. With `left_out="keep"` it keeps its value.

Deletions come as messages without a value, whose message key is the row's key, or, with `deleted="path"`, as rows with
a field that says so (Debezium's flattened events: `deleted="__deleted"`). A message without a value has no source
sequence; where one is needed, such a message is poison.
"""

from collections.abc import Sequence
from typing import Any

from lanemq.pipelines.stages.cdc.changes import KeyNames, RowChanges
from lanemq.pipelines.stages.cdc.documents import Document, RowTypes, with_paths
from lanemq.pipelines.stages.cdc.sequence import Part
from lanemq.pipelines.stages.cdc.table import ReplicaTable

_YES = (True, "true", "t", "1", 1)


class RowFormat:
    """Reads rows as they are."""

    def __init__(self, table: ReplicaTable, parts: Sequence[Part], deleted: str | None = None) -> None:
        paths = [part.path for part in parts] + ([deleted] if deleted else [])
        self.row_types = RowTypes(table, with_paths({}, [path for path in paths if path not in table.columns]))
        self.document = self.row_types.full | None
        self._sequenced = bool(parts)
        self._deleted = self.path(deleted) if deleted else None

    def path(self, path: str) -> Any:
        return self.row_types.getter(path)

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        return documents

    def schemas(self, documents: Sequence[Document | None]) -> list[bytes] | None:
        return None

    def read(self, documents: Sequence[Document | None], names: KeyNames, changes: RowChanges) -> None:
        if self._deleted is None and not changes.poison and None not in documents:
            changes.message = list(range(len(documents)))
            changes.row = list(documents)
            changes.deleted = [False] * len(documents)
            return
        for message, row in enumerate(documents):
            if message in changes.poison:
                continue
            if row is None:
                self._tombstone(message, names, changes)
            elif self._deleted is not None and self._deleted(row) in _YES:
                changes.delete(message, row)
            else:
                changes.put(message, row)

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        key = self.row_types.key
        return [
            index
            for index, (row, mine) in enumerate(zip(documents, keys, strict=True))
            if row is not None and key(row) != mine
        ]

    def _tombstone(self, message: int, names: KeyNames, changes: RowChanges) -> None:
        row = names.row(message)
        if self._sequenced:
            changes.poison[message] = "a deletion without a value has no sequence"
        elif row is None:
            changes.poison[message] = "a deletion without a value, and its message key does not name the row's key"
        else:
            changes.delete(message, row)
