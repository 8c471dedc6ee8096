"""The keyword arguments of producers and consumers, checked by the annotations of their dataclass.

A field says everything about its option once: its name, the values that it allows, its default, and in its docstring
what goes wrong at either end. A name that is not an option, or a value that is not allowed, is refused before anything
starts. A history may be named by its folder; its file is opened last, so that refused options leave no file behind.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from lanemq.clock import Clock, machine_of, nanoseconds_of
from lanemq.history import NO_HISTORY, History, Role, open_history
from lanemq.model.errors import InvalidOption
from lanemq.model.units import MAX_SECONDS
from lanemq.model.wording import shown
from lanemq.wire.signing import Credentials

Interval = Annotated[float, Meta(ge=0.001, le=MAX_SECONDS, description="a number of seconds")]
"""Less than a millisecond would be rounded to nothing, and a loop would never pause."""
Wait = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="a number of seconds")]
"""0 does not wait."""


def refuse_unknown(names: Iterable[str], known: Iterable[str], whose: str) -> None:
    """Raises `InvalidOption` for names that are not options, and suggests the nearest one."""
    wrong = [name for name in names if name not in set(known)]
    if not wrong:
        return
    import difflib  # only mistakes need it

    near = difflib.get_close_matches(wrong[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    raise InvalidOption(f"{', '.join(wrong)}: no such option of a {whose}; {hint}")


def in_seconds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with every `timedelta` as a number of seconds."""
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in settings.items()}


def problems_of(options: Any) -> list[str]:
    """One sentence for each field whose value its annotation does not allow.

    Annotations that name a protocol or a function are left out: what uses such a value checks it.
    """
    problems = []
    declared: Any = type(options)
    for name, choices in _choices(declared).items():
        value = getattr(options, name)
        if not any(_allows(choice, value) for choice in choices):
            # A secret in the wrong place must not appear in an error.
            shown_value = "" if Credentials in choices else f"={shown(value)}"
            problems.append(f"{name}{shown_value} must be {' or '.join(_described(choice) for choice in choices)}")
    return problems


def opened_history(target: object, client_id: str, clock: Clock, role: Role) -> History:
    """The history itself, or the one opened in the folder that is given; `None` records nothing."""
    if target is None:
        return NO_HISTORY
    if isinstance(target, History):
        return target
    if not isinstance(target, (str, os.PathLike)):
        raise InvalidOption(f"history={shown(target)} is not a folder: give the path of one, or None")
    try:
        return open_history(Path(target), client_id, nanoseconds_of(clock), role=role, machine=machine_of(clock))
    except OSError as error:
        raise InvalidOption(f"history={str(target)!r} cannot be written to: {error}; give another folder") from None


@cache
def _choices(options: type) -> dict[str, tuple[Any, ...]]:
    """By field: the alternatives of its annotation, for fields that are checked here."""
    fields = {}
    for name, annotation in get_type_hints(options, include_extras=True).items():
        union = get_origin(annotation) in (Union, UnionType)
        choices = get_args(annotation) if union else (annotation,)
        if all(_is_checked(choice) for choice in choices):
            fields[name] = choices
    return fields


def _is_checked(choice: Any) -> bool:
    plain = isinstance(choice, type) and get_origin(choice) is None and not getattr(choice, "_is_protocol", False)
    return plain or get_origin(choice) in (Annotated, Literal)


def _allows(choice: Any, value: object) -> bool:
    if isinstance(choice, type) and choice not in (int, float):
        return isinstance(value, choice)
    try:
        msgspec.convert(value, choice)
    except msgspec.ValidationError:
        return False
    return True


def _described(choice: Any) -> str:
    """The values that one alternative allows, in an error."""
    if choice is NoneType:
        return "None"
    if get_origin(choice) is Literal:
        return " or ".join(repr(value) for value in get_args(choice))
    if get_origin(choice) is Annotated:
        kind, limits = get_args(choice)
        least = f" from {limits.ge:g}" if limits.ge is not None else ""
        most = f" to {limits.le:.0f}" if limits.le is not None else " upwards"
        return f"{limits.description or {int: 'a whole number', float: 'a number'}[kind]}{least}{most}"
    if issubclass(choice, Enum):
        return " or ".join(str(member) for member in choice)
    names: dict[type, str] = {str: "text", bool: "True or False"}
    return names.get(choice) or str(choice.__name__)
