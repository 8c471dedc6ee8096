"""What every exactly-once sink has in common: its run, the ledger, and rows in the form that the run declared.

Invariants: a batch whose number the sink has is not applied again; a run that was replaced, or that belongs to a copy
of the checkpoint, applies nothing; a sink takes batches only from the run that opened it, and from one checkpoint of a
pipeline. Each sink stores the batch number, the epoch and the owner in its own way, but in the same commit as the rows.

The owner of a sink is the checkpoint that wrote the pipeline's batches. A new checkpoint counts its batches from 0 and
under another query, so without an owner every message would be applied a second time after a checkpoint was deleted.

A table never has to guess: a merge with a key twice, without a key or without a sequence has no right answer, so it is
refused before anything is written.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lanemq.files import Output, StorePath, arrow_source, copy
from lanemq.model.errors import Closed, InvalidOption, SinkFenced, StateLost, UsageError
from lanemq.pipelines.batches import Batch, run_name
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE, FileRows, Merge, Rows, Sink, SinkRun, arrow_schema

log = logging.getLogger(__name__)

C = TypeVar("C")

_JSON = msgspec.json.Encoder()


def owner_mark(query: str) -> int:
    """The mark of a checkpoint as the owner of a sink: 62 bits of its identity, because Delta stores only numbers."""
    return int.from_bytes(sha256(query.encode()).digest()[:8]) >> 2


def owner_id(run: SinkRun) -> str:
    """The name under which a ledger has the owner of a pipeline."""
    return f"{run.pipeline}#owner"


def widened(run: SinkRun, rows: Rows) -> SinkRun:
    """The run of a merge, with the columns that the rows have in addition."""
    if not isinstance(run.how, Merge) or set(rows.schema.names) <= set(run.columns.names):
        return run
    if KEPT in rows.schema.names and KEPT not in run.columns.names:
        raise UsageError(
            f"the rows have the column {KEPT} and the sink was opened without it: a batch that was decided with "
            f"left_out='keep' must be finished with left_out='keep'; change the option afterwards"
        )
    more = [field for field in arrow_schema(rows.schema) if field.name not in run.columns.names]
    return replace(run, columns=pa.schema([*run.columns, *(field.with_nullable(True) for field in more)]))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a sink has recorded about one query."""

    batch: int | None = None
    """The highest batch number that the sink has."""
    epoch: int | None = None
    """The newest run that has opened the sink."""
    owner: int | None = None
    """The checkpoint that wrote the pipeline's batches; None if there are none, or if the pipeline is unknown."""

    def admits(self, batch: Batch) -> bool:
        """Whether to apply the batch; False if the sink has it. `SinkFenced` if its run was replaced."""
        self._refuse_older(batch.query, batch.epoch)
        if self.owner is not None and self.owner != owner_mark(batch.query):
            raise SinkFenced(
                f"{batch}: the sink belongs to another checkpoint of this pipeline now; stop this run, and continue "
                f"with that checkpoint"
            )
        return self.batch is None or batch.number > self.batch

    def check_opener(self, run: SinkRun, sink: object) -> None:
        """`SinkFenced` if the run that opens the sink may not use it."""
        if self.epoch is not None and run.runs is not None and not run.runs.includes(self.epoch):
            raise SinkFenced(
                f"the sink belongs to run {run_name(self.epoch)} of another copy of pipeline {run.query}'s "
                f"checkpoint: continue with that copy only, or begin with an empty checkpoint and an empty sink"
            )
        self._refuse_older(run.query, run.epoch)
        if self.has_other_owner(run) and not run.new_checkpoint:
            raise StateLost(
                f"{sink} has batches of another checkpoint of pipeline {run.pipeline!r}: the checkpoint was "
                f"deleted or is in another folder, or two pipelines have the same name. This checkpoint would read "
                f"the messages again and add their rows a second time. Use the old checkpoint, or begin with an empty "
                f"sink. To keep the rows and continue with this checkpoint, pass --new-checkpoint or run(..., "
                f"new_checkpoint=True): messages are then read from the source's startingOffsets, rows of messages "
                f"that were read before are added again (a merge keeps its newer rows), and state begins empty"
            )

    def has_other_owner(self, run: SinkRun) -> bool:
        """Whether another checkpoint of the pipeline wrote to the sink."""
        return self.owner is not None and self.owner != owner_mark(run.query)

    def lacks_epoch_of(self, run: SinkRun) -> bool:
        """Whether the run that opens the sink must record its epoch."""
        return self.epoch is None or run.epoch > self.epoch

    def _refuse_older(self, query: str, epoch: int) -> None:
        if self.epoch is not None and epoch < self.epoch:
            raise SinkFenced(
                f"run {run_name(epoch)} of pipeline {query} was replaced by run {run_name(self.epoch)}: "
                "the sink takes nothing more from the older run; stop it"
            )


class ExactSink(Sink):
    """Base of the sinks in this package: opened by one run, and used for that run's batches only."""

    all_at_once = True
    _run: SinkRun | None = None
    _reached: int | None = None
    """The highest batch number that the sink is known to have; None before this run's first batch."""

    def close(self) -> None:
        self._run = self._reached = None

    def _begin(self, run: SinkRun) -> None:
        """Take batches of this run from now on; `InvalidOption` if its columns cannot be merged."""
        if isinstance(run.how, Merge):
            check_merge_columns(run.columns, run.how.keys)
        self._run = run

    def _opened(self) -> SinkRun:
        if self._run is None:
            raise Closed(
                f"{type(self).__name__} is not open: call open() before the first batch, and not after close()"
            )
        return self._run

    def _run_of(self, batch: Batch) -> SinkRun:
        run = self._opened()
        if (batch.query, batch.epoch) != (run.query, run.epoch):
            raise UsageError(f"{batch} does not belong to the run that opened the sink: {run.query}, {run.epoch}")
        return run

    def _admits(self, entry: LedgerEntry, batch: Batch) -> bool:
        """Whether to apply the batch. `StateLost` if the sink has lost batches since this run wrote them."""
        if self._reached is not None and (entry.batch is None or entry.batch < self._reached):
            raise StateLost(
                f"{batch}: {self} has lost batches that this run has written to it: it was rolled back, or restored "
                f"from a copy. Put it back as it was; or begin with an empty checkpoint and an empty sink; or "
                f"start with --new-sink or run(..., new_sink=True), which continues without these batches"
            )
        return entry.admits(batch)

    def _warn_new_owner(self, run: SinkRun) -> None:
        log.warning(
            "%s: pipeline %s continues with a new checkpoint, and the former one may write nothing more. Rows that are "
            "there stay; rows of messages that are read again are added to them",
            self,
            run.pipeline,
        )

    def _count_stale(self, batch: Batch, rows: int, stale: int) -> None:
        """Record and log rows that a merge left out.

        A late change is left out rightly. But if the source's sequence began again, every change is left out, which
        looks the same; hence the warning.
        """
        self.last_stale = max(stale, 0)
        if stale < 0:
            log.error(
                "%s: %s has a key more than once: %d rows to merge replaced %d. Probably another program compacted the "
                "table at the same time as the sink, which can double rows. Remove the surplus rows, or begin with a "
                "new table and a new checkpoint, and let only one program compact the table: maintain_every=0 leaves "
                "it to the other one",
                batch,
                self,
                rows,
                rows - stale,
            )
        elif stale:
            log.warning(
                "%s: %d of %d rows were left out because they are older than the table's rows. If this continues, the "
                "sequence began again, as in a topic that was created again and counts from 0; declare sequence= of "
                "the source, or begin with an empty table and checkpoint",
                batch,
                stale,
                rows,
            )


# Rows in the form that a run declared: columns by name, exact types, keys that identify a row.


def refuse_removed(table: str, there: Collection[str], wanted: Sequence[str]) -> None:
    """`InvalidOption` if another program has removed or renamed columns of a table while a run writes to it."""
    gone = [name for name in wanted if name not in there]
    if gone:
        raise InvalidOption(
            f"column {', '.join(gone)} was removed from {table} while the pipeline ran, and the values would be lost. "
            f"Start it again, which adds the column, or write to another table"
        )


def check_merge_columns(schema: pa.Schema, keys: Sequence[str]) -> None:
    """`InvalidOption` if a merge cannot use these columns."""
    if not keys:
        raise InvalidOption("keys: a merge needs at least one column that identifies a row")
    for name in (*keys, SEQUENCE, DELETED):
        if name not in schema.names:
            raise InvalidOption(f"column {name} is missing: a merge needs its keys, {SEQUENCE} and {DELETED}")
    if not pa.types.is_boolean(schema.field(DELETED).type):
        raise InvalidOption(f"column {DELETED} is {schema.field(DELETED).type}, it must be boolean")
    kind = schema.field(SEQUENCE).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise InvalidOption(f"column {SEQUENCE} is {kind}, it must be an integer or sortable text")


def refuse_other_sequence(column: str, table: str, kind: pa.DataType) -> None:
    """`InvalidOption` if the column is `_sequence`, whose type in the table is not this one."""
    if column != SEQUENCE:
        return
    ways = ("queue offsets", "the source's sequence")
    before, now = ways if pa.types.is_string(kind) else ways[::-1]
    raise InvalidOption(
        f"{table} has rows that were ordered by {before}, and this pipeline orders changes by {now} (sequence=): "
        f"the two cannot be compared, so nothing would say which row is newer. Write to a new table with a new "
        f"checkpoint, or declare sequence= as it was"
    )


def refuse_same_but_case(where: str, wanted: Iterable[str], there: Iterable[str]) -> None:
    """`InvalidOption` if a wanted column differs from one that is there only in case."""
    folded: dict[str, list[str]] = {}
    for name in there:
        folded.setdefault(name.casefold(), []).append(name)
    for name in wanted:
        others = [each for each in folded.get(name.casefold(), []) if each != name]
        if others:
            raise InvalidOption(
                f"column {name} differs from {others[0]} of {where} only in case, and most engines cannot tell them "
                f"apart: rename it"
            )


def fit(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The wanted columns with the wanted types; `UsageError` names what does not fit."""
    missing = [name for name in wanted.names if name not in table.schema.names]
    if missing:
        raise UsageError(f"the rows have no column {', '.join(missing)}, which the sink was opened with")
    table = table.select(wanted.names)
    if table.schema.equals(wanted, check_metadata=False):
        return table
    try:
        return table.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(f"the rows do not fit the columns the sink was opened with: {error}") from error


def aligned(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The table with exactly these columns and types; missing columns are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def shard_tables(rows: Rows, wanted: pa.Schema) -> Iterator[pa.Table]:
    """The rows shard by shard, each in order; at most one shard is in memory."""
    if not isinstance(rows, FileRows):
        yield fit(rows.table(), wanted)
        return
    for file in rows.files:
        yield fit(pq.read_table(arrow_source(file.path), partitioning=None), wanted)


def merge_table(rows: Rows, wanted: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """All rows of a merge; `UsageError` if a key occurs twice or a key, sequence or deletion mark is null."""
    table = pa.concat_tables([wanted.empty_table(), *shard_tables(rows, wanted)])
    for name in (*keys, SEQUENCE, DELETED):
        if table[name].null_count:
            raise UsageError(f"{table[name].null_count} rows to merge have no {name}: give every row a value for it")
    if table.num_rows > 1 and table.group_by(list(keys)).aggregate([]).num_rows != table.num_rows:
        raise UsageError(f"rows to merge have a key ({', '.join(keys)}) twice: fold them to one row per key first")
    return table


def without_deletions(table: pa.Table) -> pa.Table:
    """The rows of a merged table that are not deleted, without the columns that belong to the merge."""
    if DELETED in table.schema.names and SEQUENCE in table.schema.names:
        ours = [name for name in (SEQUENCE, DELETED, KEPT, QUEUE) if name in table.schema.names]
        table = table.filter(pc.invert(pc.fill_null(table[DELETED], False))).drop_columns(ours)
    return table


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of one shard, either in a file that can be copied as it is or as a table."""

    shard: str
    rows: int
    path: StorePath | None
    table: pa.Table | None

    def load(self) -> pa.Table:
        if self.table is not None:
            return self.table
        assert self.path is not None, "rows are in a file or in a table"
        return pq.read_table(arrow_source(self.path), partitioning=None)

    def put(self, target: StorePath) -> None:
        """Write the rows to a file of the sink.

        Invariant: a file that a table refers to belongs to the table alone. Stages rewrite their files when a batch
        is repeated, so the file is copied; a link would let that change committed rows.
        """
        if self.path is not None:
            copy(self.path, target)
            return
        output = Output(target)
        pq.write_table(self.table, output.target, use_dictionary=dictionary_columns(self.table))
        output.close()


def shards(rows: Rows, wanted: pa.Schema) -> Iterator[ShardRows]:
    """Every shard that has rows. Files whose columns differ from the wanted ones are loaded and made to fit."""
    if not isinstance(rows, FileRows):
        if rows.count():
            yield ShardRows("driver", rows.count(), None, fit(rows.table(), wanted))
        return
    for file in rows.files:
        if file.rows:
            as_it_is = _has_columns(pq.read_schema(arrow_source(file.path)), wanted)
            table = None if as_it_is else fit(pq.read_table(arrow_source(file.path), partitioning=None), wanted)
            yield ShardRows(file.shard, file.rows, file.path if as_it_is else None, table)


def file_name(shard: str) -> str:
    """The shard's name with only characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", shard)[:60] or "shard"


def _has_columns(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a Parquet file with these columns can be used as it is. The order of columns does not matter."""
    if sorted(found.names) != sorted(wanted.names):
        return False
    return all(
        found.field(field.name).type == field.type and (field.nullable or not found.field(field.name).nullable)
        for field in wanted
    )


class ExtraColumns:
    """Fits columns that were not declared into a table, which gets them in the commit of the batch.

    Invariant: no row ends a pipeline because of an undeclared column. If the table has a column of that name and
    another type, the values are stored as text if the column takes text; otherwise the column is left out, with one
    warning. Declared columns are checked when the sink is opened, never here.
    """

    def __init__(self, table: str) -> None:
        """`table`: how messages name the table."""
        self._table = table
        self._warned: set[str] = set()

    def fit(
        self,
        changes: pa.Table,
        declared: Collection[str],
        there: Mapping[str, C],
        accepts: Callable[[C, pa.DataType], bool],
    ) -> tuple[pa.Table, list[pa.Field]]:
        """The changes in a form that the table can take, and the columns that must be added to the table first."""
        missing: list[pa.Field] = []
        folded = {name.casefold() for name in there}
        for field in changes.schema:
            column = there.get(field.name)
            if field.name in declared or (column is not None and accepts(column, field.type)):
                continue
            if column is None and field.name.casefold() not in folded:
                missing.append(field)
            elif column is not None and accepts(column, pa.string()):
                at = changes.schema.get_field_index(field.name)
                changes = changes.set_column(at, field.name, changes[field.name].cast(pa.string()))
            else:
                changes = changes.drop_columns([field.name])
                self._warn(field)
        return changes, missing

    def _warn(self, field: pa.Field) -> None:
        if field.name not in self._warned:
            self._warned.add(field.name)
            log.warning(
                "%s has a column %s that does not take %s, or one whose name differs only in case: the field is left "
                "out; declare it, or rename the column",
                self._table,
                field.name,
                field.type,
            )


def is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def json_column(column: pa.ChunkedArray) -> pa.Array:
    """Maps, arrays and structs as JSON text: times in ISO 8601, bytes in base64."""
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else json_bytes(value).decode() for value in values], pa.string())


def json_bytes(value: Any) -> bytes:
    return _JSON.encode(value)


def kept_marks(name: str) -> tuple[str, str]:
    """Two texts: a row keeps this column if its `_kept` has one of them.

    A name in a JSON list follows `[` or `,`. The name alone is not enough: it may also be the end of a longer name with
    a quote in it, where a backslash precedes the quote.
    """
    named = json_bytes(name).decode()
    return f"[{named}", f",{named}"
