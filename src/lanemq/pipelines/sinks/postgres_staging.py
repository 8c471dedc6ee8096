"""Large batches of the PostgreSQL sink: Spark tasks copy the rows into a staging table, the driver merges them.

The staging table belongs to one attempt to write one batch. Each task copies some of the batch's files in one
transaction and returns the id of the transaction, which PostgreSQL keeps with every row in the system column `xmin`.
The driver uses only the rows of the transactions that were returned to it, so a task that was retried, or ran twice, or
still runs, adds nothing.

The table is not logged, so a server that crashes empties it. Hence the driver counts the rows of each copy, in the
transaction that merges them, and a batch whose rows are not all there is copied again.

The connection string, which may contain a password, travels to the tasks as part of their code, in memory. It is not
part of the list of files, because Spark writes such lists to disk.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lanemq.files import arrow_source
from lanemq.model.errors import LaneError, UsageError
from lanemq.model.units import Millis
from lanemq.pipelines.ports import RowFile
from lanemq.pipelines.sinks.exact_sink import fit
from lanemq.pipelines.sinks.postgres_rows import CopyFormat
from lanemq.pipelines.sinks.postgres_session import PostgresSession
from lanemq.pipelines.sinks.sql import quoted
from lanemq.spark.retrying import Retrying

PREFIX: Final = "lanemq_staging_"
PLACE: Final = "lanemq_place"
"""The column that numbers the rows of a staging table in the order in which a session copied them."""
ROWS_AT_ONCE: Final = 1 << 16
"""Rows that a task has in memory."""


class StagingOutdated(Exception):
    """What was copied cannot be used; the batch has to be copied again."""


@dataclass(frozen=True, slots=True)
class StagingTable:
    """The table that the rows of one attempt are copied into."""

    name: str
    """Quoted, with the schema."""
    schema: pa.Schema
    """The columns of the rows, as they are copied."""

    @property
    def columns(self) -> str:
        return ", ".join(map(quoted, self.schema.names))

    @property
    def place(self) -> str:
        """The name of the column that numbers the rows, quoted; not that of another column."""
        return quoted(PLACE + "_" * sum(name.startswith(PLACE) for name in self.schema.names))


def staging_prefix(mark: str) -> str:
    """How the names of all staging tables of one query and target begin."""
    return f"{PREFIX}{mark}_"


def staging_name(mark: str) -> str:
    """A name that no other attempt has."""
    return f"{staging_prefix(mark)}{os.urandom(6).hex()}"


@dataclass(frozen=True, slots=True)
class Copied:
    """What a task reports: one transaction whose rows are in the staging table."""

    transaction: int
    rows: int
    replaced: Mapping[str, int] = field(default_factory=dict)
    """Texts in which NUL was replaced, by column."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Copies files into the staging table, one transaction for each list of files."""

    session: PostgresSession
    staging: StagingTable
    format: CopyFormat
    required: tuple[str, ...]
    """Columns that may not be null."""
    wait: Millis
    """How long to wait for the server."""

    def __call__(self, lists: Iterable[Sequence[RowFile]]) -> Iterator[Copied | LaneError]:
        """Copy each list. Errors are returned, because Spark would turn them into text."""
        for files in lists:
            try:
                yield self.copy(files)
            except LaneError as error:
                yield type(error)(str(error))

    def copy(self, files: Sequence[RowFile]) -> Copied:
        connection = Retrying(self.wait).call(self.session.connect, f"table {self.format.table}")
        rows, replaced = 0, dict[str, int]()
        try:
            with self.session.errors(connection), connection.transaction():
                connection.execute("SET LOCAL synchronous_commit = off")
                with connection.cursor() as cursor:
                    with cursor.copy(
                        f"COPY {self.staging.name} ({self.staging.columns}) FROM STDIN (FORMAT csv)"
                    ) as to:
                        for part in self._parts(files):
                            written, found = self.format.encode(part)
                            to.write(written)
                            rows += part.num_rows
                            for name, count in found.items():
                                replaced[name] = replaced.get(name, 0) + count
                    found_id: Any = cursor.execute("SELECT txid_current() & 4294967295").fetchone()
            return Copied(found_id[0], rows, replaced)
        finally:
            connection.close()

    def _parts(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        for file in files:
            with pq.ParquetFile(arrow_source(file.path)) as parquet:
                for batch in parquet.iter_batches(ROWS_AT_ONCE):
                    part = fit(pa.Table.from_batches([batch]), self.staging.schema)
                    for name in self.required:
                        if part[name].null_count:
                            raise UsageError(f"rows to merge have no {name}: give every row a value for it")
                    yield part


def divide(files: Sequence[RowFile], parts: int) -> list[list[RowFile]]:
    """At most `parts` lists of files with about as many rows each. A list has its files in their order."""
    lists: list[list[int]] = [[] for _ in range(min(parts, len(files)))]
    sizes = [0] * len(lists)
    for at in sorted(range(len(files)), key=lambda at: -files[at].rows):
        smallest = sizes.index(min(sizes))
        lists[smallest].append(at)
        sizes[smallest] += files[at].rows
    return [[files[at] for at in sorted(each)] for each in lists]


def only_copies(copies: Sequence[Copied]) -> str:
    """The condition for rows of these copies."""
    return f"xmin = ANY ('{{{','.join(str(each.transaction) for each in copies)}}}'::xid[])"


def check_copies(found: Mapping[int, int], copies: Sequence[Copied]) -> None:
    """`StagingOutdated` unless the staging table has all rows of these copies. `found`: its rows by transaction."""
    if any(found.get(each.transaction, 0) != each.rows for each in copies):
        raise StagingOutdated("the server has lost rows that were copied, as it does in a crash")
