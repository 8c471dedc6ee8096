"""Which messages of a batch get a line in the history of a sink."""

import json
from pathlib import Path

import pyarrow as pa
from tests.pipelines.fakes import SCHEMA

from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Results, TableRows
from lanemq.pipelines.running.effect_history import EffectHistory


def recorded(folder: Path, results: Results) -> list[dict[str, object]]:
    history = EffectHistory(folder, "orders")
    history.applied(results, Batch("query", 1, 1), history.now())
    history.close()
    lines = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [line for line in lines if line["e"] == "effect"]


def test_a_redriven_message_hides_no_message_of_the_same_number_at_another_broker(tmp_path: Path) -> None:
    table = pa.table(
        {"topic": ["t", "t"], "queue_id": [0, 0], "queue_offset": [5, 5], "key": ["k", "k"], "broker": ["a", "b"]}
    )
    results = Results(TableRows(SCHEMA, table), late=frozenset({("t", "a", 0, 5)}))
    (line,) = recorded(tmp_path, results)
    assert line["broker"] == "b"
