"""In a group, messages that come again in another batch after a queue was rewound are not applied twice."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.cdc.replica_fixture import Frame
from tests.spark.spark_driver import Checkpoint as Planned
from tests.spark.spark_driver import Query, send, until

from lanemq.client.consumer.app import App
from lanemq.model.errors import UsageError
from lanemq.pipelines import ForeachSink, LastState, ParquetSink, Project, SqliteSink
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.queues import SinkPositions
from lanemq.pipelines.ports import SinkPosition
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.spark.columns import select_columns
from lanemq.testing.embedded import EmbeddedBroker

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NEEDED = select_columns(["topic", "broker", "queue_id", "queue_offset", "store_timestamp", "key", "value"])
Coordinates = tuple[int, int]


class PowerCut(Exception):
    """The driver died."""


class MemberFixture:
    """The batch processor of a group member; the test supplies the messages and Spark's log."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.stage: Any = Project(["queue_id", "queue_offset", "cast(store_timestamp as string) stored"])
        self.sink: Any = SqliteSink(folder / "rows.db", "rows")
        self.held: list[tuple[Checkpoint, BatchProcessor]] = []
        for name in ("offsets", "commits"):
            (folder / "checkpoint" / name).mkdir(parents=True)
        (folder / "checkpoint" / "lanemq").mkdir()
        (folder / "checkpoint" / "metadata").write_text('{"id": "1"}')
        identity = {"query": "q", "name": "orders", "source": {}}
        (folder / "checkpoint" / "lanemq" / "pipeline.json").write_text(json.dumps(identity))
        (folder / "checkpoint" / "lanemq" / "epoch").write_text("1")

    def start(self) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.folder / "checkpoint", "orders")
        dead = ParquetSink(self.folder / "dead")
        processor = BatchProcessor(self.stage, self.sink, dead, checkpoint, EffectHistory(None, "orders"), member=True)
        self.held.append((checkpoint, processor))
        processor.open(self.spark)
        return processor

    def crash(self) -> None:
        while self.held:
            checkpoint, processor = self.held.pop()
            processor.close()
            checkpoint.close()

    def planned(self, batch: int, end: str) -> None:
        (self.folder / "checkpoint" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{end}")

    def recorded(self, batch: int) -> None:
        (self.folder / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}")

    def ends(self, batch: int, *ends: int) -> None:
        self.planned(batch, json.dumps({"t": {f"b/{queue}": end for queue, end in enumerate(ends)}}))

    def messages(self, *queues: range, later: int = 0) -> Any:
        """Messages of queues 0, 1 ..., stored a second apart and `later` hours after the others."""
        rows = [
            ("t", "b", queue, offset, BEGAN + timedelta(hours=later, seconds=offset), f"k{queue}", b"{}")
            for queue, offsets in enumerate(queues)
            for offset in offsets
        ]
        return self.spark.createDataFrame(rows, NEEDED)

    def rows(self, columns: str = "queue_id, queue_offset") -> list[Any]:
        connection = sqlite3.connect(self.folder / "rows.db")
        try:
            return sorted(connection.execute(f"select {columns} from rows").fetchall())
        finally:
            connection.close()


@pytest.fixture
def member(spark: Any, tmp_path: Path) -> Iterator[MemberFixture]:
    made = MemberFixture(spark, tmp_path)
    yield made
    made.crash()


def coordinates(*queues: range) -> list[Coordinates]:
    return [(queue, offset) for queue, offsets in enumerate(queues) for offset in offsets]


def test_messages_that_the_sink_has_are_not_applied_again_in_a_later_batch(member: MemberFixture) -> None:
    member.ends(0, 5, 5)
    member.start().process_batch(member.messages(range(5), range(5)), 0)
    processor = member.start()  # the driver died before Spark recorded the batch, and another member has queue 1
    assert processor.process_batch(member.messages(range(5)), 0).repeated
    member.ends(1, 6, 0)
    processor.process_batch(member.messages(range(5, 6)), 1)
    member.ends(2, 6, 8)
    assert processor.process_batch(member.messages(range(0), range(8)), 2).outputs == 3
    assert member.rows() == coordinates(range(6), range(8))


def test_a_queue_that_was_missing_from_every_attempt_is_applied(member: MemberFixture) -> None:
    """The sink has the batch but not this queue, although Spark's plan of the batch includes it."""
    member.ends(0, 5, 5)
    member.start().process_batch(member.messages(range(5)), 0)
    processor = member.start()
    assert processor.process_batch(member.messages(range(5), range(5)), 0).repeated
    member.ends(1, 5, 0)
    member.ends(2, 5, 5)
    processor.process_batch(member.messages(range(0), range(5)), 2)
    assert member.rows() == coordinates(range(5), range(5))


def test_messages_of_a_batch_that_was_not_committed_are_applied(
    member: MemberFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after the positions are written and before the commit."""

    def cut(*_: object) -> bool:
        raise PowerCut

    member.ends(0, 5, 5)
    with monkeypatch.context() as patched:
        patched.setattr(member.sink, "write", cut)
        with pytest.raises(PowerCut):
            member.start().process_batch(member.messages(range(5), range(5)), 0)
    processor = member.start()
    processor.process_batch(member.messages(range(5)), 0)
    member.ends(1, 5, 0)
    member.ends(2, 5, 5)
    processor.process_batch(member.messages(range(0), range(5)), 2)
    assert member.rows() == coordinates(range(5), range(5))


def test_a_topic_that_was_created_again_is_read_from_its_beginning(member: MemberFixture) -> None:
    member.ends(0, 9)
    processor = member.start()
    processor.process_batch(member.messages(range(9)), 0)
    member.ends(1, 0)
    member.ends(2, 4)
    assert processor.process_batch(member.messages(range(4), later=1), 2).outputs == 4
    assert len(member.rows()) == 13


def test_the_positions_of_a_decided_batch_are_those_of_the_decision(member: MemberFixture) -> None:
    """The sink has no ledger, so the decision determines the positions, whatever the repetition holds."""
    got: list[list[int]] = []

    def take(rows: Any, batch: Any) -> None:
        got.append(sorted(rows["queue_offset"].to_pylist()))
        if len(got) == 1:
            raise PowerCut

    member.sink = ForeachSink(take)
    member.ends(0, 3, 3)
    with pytest.raises(PowerCut):
        member.start().process_batch(member.messages(range(3), range(10, 13)), 0)
    processor = member.start()
    processor.process_batch(member.messages(range(3)), 0)
    member.recorded(0)
    member.ends(1, 3, 10)
    processor = member.start()
    member.ends(2, 3, 15)
    processor.process_batch(member.messages(range(0), range(10, 15)), 2)
    assert got == [[0, 1, 2, 10, 11, 12], [0, 1, 2, 10, 11, 12], [13, 14]]


def test_columns_that_identify_a_message_are_required_in_a_group(member: MemberFixture) -> None:
    member.ends(0, 5)
    with pytest.raises(UsageError, match="no column queue_offset, store_timestamp: in a group"):
        member.start().process_batch(member.messages(range(5)).drop("queue_offset", "store_timestamp"), 0)


def test_last_state_returns_its_positions(tmp_path: Path) -> None:
    from tests.pipelines.stages.cdc.replica_fixture import messages

    from lanemq.pipelines.ports import Batch

    stage = LastState("id bigint", ["id"])
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    frame: Any = Frame(messages([("7", {"id": 7})] * 5, first=5), messages([("7", {"id": 7})] * 2))
    (reach,) = stage.process(frame, Batch("q", 0, 1)).positions.values()
    assert reach.next == 10
    assert reach.stored > BEGAN.timestamp() * 1000


def test_a_batch_without_messages_of_a_queue_keeps_its_position(tmp_path: Path) -> None:
    reach = SinkPositions(tmp_path / "sink_positions.json")
    for number, positions in enumerate(
        [{"t/b/0": SinkPosition(5, 50)}, {}, {"t/b/1": SinkPosition(3, 10)}, {"t/b/0": SinkPosition(4, 60)}]
    ):
        reach.note(number, positions)
        reach.committed(number)
    again = SinkPositions(tmp_path / "sink_positions.json")
    again.open(lambda number: number == 3)
    assert again._current == {"t/b/0": SinkPosition(5, 60), "t/b/1": SinkPosition(3, 10)}
    again.open(lambda number: False)
    assert again._current == {"t/b/0": SinkPosition(5, 50), "t/b/1": SinkPosition(3, 10)}


@pytest.mark.slow
def test_a_consumer_that_takes_the_queues_in_between_causes_no_duplicates(
    member: MemberFixture, spark: Any, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """With the real source: the sink has batch 0, the driver dies, and a consumer owns the queues until it restarts."""
    send(broker.address, topic, range(300))
    options: dict[str, Any] = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "8s"}
    member.stage = Project(["cast(cast(value as string) as long) n"])
    planned = Planned()

    def process_batch(processor: BatchProcessor, query: Query) -> int:
        number = query.checkpoint.finished
        member.planned(number, query.checkpoint.ends[number + 1])
        rows = query.read(query.partitions())
        processor.process_batch(spark.createDataFrame(rows, NEEDED), number)
        return len(rows)

    with Query(planned, NEEDED.names, startingOffsets="earliest", **options) as query:
        until(lambda: query.reader._driver._bounds() and len(query.reader._driver._membership.usable()) == 2)
        assert query.plan()
        assert process_batch(member.start(), query) == 300
    seen: list[int] = []
    going_on: list[bool] = []
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def take(value: int) -> None:
        seen.append(value)
        until(lambda: len(seen) < 20 or going_on, 60)

    app.start()
    try:
        until(lambda: len(seen) >= 20)
        query, processor = Query(planned, NEEDED.names, startingOffsets="earliest", **options), member.start()
        assert query.plan()
        assert process_batch(processor, query) == 0, "the queues are the consumer's: nothing is read"
        query.finish()
    finally:
        going_on.append(True)
        app.stop()
    again = 0
    send(broker.address, topic, range(300, 310))
    with query:

        def all_read() -> bool:
            nonlocal again
            if query.plan():
                again += process_batch(processor, query)
                query.finish()
            return max(member.rows("n"))[0] == 309

        until(all_read, 30)
    assert [n for (n,) in member.rows("n")] == [*range(310)]
    assert again > 10, "nothing came again, so nothing was proved"
