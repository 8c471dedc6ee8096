"""Columns as text are parsed as Spark parses them."""

from typing import Any

import pytest

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.declare.ddl import parse_columns

GOOD = (
    "id bigint",
    "id BIGINT NOT NULL, name string,flag boolean",
    "a tinyint, b smallint, c int, d integer, e long, f float, g double, h binary, i date, j timestamp",
    "k timestamp_ntz, l byte, m short",
    "price decimal(10,2), whole decimal(5), usual decimal",
    "tags array<string>, seen map<string, array<int>>, place struct<x: int, y: struct<z: string>>",
    "`odd name` string, `a``b` int",
)


@pytest.mark.parametrize(
    "text",
    ["", "id", "id bigint,", "id bigint name string", "id nosuch", "id decimal(40,2)", "id array<int", "a-b int"],
)
def test_invalid_column_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="schema"):
        parse_columns(text)


def test_columns_are_read_as_spark_reads_them(spark: Any) -> None:
    from pyspark.sql.types import StructType

    for text in GOOD:
        assert parse_columns(text) == StructType.fromDDL(text), text
