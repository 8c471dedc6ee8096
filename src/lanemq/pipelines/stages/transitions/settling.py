"""What the driver does after the tasks of a unit: turns their answers into rows for the sinks and the next ledger.

Invariant: there is no next ledger unless every task did its work and exactly one task worked on each shard.
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
from lanemq.pipelines.stages.transitions.rules import UnfitState
from lanemq.pipelines.stages.transitions.shard import START
from lanemq.pipelines.stages.transitions.state_files import ShardFiles
from lanemq.pipelines.stages.transitions.unit_log import Entry, Ledger, UnitLog
from lanemq.pipelines.stages.transitions.worker import ShardSummary, TaskAnswer, work_folder

_REFUSALS: Final = {kind.__name__: kind for kind in (InvalidOption, LaneFrozen, OrderError, StateLost, UnfitState)}


def summaries_of(answers: Iterable[TaskAnswer]) -> list[ShardSummary]:
    """One summary per shard, sorted by name. Raises what a task refused."""
    found: dict[str, ShardSummary] = {}
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


def ledger_after(base: Ledger, batch: Batch, summaries: Iterable[ShardSummary]) -> Ledger:
    """The ledger after the unit."""
    shards = dict(base.shards)
    for each in summaries:
        before = shards.get(each.shard)
        snapshot = batch.number if each.snapshot else (before.snapshot if before else START)
        shards[each.shard] = Entry(each.version, snapshot, each.keys, each.waiting, each.parked, each.retry_at)
    return Ledger(batch.number, batch.query, shards)


def results(
    stage_folder: Path, batch: Batch, schema: StructType, summaries: list[ShardSummary], after: Ledger
) -> Results:
    """The row files for the sinks, and the counts."""
    folder = work_folder(stage_folder, batch.number)
    outputs = _files(folder, [(each.shard, *each.outputs) for each in summaries])
    dead = _files(folder, [(each.shard, *each.dead) for each in summaries])
    counts: Counter[str] = Counter()
    for each in summaries:
        counts.update(each.counts)
    counts["keys"] = sum(entry.keys for entry in after.shards.values())
    counts["lanes_held"] = sum(entry.waiting for entry in after.shards.values())
    counts["lanes_parked"] = sum(entry.parked for entry in after.shards.values())
    return Results(
        outputs=FileRows(schema, outputs),
        dead_letters=FileRows(DEAD_LETTER_SCHEMA, dead) if dead else None,
        counts=dict(counts),
        state=msgspec.json.encode(after).decode(),
        late=frozenset(message for each in summaries for message in each.late),
    )


def _files(folder: Path, found: list[tuple[str, str, int]]) -> list[RowFile]:
    return [RowFile(shard, folder / name, rows) for shard, name, rows in found if rows]


def remove_old(unit_log: UnitLog, batch: Batch, cleaned: dict[str, int]) -> None:
    """Removes what no repetition of the last two units can need.

    After a retry pass the batch before it is never computed again, so the oldest ledger kept is the one that the pass
    started from. A topic without new messages has retry passes only.

    Args:
        unit_log: The stage's log.
        batch: The unit that has just finished.
        cleaned: The snapshot of each shard up to which files were removed before; updated.
    """
    ledgers = sorted(unit_log.ledgers())
    floor = batch.number if batch.is_retry_pass else (batch.spark_batch - 1) * NUMBERS_PER_BATCH
    below = [number for number in ledgers if number < floor]
    if not below:
        return
    oldest = unit_log.ledger(below[-1])
    for name, entry in oldest.shards.items():
        if entry.snapshot > cleaned.get(name, START):
            ShardFiles(unit_log.folder, oldest.query, name).remove_before(entry.snapshot)
            cleaned[name] = entry.snapshot
    for number in below[:-1]:
        unit_log.remove("ledger", number)
