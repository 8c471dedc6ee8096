"""Batches as messages of another topic: rows in the order of their shard, each stored once by a LaneMQ broker.

The producer stamp of a message is (sink, checkpoint and shard, batch number, index in the batch). So a row has the same
stamp whichever run sends it and however often, and the broker stores it once. The stamps of the last messages also show
which checkpoint of the pipeline wrote to the topic; another one is refused (`topic_owner`).

Dropping repeats needs the same rows in the same order when a batch is repeated: a shard's file has them; rows of a
merge are sorted by key first.

Runs are fenced by the batch number, not by the epoch. If an older run sends the batch of the newer one, it sends the
same messages, which the broker drops; a batch before the last one of a shard is refused (`SinkFenced`). So an older run
can complete the batch that both are at and nothing else.

A topic cannot tell which batches it has: `applied` is always None, and `write` returns True whenever messages were
sent, even if the broker dropped them all. A broker forgets producers that were silent for a week; an Apache broker
ignores stamps and stores repeats. Two sinks of one pipeline into one topic need different names. Two copies of one
checkpoint cannot be distinguished here, since the topic stores no ledger: never start a second copy. A new owner is
recorded with its first message, not when the sink is opened.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import security_of
from lanemq.clock import SystemClock
from lanemq.files import StorePath, arrow_source
from lanemq.model.errors import InvalidOption, MissingKey, ProducerFenced, SinkFenced, UsageError
from lanemq.model.names import check_topic
from lanemq.model.units import Millis, Seconds, to_millis
from lanemq.net.address import parse_addresses
from lanemq.net.security import Security, TlsOptions
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import FileRows, Merge, RowFile, Rows, SinkRun
from lanemq.pipelines.sinks.exact_sink import ExactSink, LedgerEntry, fit, json_bytes, merge_table
from lanemq.pipelines.sinks.topic_owner import SinkProducer, find_owner
from lanemq.spark.retrying import Retrying
from lanemq.spark.write.sending import OutgoingRow, TaskSender
from lanemq.wire.signing import Credentials

ROWS_PER_BATCH = 8_192
"""Rows that are read from a file and encoded at once."""


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Turns rows into messages. Pickled to the executors."""

    servers: str
    topic: str
    key: str | None
    value: str | None
    tags: str | None
    wait: Millis
    security: Security

    def messages(self, rows: pa.RecordBatch, properties: Mapping[str, str]) -> Iterator[OutgoingRow]:
        keys, tags = self._texts(rows, self.key), self._texts(rows, self.tags)
        for at, value in enumerate(self._values(rows)):
            yield OutgoingRow(self.topic, value, keys[at], tags[at], properties=properties)

    def _texts(self, rows: pa.RecordBatch, column: str | None) -> list[str | None]:
        if column is None:
            return [None] * rows.num_rows
        return [None if value is None else str(value) for value in rows.column(column).to_pylist()]

    def _values(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        if self.value is None:
            yield from map(json_bytes, rows.to_pylist(maps_as_pydicts="strict"))
            return
        for value in rows.column(self.value).to_pylist():
            if value is None:
                raise UsageError(f"a row for topic {self.topic} has no {self.value}: leave such rows out")
            yield value.encode() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class ShardSender:
    """Sends the rows of one shard as one producer. Pickled to the executors."""

    encoder: RowEncoder
    schema: pa.Schema
    producer: str
    number: int
    properties: Mapping[str, str]
    """Of every message: the trace that the batch belongs to."""

    def send(self, batches: Iterator[pa.RecordBatch]) -> str | None:
        """Send the rows; None when every row is stored, or the refusal if the topic has a later batch."""
        encoder = self.encoder
        sender = TaskSender(encoder.servers, self.producer, self.number, encoder.wait, security=encoder.security)
        try:
            for batch in batches:
                for row in encoder.messages(batch, self.properties):
                    sender.send(row)
            sender.flush()
        except ProducerFenced as error:
            return str(error)
        finally:
            sender.close()
        return None

    def send_file(self, path: StorePath) -> str | None:
        with pq.ParquetFile(arrow_source(path)) as file:
            return self.send(
                batch
                for part in file.iter_batches(ROWS_PER_BATCH)
                for batch in fit(pa.Table.from_batches([part]), self.schema).to_batches()
            )


class TopicSink(ExactSink):
    """Sends rows to a topic, from the executors if the rows are in files.

    Args:
        servers: The broker, or name servers.
        topic: The topic. It must exist, since the number of its queues is a decision that a sink cannot take.
        key: Column with the message's key; an ordered topic needs one. Default: the key of a merge by one column.
        value: Column with the body, text or bytes. Default: the whole row as a JSON object.
        tags: Column with RocketMQ's tag.
        name: Distinguishes two sinks of one pipeline into the same topic.
        wait: Seconds to wait for a broker that is down.
        tls: TLS options. Default: the environment of the process that declares the sink. They go to the executors, so
            files must have the same path on all machines.
        credentials: The user. Default: likewise from the environment.
    """

    all_at_once = False

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        value: str | None = None,
        tags: str | None = None,
        name: str = "",
        wait: Seconds = 60.0,
        tls: TlsOptions | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        parse_addresses(servers)
        security = security_of(tls, credentials)
        self._encoder = RowEncoder(servers, check_topic(topic), key, value, tags, to_millis(wait), security)
        self._name = name
        self._spark: SparkSession | None = None
        self._sent: int | None = None

    def __str__(self) -> str:
        return f"topic {self._encoder.topic}"

    def open(self, run: SinkRun) -> None:
        self._begin(run)
        given = self._encoder
        if given.key is None and isinstance(run.how, Merge) and len(run.how.keys) == 1:
            self._encoder = given = replace(given, key=run.how.keys[0])
        for option, column in (("key", given.key), ("value", given.value), ("tags", given.tags)):
            if column is not None and column not in run.columns.names:
                raise InvalidOption(f"{option}: there is no column {column}; there are {', '.join(run.columns.names)}")
        if given.value is not None and not _is_body(run.columns.field(given.value).type):
            raise InvalidOption(
                f"value: column {given.value} is {run.columns.field(given.value).type}, not text or bytes"
            )
        self._find_topic()
        if run.pipeline:
            self._check_owner(run)
        self._spark, self._sent = run.spark, None

    def write(self, rows: Rows, batch: Batch) -> bool:
        run = self._run_of(batch)
        if self._sent is not None and batch.number <= self._sent:
            return False
        refusals = self._send(rows, batch, run)
        if refusals:
            raise SinkFenced(f"{batch}: topic {self._encoder.topic} has a later batch of this pipeline: {refusals[0]}")
        self._sent = batch.number
        return True

    def _send(self, rows: Rows, batch: Batch, run: SinkRun) -> list[str]:
        if isinstance(run.how, Merge):
            changes = merge_table(rows, run.columns, run.how.keys)
            ordered = changes.sort_by([(key, "ascending") for key in run.how.keys])
            outcomes = [self._sender("merge", batch, run).send(iter(ordered.to_batches(ROWS_PER_BATCH)))]
        elif isinstance(rows, FileRows):
            outcomes = self._send_files([file for file in rows.files if file.rows], batch, run)
        else:
            table = fit(rows.table(), run.columns)
            outcomes = [self._sender("driver", batch, run).send(iter(table.to_batches(ROWS_PER_BATCH)))]
        return [outcome for outcome in outcomes if outcome is not None]

    def _send_files(self, files: list[RowFile], batch: Batch, run: SinkRun) -> list[str | None]:
        """Send each shard in a task of its own. The broker drops what a failed task had already sent."""
        work = [(self._sender(file.shard, batch, run), file.path.absolute()) for file in files]
        if len(work) < 2:
            return [sender.send_file(path) for sender, path in work]
        assert self._spark is not None, "open() sets it"
        tasks = self._spark.sparkContext.parallelize(work, len(work))
        return list(tasks.map(_send_file).collect())

    def _sender(self, shard: str, batch: Batch, run: SinkRun) -> ShardSender:
        producer = SinkProducer.of(run.pipeline, self._name, run.query, shard)
        return ShardSender(self._encoder, run.columns, str(producer), batch.number, trace_context())

    def _check_owner(self, run: SinkRun) -> None:
        """`StateLost` if another checkpoint of the pipeline wrote to the topic, unless the run says that it may."""
        given, own = self._encoder, SinkProducer.of(run.pipeline, self._name, run.query, "")
        entry = LedgerEntry(owner=find_owner(given.servers, given.topic, own, given.wait, given.security))
        entry.check_opener(run, self)
        if entry.has_other_owner(run):
            self._warn_new_owner(run)

    def _find_topic(self) -> None:
        given = self._encoder
        routes = BlockingRoutes(parse_addresses(given.servers), SystemClock(), security=given.security)
        try:
            route = Retrying(given.wait).call(lambda: routes.get(given.topic), f"topic {given.topic}")
        finally:
            routes.close()
        if route.ordered and given.key is None:
            raise MissingKey(given.topic)


def trace_context() -> dict[str, str]:
    """The current span as properties of messages; empty without OpenTelemetry, and where no span is current.

    A repeated batch has a span of its own. The broker keeps the messages that it has, with the context of their span.
    """
    propagate = sys.modules.get("opentelemetry.propagate")  # the code that made the span has imported it
    properties: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(properties)
    return properties


def _send_file(work: tuple[ShardSender, StorePath]) -> str | None:
    sender, path = work
    return sender.send_file(path)


def _is_body(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
