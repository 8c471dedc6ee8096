"""The type of a stage's states as its checkpoint records it, and whether a new type can read the old states.

A state is stored by field names, so a field with a default may be added and a field may be removed. What cannot be read
is refused when the pipeline starts, before a row is written.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
import msgspec.inspect

from lanemq.model.errors import InvalidOption

Schema: TypeAlias = dict[str, Any]
UpgradeState: TypeAlias = Callable[[Any], Any]
"""`upgrade_state(old) -> new`: gets a stored state as dicts, lists, texts and numbers, returns one of `state_type`."""

_WORDS = frozenset({"title", "description", "default", "examples"})
"""Parts of a schema that say nothing about what can be read."""


def state_schema(state_type: Any) -> Schema | None:
    """The schema of the states; None if there is no type, or msgspec cannot describe it."""
    if state_type is None:
        return None
    try:
        return msgspec.json.schema(state_type)
    except TypeError:
        return None


def check_state_type(state_type: Any) -> None:
    """`InvalidOption` for a class whose objects cannot be written as a state; every batch would fail later."""
    try:
        found = msgspec.inspect.type_info(state_type)
    except (TypeError, ValueError, NameError):
        return
    if isinstance(found, msgspec.inspect.CustomType):
        raise InvalidOption(
            f"state_type={found.cls.__qualname__}: its objects cannot be written as a state, and neither can Pydantic "
            f"models; use a msgspec Struct, a dataclass or a TypedDict, or keep a dict, such as model_dump(mode='json')"
        )


def check_state_schema(old: Schema | None, new: Schema | None, folder: object) -> None:
    """`InvalidOption` if states that were written with the old type cannot be read with the new one."""
    if old is None or new is None:
        return
    found = next(_misfits(old, new, _Documents(old, new, frozenset()), "the state"), None)
    if found is not None:
        raise InvalidOption(
            f"state_type cannot read the states in {folder}: {found}. Give new fields a default, convert old states "
            f"with upgrade_state=, or start with an empty checkpoint"
        )


class _Documents(NamedTuple):
    """Both schemas with their definitions, and the pairs of definitions that are being compared."""

    old: Schema
    new: Schema
    compared: frozenset[tuple[Any, Any]]


def _misfits(old: Schema, new: Schema, both: _Documents, where: str) -> Iterator[str]:
    """What the new schema cannot read of the old one."""
    pair = old.get("$ref"), new.get("$ref")
    if None not in pair:  # a type may contain itself
        if pair in both.compared:
            return
        both = both._replace(compared=both.compared | {pair})
    old, new = _resolved(old, both.old), _resolved(new, both.new)
    if old == new and "$ref" not in str(old):
        return
    if "anyOf" in new:
        yield from _union_misfits(old, new["anyOf"], both, where)
        return
    if "anyOf" in old or old.get("type") != new.get("type"):
        if not (old.get("type") == "integer" and new.get("type") == "number") and new:
            yield f"{where} was {_text(old)} and is now {_text(new)}"
        return
    yield from _object_misfits(old, new, both, where)
    if "items" in old and "items" in new and isinstance(new["items"], dict) and isinstance(old["items"], dict):
        yield from _misfits(old["items"], new["items"], both, f"an item of {where}")
    if not {"properties", "items"} & {*old, *new} and _bare(old) != _bare(new):
        yield f"{where} was {_text(old)} and is now {_text(new)}"


def _union_misfits(old: Schema, options: list[Schema], both: _Documents, where: str) -> Iterator[str]:
    """What no option of the new type can read."""
    for each in old.get("anyOf", [old]):
        if all(next(_misfits(each, option, both, where), None) for option in options):
            yield f"{where} was {_text(each)} and is now {' or '.join(map(_text, options))}"


def _object_misfits(old: Schema, new: Schema, both: _Documents, where: str) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for name, schema in after.items():
        if name in before:
            yield from _misfits(before[name], schema, both, f"field {name!r} of {where}")
        elif name in new.get("required", ()):
            yield f"field {name!r} of {where} is new and has no default"
    gone = before.keys() - after.keys()
    if gone and new.get("additionalProperties") is False:
        yield f"field {min(gone)!r} of {where} is gone, and the type forbids unknown fields"


def _resolved(schema: Schema, document: Mapping[str, Any]) -> Schema:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Schema = document["$defs"][reference.rpartition("/")[2]]
    return found


def _bare(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name not in _WORDS}


def _text(schema: Schema) -> str:
    reference = schema.get("$ref")
    kind = reference.rpartition("/")[2] if reference is not None else schema.get("type", _bare(schema))
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)
