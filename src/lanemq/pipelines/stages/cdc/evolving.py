"""`LastState(evolve=True)`: fields that the source's rows get become columns of the table.

Tasks look at every row for fields that the table has not; the driver makes columns of them, and only then is the batch
folded with them. The rules guarded here: which columns a batch adds follows from its messages and the columns before
it alone, so a repeated batch adds the same; a column keeps its type for ever, whatever comes later; a name that some
database could not hold, or that is ours, is never a column, because its table would refuse every batch from then on.

The type is that of the first value; but JSON writes the price 10.00 as 10, so a whole number is only taken for one if
no value of the batch has a fraction.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from lanemq.pipelines.atomic_files import read_json
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.checkpoint.run_folder import write_as
from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE
from lanemq.pipelines.stages.cdc.changes import belongs
from lanemq.pipelines.stages.cdc.plan import Plan
from lanemq.pipelines.stages.cdc.shapes import UNREADABLE, listed

log = logging.getLogger(__name__)

MOST_COLUMNS: Final = 200
"""That a table may get: rows with ever new names, such as ids, are maps and no columns."""

Fields = dict[str, tuple[int, str, bool]]
"""New fields: the offset of the first value that is not null, its kind, and whether any value has a fraction."""

_KINDS: Final[dict[type, str]] = {bool: "boolean", int: "long", float: "double", str: "string"}
_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
}
_NAME: Final = re.compile(r"[^\W\d]\w*")
_LONGEST: Final = 63
"""Bytes of a name in PostgreSQL."""
_TAKEN: Final = frozenset(
    {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid", "oid", "rowid", "_rowid_", SEQUENCE, DELETED, KEPT}
)
"""Names that databases use themselves, and those that tell sinks what to do with a row."""

_NUMBER: Final = b"-0123456789"
"""How numbers begin in JSON."""

_PUTS: Final = ("insert", "update", "bootstrap-insert")
"""Types of canal and Maxwell whose rows are put into the table."""

_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_rows: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw] | None])
_any: Final = msgspec.json.Decoder(Any)


class _Known(msgspec.Struct):
    """What is kept beside the stage's other state."""

    columns: dict[str, str] = {}


class Evolution:
    """The columns that a table got, in the order in which it got them."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: where they are kept; None: in memory only."""
        self._path = path
        self._told: set[str] = set()
        self.columns: dict[str, str] = {}
        if path is not None and path.exists():
            found = read_json(path, _Known)
            assert isinstance(found, _Known)
            self.columns = found.columns

    def added(self, plan: Plan, found: Sequence[tuple[str, Fields]]) -> dict[str, str]:
        """The columns that a batch adds: what its queues have, by queue and offset, whichever task told of it."""
        taken = {name.casefold() for name in (*plan.table.columns, *self.columns)}
        told = [(queue, at, name, kind) for queue, fields in found for name, (at, kind, _) in fields.items()]
        fractions = {name for _, fields in found for name, (*_, fraction) in fields.items() if fraction}
        fresh: dict[str, str] = {}
        for *_, name, kind in sorted(told):
            if len(self.columns) + len(fresh) < MOST_COLUMNS and can_be_column(name, taken):
                fresh[name] = "double" if kind == "long" and name in fractions else kind
                taken.add(name.casefold())
        return fresh

    def tell(self, fresh: Mapping[str, str], conflicts: Iterable[str], batch: Batch) -> dict[str, int]:
        """What a batch did to the columns, in words, each once, and as counts."""
        if fresh:
            said = ", ".join(f"{name} {kind}" for name, kind in fresh.items())
            log.warning("%s: rows have new fields, which become columns of the table: %s", batch, said)
        for name in sorted(set(conflicts) - self._told):
            self._told.add(name)
            log.warning(
                "%s: values of the field %s do not fit its column, which has the type of the first one: they are null "
                "and counted as misfits",
                batch,
                name,
            )
        return {"new_columns": len(fresh)} if fresh else {}

    def behind(self, fresh: Mapping[str, str], state: str) -> str:
        """The stage's state with the columns that are known behind the batch."""
        other = msgspec.json.decode(state or "{}", type=dict[str, Any])
        return msgspec.json.encode({**other, "columns": {**self.columns, **fresh}}).decode()

    def plan(self, declared: Plan, fresh: Mapping[str, str] | None = None) -> Plan:
        """The declared table with all of them, less those that are declared by now."""
        known = {name.casefold() for name in (*declared.table.columns, KEPT)}
        grown = {name: kind for name, kind in {**self.columns, **(fresh or {})}.items() if name.casefold() not in known}
        fields = [StructField(name, _TYPES[kind]) for name, kind in grown.items()]
        table = replace(declared.table, schema=StructType([*declared.table.schema.fields, *fields]))
        return replace(declared, table=table, grown=tuple(grown))

    def settle(self, state: str, epoch: int) -> None:
        """The columns in the state are known from now on, on the disk too."""
        found = msgspec.json.decode(state, type=_Known)
        if found.columns != self.columns and self._path is not None:
            write_as(epoch, self._path.parent, self._path, msgspec.json.encode(found))
        self.columns = found.columns


def can_be_column(name: str, taken: Iterable[str] = ()) -> bool:
    """Whether every database could have it beside those of these (folded) names."""
    folded = name.casefold()
    fits = len(name.encode("utf-8", "replace")) <= _LONGEST and _NAME.fullmatch(name) is not None
    return fits and folded not in _TAKEN and folded not in taken


def new_fields(plan: Plan, messages: pa.Table) -> Fields:
    """Fields of a queue's rows that the table has not, with their first value; `messages` are in order."""
    known = {*plan.table.columns, *(part.path.partition(".")[0] for part in plan.parts), *_marker(plan)}
    taken = {name.casefold() for name in plan.table.columns}
    found: Fields = {}
    for offset, value in zip(listed(messages["queue_offset"]), listed(messages["value"]), strict=True):
        for row in _rows(plan, value):
            for name in () if row.keys() <= known else row.keys() - known:
                kind = _kind(row[name]) if name not in found or memoryview(row[name])[0] in _NUMBER else None
                if kind is not None:
                    found[name] = _with_value(found.get(name), offset, kind)
                if kind == "double" or not can_be_column(name, taken):
                    known.add(name)  # nothing that comes later says more
    return found


def together(one: Fields, two: Fields) -> Fields:
    """Fields of two parts of a queue."""
    both = one.keys() & two.keys()
    return {**one, **two} | {name: (*min(one[name], two[name])[:2], one[name][2] or two[name][2]) for name in both}


def _with_value(field: tuple[int, str, bool] | None, offset: int, kind: str) -> tuple[int, str, bool]:
    at, first, fraction = field or (offset, kind, False)
    return at, first, fraction or kind == "double"


def _marker(plan: Plan) -> set[str]:
    return {plan.deleted.partition(".")[0]} if plan.deleted else set()


def _rows(plan: Plan, value: bytes | None) -> Iterator[dict[str, msgspec.Raw]]:
    """The rows that a message puts into the table, unread; none where it is poison, a deletion or another table's."""
    try:
        event = _raw.decode(value or b"{}")
        if plan.format == "json":
            yield event
        elif plan.format == "debezium":
            yield from _after(plan, event)
        elif _is_ours(plan, event) and str(_plain(event, "type")).lower() in _PUTS:
            data = bytes(event.get("data", b"null"))
            yield from (row for row in _raw_rows.decode(data if data[:1] == b"[" else b"[" + data + b"]") if row)
    except UNREADABLE:
        return


def _after(plan: Plan, event: dict[str, msgspec.Raw]) -> Iterator[dict[str, msgspec.Raw]]:
    inner = bytes(event.get("payload", b"null"))
    event = _raw.decode(inner) if inner != b"null" else event
    source = _plain(event, "source") if plan.only is not None else {}
    names = [source.get(name) for name in ("db", "schema", "table")] if isinstance(source, dict) else [None]
    after = bytes(event.get("after", b"null"))
    if after != b"null" and belongs(plan.only, *names):
        yield _raw.decode(after)


def _is_ours(plan: Plan, event: dict[str, msgspec.Raw]) -> bool:
    return plan.only is None or belongs(plan.only, _plain(event, "database"), _plain(event, "table"))


def _plain(event: dict[str, msgspec.Raw], name: str) -> Any:
    return _any.decode(event[name]) if name in event else None


def _kind(raw: msgspec.Raw) -> str | None:
    """None: null, which says nothing, or nothing readable. Objects and lists are kept as their JSON."""
    try:
        value = _any.decode(raw)
    except UNREADABLE:  # what was skipped unread above is only looked at here
        return None
    return None if value is None else _KINDS.get(type(value), "string")
