"""Two queues that change one row, when nothing says which change is newer.

A sequence is the offset in a queue, or a position of the source followed by this offset (`stages/cdc/sequence.py`).
Offsets of two queues cannot be compared. So two changes of a row *tie* if they are in two queues and have the same
position of the source; where offsets are the sequence, changes in two queues always tie.

A tie is refused, with one exception: two equal rows with the same position are a repeat, as connectors send it after a
restart. It is accepted, and the row's `_queue` gets the mark ` and others`: it is in several queues now, so that every
further change with this position ties, in whatever queue.

Invariant: the same messages, cut into batches in whatever way, give the same row wherever no batch is refused; if the
newest position of a row has two values, one of the batches is refused. Whether a tie at an older position is refused
depends on whether the newer change is known by then.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.model.errors import OrderError

DIGITS: Final = 19
"""Digits of the largest 64-bit number."""
OFFSET_WIDTH: Final = DIGITS + 1
"""Characters of the offset and the space before it, at the end of a sequence of the source."""
AND_OTHERS: Final = " and others"
"""The end of `_queue` if equal changes of the row are in several queues."""
_BOUND: Final = re.compile(rf"(.+) [0-9]{{{DIGITS}}} (.+/[0-9]+)")


def by_source(sequence: pa.DataType) -> bool:
    """Whether sequences of this type are positions of the source."""
    return not pa.types.is_integer(sequence)


def source_part(sequences: Any) -> Any:
    """The sequences without the queue offsets."""
    return pc.utf8_slice_codeunits(sequences, 0, -OFFSET_WIDTH)


SOURCE_IN_SQL: Final = f"substr({{0}}, 1, length({{0}}) - {OFFSET_WIDTH})"
"""The same as an expression of a column, for databases."""
SOURCE_IN_MERGE: Final = f"left({{0}}, -{OFFSET_WIDTH})"
"""The same for a merge of DataFusion, which cannot write down `substr` with a length."""


def in_another_queue(held: Any, given: Any) -> Any:
    """Which rows may be of another queue than their changes. A row without a queue is of an earlier build."""
    return pc.fill_null(pc.or_(pc.not_equal(held, given), pc.ends_with(held, AND_OTHERS)), False)


def tied(held: pa.Table, given: pa.Table, queue: str, sequence: str) -> Any:
    """Which rows tie with their changes, row by row. `queue` and `sequence` name the columns."""
    other = in_another_queue(held[queue], given[queue])
    if not by_source(given.schema.field(sequence).type):
        return other
    return pc.and_(other, pc.equal(source_part(held[sequence]), source_part(given[sequence])))


def tied_in_sql(held: str, given: str, queue: str, sequence: str, source: str) -> str:
    """The same as an expression; null for a row without a queue. The names are quoted.

    `source`: the expression for the position of the source; empty if offsets are the sequence.
    """
    other = f"({held}.{queue} <> {given}.{queue} OR {held}.{queue} <> {_one_in_sql(f'{held}.{queue}')})"
    if not source:
        return other
    return f"({other} AND {source.format(f'{held}.{sequence}')} = {source.format(f'{given}.{sequence}')})"


def with_others(queue: str) -> str:
    """The queue of a row of which several queues have equal changes."""
    return queue.removesuffix(AND_OTHERS) + AND_OTHERS


def with_others_in_sql(queue: str) -> str:
    return f"{_one_in_sql(queue)} || '{AND_OTHERS}'"


def _one_in_sql(queue: str) -> str:
    """The queue without the mark."""
    return f"replace({queue}, '{AND_OTHERS}', '')"


def alike(one: Mapping[str, Any], other: Mapping[str, Any], apart_from: tuple[str, ...]) -> bool:
    """Whether two rows have the same values. Two NaN are the same; a column that `other` does not have is null."""
    return all(_same(value, other.get(name)) for name, value in one.items() if name not in apart_from)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return bool(one == other or (one != one and other != other))  # only NaN differs from itself


def changed_in_two_queues(key: Mapping[str, object], before: str, now: str, sequence: int | str) -> OrderError:
    """The error for a row that two queues change, in one batch or in two.

    `sequence`: of the change in queue `now`, that is its offset, or a position of the source followed by its offset.
    """
    row = ", ".join(f"{name}={value!r}" for name, value in key.items())
    by_source, offset = isinstance(sequence, str), int(str(sequence).rpartition(" ")[2])
    position = " with the same sequence" if by_source else ""
    wanted = "more parts in sequence=, which differ" if by_source else "a position of the source as sequence="
    topic, broker, number = now.removesuffix(AND_OTHERS).rsplit("/", 2)
    return OrderError(
        f"the row {row} was changed in queue {before} and in queue {now}{position}, and nothing says which change is "
        f"newer; the last one in queue {now} is offset {offset}. The messages stay in the topic, so every start ends "
        f"here, until you begin with a new table and a new checkpoint, with {wanted}, or leave the changes of one "
        f"queue out with prepare=lambda messages: messages.where(\"NOT (topic = '{topic}' AND broker = '{broker}' AND "
        f"queue_id = {number} AND queue_offset = {offset})\"). To avoid it, send a row's changes with one message key, "
        f"so that they stay in one queue"
    )


def truncation_bound(sequence: int | str, queue: str) -> int | str:
    """The bound below the rows that a truncation deletes. A position of the source is followed by its queue."""
    return f"{sequence} {queue}" if isinstance(sequence, str) else sequence


def source_and_queue(bound: int | str | None) -> tuple[str, str] | None:
    """The position of the source and the queue of a truncation; None where a bound does not say them."""
    found = _BOUND.fullmatch(bound) if isinstance(bound, str) else None
    return (found[1], found[2]) if found else None


def truncated_in_two_queues(emptied: str, queue: str, source: str) -> OrderError:
    """The error for a row that one queue changes, and a truncation in another queue, with the same position."""
    return OrderError(
        f"the table was truncated in queue {emptied}, a row was changed in queue {queue}, and both have the source "
        f"sequence {source}, so nothing says which came first. The messages stay in the topic, so every start ends "
        f"here, until you begin with a new table and a new checkpoint, and declare a sequence= that every event of the "
        f"source has for itself"
    )
