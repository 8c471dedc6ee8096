"""The driver's part behind the tasks: their answers become rows for the sinks and the next ledger.

The rule guarded here: nothing is settled unless every task did its work and every shard was worked on by one of them.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, LaneError, LaneFrozen, OrderError, StateLost
from lanemq.pipelines.batch import NUMBERS_PER_BATCH, Batch
from lanemq.pipelines.ports import Results
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA, FileRows, RowFile
from lanemq.pipelines.stages.transitions.plan import Answer, Summary
from lanemq.pipelines.stages.transitions.rules import UnfitState
from lanemq.pipelines.stages.transitions.shard import START
from lanemq.pipelines.stages.transitions.shard_work import work_folder
from lanemq.pipelines.stages.transitions.state_files import ShardFiles
from lanemq.pipelines.stages.transitions.unit_log import Books, Entry, Ledger

_REFUSALS: Final = {kind.__name__: kind for kind in (InvalidOption, LaneFrozen, OrderError, StateLost, UnfitState)}


def agreed(answers: Iterable[Answer]) -> list[Summary]:
    """One summary per shard, by name; raises what a task refused."""
    found: dict[str, Summary] = {}
    for answer in answers:
        if answer.refusal is not None:
            raise _REFUSALS.get(answer.refusal.kind, LaneError)(answer.refusal.text)
        for summary in answer.shards:
            if summary.shard in found:
                raise OrderError(
                    f"messages of {summary.shard} were in two tasks at once, so their order is lost: the rows were "
                    f"shuffled between source and transitions. Leave the source's partitions as they are "
                    f"(ordered=true), or use shards=<number>"
                )
            found[summary.shard] = summary
    return [found[name] for name in sorted(found)]


def ledger_after(base: Ledger, batch: Batch, summaries: Iterable[Summary]) -> Ledger:
    """What is true behind the unit."""
    shards = dict(base.shards)
    for each in summaries:
        before = shards.get(each.shard)
        snapshot = batch.number if each.snapshot else (before.snapshot if before else START)
        shards[each.shard] = Entry(each.version, snapshot, each.keys, each.waiting, each.parked, each.retry_at)
    return Ledger(batch.number, batch.query, shards)


def results(place: Path, batch: Batch, schema: StructType, summaries: list[Summary], after: Ledger) -> Results:
    """The files for the sinks, and the counts."""
    folder = work_folder(place, batch.number)
    outputs = _files(folder, [(each.shard, *each.outputs) for each in summaries])
    dead = _files(folder, [(each.shard, *each.dead) for each in summaries])
    counts: Counter[str] = Counter()
    for each in summaries:
        counts.update(each.counts)
    counts["keys"] = sum(entry.keys for entry in after.shards.values())
    counts["lanes_stopped"] = sum(entry.waiting for entry in after.shards.values())
    counts["lanes_parked"] = sum(entry.parked for entry in after.shards.values())
    return Results(
        outputs=FileRows(schema, outputs),
        dead_letters=FileRows(DEAD_LETTER_SCHEMA, dead) if dead else None,
        counts=dict(counts),
        state=msgspec.json.encode(after).decode(),
        late=frozenset(place for each in summaries for place in each.late),
    )


def _files(folder: Path, found: list[tuple[str, str, int]]) -> list[RowFile]:
    return [RowFile(shard, folder / name, rows) for shard, name, rows in found if rows]


def forget_old(books: Books, batch: Batch, cleaned: dict[str, int]) -> None:
    """Removes what no repetition of the last two units can need. `cleaned` is what was removed already.

    Behind a pass the batch before it is never computed again, and a topic without messages has passes only: there
    the ledger that the pass started from is the oldest that stays.
    """
    ledgers = sorted(books.ledgers())
    floor = batch.number if batch.is_retry_pass else (batch.spark_batch - 1) * NUMBERS_PER_BATCH
    below = [number for number in ledgers if number < floor]
    if not below:
        return
    oldest = books.ledger(below[-1])
    for name, entry in oldest.shards.items():
        if entry.snapshot > cleaned.get(name, START):
            ShardFiles(books.place, oldest.query, name).remove_before(entry.snapshot)
            cleaned[name] = entry.snapshot
    for number in below[:-1]:
        books.remove("ledger", number)
