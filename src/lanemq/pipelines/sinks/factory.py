"""Sinks by kind, as a TOML file declares them.

An option that a sink does not have, or a value of the wrong form, is an error that names the option.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lanemq.model.errors import InvalidOption
from lanemq.model.units import parse_duration
from lanemq.pipelines.declare.options import near
from lanemq.pipelines.ports import Sink
from lanemq.pipelines.sinks.delta import DeltaSink
from lanemq.pipelines.sinks.iceberg import IcebergSink
from lanemq.pipelines.sinks.parquet import ParquetSink
from lanemq.pipelines.sinks.postgres import PostgresSink
from lanemq.pipelines.sinks.sqlite import SqliteSink
from lanemq.pipelines.sinks.topic import TopicSink
from lanemq.pipelines.source import flat_options, option_text
from lanemq.spark.options import SECURITY_OPTIONS, parse_security


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Callable[..., Sink]
    required: tuple[str, ...]
    options: Mapping[str, Callable[[Any], Any]]
    also: tuple[str, ...] = ()
    """Names of options that are read by other code."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.options, *self.also)


def open_sink(kind: str, options: Mapping[str, Any]) -> Sink:
    """Make the sink that a file declares with `kind` and its options; it is not opened yet."""
    known = _KINDS.get(kind)
    if known is None:
        raise InvalidOption(f"kind: there is no sink {kind!r}; choose from {', '.join(_KINDS)}")
    for name in known.required:
        if name not in options:
            raise InvalidOption(f"{name}: missing; a sink of kind {kind} needs {', '.join(known.required)}")
    given: dict[str, Any] = {}
    if kind == "topic":
        options, given = _secured(options)
    for name, value in options.items():
        if name not in known.options:
            raise InvalidOption(f"{name}: a sink of kind {kind} has no such option; {near(name, known.names)}")
        given[name] = _read(name, value, known.options[name])
    return known.make(**given)


def _secured(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The other options, and the arguments for TLS and credentials. Their names are those of a source's options."""
    flat = dict(flat_options(options))
    known = {name.lower(): name for name in SECURITY_OPTIONS}
    secure = {name.lower(): option_text(value) for name, value in flat.items() if name.lower() in known}
    rest = {name: value for name, value in flat.items() if name.lower() not in known}
    if not secure:
        return rest, {}
    security = parse_security(secure)
    return rest, {"tls": security.tls, "credentials": security.credentials}


def _read(name: str, value: Any, reading: Callable[[Any], Any]) -> Any:
    try:
        return reading(value)
    except ValueError as error:
        raise InvalidOption(f"{name} = {value!r}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("write a text in quotes")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("write a whole number, 0 or more")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("write true or false")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError('write a list such as ["day", "country"]')
    return tuple(value)


def _table_of_texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("write a table of names and values")
    return {str(name): str(part) for name, part in value.items()}


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError("write a number of seconds, or text such as 30s or 15m")
    return float(value)


_SQL = {"table": _text, "wait": _seconds, "evolve": _yes_or_no}

_KINDS: dict[str, _Kind] = {
    "delta": _Kind(
        DeltaSink,
        ("path",),
        {
            "path": _text,
            "partition_by": _texts,
            "maintain_every": _count,
            "vacuum": _yes_or_no,
            "keep_files": _seconds,
            "evolve": _yes_or_no,
            "storage_options": _table_of_texts,
        },
    ),
    "iceberg": _Kind(
        IcebergSink,
        ("table",),
        {
            "table": _text,
            "warehouse": _text,
            "catalog": _table_of_texts,
            "partition_by": _texts,
            "maintain_every": _count,
            "vacuum": _yes_or_no,
            "keep_files": _seconds,
            "evolve": _yes_or_no,
        },
    ),
    "parquet": _Kind(
        ParquetSink,
        ("path",),
        {"path": _text},
    ),
    "sqlite": _Kind(SqliteSink, ("path", "table"), {"path": _text, **_SQL}),
    "postgres": _Kind(
        PostgresSink,
        ("dsn", "table"),
        {"dsn": _text, "nul": _text, "trust_columns": _texts, "copies": _count, "staged_from": _count, **_SQL},
    ),
    "topic": _Kind(
        TopicSink,
        ("servers", "topic"),
        {
            "servers": _text, "topic": _text, "key": _text, "value": _text, "tags": _text, "name": _text,
            "wait": _seconds,
        },
        SECURITY_OPTIONS,
    ),
}  # fmt: skip
