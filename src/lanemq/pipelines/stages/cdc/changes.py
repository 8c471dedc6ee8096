"""What messages say, whatever their format, as one list of changes of rows.

Invariants: changes are in the order of messages and, within one, in the order of its rows. A change of the key is the
deletion of the old row followed by the new row. A message that cannot be understood completely gives no change, with
one exception: if it changes a row's key and only the new row is incomplete, the old row is deleted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.stages.cdc.documents import Document, RowTypes
from lanemq.pipelines.stages.cdc.meanings import Columns


@dataclass(slots=True)
class RowChanges:
    """Parallel lists, one entry per change; messages are given by their index."""

    message: list[int] = field(default_factory=list)
    row: list[Document] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)
    poison: dict[int, str] = field(default_factory=dict)
    """Messages that cannot be understood, and why."""
    ddl: list[int] = field(default_factory=list)
    """Messages that change the schema."""
    ignored: list[int] = field(default_factory=list)
    """Heartbeats, transaction marks, events of other tables, tombstones after their deletion."""
    moved: list[int] = field(default_factory=list)
    """Messages that change a row's key."""
    truncations: list[int] = field(default_factory=list)
    """Messages that empty the table: every older row is deleted."""
    half_applied: set[int] = field(default_factory=set)
    """Poison of which the deletion of the old row is applied: no later change would remove that row."""

    def put(self, message: int, row: Document) -> None:
        """Adds a row that the message inserts or updates."""
        self.message.append(message)
        self.row.append(row)
        self.deleted.append(False)

    def delete(self, message: int, row: Document) -> None:
        """Adds the deletion of a row."""
        self.message.append(message)
        self.row.append(row)
        self.deleted.append(True)

    def move(self, message: int, old: Document, row: Document) -> None:
        """Adds a change of a row's key."""
        self.moved.append(message)
        self.delete(message, old)
        self.put(message, row)

    def refuse_row(self, index: int, why: str) -> None:
        """Makes the message of a change poison because of its row; the row's key and sequence are known."""
        message = self.message[index]
        if message in self.poison:
            return
        if self._is_move(index):
            self.half_applied.add(message)
            why += "; the row of its old key is deleted"
        self.poison[message] = why

    def indices_without(self, messages: Collection[int], half_applied: Collection[int]) -> pa.Array:
        """The changes of all other messages; of the half-applied ones, only the deletions."""
        message = pa.array(self.message, pa.int64())
        wanted = pc.invert(pc.is_in(message, pa.array(sorted(messages), pa.int64())))
        if half_applied:
            put = pc.and_not(
                pc.is_in(message, pa.array(sorted(half_applied), pa.int64())), pa.array(self.deleted, pa.bool_())
            )
            wanted = pc.and_not(wanted, put)
        return pc.indices_nonzero(wanted)

    def _is_move(self, index: int) -> bool:
        """Whether the message moves this row and does nothing else."""
        message = self.message[index]
        around = self.message[max(index - 2, 0) : index + 2]
        return (
            index > 0 and self.message[index - 1] == message and around.count(message) == 2 and self.deleted[index - 1]
        )


@dataclass(slots=True)
class Reading:
    """Messages as changes, before anything is folded."""

    messages: pa.Table
    names: "KeyNames"
    changes: RowChanges
    sequences: pa.Array
    keys: list[pa.Array]
    meanings: list[Columns] | None = None
    """What the columns of each message mean, as far as it embeds a schema; None if no message does."""
    truncations: dict[int, int | str] = field(default_factory=dict)
    """The sequences of the messages that empty the table."""
    columns: dict[str, pa.Array] = field(default_factory=dict)
    left: dict[str, list[int]] | None = None
    """By column, the changes that leave it out; None if not searched yet."""


class Format(Protocol):
    """Reads one kind of event."""

    document: Any
    """The type of a message's value; a message without a value is None."""
    row_types: RowTypes
    """The types of its rows."""

    def path(self, path: str) -> Any:
        """A function that reads a part of the sequence; `path` is as the user wrote it."""

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        """The events without their envelopes."""

    def schemas(self, documents: Sequence[Document | None]) -> list[bytes] | None:
        """The schema that each envelope embeds, empty where there is none; None if no envelope has one."""

    def read(self, documents: Sequence[Document | None], names: "KeyNames", changes: RowChanges) -> None:
        """Adds the changes of the documents, except those that are in `changes.poison` already."""

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        """The documents that are, or in doubt may be, about another row than that of their key."""


class KeyNames:
    """Row keys read from message keys: `{"id": 17}`, the same in Debezium's envelope, or just `17`."""

    def __init__(self, row_types: RowTypes, names: Sequence[str], keys: list[str | None]) -> None:
        self._row_types = row_types
        self._single = len(names) == 1
        self._keys = keys
        fields = [("payload", row_types.only_key | None, None), ("schema", msgspec.Raw, msgspec.Raw())]
        envelope = msgspec.defstruct("Key", fields, gc=False)
        self._bare = msgspec.json.Decoder(row_types.only_key)
        self._wrapped: msgspec.json.Decoder[Any] = msgspec.json.Decoder(envelope)

    def object_key(self, message: int) -> Document | None:
        """The row's key, if the message key is an object that names every column of it."""
        text = self._keys[message]
        if not text or text[0] != "{":
            return None
        try:
            row = self._wrapped.decode(text).payload if '"payload"' in text else None
            row = self._bare.decode(text) if row is None else row
        except (msgspec.DecodeError, RecursionError):
            return None
        return row if self._row_types.has_key(row) else None

    def schema(self, message: int) -> bytes:
        """The schema that the message key embeds; empty if there is none."""
        text = self._keys[message]
        if not text or '"schema"' not in text:
            return b""
        try:
            return bytes(self._wrapped.decode(text).schema)
        except (msgspec.DecodeError, RecursionError):
            return b""

    def row(self, message: int) -> Document | None:
        """The row's key from any form of message key; the message key itself if the row's key is one column."""
        text = self._keys[message]
        if text and self._single and text[0] != "{":
            return self._row_types.key_only([text])
        return self.object_key(message)


def belongs(wanted: str | None, *names: Any) -> bool:
    """Whether an event is of the wanted table, `orders` or `shop.orders`. The last of `names` is that of the table."""
    if wanted is None:
        return True
    before, _, table = wanted.rpartition(".")
    return bool(names[-1] == table and (not before or before in names[:-1]))
