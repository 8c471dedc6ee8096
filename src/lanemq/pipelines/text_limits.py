"""How long the texts of a row may be in a sink: names of partition folders, and keys of an index.

The sink says its limits when it is open, and the stage judges its rows by them, because only the stage knows which
message a row comes from: a row that does not fit makes its message poison, before anything is written.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

MAX_NAME_BYTES = 255
"""Bytes in the name of a file or a folder, on Linux, HDFS and the stores that keep objects as files."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """A limit for the texts that columns of one row have together."""

    columns: tuple[str, ...]
    max_bytes: int
    tripled: str
    """Characters, as a regular expression, whose bytes the sink writes as three bytes each."""
    purpose: str
    """What the sink makes of the texts."""

    def admits(self, *values: str | bytes | None) -> bool:
        """Whether the values of the columns, in order, are short enough."""
        return sum(map(self._size, values)) <= self.max_bytes

    def rows_beyond(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[int]:
        """The rows that are too long; `columns` in the order of `self.columns`."""
        longest = sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in columns)
        if longest * 3 <= self.max_bytes:
            return []
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [at for at, row in enumerate(rows) if not self.admits(*row)]

    @property
    def why(self) -> str:
        """The reason for which a message is refused."""
        return (
            f"the text of {', '.join(self.columns)} is too long: it would be {self.purpose}, for which "
            f"{self.max_bytes} bytes are left"
        )

    def _size(self, value: str | bytes | None) -> int:
        if not isinstance(value, str):
            return len(value or b"")
        found = "".join(re.findall(self.tripled, value)).encode("utf-8", "surrogatepass")
        return len(value.encode("utf-8", "surrogatepass")) + 2 * len(found)


def folder_limits(columns: Sequence[str], schema: pa.Schema, tripled: str) -> tuple[TextLimit, ...]:
    """The limits for texts that become names of folders, such as `country=Chile`."""
    return tuple(
        TextLimit((name,), MAX_NAME_BYTES - len(f"{name}=".encode()), tripled, "the name of a partition's folder")
        for name in columns
        if name in schema.names and pa.types.is_string(schema.field(name).type)
    )
