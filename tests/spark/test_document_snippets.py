"""Snippets of the documents that need Spark run, in the shared session: of the source, and of a pipeline."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.documents import ROOT, Snippet, snippets

from lanemq import Producer
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.extended  # a query and a pipeline in Spark take longer than `make test` has

HERE = "tests/spark/test_document_snippets.py"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a broker with the topics of the documents, and their messages."""
    monkeypatch.chdir(tmp_path)
    with EmbeddedBroker() as broker:
        with Producer(broker.address, create=["orders", "payments"]) as producer:
            for status in ("created", "paid"):
                producer.send("orders", {"id": 42, "status": status}, key="order-42")
            producer.send("payments", {"cents": 500, "what": "card"}, key="order-43")
            producer.send("payments", b"no JSON", key="order-42")
            producer.send("payments", {"cents": 500, "what": "card"}, key="order-42")
        yield broker.address


def shown_in(page: str) -> list[Snippet]:
    return [each for each in snippets("python") if each.document == ROOT / page and HERE in (each.not_run or "")]


def run(snippet: Snippet, address: str, **names: Any) -> dict[str, Any]:
    """The names of the snippet after it ran, with the address and the folder of the test."""
    exec(compile(here(snippet.code, address), snippet.name, "exec"), names)
    return names


def here(code: str, address: str) -> str:
    """The code with full paths: Spark's JVM was started in another folder."""
    for path in ("/data/", "checkpoints/payments", "payments_table"):
        code = code.replace(f'"{path}', f'"{Path.cwd()}/{path}')
    return code.replace("localhost:9876", address)


def test_a_topic_is_read_as_a_stream_and_as_a_table(
    spark: Any, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, table = shown_in("docs/reference/spark.md")
    query = run(stream, address)["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.key for row in spark.read.parquet(str(tmp_path / "data" / "billed" / "0")).collect()) == (
        ["order-42", "order-42"]
    )
    for snippet in (table, *shown_in("docs/guides/notebooks.md")):
        capsys.readouterr()
        run(snippet, address, spark=spark)
        assert "|order-42|    2|" in capsys.readouterr().out


def test_a_pipeline_is_started_asked_and_repaired_from_python(
    spark: Any, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first message of order-42 has no JSON, so its lane waits; the page discards it and redrives the rest."""
    page = ROOT / "docs" / "guides" / "pipelines.md"
    declared = next(
        each for each in snippets("python") if each.document == page and "pipeline = Pipeline(" in each.code
    )
    (tmp_path / "payments.py").write_text(here(declared.code, address))
    pipeline = runpy.run_path(str(tmp_path / "payments.py"))["pipeline"]
    start, parked, state, dead = shown_in("docs/guides/pipelines.md")
    run(start, address, pipeline=pipeline, spark=spark)
    run(state, address, spark=spark)
    assert "|order-43| 500|" in capsys.readouterr().out
    run(parked, address)
    assert "{'held': 1}" in capsys.readouterr().out
    run(start, address, pipeline=pipeline, spark=spark)  # carries the decisions out: the message is a dead letter now
    capsys.readouterr()
    run(dead, address)
    assert "order-42" in capsys.readouterr().out
