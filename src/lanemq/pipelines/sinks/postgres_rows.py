"""Rows as input for COPY: CSV that PostgreSQL stores unchanged, except for the character NUL, which it cannot store."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from lanemq.model.errors import StorageError
from lanemq.pipelines.ports import SEQUENCE
from lanemq.pipelines.sinks.exact_sink import is_nested, json_column

NUL, REPLACEMENT = "\0", "\ufffd"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""NUL as JSON writes it, not preceded by an escaped backslash."""


@dataclass(frozen=True, slots=True)
class CopyFormat:
    """Turns tables into input for COPY, on the driver or in a task."""

    table: str
    """How messages name the table."""
    nul: Literal["replace", "fail"] = "replace"
    json_texts: tuple[str, ...] = ()
    """Text columns that become JSON in the database, where even an escaped NUL is refused."""

    def encode(self, table: pa.Table, keys: Sequence[str] = ()) -> tuple[bytes, Mapping[str, int]]:
        """The input for COPY, and how many texts of which column had a NUL that was replaced.

        `keys`: columns that may not become equal in two rows; if they do, the newer row is kept.
        """
        texts = _in_text(table)
        written = _csv(texts)
        nested = [f.name for f in table.schema if is_nested(f.type) or f.name in self.json_texts]
        if not _may_have_nul(written, bool(nested)):
            return written, {}
        texts, found = without_nul(texts, nested)
        if found and self.nul == "fail":
            raise StorageError(
                f"table {self.table}: texts hold NUL, which PostgreSQL cannot store ({nul_counts(found)}): leave the "
                f"character out before the sink, or let it be replaced with nul='replace'"
            )
        return _csv(_newest_of_each(texts, keys) if set(keys) & set(found) else texts), found


def nul_counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of column {name}" for name, count in found.items())


def _in_text(table: pa.Table) -> pa.Table:
    """The table with bytes and nested values as text for COPY."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_column(table[at]))
        elif pa.types.is_binary(field.type):
            texts = [None if value is None else "\\x" + value.hex() for value in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table


def _csv(table: pa.Table) -> bytes:
    """CSV for COPY: null is an empty field, empty text a pair of quotes."""
    target = BytesIO()
    # One chunk, because pyarrow 26 writes uninitialised memory for a table with an empty chunk among others.
    pcsv.write_csv(table.combine_chunks(), target, pcsv.WriteOptions(include_header=False))
    return target.getvalue()


def _may_have_nul(written: bytes, json: bool) -> bool:
    """A quick check whether `without_nul`, which is slow, is needed. `json`: some columns hold JSON."""
    return b"\0" in written or (json and b"\\u0000" in written)


def without_nul(table: pa.Table, json: Collection[str] = ()) -> tuple[pa.Table, Mapping[str, int]]:
    """Replace NUL in every text; returns the table and how many texts of which column had one.

    PostgreSQL stores NUL neither in text nor in jsonb, and one such message must not end a pipeline at every start. The
    replacement keeps the length of the text and shows that a character was lost. `json`: columns whose texts are JSON.
    """
    found: dict[str, int] = {}
    for at, field in enumerate(table.schema):
        if not pa.types.is_string(field.type):
            continue
        hits = pc.match_substring(table[at], "\\u0000" if field.name in json else NUL)
        if not pc.any(hits).as_py():
            continue
        before = table[at]
        after = _json_without_nul(before) if field.name in json else pc.replace_substring(before, NUL, REPLACEMENT)
        count = int(pc.sum(pc.not_equal(before, after)).as_py())
        if count:
            found[field.name] = count
            table = table.set_column(at, field, after)
    return table, found


def _newest_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row per key, the one with the highest sequence: replacing NUL may have made two keys equal."""
    sequences = table[SEQUENCE].to_pylist()
    best: dict[tuple[object, ...], int] = {}
    for at, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
        if key not in best or sequences[at] > sequences[best[key]]:
            best[key] = at
    return table if len(best) == table.num_rows else table.take(sorted(best.values()))


def _json_without_nul(column: pa.ChunkedArray) -> pa.ChunkedArray:
    def replaced(text: str | None) -> str | None:
        return None if text is None else _ESCAPED.sub(lambda hit: hit[1] + REPLACEMENT, text)

    return pa.chunked_array([pa.array([replaced(text) for text in column.to_pylist()], pa.string())])
