"""Messages that come again under another number: a member's queue that was put back after the sink had its batch."""

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
from lanemq.pipelines.checkpoint.effects import Effects
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.sink_positions import SinkPosition, SinkPositions
from lanemq.spark.columns.schema import select_columns
from lanemq.testing.embedded import EmbeddedBroker

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NEEDED = select_columns(["topic", "broker", "queue_id", "queue_offset", "store_timestamp", "key", "value"])
Place = tuple[int, int]


class PowerCut(Exception):
    """The driver is gone."""


class Member:
    """A pipeline's work in a group, over frames that the test chooses; Spark's notes are the test's too."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.stage: Any = Project(["queue_id", "queue_offset", "cast(store_timestamp as string) stored"])
        self.sink: Any = SqliteSink(folder / "rows.db", "rows")
        self.held: list[tuple[Checkpoint, BatchProcessor]] = []
        for name in ("offsets", "commits"):
            (folder / "checkpoint" / name).mkdir(parents=True)
        (folder / "checkpoint" / "lanemq").mkdir()
        identity = {"query": "q", "name": "orders", "source": {}}
        (folder / "checkpoint" / "lanemq" / "pipeline.json").write_text(json.dumps(identity))

    def start(self) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.folder / "checkpoint", "orders")
        dead = ParquetSink(self.folder / "dead")
        work = BatchProcessor(self.stage, self.sink, dead, checkpoint, Effects(None, "orders"), member=True)
        self.held.append((checkpoint, work))
        work.open(self.spark)
        return work

    def crash(self) -> None:
        while self.held:
            checkpoint, work = self.held.pop()
            work.close()
            checkpoint.close()

    def planned(self, batch: int, end: str) -> None:
        (self.folder / "checkpoint" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{end}")

    def noted(self, batch: int) -> None:
        (self.folder / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}")

    def ends(self, batch: int, *ends: int) -> None:
        self.planned(batch, json.dumps({"t": {f"b/{queue}": end for queue, end in enumerate(ends)}}))

    def messages(self, *queues: range, later: int = 0) -> Any:
        """Of queue 0, 1 ...; stored a second apart, and `later` hours after the others."""
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
def member(spark: Any, tmp_path: Path) -> Iterator[Member]:
    made = Member(spark, tmp_path)
    yield made
    made.crash()


def places(*queues: range) -> list[Place]:
    return [(queue, offset) for queue, offsets in enumerate(queues) for offset in offsets]


def test_a_queue_that_is_put_back_behind_a_batch_that_the_sink_has_is_not_applied_again(member: Member) -> None:
    member.ends(0, 5, 5)
    member.start().run_batch(member.messages(range(5), range(5)), 0)
    work = member.start()  # the driver died before Spark's note, and another member has queue 1
    assert work.run_batch(member.messages(range(5)), 0).repeated
    member.ends(1, 6, 0)
    work.run_batch(member.messages(range(5, 6)), 1)
    member.ends(2, 6, 8)
    assert work.run_batch(member.messages(range(0), range(8)), 2).outputs == 3
    assert member.rows() == places(range(6), range(8))


def test_what_was_left_out_of_every_attempt_is_applied(member: Member) -> None:
    """The sink has the batch, but not this queue of it: where Spark planned its end says nothing."""
    member.ends(0, 5, 5)
    member.start().run_batch(member.messages(range(5)), 0)
    work = member.start()
    assert work.run_batch(member.messages(range(5), range(5)), 0).repeated
    member.ends(1, 5, 0)
    member.ends(2, 5, 5)
    work.run_batch(member.messages(range(0), range(5)), 2)
    assert member.rows() == places(range(5), range(5))


def test_what_the_sink_never_got_is_applied(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Died behind the note of how far the batch goes, before the commit."""

    def cut(*_: object) -> bool:
        raise PowerCut

    member.ends(0, 5, 5)
    with monkeypatch.context() as patched:
        patched.setattr(member.sink, "write", cut)
        with pytest.raises(PowerCut):
            member.start().run_batch(member.messages(range(5), range(5)), 0)
    work = member.start()
    work.run_batch(member.messages(range(5)), 0)
    member.ends(1, 5, 0)
    member.ends(2, 5, 5)
    work.run_batch(member.messages(range(0), range(5)), 2)
    assert member.rows() == places(range(5), range(5))


def test_a_topic_that_was_created_again_is_read_from_its_beginning(member: Member) -> None:
    member.ends(0, 9)
    work = member.start()
    work.run_batch(member.messages(range(9)), 0)
    member.ends(1, 0)
    member.ends(2, 4)
    assert work.run_batch(member.messages(range(4), later=1), 2).outputs == 4
    assert len(member.rows()) == 13


def test_a_decided_batch_is_known_as_far_as_it_was_decided(member: Member) -> None:
    """A sink that cannot be asked what it has: the decision tells, whatever the repetition holds."""
    got: list[list[int]] = []

    def take(rows: Any, batch: Any) -> None:
        got.append(sorted(rows["queue_offset"].to_pylist()))
        if len(got) == 1:
            raise PowerCut

    member.sink = ForeachSink(take)
    member.ends(0, 3, 3)
    with pytest.raises(PowerCut):
        member.start().run_batch(member.messages(range(3), range(10, 13)), 0)
    work = member.start()
    work.run_batch(member.messages(range(3)), 0)
    member.noted(0)
    member.ends(1, 3, 10)
    work = member.start()
    member.ends(2, 3, 15)
    work.run_batch(member.messages(range(0), range(10, 15)), 2)
    assert got == [[0, 1, 2, 10, 11, 12], [0, 1, 2, 10, 11, 12], [13, 14]]


def test_columns_that_tell_a_message_may_not_be_dropped_in_a_group(member: Member) -> None:
    member.ends(0, 5)
    with pytest.raises(UsageError, match="no column queue_offset, store_timestamp: in a group"):
        member.start().run_batch(member.messages(range(5)).drop("queue_offset", "store_timestamp"), 0)


def test_last_state_says_how_far_it_read(tmp_path: Path) -> None:
    from tests.pipelines.stages.cdc.replica_fixture import messages

    from lanemq.pipelines.batch import Batch

    stage = LastState("id bigint", ["id"])
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    frame: Any = Frame(messages([("7", {"id": 7})] * 5, first=5), messages([("7", {"id": 7})] * 2))
    (reach,) = stage.run(frame, Batch("q", 0, 1)).positions.values()
    assert reach.next == 10
    assert reach.stored > BEGAN.timestamp() * 1000


def test_a_batch_without_messages_of_a_queue_forgets_nothing_of_it(tmp_path: Path) -> None:
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
def test_a_consumer_that_has_the_queues_for_a_while_doubles_nothing(
    member: Member, spark: Any, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """The real source: batch 0 is in the sink, the driver dies, a consumer has the queues while it comes back."""
    send(broker.address, topic, range(300))
    options: dict[str, Any] = {"servers": broker.address, "topic": topic, "group": group, "brokerWait": "8s"}
    member.stage = Project(["cast(cast(value as string) as long) n"])
    planned = Planned()

    def run_batch(work: BatchProcessor, query: Query) -> int:
        number = query.checkpoint.finished
        member.planned(number, query.checkpoint.ends[number + 1])
        rows = query.read(query.partitions())
        work.run_batch(spark.createDataFrame(rows, NEEDED), number)
        return len(rows)

    with Query(planned, NEEDED.names, startingOffsets="earliest", **options) as query:
        until(lambda: query.reader._driver._bounds() and len(query.reader._driver._membership.usable()) == 2)
        assert query.plan()
        assert run_batch(member.start(), query) == 300
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
        query, work = Query(planned, NEEDED.names, startingOffsets="earliest", **options), member.start()
        assert query.plan()
        assert run_batch(work, query) == 0, "the queues are the consumer's: nothing is read"
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
                again += run_batch(work, query)
                query.finish()
            return max(member.rows("n"))[0] == 309

        until(all_read, 30)
    assert [n for (n,) in member.rows("n")] == [*range(310)]
    assert again > 10, "nothing came again, so nothing was proved"
