"""`write` and `writeStream.format("lanemq")`: writes rows to topics.

Executors send their rows directly; there is no second phase, because a stored message can be read at once. Stamps make
a repeated batch harmless (see `sending`). A batch that is repeated with other rows is refused, because a writer cannot
know whether the query's source repeats batches exactly.

Columns: `value` (binary or string), and optionally `key`, `tags`, `keys`, `properties`, `topic`. The source's other
columns say where a message was stored; a row that was read is written without them, as a new message.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.names import check_topic
from lanemq.model.units import Millis, parse_duration, to_millis
from lanemq.net.address import parse_addresses
from lanemq.net.security import OPEN, Security
from lanemq.spark.columns import COLUMNS
from lanemq.spark.foreign_names import equivalent_option
from lanemq.spark.options import DEFAULT_WAIT, SECURITY_OPTIONS, SPARK_OPTIONS, parse_security
from lanemq.spark.versions import DataSourceStreamArrowWriter
from lanemq.spark.write.sending import OutgoingRow, TaskSender

log = logging.getLogger(__name__)

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a streaming query (StreamExecution, MicroBatchExecution)."""

_TYPES = {
    "value": ("binary", "string"),
    "key": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "topic": ("string",),
}
_SOURCE_COLUMNS = {field.name: field.dataType.simpleString() for field in COLUMNS.fields if field.name not in _TYPES}
"""Left out of rows that have `queue_offset`, so were read; and only with their own types, so that a column which has
such a name by chance is refused and not dropped."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of one write."""

    servers: str
    topic: str | None
    wait: Millis
    security: Security = OPEN


def parse_write_options(given: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Parses the options and checks the columns of one write; `InvalidOption` names the first that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    secure = {name.lower() for name in SECURITY_OPTIONS}
    for name in options.keys() - {"servers", "topic", "brokerwait"} - secure - SPARK_OPTIONS:
        advice = equivalent_option(name) or "docs/reference/spark.md lists all options"
        raise InvalidOption(f"{name}: there is no such option for writing; {advice}")
    if "servers" not in options:
        raise InvalidOption(
            "servers: missing; give the address of the broker or of the name servers, such as localhost:9876"
        )
    parse_addresses(options["servers"])
    _check_columns(schema)
    topic = options.get("topic")
    if topic is None and "topic" not in schema.fieldNames():
        raise InvalidOption("topic: missing; give the option, or a column with this name")
    wait = to_millis(parse_duration(options["brokerwait"])) if "brokerwait" in options else DEFAULT_WAIT
    security = parse_security(options)
    return WriteOptions(options["servers"], None if topic is None else check_topic(topic), wait, security)


def _check_columns(schema: StructType) -> None:
    if "value" not in schema.fieldNames():
        raise InvalidOption("value: there is no such column; select the message's body as value")
    was_read = _is_source_column(schema, "queue_offset")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if was_read and _is_source_column(schema, field.name):
            continue
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise InvalidOption(f"column {field.name} ({kind}) cannot be written; select only {', '.join(_TYPES)}")
        if kind not in allowed:
            raise InvalidOption(f"column {field.name} is {kind}; it must be {' or '.join(allowed)}")


def _is_source_column(schema: StructType, name: str) -> bool:
    return name in schema.names and _SOURCE_COLUMNS.get(name) == schema[name].dataType.simpleString()


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """The number of rows that a task sent."""

    rows: int


class LaneBatchWriter(DataSourceArrowWriter):
    """Writes one data frame. Repeated tasks are recognised; running the write again sends everything again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(iterator, self._options, f"spark-{self._job}-{_task().partitionId()}", 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; rows that were already sent stay in the topic")


class LaneStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise UsageError(
                "Spark does not name the streaming query of this task, so a repeat could not be recognised"
            )
        return _write(iterator, self._options, f"spark-{query}-{task.partitionId()}", int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what the tasks sent is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning("batch %d failed; the broker drops rows that were already sent when the batch is repeated", batchId)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only tasks write rows"
    return task


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, producer: str, epoch: int) -> Written:
    sender = TaskSender(options.servers, producer, epoch, options.wait, security=options.security, check_repeats=True)
    try:
        for batch in batches:
            for row in rows_of(batch, options.topic):
                sender.send(row)
        sender.flush()
        return Written(sender.sent)
    finally:
        sender.close()


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[OutgoingRow]:
    """The rows of an Arrow batch; the option `topic` overrides the column."""
    count = batch.num_rows
    names = batch.schema.names
    columns = {name: batch.column(name).to_pylist() if name in names else [None] * count for name in _TYPES}
    topics: list[Any] = [topic] * count if topic is not None else columns["topic"]
    for at, value in enumerate(columns["value"]):
        if value is None or topics[at] is None:
            raise InvalidOption(f"row {at} has no {'topic' if value is not None else 'value'}; filter such rows out")
        yield OutgoingRow(
            topics[at],
            value.encode() if isinstance(value, str) else bytes(value),
            columns["key"][at],
            columns["tags"][at],
            columns["keys"][at],
            dict(columns["properties"][at] or ()),
        )
