"""Errors and docs/reference/spark.md name the equivalents of Kafka's and RocketMQ's options."""

import re
from pathlib import Path

import pytest

from lanemq.model.errors import InvalidOption
from lanemq.spark.columns import COLUMNS, select_columns
from lanemq.spark.foreign_names import FOREIGN, equivalent_column, equivalent_option
from lanemq.spark.options import parse_read_options

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md").read_text("utf-8")
TABLE = [
    [re.findall(r"`([^`]+)`", cell) or [cell.strip()] for cell in row.split(" | ")[:2]]
    for row in re.findall(r"^\| (.*) \|$", DOCUMENT.split("## Options for reading")[1].split("\n## ")[0], re.MULTILINE)
][1:]
THE_SAME = ["the same"]
NONE = ["–"]


def error_for(name: str) -> str:
    with pytest.raises(InvalidOption) as error:
        parse_read_options({"servers": "h:1", "topic": "t", name: "x"}, streaming=True)
    return str(error.value)


@pytest.mark.parametrize(("ours", "kafkas"), TABLE, ids=lambda names: ",".join(names))
def test_the_document_and_the_error_name_the_same_option(ours: list[str], kafkas: list[str]) -> None:
    if kafkas in (NONE, THE_SAME):
        assert all(equivalent_option(name) is None for name in ours)
        return
    for name in kafkas:
        message = error_for(name.replace("*", "x"))
        assert name.replace("*", "").lower() in message
        assert ("no equivalent" in message) if ours == NONE else any(option in message for option in ours), message


def test_every_kafka_option_is_in_the_document() -> None:
    listed = {name for _, kafkas in TABLE for name in kafkas}
    own = {"kafka.auto.offset.reset", "kafka.enable.auto.commit", "kafka.max.poll.records"}
    rocketmq = {"nameServer", "nameServerAddr", "namesrvAddr", "consumerGroup", "subExpression"}
    assert set(FOREIGN) - own - rocketmq <= listed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.bootstrap.servers", "use servers"),
        ("subscribe", "use topic"),
        ("subscribePattern", "use topicPattern"),
        ("kafka.group.id", "use group"),
        ("includeHeaders", "column properties"),
        ("kafka.fetch.max.bytes", "Kafka's client"),
        ("namesrvAddr", "use servers"),
    ],
)
def test_a_foreign_option_is_refused_with_its_equivalent(name: str, said: str) -> None:
    assert said in error_for(name)
    assert name.lower() in error_for(name)


@pytest.mark.parametrize(
    ("kafkas", "ours"), [("partition", "queue_id"), ("offset", "queue_offset"), ("timestamp", "store_timestamp")]
)
def test_a_kafka_column_is_refused_with_its_equivalent(kafkas: str, ours: str) -> None:
    with pytest.raises(InvalidOption, match=rf"\['{kafkas}'\]; {kafkas} is {ours} here; choose from topic"):
        select_columns(["key", kafkas])


def test_the_document_and_the_error_agree_about_columns() -> None:
    part = DOCUMENT.split("Compared with the columns of Spark's Kafka source:")[1].split("\n## ")[0]
    rows = [row.split(" | ")[:2] for row in re.findall(r"^\| (`.*) \|$", part, re.MULTILINE)]
    pairs = [(re.findall(r"`(\w+)`", theirs)[0], re.findall(r"`(\w+)`", ours)) for theirs, ours in rows]
    assert len(pairs) == 7
    known = set(COLUMNS.fieldNames())
    assert all(theirs in known or equivalent_column(theirs) in ours for theirs, ours in pairs)


def test_the_document_says_what_to_do_about_an_unknown_format() -> None:
    assert "DATA_SOURCE_NOT_FOUND" in DOCUMENT
    assert "register(spark)" in DOCUMENT
