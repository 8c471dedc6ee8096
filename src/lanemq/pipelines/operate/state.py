"""The state of a pipeline's keys, for questions: one key, or all of them as a table.

    lane_state("/data/checkpoints/orders", "order-42").state
    spark.createDataFrame(state_table("/data/checkpoints/orders")).where("waiting is null").show()

Works on the checkpoint's files, whether or not the pipeline runs, without the broker.

Invariant: everything that one call returns is of one moment, the end of the newest finished unit of work. A batch that
is being processed shows nothing of itself.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from lanemq.clock import wall_time
from lanemq.files import StorePath
from lanemq.pipelines.checkpoint.checkpoint import stage_folder
from lanemq.pipelines.operate.parked import LaneState, parked, read_newest
from lanemq.pipelines.stages.transitions.manifest import Manifest
from lanemq.pipelines.stages.transitions.shard import KeyLane, ShardFiles, key_of, read_plain

if TYPE_CHECKING:  # it needs PySpark
    from lanemq.pipelines.pipeline import Pipeline

STATE_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("shard", pa.string()),
        ("state", pa.string()),
        ("number", pa.int64()),
        ("seen_at", pa.timestamp("us", "UTC")),
        ("waiting", pa.string()),
        ("timers", pa.string()),
    ]
)
"""The columns of `state_table`: the key (null for a queue's messages without one); its shard; its state as JSON; the
number of its last event, if events are numbered; the store time of its newest message; whether it is held, parked or
waits for a missing number (null if it moves); and its timers as JSON, name and time (null if it has none)."""

_JSON: Final = msgspec.json.Encoder()


def lane_state(pipeline: "Pipeline | StorePath | str", key: str) -> LaneState:
    """The state of one key; `UsageError` if the pipeline does not know the key."""
    return parked(pipeline).show(key)


def state_table(pipeline: "Pipeline | StorePath | str") -> pa.Table:
    """The state of all keys, with the columns of `STATE_SCHEMA`. All of it is in the memory of this process."""
    folder = stage_folder(parked(pipeline).checkpoint)

    def tables(manifest: Manifest) -> Iterator[pa.Table]:
        for name, entry in sorted(manifest.shards.items()):
            lanes = ShardFiles(folder, manifest.query, name).load(entry.version).lanes
            rows = [_row(lane, name, read_plain(packed)) for lane, packed in sorted(lanes.items())]
            yield pa.Table.from_pylist(rows, STATE_SCHEMA)

    return pa.concat_tables([STATE_SCHEMA.empty_table(), *read_newest(folder, tables)])


def _row(name: str, shard: str, lane: KeyLane) -> dict[str, Any]:
    return {
        "key": key_of(name),
        "shard": shard,
        "state": _JSON.encode(lane.state).decode(),
        "number": lane.number,
        "seen_at": wall_time(lane.seen) if lane.seen > 0 else None,
        "waiting": None if lane.waiting is None else lane.waiting.why.value,
        "timers": _JSON.encode({each.name: wall_time(each.due) for each in lane.timers}).decode()
        if lane.timers
        else None,
    }
