"""The topic that a pipeline reads: the options of `format("lanemq")`, checked when the pipeline is declared."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from pyspark.sql import DataFrame, SparkSession

from lanemq.files import StorePath
from lanemq.model.errors import InvalidOption
from lanemq.spark import register
from lanemq.spark.columns import ALL_COLUMNS, select_columns
from lanemq.spark.options import SECRETS, ReadOptions, parse_read_options
from lanemq.spark.source import FORMAT
from lanemq.spark.versions import check_stream_options


class SourceOptions(TypedDict, total=False):
    """Options of the Spark source, with Spark's names; docs/reference/spark.md explains them."""

    topicPattern: str
    startingOffsets: str | Mapping[str, object]
    startingTimestamp: str | int
    startingOffsetsByTimestamp: str | Mapping[str, object]
    ordered: str | bool
    tags: str
    failOnDataLoss: str | bool
    columns: str | Sequence[str]
    minPartitions: str | int
    maxOffsetsPerTrigger: str | int
    maxBytesPerTrigger: str | int
    minOffsetsPerTrigger: str | int
    maxTriggerDelay: str
    brokerWait: str
    chunkBytes: str | int
    onDamaged: str
    tls: str | bool | Mapping[str, str]
    accessKey: str
    secretKey: str
    secretKeyFile: str
    securityToken: str


class Topic:
    """The source of a pipeline.

    Args:
        servers: Name servers, or the LaneMQ broker.
        topic: One topic, or several joined by commas; None if the option `topicPattern` chooses them.
        group: Where the pipeline's offsets are stored to show its lag. It is no member of the group; the checkpoint has
            the position that counts.
        options: Options of the Spark source, such as `maxOffsetsPerTrigger=1_000`. A first start reads from the
            earliest message unless `startingOffsets` is set: skipping existing messages silently would look like a
            loss.
    """

    def __init__(
        self, servers: str, topic: str | None = None, group: str | None = None, **options: Unpack[SourceOptions]
    ) -> None:
        given: dict[str, object] = {"servers": servers, "topic": topic, "group": group, **options}
        self.options = {name: option_text(value) for name, value in flat_options(given) if value is not None}
        if not any(name.lower().startswith("starting") for name in self.options):
            self.options["startingOffsets"] = "earliest"
        self.parsed: ReadOptions = parse_read_options(self.options, streaming=True)
        if self.parsed.columns:
            select_columns(self.parsed.columns)

    @property
    def public_options(self) -> dict[str, str]:
        """The options without secrets, for files and messages."""
        return {name: value for name, value in self.options.items() if name.lower() not in SECRETS}

    def at(self, servers: str) -> "Topic":
        """The same topic at other servers."""
        return topic_of({**self.options, "servers": servers})

    def with_damaged(self, damaged: str | None) -> dict[str, str]:
        """The options, with `onDamaged` as the stage needs it unless the options set it."""
        is_set = damaged is None or any(name.lower() == "ondamaged" for name in self.options)
        return self.options if is_set else {**self.options, "onDamaged": str(damaged)}

    def stream(
        self,
        spark: SparkSession,
        columns: Sequence[str],
        checkpoint: StorePath | None = None,
        damaged: str | None = None,
    ) -> DataFrame:
        """The messages as a streaming data frame with these columns; all columns if none are named.

        With the checkpoint, the source can see at its end whether the last batch is done, and report it to the group.
        """
        check_stream_options(self.options)
        register(spark)
        reader = spark.readStream.format(FORMAT).options(**self.with_damaged(damaged))
        if checkpoint is not None:
            reader = reader.option("checkpointLocation", str(checkpoint))
        if not self.parsed.columns:
            reader = reader.schema(select_columns(columns or ALL_COLUMNS))
        return reader.load()

    def __repr__(self) -> str:
        return f"Topic({', '.join(f'{name}={value!r}' for name, value in self.public_options.items())})"


def topic_of(options: Mapping[str, object]) -> Topic:
    """A topic from options whose names and values are not known to be right."""
    return Topic(**cast("dict[str, Any]", dict(options)))


def flat_options(given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Flatten the table `tls`, which TOML makes of `tls.ca = "..."`, to Spark's option names."""
    for name, value in given.items():
        if name == "tls" and isinstance(value, Mapping):
            yield from ((f"tls.{each}", chosen) for each, chosen in value.items())
        else:
            yield name, value


def option_text(value: object) -> str:
    """An option as text for Spark. Numbers, booleans, lists and JSON objects are converted."""
    match value:
        case bool():
            return "true" if value else "false"
        case Mapping():
            return json.dumps(value)
        case str() | int():
            return str(value)
        case list() | tuple():
            return ",".join(map(str, value))
    raise InvalidOption(f"{value!r} cannot be an option of a source: use text, a number, true or false")
