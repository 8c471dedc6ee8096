"""A broker that was restored from an older backup gives new messages offsets that a query has already read."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.spark_driver import Checkpoint, Query, send, values

from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.log.folder.backup import back_up, restore
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.spark.read.range_reader import DataLost, QueueRange, RangeReader
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullResponse

TOPIC = "orders"
KEPT, READ = 10, 30
"""Messages in the backup, and messages that the query has read."""
OTHER_LOG = rf"{TOPIC}.*: message {READ - 1} was stored at .*, and now another one has its offset, stored at .*restored"
SHORTER = rf"{TOPIC}.*: the query is at offset {READ}, the queue ends at {KEPT}: the broker was restored"


class Restorable:
    """A broker of one queue with `KEPT` messages in its backup and `READ` in its log, which a query has read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.broker = EmbeddedBroker(BrokerOptions(folder / "data", listen=Address("127.0.0.1", 0))).start()
        with Admin(self.broker.address) as admin:
            admin.create_topic(TOPIC, 1)
        self.send(range(KEPT))
        back_up(folder / "data", folder / "backup", made_at=0, version="0")
        self.send(range(KEPT, READ))

    def send(self, numbers: range, **more: object) -> None:
        send(self.broker.address, TOPIC, numbers, **more)

    def restore(self) -> None:
        """Puts the backup in place of the data, on the same port."""
        self.broker.stop()
        restore(self._folder / "backup", self._folder / "restored", now=0)
        self.broker.options = replace(self.broker.options, data=self._folder / "restored")
        self.broker.start()

    def query(self, checkpoint: Checkpoint, **more: object) -> Query:
        return Query(checkpoint, servers=self.broker.address, topic=TOPIC, startingOffsets="earliest", **more)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Restorable]:
    place = Restorable(tmp_path)
    yield place
    place.broker.stop()


@pytest.fixture
def checkpoint(place: Restorable) -> Checkpoint:
    """That of a query which has read everything."""
    checkpoint = Checkpoint()
    with place.query(checkpoint) as query:
        assert len(query.everything()) == READ
    return checkpoint


@pytest.mark.parametrize("tags", ["*", "paid"], ids=["all tags", "some tags"])
def test_a_log_that_has_grown_past_the_position_is_refused(
    place: Restorable, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, tags: str
) -> None:
    place.restore()
    place.send(range(100, 140))
    place.send(range(140, 142), tag="paid")
    with place.query(checkpoint, tags=tags) as query, pytest.raises(DataLost, match=OTHER_LOG) as caught:
        query.everything()
    assert f"below {READ}" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    with place.query(checkpoint, tags=tags, failOnDataLoss="false") as query, caplog.at_level(logging.WARNING):
        expected = range(120, 142) if tags == "*" else range(140, 142)
        assert values(query.everything()) == list(expected), "it continues where it was"
        place.send(range(200, 202), tag="paid")
        assert values(query.everything()) == [200, 201]
    assert caplog.text.count("another one has its offset") == 1


def test_the_sentence_names_a_time_from_which_another_query_reads_what_came_after_the_restore(
    place: Restorable, checkpoint: Checkpoint
) -> None:
    place.restore()
    place.send(range(100, 140))
    with place.query(checkpoint) as query, pytest.raises(DataLost) as caught:
        query.everything()
    time = int(str(caught.value).partition("startingTimestamp=")[2].split()[0].rstrip(".,;"))
    with Query(servers=place.broker.address, topic=TOPIC, startingTimestamp=time) as query:
        assert values(query.everything()) == list(range(100, 140))


def test_a_running_query_notices_it_too(place: Restorable) -> None:
    with place.query(Checkpoint()) as query:
        assert len(query.everything()) == READ
        place.restore()
        place.send(range(100, 140))
        with pytest.raises(DataLost, match=OTHER_LOG):
            query.everything()


def test_a_log_that_ends_exactly_at_the_position_is_refused_before_a_message_comes(
    place: Restorable, checkpoint: Checkpoint
) -> None:
    place.restore()
    place.send(range(100, 100 + READ - KEPT))
    with place.query(checkpoint) as query, pytest.raises(DataLost, match=OTHER_LOG):
        query.plan()


def test_a_log_that_ends_before_the_position_is_refused_and_continues_at_its_end(
    place: Restorable, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    place.restore()
    with place.query(checkpoint) as query, pytest.raises(DataLost, match=SHORTER):
        query.plan()
    with place.query(checkpoint, failOnDataLoss="false") as query, caplog.at_level(logging.WARNING):
        assert query.everything() == [], "what the backup has is not read again"
        place.send(range(100, 103))
        assert values(query.everything()) == [100, 101, 102]
    assert caplog.text.count("restored from an older backup") == 1


def test_a_limited_query_that_has_read_less_than_the_backup_has_continues(place: Restorable) -> None:
    checkpoint = Checkpoint()
    with place.query(checkpoint) as query:
        assert len(query.batch(ReadMaxRows(4))) == 4
    place.restore()
    place.send(range(100, 140))
    with place.query(checkpoint) as query:
        assert values(query.everything()) == [*range(4, KEPT), *range(100, 140)]


def test_a_limited_query_that_has_read_more_than_the_backup_has_is_refused(place: Restorable) -> None:
    checkpoint = Checkpoint()
    with place.query(checkpoint) as query:
        assert len(query.batch(ReadMaxRows(20))) == 20
    place.restore()
    place.send(range(100, 140))
    with place.query(checkpoint) as query, pytest.raises(DataLost, match="message 19 was stored at"):
        query.everything()


def test_newer_messages_are_no_new_data_while_a_query_waits_for_more_of_them(place: Restorable) -> None:
    """Spark takes another text of the offset for new data."""
    checkpoint = Checkpoint()
    with place.query(checkpoint) as query:
        assert len(query.batch(ReadMaxRows(20))) == 20
    place.send(range(READ, READ + 5))
    with place.query(checkpoint, minOffsetsPerTrigger=1000, maxTriggerDelay="1h") as query:
        assert not query.plan(ReadMaxRows(1000))


def test_messages_that_retention_has_deleted_are_no_other_log(place: Restorable, checkpoint: Checkpoint) -> None:
    place.send(range(READ, READ + 5))
    with place.query(checkpoint) as query, patch.object(RangeReader, "_pull", without_offset(READ - 1)):
        assert len(query.everything()) == 5


Pull = Callable[..., tuple[Command, PullResponse]]


def without_offset(gone: int) -> Pull:
    """Pulls as from a queue whose messages up to `gone` are deleted."""
    real: Pull = RangeReader._pull

    def pull(reader: RangeReader, wanted: QueueRange, offset: QueueOffset, **more: int) -> tuple[Command, PullResponse]:
        if offset > gone:
            return real(reader, wanted, offset, **more)
        answer = PullResponse(next_begin_offset=gone + 1, min_offset=gone + 1, max_offset=gone + 100)
        return Command(ResponseCode.PULL_OFFSET_MOVED, 0), answer

    return pull


def without(member: str) -> Callable[[str], str]:
    return lambda end: json.dumps({name: value for name, value in json.loads(end).items() if name != member})


def test_without_the_store_time_new_messages_would_be_skipped(place: Restorable, checkpoint: Checkpoint) -> None:
    """The control, and what a checkpoint of an older version does until its next batch."""
    place.restore()
    place.send(range(100, 140))
    checkpoint.ends = list(map(without("@stored"), checkpoint.ends))
    with place.query(checkpoint) as query:
        assert values(query.everything()) == list(range(120, 140))
