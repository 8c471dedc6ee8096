"""`write` and `writeStream.format("lanemq")`: rows into topics.

Executors send their rows themselves; there is no second phase, because a message that is stored can be read. What
makes a repeated batch harmless is its stamps (see `sending`); one that is repeated with other rows is refused, since
no writer is told whether its query's source repeats batches as they were.

Columns: `value` (binary or text), and as wanted `key`, `tags`, `keys`, `properties`, `topic`. The other columns of the
source say where a message was; a row that was read is written without them, as a new message.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.names import check_topic
from lanemq.model.units import Millis
from lanemq.net.address import parse_addresses
from lanemq.net.security import OPEN, Security
from lanemq.spark.columns.schema import COLUMNS
from lanemq.spark.foreign_names import in_our_words
from lanemq.spark.options import SPARKS_OWN, WAIT, duration
from lanemq.spark.security_options import SECURITY_OPTIONS, parse_security
from lanemq.spark.write.sending import Outgoing, TaskSender

log = logging.getLogger(__name__)

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark gives to the tasks of a streaming query (StreamExecution, MicroBatchExecution)."""

_TYPES = {
    "value": ("binary", "string"),
    "key": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "topic": ("string",),
}
_OF_THE_SOURCE = {field.name: field.dataType.simpleString() for field in COLUMNS.fields if field.name not in _TYPES}
"""Left out of rows that were read, which have `queue_offset`; and only with their own types: a column of somebody's own
that has such a name by chance is not dropped."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go."""

    servers: str
    topic: str | None
    wait: Millis
    security: Security = OPEN


def parse_write_options(given: Mapping[str, str], schema: StructType) -> WriteOptions:
    """The options and columns of one write; `InvalidOption` names what cannot be used."""
    options = {name.lower(): value for name, value in given.items()}
    secure = {name.lower() for name in SECURITY_OPTIONS}
    for name in options.keys() - {"servers", "topic", "brokerwait"} - secure - SPARKS_OWN:
        told = in_our_words(name) or "docs/reference/spark.md lists all of them"
        raise InvalidOption(f"{name}: there is no such option for writing; {told}")
    if "servers" not in options:
        raise InvalidOption("servers: missing; give the broker's or name servers' addresses, such as localhost:9876")
    parse_addresses(options["servers"])
    _check_columns(schema)
    topic = options.get("topic")
    if topic is None and "topic" not in schema.fieldNames():
        raise InvalidOption("topic: missing; give the option, or a column of that name")
    wait = duration(options["brokerwait"]) if "brokerwait" in options else WAIT
    security = parse_security(options)
    return WriteOptions(options["servers"], None if topic is None else check_topic(topic), wait, security)


def _check_columns(schema: StructType) -> None:
    if "value" not in schema.fieldNames():
        raise InvalidOption("value: there is no such column; select the message's body under this name")
    was_read = _is_of_the_source(schema, "queue_offset")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if was_read and _is_of_the_source(schema, field.name):
            continue
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise InvalidOption(f"column {field.name} ({kind}) cannot be written; select only {', '.join(_TYPES)}")
        if kind not in allowed:
            raise InvalidOption(f"column {field.name} is {kind}, it must be {' or '.join(allowed)}")


def _is_of_the_source(schema: StructType, name: str) -> bool:
    return name in schema.names and _OF_THE_SOURCE.get(name) == schema[name].dataType.simpleString()


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """How many rows a task sent."""

    rows: int


class LaneBatchWriter(DataSourceArrowWriter):
    """One write of one data frame. Repeated tasks are recognised; a repeated write is a new one."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(iterator, self._options, f"spark-{self._job}-{_task().partitionId()}", 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; rows that were sent before stay in the topic")


class LaneStreamWriter(DataSourceStreamArrowWriter):
    """The batches of one streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise UsageError(
                "this task belongs to no streaming query that Spark names; a repetition would go unnoticed"
            )
        return _write(iterator, self._options, f"spark-{query}-{task.partitionId()}", int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what tasks sent is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning(
            "batch %d failed; rows that were sent before are dropped by the broker when it is repeated", batchId
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by tasks"
    return task


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, producer: str, epoch: int) -> Written:
    sender = TaskSender(options.servers, producer, epoch, options.wait, security=options.security, compares=True)
    try:
        for batch in batches:
            for row in rows_of(batch, options.topic):
                sender.send(row)
        sender.flush()
        return Written(sender.sent)
    finally:
        sender.close()


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Outgoing]:
    """The rows of an Arrow batch; the option `topic` wins over the column."""
    count = batch.num_rows
    names = batch.schema.names
    columns = {name: batch.column(name).to_pylist() if name in names else [None] * count for name in _TYPES}
    topics: list[Any] = [topic] * count if topic is not None else columns["topic"]
    for at, value in enumerate(columns["value"]):
        if value is None or topics[at] is None:
            raise InvalidOption(f"row {at} has no {'topic' if value is not None else 'value'}; filter such rows out")
        yield Outgoing(
            topics[at],
            value.encode() if isinstance(value, str) else bytes(value),
            columns["key"][at],
            columns["tags"][at],
            columns["keys"][at],
            dict(columns["properties"][at] or ()),
        )
