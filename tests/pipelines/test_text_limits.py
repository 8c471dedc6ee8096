"""Texts that a sink cannot hold, in names of partition folders and keys of an index: their message is poison."""

import random
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pytest
from tests.pipelines.fakes import FakeSink

from lanemq.client.producer.producer import Producer
from lanemq.pipelines import DeltaSink, IcebergSink, LastState, Pipeline, PostgresSink, Project, Topic
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.runner import start
from lanemq.pipelines.stages.transitions.worker import RowShape
from lanemq.pipelines.text_limits import TextLimit, folder_limits
from lanemq.testing.embedded import EmbeddedBroker

TEXTS = ["short", "x" * 300, "y" * 200, "/" * 100]
"""The second and the fourth are too long for the name of a folder."""
PLAIN = pa.schema([("n", pa.int64()), ("country", pa.string())])


def in_delta(folder: Path, dsn: str) -> Any:
    return DeltaSink(folder / "table", partition_by=["text"])


def in_iceberg(folder: Path, dsn: str) -> Any:
    return IcebergSink("db.rows", warehouse=folder / "table", partition_by=["text"])


def in_postgres(folder: Path, dsn: str) -> Any:
    return PostgresSink(dsn, f"long_keys_{random.randrange(10**9)}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("make", [in_delta, in_iceberg])
def test_a_text_that_is_too_long_for_a_folder_makes_its_message_a_dead_letter(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path, make: Any
) -> None:
    with Producer(broker.address) as producer:
        for text in TEXTS:
            producer.send(topic, text.encode(), key="k")

    def pipeline(**options: Any) -> Pipeline:
        stage = Project(["queue_offset", "cast(value as string) as text"], **options)
        source, sink = Topic(broker.address, topic), make(tmp_path, "")
        return Pipeline("landing", source, stage, sink, tmp_path / "checkpoint", dead_letters=dead)

    dead, reports = FakeSink(), list[Any]()
    with pytest.raises(PipelineFailed, match=rf"{topic}/.* offset 1: the text of text is too long.*on_poison='dead_"):
        start(pipeline(on_poison="fail"), spark, once=True).await_end(600)
    assert start(pipeline(), spark, once=True, report=reports.append).await_end(600)
    assert [(row[0], row[3]) for row in dead.rows] == [(topic, 1), (topic, 3)]
    assert "the text of text is too long: it would be the name of a partition's folder" in dead.rows[0][8]
    assert reports[0].applied.counts == {"events": 4, "poison": 2}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("make", "size"), [(in_postgres, 4_000), (in_iceberg, 300)])
def test_a_key_that_is_too_long_makes_its_message_a_dead_letter(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path, postgres: Any, make: Any, size: int
) -> None:
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))  # it does not compress
    with Producer(broker.address) as producer:
        for text in ("first", long, "last"):
            producer.send(topic, {"text": text}, key="k")

    def pipeline(**options: Any) -> Pipeline:
        source, stage = Topic(broker.address, topic), LastState("text string", ["text"], **options)
        return Pipeline("landing", source, stage, sink, tmp_path / "checkpoint", dead_letters=dead)

    sink, dead, reports = make(tmp_path, postgres.dsn), FakeSink(), list[Any]()
    with pytest.raises(PipelineFailed, match=rf"{topic} queue .* offset 1: the text of text is too long.*on_poison="):
        start(pipeline(on_poison="fail"), spark, once=True).await_end(600)
    assert start(pipeline(), spark, once=True, report=reports.append).await_end(600)
    assert [(row[0], row[3]) for row in dead.rows] == [(topic, 1)]
    assert reports[0].applied.counts["keys"] == 2


@pytest.mark.parametrize("text", ["x" * 247, "x" * 248, "/" * 82, "/" * 83, "\u00fc" * 41, "\u00fc" * 42])
def test_the_limit_is_that_of_the_escaped_name(text: str) -> None:
    [limit] = folder_limits(["n", "country"], PLAIN, r"[^A-Za-z0-9_.~ -]")
    fits = len(quote_plus(f"country={text}", safe="=").encode()) <= 255
    assert limit.admits(text) is fits
    assert limit.rows_beyond([pa.array(["short", None, text])]) == ([] if fits else [2])


def test_a_row_of_a_step_that_is_too_long_fails_its_event() -> None:
    shape = RowShape(PLAIN, folder_limits(["country"], PLAIN, "/"))
    assert shape({"n": 1, "country": "x" * 247}) == (1, "x" * 247)
    assert shape({"n": 1, "country": None}) == (1, None)
    with pytest.raises(ValueError, match="output: the text of country is too long"):
        shape({"n": 1, "country": "x" * 248})


def test_the_texts_of_a_key_count_together() -> None:
    limit = TextLimit(("a", "b"), 10, "\0", "a key")
    assert limit.admits("12345", b"12345")
    assert not limit.admits("12345", b"123456")
    assert not limit.admits("123456\0", "12"), "NUL is stored as a character of three bytes"
