"""Types of the user's own file on their way to executors.

Code in a pipeline's file, or beside it, travels inside the job by value, because executors cannot import it. Spark's
pickler rebuilds a class from its attributes, and two kinds come out broken without an error: a msgspec Struct without
its fields, and a dataclass whose fields without a default have one, an object that only looks like `MISSING`.

The rule guarded here: a type decodes the same messages in an executor as in the driver, and the same class comes out
however often it is sent, or workers would collect one more with every batch.
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
"""What msgspec leaves in a dataclass or TypedDict that it has decoded; cannot be pickled, and is made again."""

_names: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_rebuilt: dict[str, type] = {}
"""What came here before, by the name that the sender gave it."""


def carry_types() -> None:
    """Teaches Spark's pickler; harmless when repeated. Before the first task is sent."""
    copyreg.pickle(type(dataclasses.MISSING), _missing)
    before = cloudpickle._dynamic_class_reduce  # noqa: SLF001
    if getattr(before, "carries_structs", False):
        return

    def reduce(cls: type) -> Any:
        if _CACHE in vars(cls):
            delattr(cls, _CACHE)
        return _taken_apart(cls) if isinstance(cls, _STRUCT) else before(cls)  # type: ignore[no-untyped-call]

    reduce.carries_structs = True  # type: ignore[attr-defined]
    cloudpickle._dynamic_class_reduce = reduce  # noqa: SLF001


def _missing(_: object) -> str:
    """By its name in its module, so that there is only one."""
    return "MISSING"


def _taken_apart(cls: Any) -> tuple[Any, ...]:
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
    return _put_together, (
        name,
        cls.__name__,
        list(map(_declared, fields)),
        cls.__bases__,
        cls.__module__,
        namespace,
        config,
    )


def _declared(field: Any) -> tuple[Any, ...]:
    """Name, type, and a default or what makes one."""
    if field.required:
        return field.name, field.type
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, None, field.default_factory
    return field.name, field.type, field.default


def _field(name: str, kind: Any, default: Any = msgspec.NODEFAULT, factory: Any = None) -> tuple[Any, ...]:
    if factory is not None:
        return name, kind, msgspec.field(default_factory=factory)
    return (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)


def _put_together(
    sent_as: str, name: str, fields: list[Any], bases: tuple[type, ...], module: str, namespace: Any, config: Any
) -> type:
    if sent_as not in _rebuilt:
        made = [_field(*each) for each in fields]
        _rebuilt[sent_as] = msgspec.defstruct(name, made, bases=bases, module=module, namespace=namespace, **config)
    return _rebuilt[sent_as]
