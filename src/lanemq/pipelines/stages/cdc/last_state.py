"""The stage that keeps a table equal to its source: changes in, the newest row of each key out.

The rules guarded here: the result depends on the messages only, so a repeated batch gives the same rows; nothing is
dropped silently, what cannot be understood goes to the dead letters with its reason; and a batch whose order nobody
can know ends the query instead of guessing.

After poison the key's later changes go on: events carry whole rows, so the next one repairs the table. What no later
change would repair is done at once: a row whose key changed is deleted, even if its new row is poison.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanemq.model.errors import CodecError, InvalidOption, OrderError
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.checkpoint.queue_set import check_choice
from lanemq.pipelines.ports import DELETED, Append, Merge, OnQueueChange, Results, Stage
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA, TableRows
from lanemq.pipelines.running.progress import counted
from lanemq.pipelines.sink_positions import SinkPosition
from lanemq.pipelines.stages.cdc.declared import check, note
from lanemq.pipelines.stages.cdc.evolving import Evolution
from lanemq.pipelines.stages.cdc.fold import settle
from lanemq.pipelines.stages.cdc.new_fields import NewFields
from lanemq.pipelines.stages.cdc.plan import Decimals, FormatName, OnLeftOut, OnMisfit, Plan, TimeUnit, make_plan
from lanemq.pipelines.stages.cdc.restarts import Ends
from lanemq.pipelines.stages.cdc.sequence import before, sequence_type
from lanemq.pipelines.stages.cdc.table import declare_table
from lanemq.pipelines.stages.cdc.task import LINE, Line, fold_task

log = logging.getLogger(__name__)
_NEEDED = ("topic", "broker", "queue_id", "queue_offset", "key", "value", "store_timestamp")
COUNTS = ("events", "keys", "deletes", "key_changes", "misfits", "poison", "ddl", "ignored")


class LastState(Stage):
    """Replicates a table from its changes.

    schema: columns of the table, `"id bigint, name string"` or a StructType. Fields of events that are not among them
        are skipped; columns that an event does not have are null.
    keys: the columns of the row's key.
    format: `json` (the row; no value deletes it), `debezium`, `canal`, `maxwell`. Events must carry whole rows.
    sequence: paths in the event that say what is newer, the most significant first, such as `("source.lsn",)` or
        `("source.file:file", "source.pos", "source.row")`. None: queue offsets, which order the changes of a row as
        long as all of them have one message key; a change of a row's key is then refused.
    one_queue: all changes of the table are in one queue, so that offsets order them all, changes of keys included. A
        batch with messages of a second queue is refused.
    fold_first: whether only the newest message of each message key is read. None: where the message key is an object
        that names the row's key, as Debezium's are, so that it can be proved right. True: your word that a message key
        always stands for the same one row, and that a key's messages are in order; wrong, and rows are lost. False:
        every message is read. What was not read is not judged either: poison that a newer message has replaced is
        only found with False.
    table: only events of this table, `orders` or `shop.orders`. None: all.
    deleted: for `json`, the path of a field that is true in rows that are gone.
    misfits: a value that does not fit its column becomes null and is counted (`null`), or makes the message poison
        (`dead`; every row is then read completely, which costs about half of the speed).
    on_poison: `dead_letter`: messages that cannot be understood are set aside and the query lives; `fail`: it ends.
    time_unit: of numbers in timestamp columns, since 1970; or one for each such column, `{"seen": "us"}`, of which
        those that are not named have `ms`. A wrong one gives other moments, or nulls.
    decimals: how decimal columns come where they are texts: `text` ("12.50"), or `base64`, the unscaled number, as
        Debezium's `decimal.handling.mode=precise` writes it, with the declared scale. Wrong, and they are null or
        other numbers.
    left_out: what is done with a change that leaves a column out, as Debezium does with large columns of PostgreSQL
        that an update did not touch: `dead`, the message is set aside and the row stays as it is; `keep`, the column
        keeps the value that it has. The table then has a column `_kept`, which names the columns that a row's last
        change left out; where the table had no such row they are null. Not with `sequence`.
    evolve: fields that rows get become columns of the table: whole numbers, numbers, texts or booleans by their first
        value that is not null, objects and lists as the text of their JSON. Whole numbers are numbers if one of the
        same batch has a fraction; in a later batch that is too late. A value that does not fit becomes null and is
        counted as a misfit. For Delta, SQLite and PostgreSQL. Every field of every row is looked at.
    on_queue_change: what is done when the topic gets more queues and there is no `sequence`: `fail`, because a row
        whose changes moved to a queue with lower offsets would keep its old values; `continue` if no message key moved.
    """

    columns: tuple[str, ...] = (*_NEEDED, "message_id")
    on_damaged = "raw"
    """What is still packed is no JSON, so it is poison; no body at all would be a tombstone, and delete the row."""

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
        left_out: OnLeftOut = "dead",
        on_queue_change: OnQueueChange = "fail",
        evolve: bool = False,
    ) -> None:
        if left_out not in ("dead", "keep"):
            raise InvalidOption(f"left_out: {left_out!r} is not one of dead, keep")
        if left_out == "keep" and sequence:
            raise InvalidOption(
                "left_out: keep needs a row's changes in one queue, in order: a change that comes late has the value "
                "that a newer one left out, and loses. Leave sequence= out, or let the source send whole rows"
            )
        declared = declare_table(schema, keys, keeps=left_out == "keep")
        plan = make_plan(declared, format, sequence or (), fold_first, table, deleted, misfits, time_unit, decimals)
        self._plan = replace(plan, evolves=evolve)
        self.evolves = evolve
        if on_poison not in ("dead_letter", "fail"):
            raise InvalidOption(f"on_poison: {on_poison!r} is not one of dead_letter, fail")
        self._one_queue = one_queue
        chosen = check_choice(on_queue_change)
        self.on_queue_change = None if self._plan.parts else chosen
        self._fails = on_poison == "fail"
        self.schema = declared.merged(sequence_type(self._plan.parts))
        self.how: Append | Merge = Merge(declared.keys)
        self._work: Path | None = None
        self._ends, self._fields, self._evolution = Ends(), NewFields(), Evolution()

    @property
    def plan(self) -> Plan:
        """What tasks do; for tests and measurements without Spark."""
        return self._plan

    def sequence_before(self, *position: object) -> str:
        """For `purge_tombstones` of a sink: the bound of everything older than a position of the source.

        `position` has one value per part of `sequence`. Safe is one that nothing on its way to the table is older
        than. Without `sequence` queues are read in order, so nothing older can come at all, and no bound is needed.
        """
        return before(self._plan.parts, position)

    def open(self, spark: SparkSession, place: Path) -> None:
        """Refuses a place whose rows were made with other keys or another sequence."""
        check(place, self._plan)
        self._work = place / "work"
        self._ends, self._fields = Ends(place / "ends.json"), NewFields()
        self._evolution = Evolution(place / "columns.json" if self.evolves else None)
        shutil.rmtree(self._work, ignore_errors=True)  # of a run that was killed; nothing refers to it

    def run(self, messages: DataFrame, batch: Batch) -> Results:
        assert self._work is not None, "open() comes first"
        note(self._work.parent, self._plan)
        folder = self._work / str(batch.number)
        shutil.rmtree(folder, ignore_errors=True)
        plan = self._evolution.plan(self._plan)
        try:
            lines = self._lines(messages, folder, plan)
            fresh = self._evolution.added(plan, [(line.queue, line.fields) for line in lines])
            if fresh:
                plan = self._evolution.plan(self._plan, fresh)
                lines = self._lines(messages, folder, plan)
            return self._results(lines, batch, plan, fresh)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _lines(self, messages: DataFrame, folder: Path, plan: Plan) -> list[Line]:
        task = partial(fold_task, plan, str(folder))
        kept = [name for name in self.columns if name in _NEEDED or name in messages.columns]
        found = messages.select(*kept).mapInArrow(task, LINE).collect()
        return sorted((msgspec.json.decode(row.line, type=Line) for row in found), key=lambda line: line.queue)

    def settle(self, batch: Batch, state: str) -> None:
        """What is remembered: how far each queue was read, where offsets say what is newer; columns that were added."""
        if self.evolves:
            self._evolution.settle(state, batch.epoch)
        if not self._plan.parts:
            self._ends.settle(state, batch.epoch)

    def _results(self, lines: Sequence[Line], batch: Batch, plan: Plan, fresh: Mapping[str, str]) -> Results:
        counts = Counter({name: 0 for name in COUNTS})
        for line in lines:
            counts.update(line.counts)
        dead = self._dead(lines, batch)
        self._refuse_disorder(lines, counts, batch)
        schema = plan.table.merged(sequence_type(plan.parts))
        rows = self._rows(lines, schema)
        counts["keys"] = rows.num_rows
        counts["deletes"] = pc.sum(rows[DELETED]).as_py() or 0
        if new := self._fields.count((name for line in lines for name in line.skipped), batch):
            counts["new_fields"] = new
        counts.update(self._evolution.tell(fresh, (name for line in lines for name in line.conflicts), batch))
        if counts["ddl"] and not self.evolves:
            log.warning("%s: %d schema changes passed; the table keeps its declared columns", batch, counts["ddl"])
        state = "" if self._plan.parts or not lines else self._ends.behind(lines, batch)
        if self.evolves and lines:
            state = self._evolution.behind(fresh, state)
        return Results(TableRows(schema, rows), dead, dict(counts), state, _positions(lines))

    def _refuse_disorder(self, lines: Sequence[Line], counts: Counter[str], batch: Batch) -> None:
        """Offsets of different queues say nothing about each other."""
        queues = sorted({line.queue for line in lines})
        if self._one_queue and len(queues) > 1:
            raise OrderError(f"{batch}: one_queue was promised, but there are messages of {', '.join(queues)}")
        if counts["key_changes"] and not self._one_queue and not self._plan.parts:
            raise OrderError(
                f"{batch}: {counts['key_changes']} changes of a row's key; queue offsets cannot order the old row "
                f"against the new one: declare a sequence of the source, or one_queue if the topic has only one"
            )
        if not self._plan.parts:
            self._ends.refuse_restart(lines, batch)

    def _rows(self, lines: Sequence[Line], schema: StructType) -> pa.Table:
        wanted = to_arrow_schema(schema, timezone="UTC")
        queues = [(line.queue, feather.read_table(line.rows, memory_map=False)) for line in lines]
        if not queues:
            return wanted.empty_table()
        return settle(queues, self._plan.table.keys).cast(wanted)

    def _dead(self, lines: Sequence[Line], batch: Batch) -> TableRows | None:
        tables = [feather.read_table(line.dead, memory_map=False) for line in lines if line.dead]
        if not tables:
            return None
        letters = pa.concat_tables(tables)
        if self._fails:
            raise _unreadable(letters, batch)
        log.warning("%s: %s set aside that could not be understood", batch, counted(letters.num_rows, "messages"))
        wanted = to_arrow_schema(DEAD_LETTER_SCHEMA, timezone="UTC")
        more = {"attempts": 1, "batch": batch.number, "message_id": None, "tags": None, "waits": False}
        columns = [
            letters[field.name] if field.name in letters.column_names
            else pa.repeat(pa.scalar(more[field.name], field.type), letters.num_rows)
            for field in wanted
        ]  # fmt: skip
        return TableRows(DEAD_LETTER_SCHEMA, pa.table(columns, names=wanted.names).cast(wanted))


def _positions(lines: Sequence[Line]) -> dict[str, SinkPosition]:
    found: dict[str, SinkPosition] = {}
    for line in lines:
        found[line.queue] = SinkPosition(line.last + 1, line.stored).with_more(found.get(line.queue))
    return found


def _unreadable(letters: pa.Table, batch: Batch) -> CodecError:
    first = letters.slice(0, 1).to_pylist()[0]
    return CodecError(
        f"{batch}: {letters.num_rows} messages cannot be understood, the first at {first['topic']} queue "
        f"{first['broker']}/{first['queue_id']} offset {first['queue_offset']}: {first['reason']}; "
        f"set them aside with on_poison='dead_letter', or correct the declared schema"
    )
