"""What runs in Spark's tasks: rows in, one answer out.

The rule guarded here: a task's rows are streamed through, never gathered; all it keeps is the state of its shards and
the rows of one row group. Errors that would be the same at every attempt are answers, not failures of the task.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from lanemq.model.errors import LaneError
from lanemq.pipelines.stages.transitions.arrow_runs import runs
from lanemq.pipelines.stages.transitions.error_text import words_of
from lanemq.pipelines.stages.transitions.plan import Answer, Plan, Refusal, Summary, pack_answer
from lanemq.pipelines.stages.transitions.shard_cache import CACHE
from lanemq.pipelines.stages.transitions.shard_work import ShardWork


def work_on_messages(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """New messages, each in the shard it belongs to."""
    try:
        yield _answer(Answer(_take_all(plan, batches)))
    except LaneError as error:
        yield _answer(Answer([], Refusal(type(error).__name__, words_of(error))))


def work_on_lanes(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A pass over shards with stopped lanes."""
    try:
        names = [name for batch in batches for name in batch.column("shard").to_pylist()]
        yield _answer(Answer([_retry(plan, name) for name in names]))
    except LaneError as error:
        yield _answer(Answer([], Refusal(type(error).__name__, words_of(error))))


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """A unit makes many objects that live to its end; looking through them again and again took a quarter of it."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_collecting_seldom()
def _take_all(plan: Plan, batches: Iterator[pa.RecordBatch]) -> list[Summary]:
    CACHE.drop_stale(plan.place, plan.query, plan.number, plan.versions)
    rules = plan.spec.rules()
    open_shards: dict[str, ShardWork] = {}
    with ExitStack() as stack:
        for batch in batches:
            for name, run in runs(batch):
                shard = open_shards.get(name)
                if shard is None:
                    shard = open_shards[name] = stack.enter_context(ShardWork(plan, rules, name))
                shard.take(run)
        return [shard.finish() for shard in open_shards.values()]


def _retry(plan: Plan, name: str) -> Summary:
    with ShardWork(plan, plan.spec.rules(), name) as shard:
        shard.machine.retry(plan.orders)
        shard.machine.redrive(plan.letters(name))
        return shard.finish()


def _answer(answer: Answer) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"answer": pa.array([pack_answer(answer)], pa.binary())})
