"""The example `postgres_replication`: snapshot, then changes, of a real PostgreSQL table, whatever dies in between.

The quick tests read the topic themselves and keep the newest row of each key; the extended one runs the whole example,
with Spark and with captures that are killed.
"""

import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests import postgres_server
from tests.spark.spark_driver import Query
from tests.test_examples import example

from lanemq import Producer
from lanemq.testing.embedded import EmbeddedBroker

replication = example("postgres_replication")
PEOPLE, CHUNK = 150, 50


class Died(Exception):
    """The capture ends here."""


class Source:
    """The table, its topic, and captures that do something between two sends."""

    def __init__(self, dsn: str, servers: str, topic: str) -> None:
        self.dsn, self.servers, self.topic = dsn, servers, topic
        self.database = psycopg.connect(dsn, autocommit=True)
        self.dice = random.Random(11)
        # A slot begins when older transactions have ended; one that a former test left open would never end.
        self.database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in tr%'")
        replication.prepare(self.database, PEOPLE)

    def work(self, changes: int = 15) -> None:
        replication.work_on(self.database, self.dice, changes, PEOPLE)

    def capture(self, kind: type[Any] | None = None, at_send: Callable[[int], None] = lambda send: None) -> None:
        """One life of a capture: the snapshot if necessary, and all changes. `at_send` runs before each send."""
        sends = iter(range(1_000))
        with (
            Producer(self.servers) as producer,
            (kind or replication.Capture)(self.dsn, replication.TABLE, producer, self.topic) as capture,
        ):
            send, capture.chunk = capture.send, CHUNK

            def interrupted(events: Any) -> None:
                at_send(next(sends))
                send(events)

            capture.send = interrupted
            capture.load()
            while capture.catch_up():
                pass

    def dies_in_send(self, wanted: int) -> None:
        """A life that ends before its send with this number, while others write."""

        def at_send(send: int) -> None:
            self.work()
            if send == wanted:
                raise Died

        with pytest.raises(Died):
            self.capture(at_send=at_send)

    def contents(self) -> list[tuple[Any, ...]]:
        return list(replication.contents(self.database))

    def replica(self) -> list[tuple[Any, ...]]:
        """The newest row of each key, by the positions in the messages of the topic, in whatever order they are."""
        with Query(servers=self.servers, topic=self.topic, startingOffsets="earliest") as query:
            events = [json.loads(row["value"]) for row in query.everything()]
        newest: dict[int, tuple[tuple[int, int], dict[str, Any] | None]] = {}
        emptied = (-1, -1)
        for event in events:
            at = (event["source"]["lsn"], event["source"]["n"])
            if event["op"] == "t":
                emptied = max(emptied, at)
            for row, alive in ((event.get("before"), False), (event.get("after"), True)):
                if row is not None and newest.get(row["id"], ((-1, -1), None))[0] <= at:
                    newest[row["id"]] = at, row if alive else None
        rows = [row for at, row in newest.values() if row is not None and at > emptied]
        return sorted((row["id"], row["name"], Decimal(row["balance"]), row["active"], row["notes"]) for row in rows)

    def close(self) -> None:
        replication.remove(self.database)
        self.database.close()


@pytest.fixture
def source(postgres: postgres_server.Server, broker: EmbeddedBroker, topic: str) -> Iterator[Source]:
    made = Source(postgres.dsn, broker.address, topic)
    yield made
    made.close()


def test_writes_during_the_snapshot_are_in_the_replica_once(source: Source) -> None:
    source.capture(at_send=lambda send: source.work() if send < 6 else None)
    assert source.replica() == source.contents()
    with source.database.transaction():
        source.work()
    source.database.execute(f"TRUNCATE {replication.TABLE}")
    source.work(40)
    source.capture()
    assert source.replica() == source.contents()


@pytest.mark.parametrize("deaths", [(0, 1, 2), (3, 4, 5)], ids=["in the snapshot", "in the changes"])
def test_a_capture_that_dies_again_and_again_leaves_neither_holes_nor_repeats(
    source: Source, deaths: tuple[int, ...]
) -> None:
    for wanted in deaths:
        source.dies_in_send(wanted if wanted < 4 or not _is_loaded(source) else 1)
        source.work()
    source.capture()
    assert source.replica() == source.contents()
    slots = source.database.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'lanemq_people%'")
    assert slots.fetchall() == [(replication.TABLE,)]


def _is_loaded(source: Source) -> bool:
    found = source.database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [replication.TABLE])
    return found.fetchone() is not None


class OwnSnapshot(replication.Capture):  # type: ignore[misc,name-defined]
    """Reads the rows in a transaction of its own instead of at the position of the slot."""

    def snapshot(self, position: int, snapshot: str) -> Iterator[Any]:
        yield [(self.table, {"op": "t", "source": {"lsn": position, "n": 0}})]
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows = list(self.rows(connection, 1 << 62))  # as if they were newer than every change
        yield from rows


class SnapshotFirst(replication.Capture):  # type: ignore[misc,name-defined]
    """Reads the rows before the slot exists."""

    def _create_slot(self, connection: Any) -> Any:
        with psycopg.connect(self.dsn) as reading:
            self.early = list(self.rows(reading, 0))
        self.between()
        return super()._create_slot(connection)

    def snapshot(self, position: int, snapshot: str) -> Iterator[Any]:
        yield from self.early


class WithoutEmptying(replication.Capture):  # type: ignore[misc,name-defined]
    """Begins a snapshot again without an event that empties the replica."""

    def snapshot(self, position: int, snapshot: str) -> Iterator[Any]:
        return (part for part in super().snapshot(position, snapshot) if part[0][1]["op"] != "t")


def test_a_snapshot_before_the_slot_has_a_hole(source: Source) -> None:
    """The control: what is committed between the two is neither in the snapshot nor among the changes."""
    SnapshotFirst.between = lambda _: source.work(40)
    source.capture(SnapshotFirst)
    assert source.replica() != source.contents()


def test_a_snapshot_without_the_position_of_the_slot_hides_changes(source: Source) -> None:
    """The control: without a position, nothing says which changes are newer than a row of the snapshot."""
    source.capture(OwnSnapshot, lambda send: source.work(40) if send == 2 else None)
    assert source.replica() != source.contents()


def test_a_snapshot_that_begins_again_must_empty_the_replica_first(source: Source) -> None:
    """The control: rows that were deleted between two attempts would stay for ever."""
    source.dies_in_send(3)
    source.database.execute(f"DELETE FROM {replication.TABLE} WHERE id < 40")
    source.capture(WithoutEmptying)
    assert source.replica() != source.contents()


@pytest.mark.extended
def test_the_example_ends_with_equal_tables(postgres: postgres_server.Server, spark: Any) -> None:
    end = replication.main(postgres.dsn, spark)
    assert (end["equal"], end["different"], end["killed"]) == (True, 0, 2)
