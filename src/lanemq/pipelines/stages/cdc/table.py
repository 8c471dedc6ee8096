"""The replicated table: its columns, its key, and the columns of a row on its way to a sink.

Invariant: a key consists of columns that can be compared exactly, and is never null.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.declare.ddl import parse_columns
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE
from lanemq.spark.versions import to_arrow_schema

_NO_KEYS = (DoubleType, FloatType, ArrayType, MapType, StructType)


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """A replicated table. Every column but the keys may be null, because deletions have only a key."""

    schema: StructType
    keys: tuple[str, ...]
    keeps: bool = False
    """Whether a row may leave columns unchanged (`left_out="keep"`)."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(field.name for field in self.schema.fields)

    def arrow(self) -> pa.Schema:
        """The schema for Arrow."""
        return to_arrow_schema(self.schema)

    def merged(self, sequence: DataType, *, in_queues: bool) -> StructType:
        """The columns that a sink merges. `in_queues`: changes may be in several queues."""
        more = [StructField(SEQUENCE, sequence, False), StructField(DELETED, BooleanType(), False)]
        kept = [StructField(KEPT, StringType())] if self.keeps else []
        queue = [StructField(QUEUE, StringType())] if in_queues else []
        return StructType([*self.schema.fields, *more, *kept, *queue])


def declare_table(schema: str | StructType, keys: Sequence[str], *, keeps: bool = False) -> ReplicaTable:
    """The table as declared; raises `InvalidOption` if it cannot be replicated."""
    fields = (parse_columns(schema) if isinstance(schema, str) else schema).fields
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1} | ({SEQUENCE, DELETED, KEPT, QUEUE} & set(names)))
    if twice:
        raise InvalidOption(
            f"schema: column {', '.join(twice)} exists already; {SEQUENCE}, {DELETED}, {KEPT} and {QUEUE} are reserved"
        )
    wanted = (keys,) if isinstance(keys, str) else tuple(keys)
    if not wanted or set(wanted) - set(names) or len(set(wanted)) < len(wanted):
        raise InvalidOption(f"keys {wanted}: name the columns of the row's key, each once, out of {', '.join(names)}")
    for field in fields:
        if field.name in wanted and isinstance(field.dataType, _NO_KEYS):
            raise InvalidOption(
                f"keys: {field.name} is {field.dataType.simpleString()}, which cannot be compared exactly"
            )
    columns = [StructField(field.name, field.dataType, field.name not in wanted) for field in fields]
    return ReplicaTable(StructType(columns), wanted, keeps)
