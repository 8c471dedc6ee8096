"""Checks names and types of declared options against the parameters of the class they are for.

The error for a wrong name suggests the nearest right one, and the error for a wrong type names the right type. Python's
own `TypeError` has neither.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from lanemq.model.errors import InvalidOption
from lanemq.model.units import TimeSpan, parse_duration

_WANTED: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Sequence[str]: "a list of texts",
}
_UNEXPECTED: Final = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
_MISSING: Final = re.compile(r"(\w+)(?:\.__init__)?\(\) missing \d+ required [\w-]+ arguments?: (.+)")
_QUOTED: Final = re.compile(r"'(\w+)'")
_INTERNAL: Final = "clock"
"""A parameter that is not an option."""


def build(before: str, make: Callable[..., Any], options: object) -> Any:
    """Call a class with options after checking their names and types. `before`: their path in the file, for errors."""
    if not isinstance(options, dict):
        raise InvalidOption(f"{before.rstrip('.')}: {options!r} is not a table; write one")
    wanted = _parameters(make)
    refuse_unknown(before, options, tuple(wanted))
    for each in wanted.values():
        if each.default is each.empty and each.name not in options:
            raise InvalidOption(f"{before}{each.name}: missing")
    hints = get_type_hints(make.__init__) if inspect.isclass(make) else {}
    return make(**{name: _checked(f"{before}{name}", value, hints.get(name)) for name, value in options.items()})


def refuse_unknown(before: str, options: Iterable[str], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            raise InvalidOption(f"{before}{name}: there is no such option; {near(name, known)}")


def near(name: str, known: Sequence[str]) -> str:
    """A hint about what an unknown name may have meant."""
    found = get_close_matches(name, known, 1)
    if found:
        return f"did you mean {found[0]}?"
    return f"there are {', '.join(known)}" if known else "there are none"


def public(name: str) -> Any:
    """A public name of `lanemq.pipelines`."""
    return getattr(import_module("lanemq.pipelines"), name)


def option_error(error: TypeError) -> InvalidOption | None:
    """The error as an `InvalidOption`, if it comes from a call of one of our classes; else None."""
    text = str(error)
    if found := _UNEXPECTED.search(text):
        known = _options_of(found[1])
        if known is not None:
            return InvalidOption(f"{found[1]}({found[2]}=...): there is no such option; {near(found[2], known)}")
    elif (found := _MISSING.search(text)) and _options_of(found[1]) is not None:
        return InvalidOption(f"{found[1]}({', '.join(_QUOTED.findall(found[2]))}): missing")
    return None


def _options_of(part: str) -> tuple[str, ...] | None:
    if part not in import_module("lanemq.pipelines").__all__:
        return None
    return tuple(_parameters(public(part)))


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    found = inspect.signature(make).parameters
    return {name: each for name, each in found.items() if name != _INTERNAL}


def _checked(where: str, value: object, hint: Any) -> object:
    """Check types that a TOML file can hold; the classes check all others themselves. Durations may be texts."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if TimeSpan in kinds:
        kinds = tuple(kind for kind in kinds if kind is not TimeSpan)
        if isinstance(value, str) and str not in kinds:
            return _duration(where, value)
    if any(kind not in _WANTED and kind is not NoneType for kind in kinds):
        return value
    try:
        msgspec.convert(value, Union[kinds])  # noqa: UP007 - the kinds are not known here
    except msgspec.ValidationError:
        wanted = " or ".join(_WANTED[kind] for kind in kinds if kind is not NoneType)
        raise InvalidOption(f"{where}: {value!r} is not {wanted}") from None
    return value


def _duration(where: str, text: str) -> float:
    try:
        return parse_duration(text)
    except InvalidOption as error:
        raise InvalidOption(f"{where}: {error}") from None
