"""The rules of a Parquet folder: names of files, folders of partitions, what readers see, what is compacted. No I/O.

    <path>/created_day=2026-11-17/part-<query>-<batch>-<time>-<random>.parquet
    <path>/created_day=2026-11-16/compacted-<query>-<batch>-<time>-<random>.parquet

`<query>` is a mark of the checkpoint, `<time>` the second in which the newest rows of the file were written. No name is
used twice, so a late deletion never hits a newer file. `compacted` comes before `part`, so a program that lists a
folder page by page while a compaction replaces files may miss rows, but never finds them under both names.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.model.errors import InvalidOption

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark and Arrow write for null."""
MAX_GROUP: Final = 1_000
"""Files that one compaction replaces; an object store deletes as many in one request."""

_TIMES: Final = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
UNSAFE: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\{}\[\]^\x7f]""")
"""The characters that Spark escapes in the name of a partition's folder."""
_NAME: Final = re.compile(r"(part|compacted)-([0-9a-f]{8})-(\d+)-(\d+)-([0-9a-f]{8})\.parquet")


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of a data file says."""

    mark: str
    """The query that wrote it, see `query_mark`."""
    batch: int
    """The newest batch that has rows in it."""
    wall: int
    """When these rows were written, in seconds since 1970."""
    token: str
    compacted: bool = False

    def __str__(self) -> str:
        kind = "compacted" if self.compacted else "part"
        return f"{kind}-{self.mark}-{self.batch:015}-{self.wall}-{self.token}.parquet"


def read_name(path: str) -> FileName | None:
    """The name of a data file; None if a sink did not write it. `path`: relative to the folder."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    return FileName(found[2], int(found[3]), int(found[4]), found[5], found[1] == "compacted")


def query_mark(query: str) -> str:
    """A short mark of a query, for names of files."""
    return sha256(query.encode()).hexdigest()[:8]


# Partitions.


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One level of folders: the values of a column, or the year, month, day or hour of a time."""

    column: str
    """The column of the rows."""
    time: str = ""
    """`year`, `month`, `day` or `hour`; empty for the value itself."""

    @property
    def name(self) -> str:
        """The name before the equals sign, which readers show as a column."""
        return f"{self.column}_{self.time}" if self.time else self.column

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the column that readers get."""
        if not self.time:
            return schema.field(self.column).type
        return {"year": pa.int32(), "day": pa.date32()}.get(self.time, pa.string())

    def texts(self, table: pa.Table) -> tuple[np.ndarray[Any, Any], list[str]]:
        """For each row the number of its folder's name, and these names."""
        values = table[self.column].combine_chunks()
        if self.time:
            values = pc.floor_temporal(values.cast(pa.timestamp("us")), unit=self.time)
        coded = values.dictionary_encode(null_encoding="encode")
        found = pc.strftime(coded.dictionary, format=_TIMES[self.time]) if self.time else coded.dictionary
        return coded.indices.to_numpy(zero_copy_only=False), [self._text(each) for each in found.to_pylist()]

    def _text(self, value: Any) -> str:
        if value is None or value == "":
            return f"{self.name}={NO_VALUE}"
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{self.name}={UNSAFE.sub(lambda found: f'%{ord(found[0]):02X}', text)}"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How rows are divided into folders."""

    columns: tuple[PartitionColumn, ...] = ()

    @property
    def stored_elsewhere(self) -> tuple[str, ...]:
        """Columns whose values are in the names of folders and not in the files."""
        return tuple(each.column for each in self.columns if not each.time)

    def in_files(self, schema: pa.Schema) -> pa.Schema:
        """The columns that files have."""
        return pa.schema([field for field in schema if field.name not in self.stored_elsewhere])

    def split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each partition, in order, without the columns that its folder's name has; "" is no folder."""
        if not self.columns or not table.num_rows:
            yield "", table
            return
        codes, names = self.columns[0].texts(table)
        for column in self.columns[1:]:
            more, more_names = column.texts(table)
            codes = codes.astype(np.int64) * len(more_names) + more
            seen, codes = np.unique(codes, return_inverse=True)
            names = [f"{names[each // len(more_names)]}/{more_names[each % len(more_names)]}" for each in seen]
        folders = list(dict.fromkeys(names))  # null and empty text have one folder
        codes = np.array([folders.index(name) for name in names])[codes]
        rows = table.drop_columns(list(self.stored_elsewhere))
        order = np.argsort(codes, kind="stable")
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1)).tolist()
        for first, after in pairwise([*firsts, len(order)]):
            yield folders[int(codes[order[first]])], rows if len(firsts) == 1 else rows.take(order[first:after])

    def values(self, path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
        """The values that the names of a file's folders stand for, as readers show them."""
        texts = [segment.partition("=")[2] for segment in path.split("/")[:-1]]
        return {
            column.name: _scalar(text, column.type_in(schema)) for column, text in zip(self.columns, texts, strict=True)
        }


def partitioning(partition_by: Sequence[str], schema: pa.Schema) -> Partitioning:
    """`country`, or `day(created)`; `InvalidOption` if the columns do not fit."""
    columns = tuple(_partition_column(text, schema) for text in partition_by)
    names = [each.name for each in columns]
    if len(set(names)) < len(names):
        raise InvalidOption(f"partition_by: ({', '.join(names)}) names a column twice")
    for each in columns:
        if each.time and each.name in schema.names:
            raise InvalidOption(
                f"partition_by: {each.time}({each.column}) makes a column {each.name}, which the rows have already; "
                f"partition by {each.name}, or rename it"
            )
    found = Partitioning(columns)
    if columns and not found.in_files(schema).names:
        raise InvalidOption(f"partition_by: ({', '.join(names)}) are all columns of the rows; leave one for the files")
    return found


def _partition_column(text: str, schema: pa.Schema) -> PartitionColumn:
    time, _, rest = text.partition("(")
    column = PartitionColumn(rest.rstrip(") ").strip(), time.strip()) if rest else PartitionColumn(text)
    if column.column not in schema.names:
        raise InvalidOption(f"partition_by: there is no column {column.column}; there are {', '.join(schema.names)}")
    if column.name.startswith(("_", ".")):
        raise InvalidOption(f"partition_by: readers skip folders whose name begins as {column.name}; rename the column")
    kind = schema.field(column.column).type
    if column.time:
        fits = column.time in _TIMES and (
            pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and column.time != "hour")
        )
    else:
        fits = any(
            is_kind(kind)
            for is_kind in (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date)
        )
    if not fits:
        raise InvalidOption(
            f"partition_by: {text} cannot be used for a column of type {kind}; use a column of text, integers, "
            f"booleans or dates, or year(x), month(x), day(x) or hour(x) of a time"
        )
    return column


def _scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    if text == NO_VALUE:
        return pa.scalar(None, kind)
    text = unquote(text)
    if pa.types.is_date(kind):
        return pa.scalar(date.fromisoformat(text), kind)
    return pa.scalar(text).cast(kind)


# What readers see.


class FolderChange(msgspec.Struct, frozen=True):
    """The last change that a query has committed. It is complete when its staged files are gone."""

    batch: int | None
    """The highest batch number that the folder has."""
    staged: str = ""
    """The folder, unique to this change, in which the new files wait until they are moved to their places."""
    adds: tuple[str, ...] = ()
    """New files: their paths below the folder, and also below the staged folder."""
    removes: tuple[str, ...] = ()
    """Files that the new ones replace. Not empty: the change is a compaction."""


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file of the exact view."""

    path: str
    """Where it is or will be, below the folder."""
    staged: str = ""
    """The staged folder in which it still is; empty if it is in its place."""


def exact_view(
    listed: Collection[str], waiting: Collection[tuple[str, str]], changes: Iterable[FolderChange]
) -> list[ShownFile]:
    """The files that hold every row of all complete batches once.

    Args:
        listed: The files in their places, found after `waiting`.
        waiting: Staged folder and path of each file that is not in its place yet.
        changes: The last change of each query, the same before and after both were listed.
    """
    hidden: set[str] = set()
    shown: list[ShownFile] = []
    for change in changes:
        late = [name for name in change.adds if name not in listed and (change.staged, name) in waiting]
        if change.removes:
            hidden.update(change.removes)
            shown.extend(ShownFile(name, change.staged) for name in late)
        elif late:
            hidden.update(change.adds)
    shown.extend(ShownFile(name) for name in listed if name not in hidden and read_name(name) is not None)
    return sorted(shown, key=lambda file: file.path)


# What is compacted.


def compaction_groups(
    files: Mapping[str, int], query: str, wall: float, compact_after: float, file_size: int
) -> list[list[str]]:
    """The files of closed partitions that one larger file each should replace, in the order of their batches.

    A partition is closed if none of its rows was written in the last `compact_after` seconds. Files of at least half
    the size are left alone, so a partition is left with at most one small file of a query.
    """
    closed: dict[str, list[tuple[FileName, str, int]]] = {}
    for path, size in files.items():
        name = read_name(path)
        if name is not None and name.mark == query_mark(query):
            closed.setdefault(path.rpartition("/")[0], []).append((name, path, size))
    groups: list[list[str]] = []
    for _, found in sorted(closed.items()):
        if max(name.wall for name, _, _ in found) <= wall - compact_after:
            small = [(path, size) for name, path, size in sorted(found, key=_by_batch) if size < file_size / 2]
            groups.extend(group for group in _filled(small, file_size) if len(group) > 1)
    return groups


def _by_batch(file: tuple[FileName, str, int]) -> tuple[int, str]:
    return file[0].batch, file[1]


def _filled(files: Iterable[tuple[str, int]], file_size: int) -> Iterator[list[str]]:
    group: list[str] = []
    total = 0
    for path, size in files:
        group.append(path)
        total += size
        if total >= file_size or len(group) == MAX_GROUP:
            yield group
            group, total = [], 0
    yield group
