"""What messages say, format by format, as one list of changes of rows.

The rules guarded here: changes stand in the order of messages and, within one, in the order of its rows; a message
that cannot be understood completely gives no change at all, but that the old row is gone if it changes a row's key and
only the new row is not whole; a change of the key is the deletion of the old row followed by the new one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.stages.cdc.shapes import Document, RowShape


@dataclass(slots=True)
class Changes:
    """Parallel lists, one entry per change; messages are counted by their place."""

    message: list[int] = field(default_factory=list)
    row: list[Document] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)
    poison: dict[int, str] = field(default_factory=dict)
    """Messages that cannot be understood, and why."""
    ddl: list[int] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)
    """Heartbeats, transaction marks, other tables' events, tombstones that say nothing new."""
    moved: list[int] = field(default_factory=list)
    """Messages that change a row's key."""
    halved: set[int] = field(default_factory=set)
    """Poison of which the deletion of the old row counts: no later change would ever take that row away."""

    def put(self, message: int, row: Document) -> None:
        self.message.append(message)
        self.row.append(row)
        self.deleted.append(False)

    def delete(self, message: int, row: Document) -> None:
        self.message.append(message)
        self.row.append(row)
        self.deleted.append(True)

    def move(self, message: int, old: Document, row: Document) -> None:
        self.moved.append(message)
        self.delete(message, old)
        self.put(message, row)

    def refuse_row(self, place: int, why: str) -> None:
        """The message of this change is poison, because of a row whose key and sequence are known."""
        message = self.message[place]
        if message in self.poison:
            return
        if self._is_move(place):
            self.halved.add(message)
            why += "; the row of its old key is deleted"
        self.poison[message] = why

    def places_without(self, messages: Collection[int], halved: Collection[int]) -> pa.Array:
        """The changes of all other messages; of the halved ones, the deletions."""
        message = pa.array(self.message, pa.int64())
        wanted = pc.invert(pc.is_in(message, pa.array(sorted(messages), pa.int64())))
        if halved:
            put = pc.and_not(
                pc.is_in(message, pa.array(sorted(halved), pa.int64())), pa.array(self.deleted, pa.bool_())
            )
            wanted = pc.and_not(wanted, put)
        return pc.indices_nonzero(wanted)

    def _is_move(self, place: int) -> bool:
        """Whether the message moves this row and does nothing else."""
        message = self.message[place]
        around = self.message[max(place - 2, 0) : place + 2]
        return (
            place > 0 and self.message[place - 1] == message and around.count(message) == 2 and self.deleted[place - 1]
        )


@dataclass(slots=True)
class Reading:
    """Messages as changes, before anything is folded."""

    messages: pa.Table
    names: "KeyNames"
    changes: Changes
    sequences: pa.Array
    keys: list[pa.Array]
    columns: dict[str, pa.Array] = field(default_factory=dict)
    left: dict[str, list[int]] | None = None
    """By column, the changes that leave it out; None: nobody has looked."""


class Format(Protocol):
    """How one kind of event is read."""

    opening: str
    """How an event that is about one row begins as a rule, as a regular expression, up to the row's first field."""
    document: Any
    """The type of a message's value, or None for a message without one."""

    def path(self, path: str) -> Any:
        """A getter for a part of the sequence; `path` is as the user wrote it."""

    def unwrap(self, documents: list[Document | None]) -> list[Document | None]:
        """The events themselves, out of whatever is around them."""

    def read(self, documents: Sequence[Document | None], names: "KeyNames", changes: Changes) -> None:
        """Adds what the documents say; places in `changes.poison` are left out already."""

    def others(self, documents: Sequence[Document | None], keys: Sequence[Any]) -> list[int]:
        """The documents that may be about another row than the one of this key: when in doubt, they are."""


class KeyNames:
    """Row keys as message keys spell them: `{"id": 17}`, the same in Debezium's envelope, or just `17`."""

    def __init__(self, shape: RowShape, names: Sequence[str], keys: list[str | None]) -> None:
        self._shape = shape
        self._single = len(names) == 1
        self._keys = keys
        envelope = msgspec.defstruct("Key", [("payload", shape.only_key | None, None)], gc=False)
        self._bare = msgspec.json.Decoder(shape.only_key)
        self._wrapped: msgspec.json.Decoder[Any] = msgspec.json.Decoder(envelope)

    def spelled(self, message: int) -> Document | None:
        """The row's key if the message key is an object that names every column of it."""
        text = self._keys[message]
        if not text or text[0] != "{":
            return None
        try:
            row = self._wrapped.decode(text).payload if '"payload"' in text else None
            row = self._bare.decode(text) if row is None else row
        except (msgspec.DecodeError, RecursionError):
            return None
        return row if self._shape.has_key(row) else None

    def row(self, message: int) -> Document | None:
        """The same, or the message key itself where the row's key is one column."""
        text = self._keys[message]
        if text and self._single and text[0] != "{":
            return self._shape.key_only([text])
        return self.spelled(message)


def belongs(wanted: str | None, *names: Any) -> bool:
    """Whether an event is of the wanted table: `orders` or `shop.orders`; the names' last one is the table's own."""
    if wanted is None:
        return True
    before, _, table = wanted.rpartition(".")
    return bool(names[-1] == table and (not before or before in names[:-1]))
