"""`Project`: rows as they are, through Spark SQL expressions. For landing topics in files and tables.

    Project(["key", "cast(value as string) as event", "queue_id", "queue_offset"])

The stage has no state. Invariants: the rows of a queue stay in the order of their offsets and are written to files
once, so that a sink may read them repeatedly; a message for which an expression fails, or gives a value that sinks
cannot hold (a text that is not UTF-8, a time outside the years 1 to 9999), becomes a dead letter and does not affect
other messages.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from functools import reduce
from itertools import pairwise
from operator import and_
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as JvmColumn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lanemq.files import Output, StorePath, remove_tree
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, Append, FileRows, Merge, Results, RowFile, Sink, Stage
from lanemq.pipelines.stages.queue_borders import queue_borders
from lanemq.pipelines.text_limits import TextLimit
from lanemq.spark.columns import COLUMNS
from lanemq.spark.versions import to_arrow_schema

log = logging.getLogger(__name__)

QUEUE: Final = ("topic", "broker", "queue_id")
_HIDDEN: Final = tuple(f"__lanemq_{name}" for name in QUEUE)
_OFFSET: Final = "__lanemq_offset"
"""The column with a row's offset, for messages, if the messages have it."""
_KINDS: Final = [("shard", pa.string()), ("task", pa.int32()), ("path", pa.string()), ("rows", pa.int64())]
_ROW: Final = "__lanemq_row"
_SHARING: Final = "spark.sql.subexpressionElimination.enabled"
_ANSI: Final = "spark.sql.ansi.enabled"
_DATA: Final = re.compile(r"SQLSTATE: 22\w{3}")
"""The class of errors that a value causes. `raise_error` is not among them: it ends the query on purpose, unless the
value of another message failed first, because an attempt does not say why it failed."""
_NOT_TEXT: Final = "a text that is not UTF-8"
_NO_TIME: Final = "a time outside the years 1 to 9999"
_STATES: Final = {_NOT_TEXT: "SQLSTATE: 22021", _NO_TIME: "SQLSTATE: 22008"}
"""What an expression may give that no sink can hold, and the SQL standard's names for it."""
_SUMMARY: Final = "shard string, task int, path string, rows long"


class Project(Stage):
    """A stage that appends expressions over the columns of a message.

    Args:
        select: Expressions, or one text with one expression per line; the default is every column.
        where: A condition; other rows are left out.
        on_poison: `dead_letter`: messages for which an expression fails become dead letters. `fail`: they end the
            query, at every start, until the expression is changed.
    """

    how: Append | Merge = Append()

    def __init__(
        self,
        select: Sequence[str] | str = ("*",),
        where: str | None = None,
        on_poison: Literal["dead_letter", "fail"] = "dead_letter",
    ) -> None:
        wanted = select.strip().splitlines() if isinstance(select, str) else list(select)
        self._select = [text.strip().rstrip(",") for text in wanted if text.strip()]
        if not self._select:
            raise InvalidOption("select: empty; give expressions such as 'key' or 'cast(value as string) as event'")
        if on_poison not in ("dead_letter", "fail"):
            raise InvalidOption(f"on_poison: {on_poison!r} is not one of dead_letter, fail")
        self._where = where
        self._fails = on_poison == "fail"
        self.columns: tuple[str, ...] = ()
        self.schema = StructType()
        self._folder: StorePath = Path()
        self._limits: tuple[TextLimit, ...] = ()

    def accept_sink(self, sink: Sink) -> None:
        self._limits = sink.text_limits()

    def open(self, spark: SparkSession, folder: StorePath) -> None:
        """Asks Spark for the types of the expressions and the columns that they need."""
        self._folder = folder
        remove_tree(folder / "work")  # rows of batches that will be repeated
        try:
            with setting(spark, _ANSI, "true"):
                frame = self._projected(spark.createDataFrame([], COLUMNS))
        except Exception as error:
            if type(error).__name__ not in ("AnalysisException", "ParseException"):
                raise
            raise InvalidOption(f"select: {str(error).strip().splitlines()[0]}") from error
        for field in frame.schema:
            _refuse_column(field)
        self.schema = frame.schema
        needed = _references(frame._jdf.queryExecution().analyzed()) | {*QUEUE, "queue_offset"}  # noqa: SLF001
        self.columns = tuple(name for name in COLUMNS.names if name in needed)

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        """Writes the rows of a batch to files. The session may follow Spark's older rules; expressions never do."""
        with setting(messages.sparkSession, _ANSI, "true"):
            return self._process(messages, batch)

    def _process(self, messages: DataFrame, batch: Batch) -> Results:
        folder = self._folder / "work" / str(batch.number)
        folder.mkdir(parents=True, exist_ok=True)
        hidden = [f"{name} as {alias}" for name, alias in zip(QUEUE, _HIDDEN, strict=True)]
        if "queue_offset" in messages.columns:
            hidden.append(f"queue_offset as {_OFFSET}")
        try:
            files = _written(self._projected(messages, *hidden), self.schema, folder, self._limits)
        except Exception as error:
            if self._fails or not is_caused_by_value(error):
                raise
            log.warning("%s: %s; computing each message separately", batch, str(error).splitlines()[0])
            return self._process_by_message(messages, batch, hidden, folder, error)
        rows = FileRows(self.schema, _row_files(files, folder))
        return Results(rows, counts={"events": rows.count()})

    def _process_by_message(
        self, messages: DataFrame, batch: Batch, hidden: Sequence[str], folder: StorePath, reason: Exception
    ) -> Results:
        """Computes each message separately, for a batch in which one fails. Slower, and reads the messages again."""
        try:
            with setting(messages.sparkSession, _SHARING, "false"):
                tried = _attempt_rows(messages, self._select, self._where, self.schema.names, self._limits)
                good = _successful_rows(tried, self.schema.names, hidden)
                files = _written(good, self.schema, folder)
                poison = _dead_letter_rows(
                    tried, self._select, self._where, batch, hidden, self.schema.names, self._limits
                )
                dead_files = _written(poison, DEAD_LETTER_SCHEMA, folder)
        except Exception as error:
            log.warning("%s: messages cannot be computed separately: %s", batch, str(error).splitlines()[0])
            raise reason from error
        rows, dead = (
            FileRows(self.schema, _row_files(files, folder)),
            FileRows(DEAD_LETTER_SCHEMA, _row_files(dead_files, folder)),
        )
        counts = {"events": rows.count() + dead.count(), "poison": dead.count()}
        return Results(rows, dead, counts)

    def finished(self, batch: Batch) -> None:
        """Removes the files: the sinks have the batch."""
        remove_tree(self._folder / "work" / str(batch.number))

    def _projected(self, messages: DataFrame, *more: str) -> DataFrame:
        missing = [name for name in QUEUE if name not in messages.columns]
        if missing:
            raise UsageError(
                f"messages have no column {', '.join(missing)}: prepare must keep the columns that name the queue"
            )
        chosen = messages if self._where is None else messages.where(self._where)
        return chosen.selectExpr(*self._select, *more)


def _refuse_column(field: StructField) -> None:
    """`InvalidOption` for a column that Spark cannot give to a task, or that can hold no value."""
    if "." in field.name or "`" in field.name:
        raise InvalidOption(
            f"select: the column {field.name} has a dot or a backtick in its name, and Spark cannot give it to a task: "
            f"give it another name with AS, such as {re.sub('[.`]', '_', field.name)}"
        )
    if _has_void(field.dataType):
        raise InvalidOption(
            f"select: the column {field.name} is {field.dataType.simpleString()}, and a void can hold no value, now or "
            f"later: give null its type, such as cast(null as string)"
        )


def _has_void(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_void(field.dataType) for field in kind)
    if isinstance(kind, MapType):
        return _has_void(kind.keyType) or _has_void(kind.valueType)
    return _has_void(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, NullType)


def _written(
    frame: DataFrame, schema: StructType, folder: StorePath, limits: Sequence[TextLimit] = ()
) -> list["_QueueFile"]:
    writer = _Writer(folder, to_arrow_schema(schema), limits)
    return [_QueueFile(*row) for row in frame.mapInArrow(writer, _SUMMARY).collect()]


class _QueueFile(NamedTuple):
    """What a task reports about one queue."""

    shard: str
    task: int
    name: str
    rows: int


class _Writer:
    """What a task does: writes the rows of each queue to a file, and returns one row about each file."""

    def __init__(self, folder: StorePath, schema: pa.Schema, limits: Sequence[TextLimit]) -> None:
        self._folder = folder
        self._limits = limits
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        writers: dict[str, tuple[pq.ParquetWriter, Output, str]] = {}
        files: dict[str, _QueueFile] = {}
        for batch in batches:
            for shard, part in _by_queue(pa.table(batch)):
                rows = part.select(self._schema.names).cast(self._schema)
                _refuse_unfit(shard, part, rows)
                for limit in self._limits:
                    for row in limit.rows_beyond([rows[name] for name in limit.columns]):
                        raise _unfit_row(shard, part, row, limit.why, "SQLSTATE: 22001")
                if shard not in writers:
                    name = f"{len(writers)}-{task}-{context.taskAttemptId() if context else 0}.part"
                    output = Output(self._folder / name)
                    writer = pq.ParquetWriter(output.target, self._schema, use_dictionary=dictionary_columns(rows))
                    writers[shard] = (writer, output, name)
                writers[shard][0].write_table(rows)
                known = files.get(shard) or _QueueFile(shard, task, writers[shard][2], 0)
                files[shard] = known._replace(rows=known.rows + rows.num_rows)
        for writer, output, _ in writers.values():
            writer.close()
            output.close()
        columns = [[each[at] for each in files.values()] for at in range(len(_KINDS))]
        arrays = [pa.array(values, kind) for values, (_, kind) in zip(columns, _KINDS, strict=True)]
        yield pa.record_batch(arrays, schema=pa.schema(_KINDS))


def _refuse_unfit(shard: str, part: pa.Table, rows: pa.Table) -> None:
    """Raises an error if a text is not UTF-8 or a time is outside the calendar. Spark has both, and no sink holds them.

    Arrow also finds nested values of neighbours, beyond the slice that `rows` is; a row alone is a copy.
    """
    if _unfit(rows) is None:
        return
    for row in range(rows.num_rows):
        found = _unfit(rows.take([row]))
        if found is not None:
            raise _unfit_row(shard, part, row, f"an expression gives {found}", _STATES[found])


def _unfit_row(shard: str, part: pa.Table, row: int, why: str, state: str) -> ValueError:
    offset = part[_OFFSET][row].as_py() if _OFFSET in part.column_names else "unknown"
    return ValueError(
        f"{shard} offset {offset}: {why}; leave such messages out with where=, or make them dead letters with "
        f"on_poison='dead_letter'. {state}"
    )


def _unfit(rows: pa.Table) -> str | None:
    """What no sink can hold; None if there is nothing like it."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return _NOT_TEXT
    return None if all(_in_calendar(chunk) for column in rows.columns for chunk in column.chunks) else _NO_TIME


def _in_calendar(values: pa.Array) -> bool:
    kind = values.type
    if pa.types.is_struct(kind):
        return all(map(_in_calendar, values.flatten()))
    if pa.types.is_map(kind):
        return _in_calendar(values.keys) and _in_calendar(values.items)
    if pa.types.is_list(kind):
        return _in_calendar(values.flatten())
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return True
    calendar = date if pa.types.is_date(kind) else datetime
    first, last = (pa.scalar(end).cast(kind) for end in (calendar.min, calendar.max))
    found = pc.min_max(values)
    return not pc.or_(pc.less(found["min"], first), pc.greater(found["max"], last)).as_py()


def _by_queue(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Consecutive rows of one queue, with the queue's name."""
    for first, end in pairwise(queue_borders(table, _HIDDEN)):
        part = table.slice(first, end - first)
        yield "/".join(str(part[name][0].as_py()) for name in _HIDDEN), part


def _row_files(files: list[_QueueFile], folder: StorePath) -> list[RowFile]:
    """The files of each queue. A queue that several tasks read (`ordered=false`) is several numbered shards."""
    found: list[RowFile] = []
    seen: dict[str, int] = {}
    for shard, _, name, rows in sorted(files, key=lambda each: each[:3]):
        share = seen.get(shard, 0)
        seen[shard] = share + 1
        found.append(RowFile(shard if share == 0 else f"{shard}#{share}", folder / name, rows))
    return found


def _references(plan: Any) -> set[str]:
    """Names of all columns that a plan uses, without the numbers that Spark appends."""
    found = re.findall(r"([^,]+)#\d+L?", plan.references().toSeq().mkString(","))
    children = plan.children()
    for at in range(children.size()):
        found += _references(children.apply(at))
    return set(found)


# Expressions over messages of which some cannot be computed, such as `cast(value as int)` of "abc". Spark 4 ends the
# job at the first such row, at every start. Here each row is one attempt, by Spark's own `TryEval`, which is null if
# what it contains fails. Values are computed exactly as before: Spark's older rules (`ansi.enabled=false`) would
# silently turn "abc" into null and 5000000000 into 705032704. Spark must not share parts of expressions during this: it
# would compute them before the attempt begins, and fail there.


def is_caused_by_value(error: BaseException) -> bool:
    """Whether a job failed because of the value of a message."""
    return _DATA.search(str(error)) is not None


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Changes a setting of the session whose default is true."""
    before = spark.conf.get(name, "true")
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before or "true")


def _attempt_rows(
    messages: DataFrame, select: Sequence[str], where: str | None, names: Sequence[str], limits: Sequence[TextLimit]
) -> DataFrame:
    """The messages with the expressions as _ROW: null if they fail; `_ROW.it` is null for those `where` leaves out."""
    tried = messages.select("*", _attempt(messages, _whole_row(select, where)).alias(_ROW))
    kind = tried.schema[_ROW].dataType
    fits = reduce(and_, (_all_parts(f.col(_ROW), kind, is_fit) for is_fit in _FITS.values()))
    for limit in limits:
        fits &= _admits(limit, f.col(_ROW), kind, names)
    return tried.withColumn(_ROW, f.when(fits, f.col(_ROW)))


def _whole_row(select: Sequence[str], where: str | None) -> str:
    return f"struct(CASE WHEN {where or 'true'} THEN struct({', '.join(select)}) END AS it)"


def _admits(limit: TextLimit, row: Column, kind: Any, names: Sequence[str]) -> Column:
    """Whether the texts of a row are short enough; true if there is no row."""
    own = kind["it"].dataType.names
    texts = [row.getField("it").getField(own[names.index(name)]) for name in limit.columns]
    return f.udf(lambda *values: limit.admits(*values), "boolean")(*texts)  # Spark refuses the type hints of `admits`


def _successful_rows(frame: DataFrame, names: Sequence[str], hidden: Sequence[str]) -> DataFrame:
    """The rows of the attempts that succeeded."""
    row: Any = frame.schema[_ROW].dataType
    found = zip(row["it"].dataType.names, names, strict=True)
    chosen = [f"{_ROW}.it.{_quoted(own)} AS {_quoted(name)}" for own, name in found]
    return frame.where(f"{_ROW}.it IS NOT NULL").selectExpr(*chosen, *hidden)


def _dead_letter_rows(
    frame: DataFrame,
    select: Sequence[str],
    where: str | None,
    batch: Batch,
    hidden: Sequence[str],
    names: Sequence[str],
    limits: Sequence[TextLimit],
) -> DataFrame:
    """The messages of the attempts that failed, as dead letters."""
    conditions = [] if where is None else [(f"struct({where})", f"where {where}")]
    parts = [*conditions, *((f"struct({text})", text) for text in select)]
    failed = [_failure(frame, text, source) for text, source in parts]
    row, kind = _attempt(frame, _whole_row(select, where)), frame.schema[_ROW].dataType
    failed += [f.when(~_admits(limit, row, kind, names), f.lit(limit.why)) for limit in limits]
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
    return frame.where(f"{_ROW} IS NULL").select(*named, *map(f.expr, hidden))


def _failure(frame: DataFrame, text: str, source: str) -> Column:
    """The source of an expression if it fails, with a remark if it gives a value that no sink can hold; else null."""
    tried = _attempt(frame, text)
    kind = frame.select(tried.alias(_ROW)).schema[_ROW].dataType
    found = f.when(tried.isNull(), f.lit(source))
    for what, is_fit in _FITS.items():
        found = found.when(~_all_parts(tried, kind, is_fit), f.lit(f"{source} ({what})"))
    return found


def _all_parts(value: Column, kind: DataType, is_fit: "_IsFit") -> Column:
    """Whether all parts of a value fit; true for null."""
    found: Column | None
    if isinstance(kind, StructType):
        parts = [_all_parts(value.getField(field.name), field.dataType, is_fit) for field in kind.fields]
        found = reduce(and_, parts, f.lit(True))
    elif isinstance(kind, ArrayType):
        found = f.forall(value, lambda part: _all_parts(part, kind.elementType, is_fit))
    elif isinstance(kind, MapType):
        names, values = ArrayType(kind.keyType), ArrayType(kind.valueType)
        found = _all_parts(f.map_keys(value), names, is_fit) & _all_parts(f.map_values(value), values, is_fit)
    else:
        found = is_fit(value, kind)
    return f.lit(True) if found is None else f.coalesce(found, f.lit(True))


def _is_text(value: Column, kind: DataType) -> Column | None:
    return f.is_valid_utf8(value) if isinstance(kind, StringType) else None


def _is_time(value: Column, kind: DataType) -> Column | None:
    if isinstance(kind, TimestampType):  # not compared as text, which would be in the session's time zone
        return f.unix_micros(value).between(*_CALENDAR_MICROS)
    if isinstance(kind, DateType | TimestampNTZType):
        return value.between(*(f.lit(end).cast(kind) for end in _CALENDAR))
    return None


_CALENDAR: Final = ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999")
_CALENDAR_MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_IsFit: TypeAlias = Callable[[Column, DataType], Column | None]
_FITS: Final[dict[str, _IsFit]] = {_NOT_TEXT: _is_text, _NO_TIME: _is_time}
"""Whether a single value is one that sinks can hold; None if every value of its type is."""


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
