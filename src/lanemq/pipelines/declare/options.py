"""Names and kinds of options that a declaration gives, checked against what the part takes.

The rule guarded here: a wrong name is answered with the nearest right one, and a value of the wrong kind with the kind
that is wanted; Python's own `TypeError` says neither where nor what instead.
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

_WANTED: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Sequence[str]: "a list of texts",
}
_UNEXPECTED: Final = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
_MISSING: Final = re.compile(r"(\w+)(?:\.__init__)?\(\) missing \d+ required [\w-]+ arguments?: (.+)")
_QUOTED: Final = re.compile(r"'(\w+)'")
_TESTS_ONLY: Final = "clock"


def made(before: str, make: Callable[..., Any], options: object) -> Any:
    """Calls a class with options, once their names and kinds are known to fit; `before` leads to them in the file."""
    if not isinstance(options, dict):
        raise InvalidOption(f"{before.rstrip('.')}: a table is wanted, not {options!r}")
    wanted = _parameters(make)
    refuse_unknown(before, options, tuple(wanted))
    for each in wanted.values():
        if each.default is each.empty and each.name not in options:
            raise InvalidOption(f"{before}{each.name}: missing")
    hints = get_type_hints(make.__init__) if inspect.isclass(make) else {}
    for name, value in options.items():
        _refuse_kind(f"{before}{name}", value, hints.get(name))
    return make(**options)


def refuse_unknown(before: str, options: Iterable[str], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            raise InvalidOption(f"{before}{name}: there is no such option; {near(name, known)}")


def near(name: str, known: Sequence[str]) -> str:
    """What the author of a name that does not exist may have meant."""
    found = get_close_matches(name, known, 1)
    if found:
        return f"did you mean {found[0]}?"
    return f"there are {', '.join(known)}" if known else "there are none at all"


def public(name: str) -> Any:
    """A public part of a pipeline, by name."""
    return getattr(import_module("lanemq.pipelines"), name)


def retold(error: TypeError) -> InvalidOption | None:
    """A call of one of our parts that did not fit, in our words; None if the call was somebody else's."""
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
    return {name: each for name, each in found.items() if name != _TESTS_ONLY}


def _refuse_kind(where: str, value: object, hint: Any) -> None:
    """Only for kinds that a file can hold; whatever else a part takes, it checks itself."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if any(kind not in _WANTED and kind is not NoneType for kind in kinds):
        return
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        wanted = " or ".join(_WANTED[kind] for kind in kinds if kind is not NoneType)
        raise InvalidOption(f"{where}: {value!r} does not fit, {wanted} is wanted") from None
