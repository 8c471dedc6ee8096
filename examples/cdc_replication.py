"""Replication: changes of a SQLite table go through a topic into a Delta table.

Triggers write every change of the table `people` into a table `changes`, in order. A capture sends them to a topic with
one lane for each person, and a pipeline keeps the Delta table at the newest state of each person. People also change
their id, and the capture crashes once and sends some changes again. At the end both tables are compared row by row.

    python examples/cdc_replication.py
"""

import json
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import DeltaSink, LastState, Pipeline, Topic, read_table, start
from lanemq.spark import recommended
from lanemq.testing.embedded import EmbeddedBroker

SOURCE = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, balance REAL);
CREATE TABLE changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, before TEXT, after TEXT);
CREATE TRIGGER created AFTER INSERT ON people BEGIN
  INSERT INTO changes (op, after)
  VALUES ('c', json_object('id', NEW.id, 'name', NEW.name, 'balance', NEW.balance));
END;
CREATE TRIGGER updated AFTER UPDATE ON people BEGIN
  INSERT INTO changes (op, before, after)
  VALUES ('u', json_object('id', OLD.id), json_object('id', NEW.id, 'name', NEW.name, 'balance', NEW.balance));
END;
CREATE TRIGGER deleted AFTER DELETE ON people BEGIN
  INSERT INTO changes (op, before) VALUES ('d', json_object('id', OLD.id));
END;
"""


def work_on(source: sqlite3.Connection, dice: random.Random, changes: int) -> None:
    """Makes random changes: new people, new balances, new ids, deletions."""
    for _ in range(changes):
        person, other = dice.randrange(300), dice.randrange(300)
        known = source.execute("SELECT 1 FROM people WHERE id = ?", [person]).fetchone()
        free = source.execute("SELECT 1 FROM people WHERE id = ?", [other]).fetchone() is None
        if not known:
            source.execute("INSERT INTO people VALUES (?, ?, 0)", [person, f"person {dice.randrange(10**6)}"])
        elif dice.random() < 0.1 and free:
            source.execute("UPDATE people SET id = ? WHERE id = ?", [other, person])
        elif dice.random() < 0.2:
            source.execute("DELETE FROM people WHERE id = ?", [person])
        else:
            source.execute("UPDATE people SET balance = balance + ? WHERE id = ?", [dice.randint(-50, 50), person])
    source.commit()


class Capture:
    """Sends the rows of `changes`. After a crash it sends some of them again."""

    def __init__(self, source: sqlite3.Connection, producer: Producer) -> None:
        self._source, self._producer = source, producer
        self._sent = 0
        self.messages = 0

    def catch_up(self, *, crash: bool = False) -> None:
        rows = self._source.execute(
            "SELECT seq, op, before, after FROM changes WHERE seq > ? ORDER BY seq", [self._sent]
        )
        for seq, op, before, after in rows.fetchall():
            row = {"before": before and json.loads(before), "after": after and json.loads(after)}
            person = (row["after"] or row["before"])["id"]
            event = {"op": op, **row, "source": {"seq": seq}}
            self._producer.send("people", event, key=json.dumps({"id": person}))
            self.messages += 1
            if not crash:
                self._sent = seq


def main(spark: SparkSession | None = None) -> dict[str, Any]:
    if spark is None:
        spark = recommended().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="lanemq-cdc-") as folder, EmbeddedBroker() as broker:
        return replicate(spark, broker.address, Path(folder))


def replicate(spark: SparkSession, servers: str, folder: Path) -> dict[str, Any]:
    with Admin(servers) as admin:
        admin.create_topic("people", queues=4, ordered=True)
    pipeline = Pipeline(
        "people",
        source=Topic(servers, "people"),
        stage=LastState("id bigint, name string, balance double", ["id"], format="debezium", sequence=["source.seq"]),
        sink=DeltaSink(folder / "people"),
        checkpoint=folder / "checkpoint",
    )
    source, dice = sqlite3.connect(":memory:"), random.Random(7)
    source.executescript(SOURCE)
    with Producer(servers) as producer, start(pipeline, spark) as running:
        capture = Capture(source, producer)
        for part in range(5):
            work_on(source, dice, 400)
            capture.catch_up(crash=part == 2)
        if not running.wait_idle(120):
            raise SystemExit("the pipeline did not catch up")
    wanted = source.execute("SELECT id, name, balance FROM people ORDER BY id").fetchall()
    [(changes,)] = source.execute("SELECT count(*) FROM changes").fetchall()
    source.close()
    return verdict(wanted, folder / "people") | {"changes": changes, "messages": capture.messages}


def verdict(wanted: list[tuple[Any, ...]], replica: Path) -> dict[str, Any]:
    rows = read_table(replica).select(["id", "name", "balance"]).sort_by("id").to_pylist()
    found = [tuple(row.values()) for row in rows]
    different = set(wanted) ^ set(found)
    for row in sorted(different)[:5]:
        print("only in the source:" if row in wanted else "only in the replica:", row)
    return {"equal": wanted == found, "rows": len(found), "different": len(different)}


if __name__ == "__main__":
    end = main()
    print(f"{end['changes']} changes in {end['messages']} messages made a table of {end['rows']} rows")
    print("the replica equals the source" if end["equal"] else f"{end['different']} rows differ")
