"""Expressions of Spark SQL over messages of which some cannot be computed: `cast(value as int)` of "abc".

Spark 4 ends the job at the first such row, and would at every start. The rule guarded here: one message never keeps
the others from being computed. Nothing is computed otherwise for that: the old ways of Spark (`ansi.enabled=false`)
would turn "abc" into null and 5000000000 into 705032704, and nobody would know.

Each row is one attempt, by Spark's own `TryEval`, which is null where what is in it fails. Spark must not share parts
of expressions meanwhile: it would compute them before the attempt begins, and fail there.
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
"""The class of errors that a value is the reason of. `raise_error` is none: there somebody asked for the end, and gets
it unless another message's value failed first: an attempt does not tell why it failed."""


def is_about_a_value(error: BaseException) -> bool:
    return _DATA.search(str(error)) is not None


@contextmanager
def each_by_itself(spark: SparkSession) -> Iterator[None]:
    """Expressions are computed where they stand, as long as it lasts."""
    before = spark.conf.get(_SHARING, "true")
    spark.conf.set(_SHARING, "false")
    try:
        yield
    finally:
        spark.conf.set(_SHARING, before or "true")


def attempted(messages: DataFrame, select: Sequence[str], where: str | None) -> DataFrame:
    """The messages, and for each the expressions: ROW is null if they fail, `ROW.it` if `where` leaves it out."""
    it = f"struct(CASE WHEN {where or 'true'} THEN struct({', '.join(select)}) END AS it)"
    return messages.select("*", _attempt(messages, it).alias(ROW))


def computed(frame: DataFrame, names: Sequence[str], hidden: Sequence[str]) -> DataFrame:
    """Of what was attempted, the rows that came of it."""
    row: Any = frame.schema[ROW].dataType
    found = zip(row["it"].dataType.names, names, strict=True)
    chosen = [f"{ROW}.it.{_quoted(own)} AS {_quoted(name)}" for own, name in found]
    return frame.where(f"{ROW}.it IS NOT NULL").selectExpr(*chosen, *hidden)


def set_aside(
    frame: DataFrame, select: Sequence[str], where: str | None, batch: Batch, hidden: Sequence[str]
) -> DataFrame:
    """Of what was attempted, the messages that nothing came of, as dead letters."""
    conditions = [] if where is None else [(f"struct({where})", f"where {where}")]
    parts = [*conditions, *((f"struct({text})", text) for text in select)]
    failed = [f.when(_attempt(frame, text).isNull(), f.lit(said)) for text, said in parts]
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
    """A column of the message, as far as the stage reads it: what the expressions failed for is among those."""
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
