"""`LastState`: a stage that keeps a table equal to its source. Changes in, the newest row of each key out.

After poison the key's later changes are applied: events carry whole rows, so the next one corrects the table. What no
later change would correct is done at once: a row whose key changed is deleted, even if its new row is poison.

Invariants: the result depends only on the messages, so a repeated batch gives the same rows; nothing is dropped
silently, because what cannot be understood becomes a dead letter with its reason; a batch whose order cannot be known
ends the query.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.files import StorePath, remove_tree
from lanemq.model.errors import CodecError, InvalidOption, OrderError
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.queues import check_on_queue_change
from lanemq.pipelines.ports import (
    DEAD_LETTER_SCHEMA,
    Append,
    FileRows,
    Merge,
    OnQueueChange,
    Results,
    Rows,
    Sink,
    Stage,
    TableRows,
)
from lanemq.pipelines.running.progress import counted
from lanemq.pipelines.stages.cdc.evolving import Evolution, SkippedFields
from lanemq.pipelines.stages.cdc.misfits import Misfits, combine_misfits, total_misfits
from lanemq.pipelines.stages.cdc.options import (
    Decimals,
    FormatName,
    FrozenTable,
    OnLeftOut,
    OnMisfit,
    ReplicaOptions,
    TimeUnit,
    check_options,
)
from lanemq.pipelines.stages.cdc.reading import REASON, QueueSummary, fold_task
from lanemq.pipelines.stages.cdc.replica_state import QueueEnd, ReplicaState, pack_replica_state, read_replica_state
from lanemq.pipelines.stages.cdc.sequence import before
from lanemq.pipelines.stages.cdc.shares import (
    FOLDED_BY_TASKS_FROM,
    SUMMARY,
    ShareTask,
    count_deletes,
    fold_queues,
    fold_shares,
    read_rows,
    read_table,
)
from lanemq.pipelines.stages.cdc.table import declare_table
from lanemq.pipelines.stages.cdc.truncation import Bound, newer_bound
from lanemq.spark.versions import to_arrow_schema

log = logging.getLogger(__name__)
_NEEDED = ("topic", "broker", "queue_id", "queue_offset", "key", "value", "store_timestamp")
COUNTS = ("events", "keys", "deletes", "key_changes", "truncations", "misfits", "poison", "ddl", "ignored")


class LastState(Stage):
    """Replicates a table from its changes.

    Args:
        schema: Columns of the table, `"id bigint, name string"` or a StructType. Other fields of events are skipped;
            columns that an event does not have become null, unless `left_out` is `keep`.
        keys: The columns of the row's key.
        format: `json` (the row; no value deletes it), `debezium`, `canal`, `maxwell`. Events carry whole rows,
            unless `left_out` is `keep`.
        sequence: Paths in the event that say what is newer, the most significant first, such as `("source.lsn",)` or
            `("source.file:file", "source.pos", "source.row")`; two different changes of a row that share it and are in
            two queues end the query. None: queue offsets, which order the changes of a row
            as long as all of them have one message key; a row that is changed in two queues, and a change of a row's
            key, then end the query, and a truncation is a dead letter. The table has a column `_queue`.
        one_queue: Promises that all changes of the table are in one queue, so that offsets order them all, including
            changes of keys and truncations. A batch with messages of a second queue is refused.
        fold_first: Whether only the newest message of each message key is read. None: where the message key is an
            object that names the row's key, as Debezium's are, so that it can be proved correct. True: you guarantee
            that a message key always stands for the same one row, and that a key's messages are in order; if this is
            wrong, rows are lost. False: every message is read. Unread messages are not checked: poison that a newer
            message has replaced is found only with False.
        table: Only events of this table, `orders` or `shop.orders`. None: all.
        deleted: For `json`, the path of a field that is true in deleted rows.
        misfits: A value that does not fit its column becomes null and is counted (`null`), or makes the message poison
            (`dead_letter`; every row is then read completely, which costs about half of the speed).
        on_poison: `dead_letter`: messages that cannot be understood become dead letters. `fail`: they end the query.
        time_unit: The unit of numbers in timestamp columns, since 1970; or one for each such column, `{"seen": "us"}`,
            where `ms` applies to the others. A wrong unit gives other times, or nulls. A schema that a Debezium event
            embeds counts before this.
        decimals: How decimal columns are written where they are texts: `text` ("12.50"), or `base64`, the unscaled
            number as Debezium's `decimal.handling.mode=precise` writes it, with the declared scale. If this is wrong,
            they are null or other numbers. A schema that a Debezium event embeds counts before this.
        left_out: Whether a change is the whole row. `dead_letter`: it is, so a column without a field becomes null; if
            Debezium marks a column as left out, as it does with large columns of PostgreSQL that an update did not
            touch, the message becomes a dead letter and the row stays as it is. `keep`: a column without a field, or
            with this mark, keeps its value; null is stored. The table then has a column `_kept`, which names the
            columns that a row's last change left out; if the table had no such row they are null. Not with `sequence`.
        on_queue_change: What to do when the topic gets more queues and there is no `sequence`. `fail` ends the query at
            once. `continue` is for topics of which no message key moved: the first change of a row that comes from
            another queue than before still ends the query.
        evolve: New fields of rows become columns of the table. The schema that the message embeds says the type;
            without one it is `bigint`, `double`, `string` or `boolean` by the first value that is not null, and objects
            and lists become the text of their JSON. If values of the same batch have a fraction, whole numbers give a
            `double` column; a fraction in a later batch is a misfit. A value that does not fit becomes null and is
            counted. For Delta, Iceberg, SQLite and PostgreSQL. Every field of every row is examined.
    """

    columns: tuple[str, ...] = (*_NEEDED, "message_id")
    on_damaged = "raw"
    """A damaged body arrives as its packed bytes, which are not JSON and so poison; null would delete the row."""

    def __init__(
        self,
        schema: str | StructType,
        keys: Sequence[str],
        *,
        format: FormatName = "json",
        sequence: Sequence[str] | None = None,
        one_queue: bool = False,
        fold_first: bool | None = None,
        table: str | None = None,
        deleted: str | None = None,
        misfits: OnMisfit = "null",
        on_poison: Literal["dead_letter", "fail"] = "dead_letter",
        time_unit: TimeUnit | Mapping[str, TimeUnit] = "ms",
        decimals: Decimals = "text",
        left_out: OnLeftOut = "dead_letter",
        on_queue_change: OnQueueChange = "fail",
        evolve: bool = False,
    ) -> None:
        if left_out not in ("dead_letter", "keep"):
            raise InvalidOption(f"left_out: {left_out!r} is not one of dead_letter, keep")
        if left_out == "keep" and sequence:
            raise InvalidOption(
                "left_out: keep needs a row's changes in one queue, in order: a late change would lose, although "
                "it has the value that a newer one left out. Leave sequence= out, or let the source send whole rows"
            )
        declared = declare_table(schema, keys, keeps=left_out == "keep")
        checked = check_options(
            declared, format, sequence or (), fold_first, table, deleted, misfits, time_unit, decimals
        )
        self._options = replace(checked, evolves=evolve, one_queue=one_queue)
        self.evolves = evolve
        if on_poison not in ("dead_letter", "fail"):
            raise InvalidOption(f"on_poison: {on_poison!r} is not one of dead_letter, fail")
        self._one_queue = one_queue
        chosen = check_on_queue_change(on_queue_change)
        self.on_queue_change = None if self._options.parts else chosen
        self._fails = on_poison == "fail"
        self.schema = self._options.merged_schema
        self.how: Append | Merge = Merge(declared.keys)
        self._work: StorePath | None = None
        self._state = ReplicaState()
        self._fields, self._evolution, self._misfits = SkippedFields(), Evolution(), Misfits()

    @property
    def options(self) -> ReplicaOptions:
        """What tasks are sent; for tests and measurements without Spark."""
        return self._options

    def sequence_before(self, *position: object) -> str:
        """The bound for a sink's `purge_tombstones`: everything older than a position of the source is below it.

        `position` has one value per part of `sequence`. It is safe if no message that is still to be read is older.
        Without `sequence` no bound is needed: queues are read in order, so nothing older can come.
        """
        return before(self._options.parts, position)

    def accept_sink(self, sink: Sink) -> None:
        self._options = replace(self._options, empties=sink.empties, text_limits=sink.text_limits())

    def open(self, spark: SparkSession, folder: StorePath) -> None:
        """Opens the stage's folder; refuses one whose rows were made with other keys or another sequence."""
        FrozenTable.of(self._options).check(folder)
        self._work = folder / "work"
        self._state = ReplicaState()
        self._fields, self._evolution, self._misfits = SkippedFields(), Evolution(), Misfits()
        remove_tree(self._work)  # left by a run that was killed

    def continue_from(self, state: str) -> None:
        self._state = read_replica_state(state)
        self._fields.continue_from(self._state.skipped)
        self._evolution.columns = self._state.columns if self.evolves else {}

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        """Returns the newest row of each key that the batch changes."""
        folder = self._folder(batch)
        FrozenTable.of(self._options).freeze(folder.parent.parent)
        remove_tree(folder)
        options = self._evolution.extend(self._options)
        remove_tree(self._rows_folder(batch))
        try:
            queues = self._fold(messages, folder, options)
            fresh = self._evolution.find_columns(options, [(each.queue, each.fields) for each in queues])
            if fresh:
                options = self._evolution.extend(self._options, fresh)
                queues = self._fold(messages, folder, options)
            return self._results(messages.sparkSession, queues, batch, options, fresh)
        finally:
            remove_tree(folder)

    def _fold(self, messages: DataFrame, folder: StorePath, options: ReplicaOptions) -> list[QueueSummary]:
        task = partial(fold_task, options, folder)
        kept = [name for name in self.columns if name in _NEEDED or name in messages.columns]
        found = messages.select(*kept).mapInArrow(task, SUMMARY).collect()
        summaries = (msgspec.json.decode(row.summary, type=QueueSummary) for row in found)
        return sorted(summaries, key=lambda each: each.queue)

    def finished(self, batch: Batch) -> None:
        """Removes the files of a large batch: the sinks have it."""
        remove_tree(self._rows_folder(batch))

    def _results(
        self,
        spark: SparkSession,
        queues: Sequence[QueueSummary],
        batch: Batch,
        options: ReplicaOptions,
        fresh: Mapping[str, str],
    ) -> Results:
        counts = Counter({name: 0 for name in COUNTS})
        for each in queues:
            counts.update(each.counts)
        dead_letters = self._dead_letters(queues, batch)
        self._refuse_disorder(queues, counts, batch)
        schema = options.merged_schema
        emptied_below = newer_bound(each.emptied_below for each in queues)
        rows, counts["deletes"] = self._rows(spark, queues, schema, batch, emptied_below)
        counts["keys"] = rows.count()
        if new := self._fields.count((name for each in queues for name in each.skipped), batch):
            counts["new_fields"] = new
        counts.update(self._evolution.report(fresh, (name for each in queues for name in each.conflicts), batch))
        if counts["ddl"] and not self.evolves:
            log.warning("%s: %d schema changes; the table keeps its declared columns", batch, counts["ddl"])
        misfits = combine_misfits(each.misfits for each in queues)
        types = {field.name: field.dataType.simpleString() for field in options.table.schema.fields}
        declared = {name: found for name, found in misfits.items() if name not in options.added}
        self._misfits.report(declared, types, batch)
        after = ReplicaState(
            queues={} if self._options.parts else ends_after(self._state.queues, queues),
            columns={**self._state.columns, **fresh},
            emptied_below=newer_bound((self._state.emptied_below, emptied_below)),
            skipped=self._fields.seen,
            misfits=total_misfits(self._state.misfits, misfits, types),
        )
        state = "" if after == self._state else pack_replica_state(after)
        return Results(rows, dead_letters, dict(counts), state)

    def _refuse_disorder(self, queues: Sequence[QueueSummary], counts: Counter[str], batch: Batch) -> None:
        """Refuses a batch whose order offsets cannot tell: those of different queues cannot be compared."""
        names = sorted({each.queue for each in queues} | self._state.queues.keys())
        if self._one_queue and len(names) > 1:
            raise OrderError(f"{batch}: one_queue was promised, but there are or were messages of {', '.join(names)}")
        if counts["key_changes"] and not self._one_queue and not self._options.parts:
            raise OrderError(
                f"{batch}: {counts['key_changes']} changes of a row's key; queue offsets cannot order the old row "
                f"against the new one: declare a sequence of the source, or one_queue if the topic has only one"
            )
        if not self._options.parts:
            refuse_restart(self._state.queues, queues, batch)

    def _rows(
        self, spark: SparkSession, queues: Sequence[QueueSummary], schema: StructType, batch: Batch, emptied: Bound
    ) -> tuple[Rows, int]:
        """The newest row of each key, on the driver or in files, and how many of them are deletions."""
        wanted, keys, folder = to_arrow_schema(schema), self._options.table.keys, self._folder(batch)
        older_than = newer_bound((self._state.emptied_below, emptied))
        if not queues:
            return TableRows(schema, wanted.empty_table(), emptied), 0
        if sum(each.rows.rows for each in queues) < FOLDED_BY_TASKS_FROM:
            parts = [(each.queue, read_rows(folder, each.rows), each.emptied_below) for each in queues]
            rows = fold_queues(parts, keys, wanted, older_than)
            return TableRows(schema, rows, emptied), count_deletes(rows)
        named = tuple((each.queue, each.rows, each.emptied_below) for each in queues)
        task = ShareTask(folder, self._rows_folder(batch), named, keys, wanted, older_than)
        files, deletes = fold_shares(spark, task)
        return FileRows(schema, files, emptied), deletes

    def _folder(self, batch: Batch) -> StorePath:
        assert self._work is not None, "open() comes first"
        return self._work / str(batch.number)

    @property
    def _checkpoint(self) -> StorePath:
        """The folder of the pipeline: that of the stage is in the one that LaneMQ has there."""
        assert self._work is not None, "open() comes first"
        return self._work.parent.parent.parent

    def _rows_folder(self, batch: Batch) -> StorePath:
        """The folder with the rows of a large batch, until the sinks have it."""
        assert self._work is not None, "open() comes first"
        return self._work / f"{batch.number}-rows"

    def _dead_letters(self, queues: Sequence[QueueSummary], batch: Batch) -> TableRows | None:
        tables = [read_table(self._folder(batch) / each.dead) for each in queues if each.dead]
        if not tables:
            return None
        found = pa.concat_tables(tables)
        if self._fails:
            raise _unreadable(found, batch)
        first = found.slice(0, 1).to_pylist()[0]
        log.warning(
            "%s: %s could not be understood and became %s, the first at %s queue %s/%s offset %s: %s. "
            "`lanemq pipeline dead-letters list %s` lists them",
            batch,
            counted(found.num_rows, "messages"),
            "a dead letter" if found.num_rows == 1 else "dead letters",
            *(first[name] for name in ("topic", "broker", "queue_id", "queue_offset", REASON)),
            self._checkpoint,
        )
        wanted = to_arrow_schema(DEAD_LETTER_SCHEMA)
        more = {"attempts": 1, "batch": batch.number, "message_id": None, "tags": None, "waits": False}
        columns = [
            found[field.name] if field.name in found.column_names
            else pa.repeat(pa.scalar(more[field.name], field.type), found.num_rows)
            for field in wanted
        ]  # fmt: skip
        return TableRows(DEAD_LETTER_SCHEMA, pa.table(columns, names=wanted.names).cast(wanted))


def _unreadable(found: pa.Table, batch: Batch) -> CodecError:
    first = found.slice(0, 1).to_pylist()[0]
    return CodecError(
        f"{batch}: {found.num_rows} messages cannot be understood, the first at {first['topic']} queue "
        f"{first['broker']}/{first['queue_id']} offset {first['queue_offset']}: {first['reason']}; "
        f"make them dead letters with on_poison='dead_letter', or correct the declared schema"
    )


def refuse_restart(ends: Mapping[str, QueueEnd], queues: Sequence[QueueSummary], batch: Batch) -> None:
    """Raises `OrderError` if a queue was deleted and created again since it was read up to its end.

    Where offsets say what is newer, they must not start over: a lower offset with a later store time belongs to a
    re-created queue, and its changes would silently lose against the rows of the former one. A lower offset with an old
    store time is a repeated message and rightly loses.
    """
    for each in queues:
        end = ends.get(each.queue)
        if end is not None and each.first <= end.last and each.first_stored > end.stored:
            raise OrderError(
                f"{batch}: queue {each.queue} continues at offset {each.first} after {end.last}, so it was deleted "
                "and created again; its changes would count as older than the rows in the table. Begin with an "
                "empty table and checkpoint, and declare sequence= of the source if this can happen again"
            )


def ends_after(ends: Mapping[str, QueueEnd], queues: Sequence[QueueSummary]) -> dict[str, QueueEnd]:
    """How far each queue was read after a batch. Several tasks may report one queue."""
    after = dict(ends)
    for each in queues:
        known = after.get(each.queue, QueueEnd(-1, 0))
        after[each.queue] = QueueEnd(max(known.last, each.last), max(known.stored, each.stored))
    return after
