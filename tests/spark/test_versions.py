"""What PySpark before 4.2 lacks: where a batch starts, and how much it may hold."""

import json
from typing import Any

import pytest
from tests.spark.spark_driver import Checkpoint, Query, send, values

from lanemq.client.admin.admin import Admin
from lanemq.model.errors import UsageError
from lanemq.spark import versions
from lanemq.spark.lag import offsets_advanced
from lanemq.spark.read.range_reader import DataLost
from lanemq.spark.versions import NEEDS_BATCH_STARTS, check_stream_options, need
from lanemq.testing.embedded import EmbeddedBroker


class QueryBefore42(Query):
    """One run of a query as PySpark 4.0 and 4.1 drive it."""

    def plan(self, limit: Any = None) -> bool:
        if len(self.checkpoint.ends) > self.checkpoint.finished + 1:
            return True
        end = json.dumps(self.reader.latestOffset())
        if end == self.checkpoint.ends[-1]:
            return False
        self.checkpoint.ends.append(end)
        return True


@pytest.fixture
def before_42(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.spark.read.stream_driver.tells_batch_starts", lambda: False)


def earliest(broker: EmbeddedBroker, topic: str, **more: str) -> dict[str, str]:
    return {"servers": str(broker.address), "topic": topic, "startingOffsets": "earliest", **more}


@pytest.mark.parametrize("name", NEEDS_BATCH_STARTS)
def test_an_option_that_needs_a_newer_pyspark_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_stream_options([name.lower()])
    monkeypatch.setattr(versions, "VERSION", (4, 1))
    with pytest.raises(UsageError, match=f"the option {name} needs PySpark 4.2 or newer, and this is"):
        check_stream_options(["topic", name.lower()])
    check_stream_options(["topic", "startingOffsets"])


def test_a_feature_is_refused_by_older_versions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ((4, 1), (4, 2), (5, 0)):
        monkeypatch.setattr(versions, "VERSION", version)
        need((4, 1), "writeStream to a topic", "write in foreachBatch")
    monkeypatch.setattr(versions, "VERSION", (4, 0))
    with pytest.raises(UsageError, match=r"writeStream to a topic needs PySpark 4\.1 .* write in foreachBatch"):
        need((4, 1), "writeStream to a topic", "write in foreachBatch")


@pytest.mark.usefixtures("before_42")
def test_without_starts_every_message_is_read_once_over_several_runs(broker: EmbeddedBroker, topic: str) -> None:
    checkpoint = Checkpoint()
    got: list[int] = []
    for first in (0, 20, 40):
        send(broker.address, topic, range(first, first + 20))
        with QueryBefore42(checkpoint, **earliest(broker, topic)) as query:
            got += values(query.everything())
    assert got == list(range(60))


@pytest.mark.usefixtures("before_42")
def test_without_starts_a_topic_that_was_created_again_is_noticed(broker: EmbeddedBroker, topic: str) -> None:
    """Whether it has grown past the position or not."""
    for count in (5, 80):
        send(broker.address, topic, range(40))
        checkpoint = Checkpoint()
        with QueryBefore42(checkpoint, **earliest(broker, topic)) as query:
            query.everything()
        with Admin(broker.address) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, 2)
        send(broker.address, topic, range(100, 100 + count))
        with QueryBefore42(checkpoint, **earliest(broker, topic)) as strict:
            strict.plan()
            with pytest.raises(DataLost, match="created again"):
                strict.partitions()
        with QueryBefore42(checkpoint, **earliest(broker, topic, failOnDataLoss="false")) as lenient:
            lenient.plan()
            found = values(lenient.read(lenient.partitions()))
        assert found == list(range(100, 100 + count))
        with Admin(broker.address) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, 2)


def test_progress_of_pyspark_before_42_is_understood() -> None:
    """It has Python's form of the offsets, not JSON."""
    first = {"startOffset": "None", "endOffset": "{'t': {'b/0': 7}}"}
    assert offsets_advanced({"sources": [first], "numInputRows": 7}) == 7
    second = {"startOffset": "{'t': {'b/0': 7}}", "endOffset": "{'@created': {'t/b': 5}, 't': {'b/0': 9}}"}
    assert offsets_advanced({"sources": [second], "numInputRows": 2}) == 2
