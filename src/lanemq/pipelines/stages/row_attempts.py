"""Spark SQL expressions over messages of which some cannot be computed: `cast(value as int)` of "abc".

Spark 4 ends the job at the first such row, at every start. Here each row is one attempt, by Spark's own `TryEval`,
which is null if what it contains fails. Values are computed exactly as before: Spark's older rules
(`ansi.enabled=false`) would silently turn "abc" into null and 5000000000 into 705032704. Spark must not share parts of
expressions during this: it would compute them before the attempt begins, and fail there.

Invariant: one message never keeps others from being computed.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as JvmColumn
from pyspark.sql.types import BinaryType, StringType, StructType

from lanemq.pipelines.batch import Batch
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA

ROW: Final = "__lanemq_row"
_SHARING: Final = "spark.sql.subexpressionElimination.enabled"
_DATA: Final = re.compile(r"SQLSTATE: 22\w{3}")
"""The class of errors that a value causes. `raise_error` is not among them: it ends the query on purpose, unless the
value of another message failed first, because an attempt does not say why it failed."""


def is_caused_by_value(error: BaseException) -> bool:
    """Whether a job failed because of the value of a message."""
    return _DATA.search(str(error)) is not None


@contextmanager
def without_shared_expressions(spark: SparkSession) -> Iterator[None]:
    """Turns off the sharing of common parts of expressions."""
    before = spark.conf.get(_SHARING, "true")
    spark.conf.set(_SHARING, "false")
    try:
        yield
    finally:
        spark.conf.set(_SHARING, before or "true")


def attempt_rows(messages: DataFrame, select: Sequence[str], where: str | None) -> DataFrame:
    """The messages with the expressions as ROW: null if they fail; `ROW.it` is null if `where` leaves a message out."""
    it = f"struct(CASE WHEN {where or 'true'} THEN struct({', '.join(select)}) END AS it)"
    return messages.select("*", _attempt(messages, it).alias(ROW))


def successful_rows(frame: DataFrame, names: Sequence[str], hidden: Sequence[str]) -> DataFrame:
    """The rows of the attempts that succeeded."""
    row: Any = frame.schema[ROW].dataType
    found = zip(row["it"].dataType.names, names, strict=True)
    chosen = [f"{ROW}.it.{_quoted(own)} AS {_quoted(name)}" for own, name in found]
    return frame.where(f"{ROW}.it IS NOT NULL").selectExpr(*chosen, *hidden)


def dead_letter_rows(
    frame: DataFrame, select: Sequence[str], where: str | None, batch: Batch, hidden: Sequence[str]
) -> DataFrame:
    """The messages of the attempts that failed, as dead letters."""
    conditions = [] if where is None else [(f"struct({where})", f"where {where}")]
    parts = [*conditions, *((f"struct({text})", text) for text in select)]
    failed = [f.when(_attempt(frame, text).isNull(), f.lit(source)) for text, source in parts]
    own: dict[str, Column] = {
        "reason": f.concat(f.lit("cannot be computed: "), f.concat_ws("; ", *failed)),
        "attempts": f.lit(1),
        "batch": f.lit(batch.number),
        "waits": f.lit(False),
    }
    columns = [
        (own[field.name] if field.name in own else _origin(frame.schema, field.name)).cast(field.dataType)
        for field in DEAD_LETTER_SCHEMA
    ]
    named = [column.alias(name) for column, name in zip(columns, DEAD_LETTER_SCHEMA.names, strict=True)]
    return frame.where(f"{ROW} IS NULL").select(*named, *map(f.expr, hidden))


def _origin(schema: StructType, name: str) -> Column:
    """A column of the message; null if the stage does not read it. The columns that expressions use are always read."""
    if name not in schema.names:
        return f.lit(None)
    kinds = {schema[name].dataType, DEAD_LETTER_SCHEMA[name].dataType}
    return f.col(name) if len(kinds) == 1 or kinds == {StringType(), BinaryType()} else f.lit(None)


def _attempt(frame: DataFrame, text: str) -> Column:
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    between = getattr(getattr(jvm.org.apache.spark.sql.classic, "ExpressionUtils$"), "MODULE$")
    inside = between.expression(f.expr(text)._jc)  # noqa: SLF001
    return JvmColumn(between.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(inside)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
