"""What is newer: the queue offset, or the source's own sequence followed by the queue offset.

Without parts the sequence is the queue offset, a number. With parts it is a text of fixed width,

    0000000000000000003 0000000000000000154 0000000000000000042
    source.file:file    source.pos          queue offset

so that comparing the text compares part by part, under every collation. The offset is last: of two changes in a queue
with the same source sequence the later message wins. In two queues their order is unknown: they tie (`queue_ties.py`),
which `fold` refuses in one batch and a sink in two.

Invariants: two rows of a key compare with `>` on the column `_sequence` exactly as their changes happened, except for
the same source sequence in two queues; a change whose sequence cannot be read is never applied, because it would win or
lose by accident.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, LongType, StringType

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.queue_ties import DIGITS
from lanemq.pipelines.stages.cdc.values import convert

KINDS: Final = ("number", "file", "text")
TEXT_WIDTH: Final = 40
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a sequence."""

    path: str
    """Where it is in the event, such as `source.lsn`."""
    kind: str
    """`number`, not negative; `file`, the number at the end of a name such as `mysql-bin.000003`; `text`, such as an
    LSN in hexadecimal digits: a shorter one is older, those of equal length compare as text."""


def parse_parts(given: Sequence[str]) -> tuple[Part, ...]:
    """Parses `("source.file:file", "source.pos")`, the most significant part first."""
    return tuple(_part(text) for text in ((given,) if isinstance(given, str) else given))


def _part(text: str) -> Part:
    path, _, kind = text.partition(":")
    if not _PATH.fullmatch(path):
        raise InvalidOption(f"sequence {text!r}: write the path of a field, like source.lsn")
    if (kind or "number") not in KINDS:
        raise InvalidOption(f"sequence {text!r}: there is no kind {kind!r}; choose from {', '.join(KINDS)}")
    return Part(path, kind or "number")


def sequence_type(parts: Sequence[Part]) -> DataType:
    """The type of the column `_sequence`."""
    return StringType() if parts else LongType()


def encode(parts: Sequence[Part], values: Sequence[list[object]], offsets: pa.Array) -> pa.Array:
    """The sequence of each message; null if a part cannot be read. `values` has one list per part."""
    if not parts:
        return offsets
    columns = [_encode_part(part, each) for part, each in zip(parts, values, strict=True)]
    return pc.binary_join_element_wise(*columns, _padded(offsets), " ")


def before(parts: Sequence[Part], values: Sequence[object]) -> str:
    """The bound below all sequences of this position of the source, and above all sequences of older ones."""
    if not parts or len(values) != len(parts):
        raise InvalidOption(f"a position has {len(parts)} values here ({_described(parts)}), not {len(values)}")
    columns = [_encode_part(part, [value]) for part, value in zip(parts, values, strict=True)]
    if any(column.null_count for column in columns):
        raise InvalidOption(f"{values!r} is not a position of the source: {_described(parts)}")
    return " ".join(column[0].as_py() for column in columns)


def _described(parts: Sequence[Part]) -> str:
    return ", ".join(f"{part.path}:{part.kind}" for part in parts) or "queue offsets order it"


def _encode_part(part: Part, values: list[object]) -> pa.Array:
    if part.kind == "number":
        return _padded(convert(values, pa.int64())[0])
    text = convert(values, pa.string())[0]
    if part.kind == "file":
        digits = pc.struct_field(pc.extract_regex(text, r"(?P<number>[0-9]{1,18})$"), "number")
        return _padded(digits.cast(pa.int64()))
    fits = pc.less_equal(pc.utf8_length(text), TEXT_WIDTH)
    return pc.utf8_lpad(pc.if_else(fits, text, None), TEXT_WIDTH, "0")


def _padded(numbers: pa.Array) -> pa.Array:
    legal = pc.if_else(pc.greater_equal(numbers, 0), numbers, None)
    return pc.utf8_lpad(legal.cast(pa.string()), DIGITS, "0")
