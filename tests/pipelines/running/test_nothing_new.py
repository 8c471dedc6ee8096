"""A run with `once` that has nothing to do: Spark is not started, and the sink is not written to."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.files import remove_tree
from lanemq.pipelines import DeltaSink, ForeachSink, LastState, Pipeline, Project, Topic, Transitions
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, run_log_folder
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.unit_record import UNIT, DecidedRows, UnitRecord, pack_unit
from lanemq.pipelines.ports import Append, FileRows, Results, SinkRun, Stage
from lanemq.pipelines.running import program
from lanemq.spark.offsets import to_json
from lanemq.spark.read.brokers import Brokers
from lanemq.testing.embedded import EmbeddedBroker

ROWS = StructType([StructField("key", StringType())])


def _step(state: int | None, event: object) -> tuple[int, list[dict[str, object]]]:
    return 1, []


def _nowhere(rows: pa.Table, batch: Batch) -> None:
    """The function of a sink."""


def _odd_keys(messages: DataFrame) -> DataFrame:
    return messages.where("key % 2 = 1")


class Started(Exception):
    """Spark would be started now."""


class Place:
    """A pipeline whose three batches are done, and its Delta table."""

    def __init__(self, folder: Path, servers: str, topic: str) -> None:
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        sink = DeltaSink(folder / "table")
        self.pipeline = Pipeline("orders", Topic(servers, topic), Project(["key"]), sink, self.checkpoint)
        held = Checkpoint(self.checkpoint, "orders")
        used_by_spark(self.checkpoint, planned=2, done=2)
        with Brokers(self.pipeline.source.parsed) as brokers:
            positions = {queue: bounds.end for queue, bounds in brokers.bounds().items()}
            end = to_json(positions, brokers.created, stored=brokers.stored)
        (self.checkpoint / "offsets" / "2").write_text(f"v1\n{{}}\n{json.dumps(end)}")
        sink.open(SinkRun(None, held.query, held.epoch, ROWS, Append()))  # type: ignore[arg-type]
        sink.write(FileRows(ROWS, []), Batch(held.query, batch_number(2), held.epoch))
        sink.close()
        held.record_declaration(self.pipeline.fingerprint)
        held.close()

    @property
    def version(self) -> int:
        return DeltaTable(self.folder / "table").version()

    def starts_spark(self, **options: Any) -> bool:
        before = self.version if (self.folder / "table").exists() else None
        try:
            program.run(self.pipeline, **{"once": True, **options})
        except Started:
            return True
        assert self.version == before
        return False


@pytest.fixture
def place(broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def started(*_: object) -> None:
        raise Started

    monkeypatch.setattr(program, "check_java", lambda: None)
    monkeypatch.setattr(program, "open_session", started)
    with Producer(broker.address) as producer:
        producer.send(topic, 1, key="a")
    return Place(tmp_path, broker.address, topic)


def test_with_nothing_new_spark_is_not_started_and_the_table_gets_no_version(place: Place) -> None:
    assert not place.starts_spark()
    assert not place.starts_spark()
    assert place.starts_spark(once=False)


def test_a_new_message_starts_spark(place: Place, broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.address) as producer:
        producer.send(topic, 2, key="b")
    assert place.starts_spark()


@pytest.mark.parametrize("option", ["new_sink", "new_checkpoint"])
def test_a_flag_that_changes_the_sink_starts_spark(place: Place, option: str) -> None:
    assert place.starts_spark(**{option: True})


def _created_again(place: Place) -> None:
    """With as many messages as before."""
    servers, topic = place.pipeline.source.parsed.servers, place.pipeline.source.parsed.topics[0]
    with Admin(servers) as admin, Producer(servers) as producer:
        queues = len(admin.describe_topic(topic).queues)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues, ordered=True)
        producer.send(topic, 1, key="a")


def _restored(place: Place) -> None:
    """From a backup without the last message, which another one has replaced since."""
    offsets = place.checkpoint / "offsets" / "2"
    ends = json.loads(offsets.read_text().splitlines()[-1])
    ends["@stored"] = {place: stored - 1 for place, stored in ends["@stored"].items()}
    offsets.write_text(f"v1\n{{}}\n{json.dumps(ends)}")


def _with_transitions(place: Place) -> None:
    """Something may wait in their state."""
    place.pipeline = replace(place.pipeline, stage=Transitions(step=_step, state_type=int, outputs=ROWS))


@pytest.mark.parametrize(
    "change",
    [
        lambda place: {"stage": Project(["key", "tags"])},
        lambda place: {"stage": LastState("id bigint", ["id"])},
        lambda place: {"sink": DeltaSink(place.folder / "table", evolve=False)},
        lambda place: {"dead_letters": DeltaSink(place.folder / "dead")},
        lambda place: {"prepare": _odd_keys},
    ],
    ids=["select", "stage", "sink", "dead letters", "prepare"],
)
def test_a_changed_declaration_starts_spark(place: Place, change: Callable[[Place], dict[str, Any]]) -> None:
    place.pipeline = replace(place.pipeline, **change(place))
    assert place.starts_spark()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LastState("id bigint, v long", ["id"]), LastState("id bigint, v long, w string", ["id"])),
        (LastState("id bigint, v long", ["id"]), LastState("id bigint, v long", ["v"])),
        (LastState("id bigint, v long", ["id"]), LastState("id bigint, v long", ["id"], sequence=["ver"])),
        (LastState("id bigint, v long", ["id"]), LastState("id bigint, v long", ["id"], evolve=True)),
    ],
    ids=["column", "keys", "sequence", "evolve"],
)
def test_other_options_of_a_stage_are_another_declaration(tmp_path: Path, before: LastState, after: LastState) -> None:
    def declared(stage: LastState) -> str:
        return Pipeline("p", Topic("localhost:9", "t"), stage, DeltaSink(tmp_path), tmp_path).fingerprint

    assert declared(before) != declared(after)
    assert declared(LastState("id bigint", ["id"])) == declared(LastState("id bigint", ["id"])), "declared anew"


@dataclass(frozen=True, slots=True)
class Shifted(Stage):
    """A user's own stage, whose options are not in its `__dict__`."""

    by: int
    schema: StructType = ROWS

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        return Results(FileRows(self.schema, []))


class Slotted(Stage):
    """The same without a dataclass."""

    __slots__ = ("__by",)
    schema = ROWS

    def __init__(self, by: int) -> None:
        self.__by = by

    process = Shifted.process


@pytest.mark.parametrize("kind", [Shifted, Slotted])
def test_options_in_slots_are_part_of_the_declaration(tmp_path: Path, kind: Callable[[int], Stage]) -> None:
    def declared(by: int) -> str:
        return Pipeline("p", Topic("localhost:9", "t"), kind(by), DeltaSink(tmp_path), tmp_path).fingerprint

    assert declared(1) != declared(2)
    assert declared(1) == declared(1)


def test_a_pipeline_that_ran_is_still_the_same_declaration(place: Place) -> None:
    fingerprint = place.pipeline.fingerprint
    place.pipeline.sink.applied("q", {"spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1"})
    assert replace(place.pipeline, spark={"a": "b"}).fingerprint == fingerprint


@pytest.mark.parametrize(
    "doubt",
    [
        lambda place: shutil.copy(place.checkpoint / "offsets" / "2", place.checkpoint / "offsets" / "3"),
        lambda place: remove_tree(place.folder / "table"),
        lambda place: _decide(place.checkpoint, batch_number(2) + 1),
        _with_transitions,
        _created_again,
        _restored,
    ],
    ids=["unfinished batch", "no table", "decision", "transitions", "topic created again", "restored"],
)
def test_in_every_doubt_spark_is_started(place: Place, doubt: Callable[[Place], object]) -> None:
    doubt(place)
    assert place.starts_spark()


def _record(checkpoint: Path, name: str, content: bytes) -> None:
    RunLog(run_log_folder(checkpoint), lambda runs: runs.newest + 1).record(name, content)


def _decide(checkpoint: Path, number: int) -> None:
    rows = DecidedRows("", "", (), (), {})
    _record(checkpoint, UNIT, pack_unit(UnitRecord(number, 1, "", "", decided=rows)))


def _unknowing(place: Place) -> Pipeline:
    """A sink that cannot say which batches it has."""
    pipeline = replace(place.pipeline, sink=ForeachSink(_nowhere))
    _record(place.checkpoint, "declaration", pipeline.fingerprint.encode())
    return pipeline


@pytest.mark.parametrize(
    ("left", "starts"),
    [
        (lambda folder: None, False),
        (lambda folder: (folder / "commits" / "2").unlink(), True),
        (lambda folder: _decide(folder, batch_number(2)), False),
        (lambda folder: _decide(folder, batch_number(2) + 1), True),
    ],
    ids=["all done", "written, not recorded", "decided and done", "decided, not written"],
)
def test_a_crash_before_a_sink_that_does_not_know_its_batches_starts_spark(
    place: Place, left: Callable[[Path], object], starts: bool
) -> None:
    """Spark records a batch after the sink has it, so the checkpoint alone says whether a batch is missing."""
    place.pipeline = _unknowing(place)
    left(place.checkpoint)
    assert place.starts_spark() is starts
