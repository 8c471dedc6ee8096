"""The topic that a pipeline reads: the options of `format("lanemq")`, checked when the pipeline is declared.

The rule guarded here: a wrong option is an error where it is written, long before Spark is started for it.
"""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from lanemq.model.errors import InvalidOption
from lanemq.spark import register
from lanemq.spark.options import ReadOptions, parse_read_options
from lanemq.spark.schema import some_columns
from lanemq.spark.source import FORMAT


class Topic:
    """Where messages come from.

    Args:
        servers: Name servers, or the LaneMQ broker.
        topic: One topic, or several joined by commas; None if the option `topicPattern` says which.
        group: Makes the pipeline a member of a consumer group. Without it the checkpoint alone knows the position.
        options: Any option of docs/spark.md, such as `maxOffsetsPerTrigger=100_000`. A first start reads from the
            earliest message unless `startingOffsets` says otherwise: a pipeline that silently left out what was
            there already would look like loss.
    """

    def __init__(self, servers: str, topic: str | None = None, group: str | None = None, **options: object) -> None:
        given = {"servers": servers, "topic": topic, "group": group, **options}
        self.options = {name: _text(value) for name, value in given.items() if value is not None}
        if group is None and not any(name.lower().startswith("starting") for name in self.options):
            self.options["startingOffsets"] = "earliest"
        self.parsed: ReadOptions = parse_read_options(self.options, streaming=True)
        if self.parsed.columns:
            some_columns(self.parsed.columns)

    def at(self, servers: str) -> "Topic":
        """The same topic elsewhere."""
        return Topic(**{**self.options, "servers": servers})

    def stream(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        """Its messages from now on, with these columns; all, if none are named here or by the option `columns`."""
        register(spark)
        reader = spark.readStream.format(FORMAT).options(**self.options)
        if columns and not self.parsed.columns:
            reader = reader.schema(some_columns(columns))
        return reader.load()

    def __repr__(self) -> str:
        return f"Topic({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


def _text(value: object) -> str:
    """An option as Spark wants it: text. Numbers, flags and JSON may be written as what they are."""
    match value:
        case bool():
            return "true" if value else "false"
        case Mapping():
            return json.dumps(value)
        case str() | int():
            return str(value)
        case list() | tuple():
            return ",".join(map(str, value))
    raise InvalidOption(f"{value!r} cannot be an option of a source: give text, a number, true or false")
