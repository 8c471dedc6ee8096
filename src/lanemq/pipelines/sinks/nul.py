"""Texts with the character NUL, which PostgreSQL stores neither in text nor in jsonb.

The rule guarded here: one message with it must not end a pipeline for ever. Each NUL becomes U+FFFD, the sign for a
character that could not be kept: the text stays as long as it was, and who reads it sees that something was there.
Two keys may become one by that; then the newer row counts, as for any other key.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.ports import SEQUENCE

NUL, INSTEAD = "\0", "\ufffd"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""NUL as JSON writes it, and not behind a backslash that is text."""


def may_have_nul(written: bytes, json: bool) -> bool:
    """Whether it is worth looking closer, which takes longer than to write it all. `json`: there is JSON in it."""
    return b"\0" in written or (json and b"\\u0000" in written)


def without_nul(table: pa.Table, json: Collection[str] = ()) -> tuple[pa.Table, Mapping[str, int]]:
    """The table without NUL, and how many texts of which column had one. `json`: columns whose texts are JSON."""
    found: dict[str, int] = {}
    for at, field in enumerate(table.schema):
        if not pa.types.is_string(field.type):
            continue
        hits = pc.match_substring(table[at], "\\u0000" if field.name in json else NUL)
        if not pc.any(hits).as_py():
            continue
        before = table[at]
        after = _json(before) if field.name in json else pc.replace_substring(before, NUL, INSTEAD)
        count = int(pc.sum(pc.not_equal(before, after)).as_py())
        if count:
            found[field.name] = count
            table = table.set_column(at, field, after)
    return table, found


def newest_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row per key, that with the highest sequence, at its place."""
    sequences = table[SEQUENCE].to_pylist()
    best: dict[tuple[object, ...], int] = {}
    for at, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
        if key not in best or sequences[at] > sequences[best[key]]:
            best[key] = at
    return table if len(best) == table.num_rows else table.take(sorted(best.values()))


def _json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    def mended(text: str | None) -> str | None:
        return None if text is None else _ESCAPED.sub(lambda hit: hit[1] + INSTEAD, text)

    return pa.chunked_array([pa.array([mended(text) for text in column.to_pylist()], pa.string())])
