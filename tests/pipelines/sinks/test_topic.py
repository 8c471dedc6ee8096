"""The topic sink: messages in the order of their shard, each stored once."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType
from tests.client.test_tracing import recording
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, TopicTarget, changes, named
from tests.spark.spark_driver import Query

from lanemq.client.admin.admin import Admin
from lanemq.model.errors import (
    InvalidOption,
    MissingKey,
    ProducerFenced,
    SinkFenced,
    StateLost,
    TopicNotFound,
    UsageError,
)
from lanemq.model.units import Millis
from lanemq.pipelines import TopicSink
from lanemq.pipelines.ports import Append, SinkRun, TableRows
from lanemq.pipelines.sinks.exact_sink import arrow_schema
from lanemq.spark.write import sending
from lanemq.testing.embedded import EmbeddedBroker

WAIT = Millis(2_000)
LETTER = StructType(
    [
        StructField("who", LongType()), StructField("body", BinaryType()), StructField("tag", StringType()),
        StructField("more", MapType(StringType(), LongType())),
    ]
)  # fmt: skip


@pytest.fixture
def target(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> TopicTarget:
    """A target without a Spark session: the driver itself sends batches of one shard."""
    return TopicTarget(tmp_path, broker.address, topic, None)


def letters(*rows: dict[str, Any]) -> TableRows:
    return TableRows(LETTER, pa.Table.from_pylist(list(rows), schema=arrow_schema(LETTER)))


def messages(target: TopicTarget) -> list[dict[str, Any]]:
    with Query(servers=target.address, topic=target.topic, startingOffsets="earliest") as query:
        return query.everything()


def opened(target: TopicTarget, **options: Any) -> TopicSink:
    sink = TopicSink(target.address, target.topic, wait=WAIT, **options)
    sink.open(SinkRun(target.spark, "q", 1, LETTER, Append()))
    return sink


def test_key_value_and_tag_come_from_columns(target: TopicTarget) -> None:
    opened(target, key="who", value="body", tags="tag").write(
        letters({"who": 7, "body": b"\x00raw", "tag": "paid"}), named(1, 0, "q")
    )
    [message] = messages(target)
    assert (message["key"], message["value"], message["tags"]) == ("7", b"\x00raw", "paid")


def test_without_a_value_column_the_row_is_sent_as_json(target: TopicTarget) -> None:
    opened(target, key="who").write(letters({"who": 7, "body": b"\x00", "more": [("a", 1)]}), named(1, 0, "q"))
    assert json.loads(messages(target)[0]["value"]) == {"who": 7, "body": "AA==", "tag": None, "more": {"a": 1}}


def test_messages_carry_the_context_of_the_span_in_which_their_batch_is_written(target: TopicTarget) -> None:
    """So a consumer of the topic continues the trace of the batch."""
    sink, (provider, _) = opened(target, key="who"), recording()
    with provider.get_tracer("test").start_as_current_span("process q") as span:
        sink.write(letters({"who": 7}), named(1, 0, "q"))
    sink.write(letters({"who": 8}), named(1, 1, "q"))
    found = {message["key"]: dict(message["properties"]) for message in messages(target)}
    assert f"-{span.get_span_context().span_id:016x}-" in found["7"]["traceparent"]
    assert "traceparent" not in found["8"]


def test_a_row_without_a_body_is_refused(target: TopicTarget) -> None:
    with pytest.raises(UsageError, match="no body"):
        opened(target, key="who", value="body").write(letters({"who": 7}), named(1, 0, "q"))


def die_after(patch: pytest.MonkeyPatch, messages: int) -> None:
    """Let the process end when it has sent this many messages; those of full batches are stored."""
    real, sent = sending.TaskSender.send, iter(range(10_000))

    def send(self: Any, row: Any) -> None:
        if next(sent) == messages:
            raise KeyboardInterrupt
        real(self, row)

    patch.setattr(sending.TaskSender, "send", send)


@pytest.mark.parametrize("cut", [1, 30, 63, 64])
def test_a_batch_interrupted_halfway_is_completed_by_its_repetition(
    target: TopicTarget, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 4)
    rows = target.batch_rows(a=range(100))
    ended = target.opened()
    with monkeypatch.context() as patch:
        die_after(patch, cut)
        with pytest.raises(KeyboardInterrupt):
            ended.write(rows, named(1, 0))
    again = target.opened(epoch=2)
    assert again.write(rows, named(2, 0))
    assert [row["n"] for row in target.events()] == list(range(100))


def test_an_older_run_can_only_repeat_what_its_successor_sends(target: TopicTarget) -> None:
    old, new = target.opened(epoch=1), target.opened(epoch=2)
    rows = target.batch_rows(a=[1, 2])
    old.write(rows, named(1, 0))
    new.write(rows, named(2, 0))
    new.write(target.batch_rows(a=[3]), named(2, 1))
    new.write(target.batch_rows(a=[4]), named(2, 2))
    with pytest.raises(SinkFenced, match="later batch"):
        old.write(target.batch_rows(a=[3]), named(1, 1))
    assert target.numbers() == [1, 2, 3, 4]


def test_a_merge_interrupted_halfway_is_completed_even_in_another_row_order(
    target: TopicTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold returns rows in any order; unless the sink sorts them, a row would get another row's stamp."""
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 4)
    rows = [(n, f"text {n}", 1, n == 3) for n in range(50)]
    first, second = (TopicSink(target.address, target.topic, wait=WAIT) for _ in range(2))
    first.open(SinkRun(None, "q", 1, CHANGES, KEYED))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        die_after(patch, 30)
        with pytest.raises(KeyboardInterrupt):
            first.write(changes(*rows), named(1, 0, "q"))
    second.open(SinkRun(None, "q", 2, CHANGES, KEYED))  # type: ignore[arg-type]
    second.write(changes(*rows[::-1]), named(2, 0, "q"))
    found = messages(target)
    assert sorted(json.loads(message["value"])["id"] for message in found) == list(range(50))
    assert {message["key"] for message in found} == {str(n) for n in range(50)}


def test_two_sinks_of_one_pipeline_into_one_topic_need_names(target: TopicTarget) -> None:
    for name in ("results", "dead"):
        opened(target, key="who", name=name).write(letters({"who": 1, "body": b"x"}), named(1, 0, "q"))
    assert len(messages(target)) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [({"key": "absent"}, "key: there is no column absent"), ({"value": "who"}, "value: column who is int64")],
)
def test_columns_that_cannot_be_sent_are_refused_at_open(
    target: TopicTarget, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        opened(target, **options)


def test_a_missing_topic_is_refused_at_open(broker: EmbeddedBroker) -> None:
    with pytest.raises(TopicNotFound):
        TopicSink(broker.address, "never-created", wait=WAIT).open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]


def test_an_ordered_topic_needs_a_key_column(broker: EmbeddedBroker, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-ordered", 2, ordered=True)
    with pytest.raises(MissingKey):
        TopicSink(broker.address, f"{topic}-ordered", wait=WAIT).open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]


def test_a_refusal_in_a_task_is_returned_not_raised(target: TopicTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were raised, Spark would run the task again and hide the reason in a trace."""

    def refuse(*_: Any) -> None:
        raise ProducerFenced("a newer one")

    monkeypatch.setattr(sending.TaskSender, "flush", refuse)
    with pytest.raises(SinkFenced, match="a newer one"):
        target.opened().write(target.batch_rows(a=[1]), named(1, 0))


# The topic knows the checkpoint of its pipeline, by the stamps of its last messages.


def checkpointed(target: TopicTarget, query: str, *, new_checkpoint: bool = False, **options: Any) -> TopicSink:
    """The sink as the checkpoint with this query opens it."""
    sink = TopicSink(target.address, target.topic, key="who", wait=WAIT, **options)
    sink.open(SinkRun(target.spark, query, 1, LETTER, Append(), pipeline="orders", new_checkpoint=new_checkpoint))
    return sink


def test_a_new_checkpoint_is_refused_at_every_start(target: TopicTarget) -> None:
    checkpointed(target, "old").write(letters({"who": 7}), named(1, 0, "old"))
    for _ in range(2):
        with pytest.raises(StateLost, match=r"topic .* another checkpoint of pipeline 'orders'.*--new-checkpoint"):
            checkpointed(target, "new")
    checkpointed(target, "old").write(letters({"who": 7}), named(1, 0, "old"))
    assert len(messages(target)) == 1


def test_a_topic_changes_its_checkpoint_if_the_run_says_so(
    target: TopicTarget, caplog: pytest.LogCaptureFixture
) -> None:
    """Other keys are in other queues, whose last messages are those of the former checkpoint."""
    checkpointed(target, "old").write(letters(*({"who": who} for who in range(20))), named(1, 0, "old"))
    moved = checkpointed(target, "new", new_checkpoint=True)
    assert "continues with a new checkpoint" in caplog.text
    moved.write(letters({"who": 7}), named(1, 0, "new"))
    checkpointed(target, "new").write(letters({"who": 8}), named(1, 1, "new"))
    with pytest.raises(StateLost):
        checkpointed(target, "old")


def test_another_pipeline_or_another_sink_of_the_same_pipeline_may_share_the_topic(target: TopicTarget) -> None:
    checkpointed(target, "old").write(letters({"who": 7}), named(1, 0, "old"))
    checkpointed(target, "new", name="copy").write(letters({"who": 7}), named(1, 0, "new"))
    other = TopicSink(target.address, target.topic, key="who", wait=WAIT)
    other.open(SinkRun(target.spark, "third", 1, LETTER, Append(), pipeline="another"))
    other.write(letters({"who": 7}), named(1, 0, "third"))
    assert len(messages(target)) == 3
    with pytest.raises(StateLost):
        checkpointed(target, "new")
