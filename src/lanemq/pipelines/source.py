"""The topic that a pipeline reads: the options of `format("lanemq")`, checked when the pipeline is declared.

The rule guarded here: a wrong option is an error where it is written, long before Spark is started for it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lanemq.model.errors import InvalidOption
from lanemq.spark import register
from lanemq.spark.columns.schema import select_columns
from lanemq.spark.options import SECRETS, ReadOptions, parse_read_options
from lanemq.spark.source import FORMAT


class Topic:
    """Where messages come from.

    Args:
        servers: Name servers, or the LaneMQ broker.
        topic: One topic, or several joined by commas; None if the option `topicPattern` says which.
        group: Makes the pipeline a member of a consumer group. Without it the checkpoint alone knows the position.
        options: Any reader option (docs/reference/spark.md): `maxOffsetsPerTrigger=1_000`. A first start reads from the
            earliest message unless `startingOffsets` says otherwise: a pipeline that silently left out what was
            there already would look like loss.
    """

    def __init__(self, servers: str, topic: str | None = None, group: str | None = None, **options: object) -> None:
        given = {"servers": servers, "topic": topic, "group": group, **options}
        self.options = {name: option_text(value) for name, value in flat_options(given) if value is not None}
        if group is None and not any(name.lower().startswith("starting") for name in self.options):
            self.options["startingOffsets"] = "earliest"
        self.parsed: ReadOptions = parse_read_options(self.options, streaming=True)
        if self.parsed.columns:
            select_columns(self.parsed.columns)

    @property
    def telling_options(self) -> dict[str, str]:
        """The options without the secret ones, for whatever is written down."""
        return {name: value for name, value in self.options.items() if name.lower() not in SECRETS}

    def at(self, servers: str) -> "Topic":
        """The same topic elsewhere."""
        return Topic(**{**self.options, "servers": servers})

    def with_damaged(self, damaged: str | None) -> dict[str, str]:
        """The options, with what a stage wants of bodies that cannot be unpacked unless they say it themselves."""
        said = damaged is None or any(name.lower() == "ondamaged" for name in self.options)
        return self.options if said else {**self.options, "onDamaged": str(damaged)}

    def stream(
        self, spark: SparkSession, columns: Sequence[str], checkpoint: Path | None = None, damaged: str | None = None
    ) -> DataFrame:
        """Its messages from now on, with these columns; all, if none are named here or by the option `columns`.

        With the checkpoint the source can tell at its end whether the last batch is done, and report it to the group.
        """
        register(spark)
        reader = spark.readStream.format(FORMAT).options(**self.with_damaged(damaged))
        if checkpoint is not None:
            reader = reader.option("checkpointLocation", str(checkpoint))
        if columns and not self.parsed.columns:
            reader = reader.schema(select_columns(columns))
        return reader.load()

    def __repr__(self) -> str:
        return f"Topic({', '.join(f'{name}={value!r}' for name, value in self.telling_options.items())})"


def flat_options(given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """TOML reads `tls.ca = "..."` as a table `tls`; Spark knows it as one option of that name."""
    for name, value in given.items():
        if name == "tls" and isinstance(value, Mapping):
            yield from ((f"tls.{each}", chosen) for each, chosen in value.items())
        else:
            yield name, value


def option_text(value: object) -> str:
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
