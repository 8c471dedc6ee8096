"""Codecs turn values into bytes and back.

The default is JSON; bytes are sent as they are. The annotation of a handler's argument decides what it gets: `bytes`
the raw body; a dataclass, msgspec Struct, TypedDict or Pydantic model the decoded and validated value; no annotation
plain JSON values.

An annotation is turned into a decoder once, when its handler is registered. A type that JSON cannot be decoded into is
refused there: later, every message would fail, and every key would be parked.

Pydantic is optional and never imported here. Before a program can have a model, it has imported Pydantic itself.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from lanemq._fast import compiled
from lanemq.model.errors import CodecError, InvalidOption
from lanemq.model.wording import shown

T = TypeVar("T")

Decode: TypeAlias = Callable[[bytes], Any]
"""Decodes a body into one type. Raises `CodecError`."""


class Codec(Protocol):
    """What a codec offers. Write your own for Avro, Protobuf, MessagePack and the like."""

    def encode(self, value: object) -> bytes: ...

    def decode(self, body: bytes, wanted: type[T]) -> T: ...


class SendArgument(msgspec.Struct, frozen=True):
    """Base of classes that describe a message, and are no value to send."""


class JsonCodec:
    """JSON by msgspec, models by Pydantic: decodes into types, runs no arbitrary code, knows dates and decimals."""

    def encode(self, value: object) -> bytes:
        if isinstance(value, _NOT_JSON):
            return _bytes_of(value)
        try:
            body = _encode(value) if _DATACLASSES not in sys.modules else _encode_for_pydantic(value)
            if b"null" in body and (number := _non_finite(value)) is not None:
                raise CodecError(
                    f"cannot encode {type(value).__name__} as JSON: it contains {number}, which JSON does not have and "
                    f"which would arrive as null; send None, a string, or bytes"
                )
            return body
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise CodecError(f"cannot encode {type(value).__name__} as JSON: {error}; pass bytes or a codec") from error

    def decode(self, body: bytes, wanted: type[T]) -> T:
        decoded: T = _json_decoder(wanted)(body)
        return decoded


class BytesCodec:
    """Converts nothing: bytes in, bytes out."""

    def encode(self, value: object) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise CodecError(f"this producer sends bytes, not {type(value).__name__}; use codec='json' for values")
        return bytes(value)

    def decode(self, body: bytes, wanted: type[T]) -> T:
        return body  # type: ignore[return-value]


class TextCodec:
    """Text as UTF-8, without quotation marks; bytes are sent as they are."""

    def encode(self, value: object) -> bytes:
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise CodecError(f"cannot encode the text as UTF-8: {error}") from error
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise CodecError(f"this producer sends text, not {type(value).__name__}; use codec='json' for values")

    def decode(self, body: bytes, wanted: type[T]) -> T:
        if wanted is bytes:
            return body  # type: ignore[return-value]
        try:
            return body.decode()  # type: ignore[return-value]
        except UnicodeDecodeError as error:
            raise CodecError(f"the body is not UTF-8 text: {error}") from error


_NAMED: dict[str, Callable[[], Codec]] = {"json": JsonCodec, "bytes": BytesCodec, "text": TextCodec}


def codec_named(codec: "str | Codec") -> Codec:
    """The codec for `"json"`, `"bytes"` or `"text"`, or the given codec itself."""
    if isinstance(codec, str) and codec in _NAMED:
        return _NAMED[codec]()
    if isinstance(codec, (str, type)) or not hasattr(codec, "encode") or not hasattr(codec, "decode"):
        raise InvalidOption(
            f"codec={shown(codec)} is unknown: use 'json', 'bytes', 'text', or an object with encode and decode"
        )
    return codec


def decoder_for(codec: Codec, wanted: Any) -> Decode:
    """What decodes the bodies of a handler whose argument is annotated `wanted`.

    Raises `InvalidOption`, which names the type, if the codec cannot decode into it. A codec of the user's own is asked
    for each message.
    """
    if isinstance(codec, JsonCodec):
        return _json_decoder(wanted)
    if isinstance(codec, (BytesCodec, TextCodec)) and wanted not in _OFFERED[type(codec)]:
        takes = " or ".join(each.__name__ for each in _OFFERED[type(codec)][1:])
        raise InvalidOption(f"{type_name(wanted)} is not what this codec decodes into: use {takes}, or codec='json'")
    return partial(codec.decode, wanted=wanted)


_OFFERED: dict[type, tuple[Any, ...]] = {BytesCodec: (Any, bytes), TextCodec: (Any, str, bytes)}

# encoding

_NOT_JSON = (bytes, bytearray, memoryview, SendArgument)


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, SendArgument):
        kind = type(value).__name__
        raise CodecError(
            f"{kind}(...) is a whole message and not a value: pass it to send_many as it is, without a key"
        )
    assert isinstance(value, (bytearray, memoryview))
    return bytes(value)


def _foreign(value: Any) -> msgspec.Raw:
    """JSON for a value that msgspec does not know: models of Pydantic, by alias, as they are validated."""
    kind: Any = type(value)
    if hasattr(value, "model_dump_json") and _is_model(kind):
        if problem := _alias_problem(kind):
            raise CodecError(f"cannot encode {kind.__qualname__} as JSON: {problem}")
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    raise CodecError(f"cannot encode {kind.__qualname__} as JSON: it has no JSON form; pass bytes or a codec")


_encode = msgspec.json.Encoder(enc_hook=_foreign).encode

_SIMPLE = frozenset({str, int, float, bool, bytes, type(None)})
_DATACLASSES = "pydantic.dataclasses"
"""The module that makes Pydantic's dataclasses. Programs that only use its models do not import it."""


def _encode_for_pydantic(value: Any) -> bytes:
    """JSON for a value that may contain dataclasses of Pydantic.

    msgspec takes them for plain ones, and writes fields under their names and bytes as base64. Pydantic reads them by
    alias, and bytes as text. So it writes whatever contains one.
    """
    kinds = _pydantic_dataclasses(value)
    if not kinds:
        return _encode(value)
    for kind in kinds:
        if problem := _alias_problem(kind):
            raise CodecError(f"cannot encode {kind.__qualname__} as JSON: {problem}")
    to_json = sys.modules["pydantic_core"].to_json
    body: bytes = to_json(value, by_alias=True, inf_nan_mode="null", fallback=_builtins_of)
    return body


def _builtins_of(value: Any) -> Any:
    """What Pydantic does not know, such as a msgspec Struct, as plain values."""
    return msgspec.to_builtins(value, enc_hook=_foreign_builtins)


def _foreign_builtins(value: Any) -> Any:
    return msgspec.json.decode(_foreign(value))


def _pydantic_dataclasses(value: Any) -> set[type]:
    """The dataclasses of Pydantic in a value. Models write what they contain themselves."""
    classes, seen, left = set[type](), set[int](), [value]
    for each in left:  # which grows
        kind = type(each)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (dict, list, tuple, set, frozenset)):
            inside = each.values() if isinstance(each, dict) else each
            left += () if _SIMPLE.issuperset(map(type, inside)) else inside
        elif _is_model(kind):
            if "__is_pydantic_dataclass__" in vars(kind):
                classes.add(kind)
        elif kind not in _SIMPLE:
            left += [getattr(each, name, None) for name in _fields(kind)]
    return classes


@lru_cache(maxsize=256)
def _alias_problem(model: Any) -> str:
    """Why a handler with this annotation could not read what is sent; empty if it can.

    Pydantic may write a field under another name than it reads. A required field would then be missing, and one with a
    default would silently have it.
    """
    seen, left = set[Any](), [model]
    for kind in left:  # which grows
        if kind in seen:
            continue
        seen.add(kind)
        if computed := _refused_by_itself(kind):
            return (
                f"{computed} of {kind.__qualname__} is computed and written, and extra='forbid' refuses it when the "
                f"model is read, so a handler could not read it; allow extra fields, or send the bytes of "
                f"model_dump_json(exclude={{{computed!r}}})"
            )
        fields = getattr(kind, "model_fields", None) or getattr(kind, "__pydantic_fields__", {})
        for name, field in fields.items():
            written = field.serialization_alias or name
            if not field.exclude and not _renames_itself(kind) and written not in _names_read(kind, name, field):
                return (
                    f"field {name} of {kind.__qualname__} is written as {written!r} and read by another name "
                    f"(validation_alias={field.validation_alias!r}), so a handler could not read it; give it one "
                    f"alias, validate it with AliasChoices, or send the bytes of model_dump_json"
                )
            left += filter(_is_model, _mentioned(field.annotation))
    return ""


def _refused_by_itself(model: Any) -> str:
    """The first computed field of a model that forbids fields which it does not have; empty if there is none."""
    config = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", None) or {}
    decorators = getattr(model, "__pydantic_decorators__", None)
    computed = {} if decorators is None else decorators.computed_fields
    return next(iter(computed), "") if config.get("extra") == "forbid" and not _renames_itself(model) else ""


def _names_read(model: Any, name: str, field: Any) -> set[str]:
    """The names under which Pydantic finds a field of a model in an object of JSON."""
    config = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", None) or {}
    alias = field.validation_alias
    if alias is None:
        return {name}
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    names = {name} if by_name else set[str]()
    if config.get("validate_by_alias") is not False:
        for each in getattr(alias, "choices", [alias]):
            path = getattr(each, "path", [each])
            names |= {path[0]} if len(path) == 1 else set()
    return names


def _renames_itself(model: Any) -> bool:
    """Whether the model has code that writes or reads it as a whole, which may use other names."""
    decorators = getattr(model, "__pydantic_decorators__", None)
    if decorators is None:
        return False
    early = any(each.info.mode != "after" for each in decorators.model_validators.values())
    return early or bool(decorators.model_serializers)


_NO_NUMBERS = frozenset({str, int, bool, bytes, type(None)})


def _non_finite(value: Any) -> float | None:
    """The first nan or infinity in a value. Both are written as null, so only a body with a null is searched."""
    left = [value]
    for each in left:  # which grows
        kind = type(each)
        if kind in _NO_NUMBERS:
            continue
        if isinstance(each, float):
            if not math.isfinite(each):
                return each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            left += each
        else:  # structs, dataclasses and models; other values have no fields
            left += [getattr(each, name, None) for name in _fields(kind)]
    return None


def _fields(kind: type) -> Iterable[str]:
    for known in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        names: Iterable[str] | None = getattr(kind, known, None)
        if names:
            return names
    return ()


# decoding

_MAKING_A_DECODER = threading.RLock()
"""Held while msgspec reads the fields of a type: two threads that have it do so at once end the process
(`wire.prepared`). Handlers decode in many threads, perhaps for the first time together. Pydantic is called without it:
it runs code of the program's types."""


def _json_decoder(wanted: Any) -> Decode:
    try:
        return _cached_decoder(wanted)
    except TypeError:  # an annotation that cannot be hashed
        return _new_decoder(wanted)


def _new_decoder(wanted: Any) -> Decode:
    if wanted is bytes:
        return _unchanged
    if wanted is Any or wanted is object:
        return _msgspec_decoder(Any)
    foreign = tuple(_foreign_types(wanted))
    if any(map(_is_model, foreign)):
        return _pydantic_decoder(wanted)
    if foreign:
        _refuse(wanted, f"JSON does not say how to make a value of type {type_name(foreign[0])}")
    return _msgspec_decoder(wanted)


_cached_decoder = lru_cache(maxsize=256)(_new_decoder)


def _unchanged(body: bytes) -> bytes:
    return body


def _msgspec_decoder(wanted: Any) -> Decode:
    try:
        with _MAKING_A_DECODER:
            decode = msgspec.json.Decoder(wanted).decode
    except (TypeError, ValueError) as error:
        _refuse(wanted, str(error))

    def explain(error: Exception) -> CodecError:
        return _undecoded(wanted, str(error), is_json=isinstance(error, msgspec.ValidationError))

    return checked_decoder(decode, (ValueError, msgspec.MsgspecError), explain)


@compiled
def checked_decoder(
    decode: Decode, errors: tuple[type[Exception], ...], explain: Callable[[Exception], CodecError]
) -> Decode:
    """`decode`, with its errors turned into those of `explain`."""

    def decoded(body: bytes) -> Any:
        try:
            return decode(body)
        except errors as error:
            raise explain(error) from error

    return decoded


def _pydantic_decoder(wanted: Any) -> Decode:
    """Pydantic decodes all of an annotation that mentions one of its models: `A | B`, `list[A]`, `A` itself."""
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(wanted)
        adapter.rebuild(raise_errors=True)  # names that are not defined yet are looked up again
        validate = adapter.validate_json
    except Exception as error:  # noqa: BLE001 - Pydantic's errors of this kind have no common base
        _refuse(wanted, f"Pydantic cannot make it: {str(error).splitlines()[0]}")

    def explain(error: Any) -> CodecError:
        problems = error.errors(include_url=False, include_context=False)
        is_json = all(each["type"] != "json_invalid" for each in problems)
        return _undecoded(wanted, "; ".join(map(_problem, problems)), is_json=is_json)

    return checked_decoder(validate, (pydantic.ValidationError,), explain)


def _undecoded(wanted: Any, why: str, *, is_json: bool) -> CodecError:
    """Bytes that are no JSON at all come from another producer; JSON of another shape from another version of one."""
    if is_json:
        return CodecError(f"the body does not fit {type_name(wanted)}: {why}")
    return CodecError(f"the body is not JSON: {why}")


def _problem(problem: dict[str, Any]) -> str:
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


def _is_model(kind: type) -> bool:
    """Whether Pydantic validates values of this class: its models and its dataclasses."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(kind, type):
        return False
    return issubclass(kind, pydantic.BaseModel) or "__is_pydantic_dataclass__" in vars(kind)


def _foreign_types(wanted: Any) -> Iterator[type]:
    """The classes in an annotation that msgspec does not know, those in fields of other classes included."""
    from msgspec import inspect  # only annotations other than `dict` and `bytes` need it

    named = tuple(_mentioned(wanted))
    if any(map(_is_model, named)):  # msgspec refuses some unions of models
        yield from named
        return
    try:
        with _MAKING_A_DECODER:
            types = [inspect.type_info(wanted)]
    except (TypeError, ValueError, NameError) as error:
        _refuse(wanted, str(error))
    seen = set[int]()
    while types:
        at = types.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, inspect.CustomType) or (isinstance(at, inspect.DataclassType) and _is_model(at.cls)):
            yield at.cls
        for name in at.__struct_fields__:
            types += _type_infos(getattr(at, name))


def _type_infos(value: Any) -> list[Any]:
    from msgspec import inspect

    if isinstance(value, inspect.Type):
        return [value]
    if isinstance(value, tuple):
        return [each.type if isinstance(each, inspect.Field) else each for each in value if _has_type(each)]
    return []


def _has_type(value: object) -> bool:
    from msgspec import inspect

    return isinstance(value, (inspect.Type, inspect.Field))


def _mentioned(wanted: Any) -> Iterator[type]:
    """The classes that an annotation names itself."""
    if isinstance(wanted, type) and not get_args(wanted):
        yield wanted
    for each in get_args(wanted):
        yield from _mentioned(each)


def _refuse(wanted: Any, why: str) -> NoReturn:
    raise InvalidOption(
        f"{type_name(wanted)} cannot be decoded from JSON: {why}; use a dataclass, a msgspec Struct, a TypedDict, a "
        f"Pydantic model, plain types such as dict, or a codec of your own"
    )


def type_name(wanted: Any) -> str:
    """The name of a type as a reader of the program would write it."""
    return wanted.__qualname__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
