"""Makes types that the user's own file defines usable in executors.

Executors cannot import code in a pipeline's file, or beside it, so it is pickled by value. Spark's pickler rebuilds a
class from its attributes, and two kinds come out broken without an error: a msgspec Struct loses its fields, and the
fields of a dataclass that have no default get one, a copy of `MISSING`.

Invariant: a type decodes the same messages in an executor as in the driver, and is the same class however often it is
sent. Otherwise workers would collect one more class with every batch.
"""

import copyreg
import dataclasses
import inspect
import uuid
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from pyspark.cloudpickle import cloudpickle

_STRUCT: Final = type(msgspec.Struct)
_GENERATED: Final = frozenset({"__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__"})
_CONFIG: Final = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields",
    "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip

_CACHE: Final = "__msgspec_cache__"
"""The attribute that msgspec adds to a dataclass or TypedDict it has decoded. It cannot be pickled, and is made again
when needed."""

_names: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_rebuilt: dict[str, type] = {}
"""Classes that were received before, by the name that the sender gave them."""


def carry_types() -> None:
    """Patches Spark's pickler. Called before the first task is sent; may be repeated."""
    copyreg.pickle(type(dataclasses.MISSING), _missing)
    before = cloudpickle._dynamic_class_reduce  # noqa: SLF001
    if getattr(before, "carries_structs", False):
        return

    def reduce(cls: type) -> Any:
        if _CACHE in vars(cls):
            delattr(cls, _CACHE)
        return _reduce_struct(cls) if isinstance(cls, _STRUCT) else before(cls)  # type: ignore[no-untyped-call]

    reduce.carries_structs = True  # type: ignore[attr-defined]
    cloudpickle._dynamic_class_reduce = reduce  # noqa: SLF001


def _missing(_: object) -> str:
    """Pickles `MISSING` by name, so that there is only one."""
    return "MISSING"


def _reduce_struct(cls: Any) -> tuple[Any, ...]:
    own = inspect.get_annotations(cls)
    fields = [field for field in msgspec.structs.fields(cls) if field.name in own]
    config = {name: value for name in _CONFIG if (value := getattr(cls.__struct_config__, name)) is not None}
    kinds = inspect.signature(cls).parameters
    config["kw_only"] = any(kinds[field.name].kind is inspect.Parameter.KEYWORD_ONLY for field in fields)
    config["rename"] = {field.name: field.encode_name for field in fields}
    slots = {*cls.__struct_fields__, *_GENERATED}
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in slots and not name.startswith("__struct") and name != "__slots__" and name != "__match_args__"
    }
    name = _names.setdefault(cls, uuid.uuid4().hex)
    return _rebuild_struct, (
        name,
        cls.__name__,
        list(map(_declared, fields)),
        cls.__bases__,
        cls.__module__,
        namespace,
        config,
    )


def _declared(field: Any) -> tuple[Any, ...]:
    """Name, type, and a default or a default factory."""
    if field.required:
        return field.name, field.type
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, None, field.default_factory
    return field.name, field.type, field.default


def _field(name: str, kind: Any, default: Any = msgspec.NODEFAULT, factory: Any = None) -> tuple[Any, ...]:
    if factory is not None:
        return name, kind, msgspec.field(default_factory=factory)
    return (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)


def _rebuild_struct(
    sender_name: str, name: str, fields: list[Any], bases: tuple[type, ...], module: str, namespace: Any, config: Any
) -> type:
    if sender_name not in _rebuilt:
        made = [_field(*each) for each in fields]
        _rebuilt[sender_name] = msgspec.defstruct(name, made, bases=bases, module=module, namespace=namespace, **config)
    return _rebuilt[sender_name]
