"""Snapshot, then changes: a PostgreSQL table becomes a Delta table without a hole or a repeat.

`Capture` needs only PostgreSQL itself, version 12 or newer with `wal_level=logical`. It reads a snapshot of the table
at the very position of the log where a replication slot begins, sends its rows, and continues with the slot's changes.
Messages have Debezium's form, so the pipeline would be the same with Debezium.

    python examples/postgres_replication.py "host=localhost dbname=shop user=me"

makes a table `lanemq_people` in that database, changes it all the time, kills the capture twice, and compares both
tables at the end. It removes the table and the slots again.
"""

import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import DeltaSink, LastState, Pipeline, Topic, read_table, start
from lanemq.spark import recommended
from lanemq.testing.embedded import EmbeddedBroker

TABLE = "lanemq_people"
SCHEMA = "id bigint, name string, balance decimal(12,2), active boolean, notes string"

EMPTIES, SNAPSHOT, FIRST_CHANGE = 0, 1, 2
"""The second part of the sequence. A snapshot first empties the replica, then come its rows, then changes, even if a
transaction is committed at the very position of the snapshot."""

NUMBERS, BOOLEAN = {20, 21, 23}, 16
"""Types that JSON has: bigint, smallint, integer; boolean. Values of all others are sent as text, which is exact."""
UNTOUCHED = "__debezium_unavailable_value"
"""Debezium's mark of a large column that an update did not touch, and that the log does not have."""

Event = tuple[str, dict[str, Any]]
"""A message key and the event."""


class Capture:
    """Sends the snapshot of a table, and then its changes, to a topic.

    All progress is in PostgreSQL: the slot `<table>` exists if the snapshot has been sent completely, and its position
    is that of the last change that the broker has confirmed. A capture that was killed begins the snapshot again, or
    repeats the last changes; the replica recognises them by their position.
    """

    chunk = 1_000
    """Rows of the snapshot that are in memory, and sent together."""

    def __init__(self, dsn: str, table: str, producer: Producer, topic: str) -> None:
        self.dsn, self.table, self.producer, self.topic = dsn, table, producer, topic
        self.loading = f"{table}_loading"
        """The slot of a snapshot that is not complete."""
        self.database = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> Self:
        self._wait_for("SELECT pg_try_advisory_lock(hashtext(%s))", self.table)  # one capture at a time
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def run(self) -> None:
        """Captures until the process ends."""
        self.load()
        while True:
            if not self.catch_up():
                time.sleep(0.1)

    def load(self) -> None:
        """Sends the snapshot, unless this was done before."""
        if not self._has_slot(self.table):
            self._drop(self.loading)
            with psycopg.connect(f"{self.dsn} replication=database", autocommit=True) as replication:
                position, snapshot = self._create_slot(replication)
                # The snapshot can be used as long as this connection does nothing else.
                for rows in self.snapshot(position, snapshot):
                    self.send(rows)
            self._ask("SELECT pg_copy_logical_replication_slot(%s, %s)", self.loading, self.table)
        self._drop(self.loading)

    def snapshot(self, position: int, snapshot: str) -> Iterator[list[Event]]:
        """The rows as they were at the position, after an event that empties the replica.

        A snapshot that was not complete has left rows there which may have been deleted since.
        """
        yield [(self.table, {"op": "t", "source": {"lsn": position, "n": EMPTIES}})]
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            yield from self.rows(connection, position)

    def rows(self, connection: psycopg.Connection, position: int) -> Iterator[list[Event]]:
        columns = connection.execute(
            "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            [self.table],
        ).fetchall()
        keys = self._keys(connection)
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name, _ in columns)
        with connection.cursor("snapshot") as cursor:
            cursor.execute(sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier(self.table)))
            while found := cursor.fetchmany(self.chunk):
                rows = [
                    {name: _value(kind, text) for (name, kind), text in zip(columns, row, strict=True)} for row in found
                ]
                yield [_event("r", None, row, position, SNAPSHOT, keys) for row in rows]

    def catch_up(self) -> int:
        """Sends what has been committed since the last call, and returns the number of changes."""
        found = self.database.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, 5000, 'proto_version', '1', "
            "'publication_names', %s)",
            [self.table, self.table],
        )
        log = LogReader(self._keys(self.database))
        changes = [event for (data,) in found for event in log.read(data)]
        self.send(changes)
        if log.end:
            # Only now: what the slot has passed, PostgreSQL forgets.
            self._ask("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", self.table, _lsn_text(log.end))
        return len(changes)

    def send(self, events: Sequence[Event]) -> None:
        """Returns when the broker has stored all of them."""
        self.producer.send_many(self.topic, events)

    def _create_slot(self, replication: psycopg.Connection) -> tuple[int, str]:
        """A new slot: the position at which its changes begin, and the snapshot of exactly this position."""
        statement = f"CREATE_REPLICATION_SLOT {self.loading} LOGICAL pgoutput (SNAPSHOT 'export')"
        row = replication.execute(statement).fetchone()
        assert row is not None
        _, position, snapshot, _ = row
        return _lsn(position), snapshot

    def _has_slot(self, slot: str) -> bool:
        return bool(self._ask("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", slot))

    def _drop(self, slot: str) -> None:
        if self._has_slot(slot):
            # The session of a capture that was killed may still hold it for a moment.
            self._wait_for("SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s", slot)
            self._ask("SELECT pg_drop_replication_slot(%s)", slot)

    def _keys(self, connection: psycopg.Connection) -> list[str]:
        found = connection.execute(
            "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
            "WHERE indrelid = %s::regclass AND indisprimary ORDER BY attnum",
            [self.table],
        ).fetchall()
        return [name for (name,) in found]

    def _ask(self, statement: LiteralString, *values: str) -> list[Any]:
        return self.database.execute(statement, values).fetchall()

    def _wait_for(self, statement: LiteralString, value: str) -> None:
        while self._ask(statement, value)[0][0] is not True:
            time.sleep(0.05)


class LogReader:
    """Reads the messages of PostgreSQL's own output plugin, `pgoutput`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._columns: dict[int, list[tuple[str, int]]] = {}
        self._commit = self._n = 0
        self.end = 0
        """The position after the last transaction that was read; 0 if there was none."""

    def read(self, data: bytes) -> Iterator[Event]:
        message = Bytes(data)
        match message.take(1):
            case b"B":
                self._commit, self._n = message.number("q"), FIRST_CHANGE
            case b"C":
                message.take(9)
                self.end = message.number("q")
            case b"R":
                self._relation(message)
            case b"I":
                table, _ = message.number("i"), message.take(1)
                yield self._change("c", None, self._row(table, message))
            case b"U":
                table, kind = message.number("i"), message.take(1)
                before = None if kind == b"N" else self._row(table, message)
                if kind != b"N":
                    message.take(1)
                yield self._change("u", before, _completed(self._row(table, message), before))
            case b"D":
                table, _ = message.number("i"), message.take(1)
                yield self._change("d", self._row(table, message), None)
            case b"T":
                source = {"lsn": self._commit, "n": self._n}
                self._n += 1
                yield "truncate", {"op": "t", "source": source}

    def _change(self, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Event:
        event = _event(op, before, after, self._commit, self._n, self._keys)
        self._n += 1
        return event

    def _relation(self, message: "Bytes") -> None:
        table = message.number("i")
        message.text(), message.text(), message.take(1)
        columns = []
        for _ in range(message.number("h")):
            message.take(1)
            columns.append((message.text(), message.number("i")))
            message.take(4)
        self._columns[table] = columns

    def _row(self, table: int, message: "Bytes") -> dict[str, Any]:
        row: dict[str, Any] = {}
        for (name, kind), _ in zip(self._columns[table], range(message.number("h")), strict=True):
            match message.take(1):
                case b"n":
                    row[name] = None
                case b"u":
                    row[name] = UNTOUCHED
                case _:
                    row[name] = _value(kind, message.take(message.number("i")).decode())
        return row


class Bytes:
    """A message that is read from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, kind: str) -> int:
        return int(struct.unpack(f">{kind}", self.take(struct.calcsize(kind)))[0])

    def text(self) -> str:
        end = self._data.index(0, self._at)
        return self.take(end + 1 - self._at)[:-1].decode()


def _event(
    op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, lsn: int, n: int, keys: Sequence[str]
) -> Event:
    row = after if after is not None else before or {}
    key = json.dumps({name: row[name] for name in keys})
    return key, {"op": op, "before": before, "after": after, "source": {"lsn": lsn, "n": n}}


def _completed(after: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """Large columns that an update did not touch are in the row before it, with `REPLICA IDENTITY FULL`."""
    if before is None:
        return after
    return {name: before[name] if value == UNTOUCHED else value for name, value in after.items()}


def _value(kind: int, text: str | None) -> Any:
    if text is None:
        return None
    return int(text) if kind in NUMBERS else text[0] == "t" if kind == BOOLEAN else text


def _lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _lsn_text(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def prepare(database: psycopg.Connection, rows: int) -> None:
    """What a table needs before it is captured: a publication, and whole rows in the log."""
    remove(database)
    table = sql.Identifier(TABLE)
    database.execute(
        sql.SQL(
            "CREATE TABLE {} (id bigint PRIMARY KEY, name text, balance numeric(12,2), active boolean, notes text)"
        ).format(table)
    )
    database.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))
    database.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(table, table))
    database.execute(
        sql.SQL("INSERT INTO {} SELECT n, 'person ' || n, n / 7.0, n %% 2 = 0, repeat('x', n %% 50) "
                "FROM generate_series(1, %s) n").format(table),
        [rows],
    )  # fmt: skip


def remove(database: psycopg.Connection) -> None:
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE %s", [f"{TABLE}%"]
    )
    database.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(TABLE)))
    database.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(TABLE)))


def work_on(database: psycopg.Connection, dice: random.Random, changes: int, people: int) -> None:
    """Makes random changes: new people, new balances, new ids, deletions. Some transactions have several."""
    table = sql.Identifier(TABLE)
    for _ in range(changes):
        person, other = dice.randrange(people), dice.randrange(people, people * 2)
        statement, values = dice.choice(
            [
                ("INSERT INTO {} VALUES (%s, 'new', 0, true, NULL) ON CONFLICT DO NOTHING", [other]),
                ("UPDATE {} SET balance = balance + 1.25, active = NOT active WHERE id = %s", [person]),
                ("DELETE FROM {} WHERE id = %s", [person]),
                ("UPDATE {} SET id = id + 1000000 WHERE id = %s", [other]),
                ("UPDATE {} SET name = name || '!' WHERE id %% 97 = %s", [person % 97]),
            ]
        )
        database.execute(sql.SQL(statement).format(table), values)


def contents(database: psycopg.Connection) -> list[tuple[Any, ...]]:
    statement = sql.SQL("SELECT id, name, balance, active, notes FROM {} ORDER BY id").format(sql.Identifier(TABLE))
    return database.execute(statement).fetchall()


def replica(servers: str, folder: Path) -> Pipeline:
    return Pipeline(
        "people",
        source=Topic(servers, "people"),
        stage=LastState(SCHEMA, ["id"], format="debezium", sequence=["source.lsn", "source.n"]),
        sink=DeltaSink(folder / "people"),
        checkpoint=folder / "checkpoint",
    )


def main(dsn: str, spark: SparkSession | None = None) -> dict[str, Any]:
    if spark is None:
        spark = recommended().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with (
        tempfile.TemporaryDirectory(prefix="lanemq-postgres-") as folder,
        EmbeddedBroker() as broker,
        psycopg.connect(dsn, autocommit=True) as database,
    ):
        prepare(database, rows=5_000)
        try:
            return replicate(dsn, database, spark, broker.address, Path(folder))
        finally:
            remove(database)


def stored(admin: Admin) -> int:
    return sum(each.messages for each in admin.describe_topic("people").queues)


def replicate(
    dsn: str, database: psycopg.Connection, spark: SparkSession, servers: str, folder: Path
) -> dict[str, Any]:
    dice, killed = random.Random(7), 0
    with Admin(servers) as admin:
        admin.create_topic("people", queues=4, ordered=True)
        with start(replica(servers, folder), spark) as running:
            for more in (2_000, 6_000):  # during the snapshot, and during the changes after its 5,000 rows
                enough = stored(admin) + more
                process = subprocess.Popen([sys.executable, __file__, dsn, "--capture", servers])
                while stored(admin) < enough:
                    work_on(database, dice, 20, 5_000)
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
            work_on(database, dice, 200, 5_000)
            with Producer(servers) as producer, Capture(dsn, TABLE, producer, "people") as capture:
                capture.load()
                while capture.catch_up():
                    pass
            if not running.wait_idle(300):
                raise SystemExit("the pipeline did not catch up")
    wanted = contents(database)
    rows = read_table(folder / "people").select(["id", "name", "balance", "active", "notes"]).sort_by("id")
    found = [tuple(row.values()) for row in rows.to_pylist()]
    return {"equal": found == wanted, "rows": len(wanted), "different": len(set(found) ^ set(wanted)), "killed": killed}


if __name__ == "__main__":
    if "--capture" in sys.argv:
        with Producer(sys.argv[3]) as sending, Capture(sys.argv[1], TABLE, sending, "people") as capturing:
            capturing.run()
    else:
        end = main(sys.argv[1])
        print(f"{end['rows']} rows after {end['killed']} kills of the capture")
        print("the replica equals the source" if end["equal"] else f"{end['different']} rows differ")
