"""A pipeline as a TOML file, for pipelines that need no Python of their own, or only a function.

    [pipeline]
    name = "orders"
    checkpoint = "/data/orders"

    [source]
    servers = "localhost:9876"
    topic = "orders"

    [stage]
    kind = "transitions"
    step = "billing:step"          # function `step` of billing.py beside this file
    outputs = "order_id string, status string"

    [sink]
    kind = "postgres"
    dsn = "${ORDERS_DSN}"          # from the environment
    table = "orders"

Every name is checked, nothing is ignored, and every error names the table and the option. Relative paths are relative
to the working directory, not to the file.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from lanemq.model.errors import InvalidOption, LaneError
from lanemq.pipelines.declare.options import build, near, public, refuse_unknown
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.ports import Sink, Stage
from lanemq.pipelines.source import Topic, flat_options, topic_of

ChangeSource: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]

STAGES: Final = {"transitions": "Transitions", "last_state": "LastState", "project": "Project"}
POLICIES: Final = {"hold": "Hold", "park": "Park", "dead_letter": "DeadLetter"}
TABLES: Final = ("pipeline", "source", "stage", "sink", "dead_letters", "spark")
REQUIRED: Final = ("pipeline", "source", "stage", "sink")
FUNCTIONS: Final = {
    "pipeline": ("prepare",),
    "transitions": ("step", "decode", "state_type", "sequence", "on_timer", "upgrade_state"),
    "last_state": (),
    "project": (),
}
"""Options that may refer to Python code as `module:name`, by table or kind."""

CODE: Final = ("step", "prepare", "on_timer", "upgrade_state")
"""Options that are always Python code."""

_REFERENCE: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
_VARIABLE: Final = re.compile(r"\$\{(\w*)\}")
_PIPELINE: Final = ("name", "checkpoint", "trigger", "history", "prepare")


def read_toml(path: Path, change_source: ChangeSource = dict) -> Pipeline:
    """The pipeline of a file; `InvalidOption` names the table and option that is wrong."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the file is not valid TOML: {error}") from error
    tables = _tables(document)
    pipeline = tables["pipeline"]
    refuse_unknown("[pipeline] ", pipeline, _PIPELINE)
    for name in ("name", "checkpoint"):
        if name not in pipeline:
            raise InvalidOption(f"[pipeline] {name}: missing")
    parts: dict[str, Any] = {"source": _source(tables["source"], change_source), "stage": _stage(tables["stage"])}
    for table in ("sink", "dead_letters"):
        if table in tables:
            parts[table] = _sink(table, tables[table])
    with _within("pipeline"):
        return Pipeline(
            **_resolved("pipeline", pipeline), **parts, spark={k: str(v) for k, v in tables.get("spark", {}).items()}
        )


def _tables(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, table in document.items():
        if name not in TABLES:
            raise InvalidOption(f"[{name}]: there is no such table; {near(name, TABLES)}")
        if not isinstance(table, dict):
            raise InvalidOption(f"{name}: must be in a table; the tables are {', '.join(TABLES)}")
    for name in REQUIRED:
        if name not in document:
            raise InvalidOption(f"[{name}]: missing")
    return {name: _filled(f"[{name}]", table) for name, table in document.items()}


def _source(options: dict[str, Any], change: ChangeSource) -> Topic:
    with _within("source"):
        if "servers" not in options:
            raise InvalidOption("servers: missing; give the address of the broker or of the name servers")
        return topic_of(change(dict(flat_options(options))))


def _stage(options: dict[str, Any]) -> Stage:
    kind = _kind("stage", options, STAGES)
    with _within("stage"):
        rest = _resolved(kind, {name: value for name, value in options.items() if name != "kind"})
        if "on_failure" in rest:
            rest["on_failure"] = _policy(rest["on_failure"])
        if "limits" in rest:
            rest["limits"] = build("limits.", public("StateLimits"), rest["limits"])
        if "event_time" in rest:
            rest["event_time"] = _event_time(rest["event_time"])
        stage: Stage = build("", public(STAGES[kind]), rest)
        return stage


def _sink(table: str, options: dict[str, Any]) -> Sink:
    rest = {name: value for name, value in options.items() if name != "kind"}
    with _within(table):
        if "kind" not in options:
            raise InvalidOption("kind: missing")
        sink: Sink = public("open_sink")(options["kind"], rest)
        return sink


def _policy(given: object) -> Any:
    options = {"kind": given} if isinstance(given, str) else dict(given) if isinstance(given, dict) else {}
    kind = options.pop("kind", None)
    if kind not in POLICIES:
        raise InvalidOption(f"on_failure: {given!r} has no kind; use one of {', '.join(POLICIES)}")
    if isinstance(options.get("hold"), dict):
        options["hold"] = build("on_failure.hold.", public("Hold"), options["hold"])
    return build("on_failure.", public(POLICIES[kind]), options)


def _event_time(given: object) -> Any:
    options = dict(given) if isinstance(given, dict) else given
    if isinstance(options, dict) and _is_reference("of", options.get("of")):
        options["of"] = _import_reference(options["of"], "event_time.of")
    return build("event_time.", public("EventTime"), options)


def _kind(table: str, options: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    kind = options.get("kind")
    if kind not in kinds:
        given = "missing" if kind is None else f"{kind!r} is unknown"
        raise InvalidOption(f"[{table}] kind: {given}; use one of {', '.join(kinds)}")
    return str(kind)


def _resolved(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with references to Python code replaced by what they refer to."""
    return {
        name: _import_reference(value, name) if name in FUNCTIONS[where] and _is_reference(name, value) else value
        for name, value in options.items()
    }


def _import_reference(text: str, option: str) -> Any:
    """What `module:name` refers to."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidOption(f"{option}: {text!r} should look like module:function, with module.py beside the file")
    try:
        return getattr(import_module(found["module"]), found["name"])
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{option}: module {error.name!r} is neither beside the file nor installed") from error
    except AttributeError as error:
        raise InvalidOption(f"{option}: module {found['module']!r} has no {found['name']!r}") from error


def _is_reference(option: str, value: object) -> bool:
    """Whether the text is a reference: `decode = "json"` and `sequence = "version"` are not, a step always is."""
    return isinstance(value, str) and (":" in value or option in ("step", "prepare", "on_timer", "upgrade_state"))


def _filled(where: str, value: Any) -> Any:
    """Replace `${NAME}` in any text by the environment variable, so that a file needs no passwords."""
    if isinstance(value, dict):
        prefix = where if where.endswith("]") else f"{where}."
        gap = " " if prefix.endswith("]") else ""
        return {name: _filled(f"{prefix}{gap}{name}", each) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(where, each) for each in value]
    return _VARIABLE.sub(lambda found: _variable(where, found[1]), value) if isinstance(value, str) else value


def _variable(where: str, name: str) -> str:
    if name not in os.environ:
        raise InvalidOption(f"{where}: the environment variable {name} is not set; set it, or write the value itself")
    return os.environ[name]


@contextmanager
def _within(table: str) -> Iterator[None]:
    """Let errors begin with the name of the table."""
    try:
        yield
    except (LaneError, TypeError, ValueError) as error:
        raise InvalidOption(f"[{table}] {error}") from error
