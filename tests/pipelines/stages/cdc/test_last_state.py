"""The stage on Spark gives the same rows for the same frame, however often and in however many tasks."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lanemq.client.producer.producer import Producer
from lanemq.clock import wall_time
from lanemq.model.units import Millis
from lanemq.pipelines import LastState
from lanemq.pipelines.batches import NUMBERS_PER_BATCH, Batch
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, Results
from lanemq.testing.embedded import EmbeddedBroker

EXAMPLE = Path(__file__).parents[4] / "examples" / "cdc_replication.py"
COLUMNS = (
    "id bigint, name string, price decimal(10,2), seen timestamp, day date, raw binary, tags array<string>, ok boolean"
)


def sent(broker: EmbeddedBroker, topic: str) -> None:
    whole = {
        "price": "1.50",
        "seen": "2024-01-31T12:00:00Z",
        "day": "2024-01-31",
        "raw": "aGk=",
        "tags": ["a"],
        "ok": 1,
    }
    with Producer(broker.address) as producer:
        for turn in range(20):
            for key in range(10):
                row: Any = {"id": key, "name": f"turn {turn}", **whole}
                if turn == 19 and key in (3, 4):
                    row = b"null" if key == 3 else b"{broken"
                producer.submit(topic, row, key=f'{{"id": {key}}}')
        producer.flush()


def rows_of(results: Results) -> list[dict[str, Any]]:
    return results.outputs.table().sort_by("id").to_pylist()  # type: ignore[no-any-return]


def test_a_topic_gives_the_same_row_per_key_every_time(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    sent(broker, topic)
    stage = LastState(COLUMNS, ["id"])
    stage.open(spark, tmp_path)
    options = {"servers": broker.address, "topic": topic, "columns": ",".join(stage.columns)}
    messages = spark.read.format("lanemq").options(**options).load()
    first = stage.process(messages, Batch("q", NUMBERS_PER_BATCH, 1))
    again = stage.process(messages.repartition(2), Batch("q", NUMBERS_PER_BATCH, 2))
    rows = rows_of(first)
    assert rows_of(again) == rows, "rows in any task and any order: offsets say what is newer"
    assert [(row["id"], row["name"], row["_deleted"]) for row in rows] == [
        (key, None if key == 3 else "turn 18" if key == 4 else "turn 19", key == 3) for key in range(10)
    ]
    assert str(rows[0]["price"]) == "1.50"
    assert rows[0]["raw"] == b"hi"
    assert rows[0]["ok"] is True
    assert dict(first.counts) == {
        "events": 200, "keys": 10, "deletes": 1, "key_changes": 0, "truncations": 0, "misfits": 0,
        "poison": 1, "ddl": 0, "ignored": 0,
    }  # fmt: skip
    assert first.dead_letters is not None
    [letter] = first.dead_letters.table().to_pylist()
    assert letter["message_id"]
    assert first.dead_letters.schema == DEAD_LETTER_SCHEMA
    assert list(letter) == DEAD_LETTER_SCHEMA.fieldNames()
    assert (letter["topic"], letter["key"], letter["value"]) == (topic, '{"id": 4}', b"{broken")
    assert letter["batch"] == NUMBERS_PER_BATCH
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["table.json"]


def test_files_of_a_killed_run_are_removed(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "work" / str(NUMBERS_PER_BATCH)).mkdir(parents=True)
    (tmp_path / "work" / str(NUMBERS_PER_BATCH) / "left.rows").write_bytes(b"half")
    stage = LastState("id bigint", ["id"])
    stage.open(spark, tmp_path)
    assert not (tmp_path / "work").exists()
    assert stage.due(wall_time(Millis(0))) is None
    assert stage.process_retry_pass(Batch("q", 1, 1)) is None


def test_the_schema_is_known_without_spark() -> None:
    stage = LastState(COLUMNS, "id", sequence=["id"])  # a single name is a key of one column
    assert stage.schema.fieldNames()[-3:] == ["_sequence", "_deleted", "_queue"]
    assert stage.schema["_sequence"].dataType.simpleString() == "string"
    assert not stage.schema["id"].nullable
    assert stage.schema["name"].nullable
    assert stage.how.keys == ("id",)


@pytest.mark.slow
def test_the_example_ends_with_equal_tables(spark: Any) -> None:
    spec = importlib.util.spec_from_file_location("example_cdc_replication", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    end = example.main(spark)
    assert end["equal"]
    assert end["messages"] > end["changes"] == 2000
