"""Checks shared by the keyword arguments of producers and consumers.

A name that is not an option, or a value of another type, is refused before anything starts. A history may be named by
its folder; its file is opened last, so that refused options leave no file behind.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from lanemq.clock import Clock, machine_of, nanoseconds_of
from lanemq.history import NO_HISTORY, History, Role, open_history
from lanemq.model.errors import InvalidOption
from lanemq.model.units import MAX_SECONDS
from lanemq.model.wording import shown
from lanemq.net.security import TlsOptions
from lanemq.wire.signing import Credentials

_DESCRIPTIONS: dict[object, str] = {
    int: "a whole number",
    int | None: "a whole number, or None",
    float: f"a number of seconds, at most {MAX_SECONDS:.0f}",
    float | None: "a datetime, a number of seconds since 1970, or None",
    TlsOptions | None: "TlsOptions(...), or None",
    Credentials | None: "Credentials(access_key, secret_key), or None",
}

_SECRET = (Credentials | None,)
"""Kinds whose value must not appear in an error."""


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    """Raises `InvalidOption` for names that are not options, and suggests the nearest one."""
    wrong = [name for name in given if name not in set(known)]
    if not wrong:
        return
    import difflib  # only mistakes need it

    near = difflib.get_close_matches(wrong[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    raise InvalidOption(f"{', '.join(wrong)}: no such option of a {whose}; {hint}")


def in_seconds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with every `timedelta` as a number of seconds."""
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in settings.items()}


def wrong_kinds(options: object, kinds: Mapping[str, Any]) -> list[str]:
    """One sentence for each option whose value is not of its kind."""
    given = {name: getattr(options, name) for name in kinds}
    return [
        f"{name}{'' if kinds[name] in _SECRET else f'={shown(value)}'} must be "
        f"{_DESCRIPTIONS.get(kinds[name]) or _one_of(kinds[name])}"
        for name, value in given.items()
        if not _is(value, kinds[name])
    ]


def opened_history(given: object, client_id: str, clock: Clock, role: Role) -> History:
    """The history itself, or the one opened in the folder that is given; `None` records nothing."""
    if given is None:
        return NO_HISTORY
    if isinstance(given, History):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidOption(f"history={shown(given)} is not a folder: give the path of one, or None")
    try:
        return open_history(Path(given), client_id, nanoseconds_of(clock), role=role, machine=machine_of(clock))
    except OSError as error:
        raise InvalidOption(f"history={str(given)!r} cannot be written to: {error}; give another folder") from None


def _is(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return False
    if kind in (float, float | None):
        return isinstance(value, kind | int) and (value is None or abs(value) <= MAX_SECONDS)
    return isinstance(value, kind)


def _one_of(choices: Any) -> str:
    if isinstance(choices, UnionType):
        return " or ".join("None" if each is NoneType else each.__name__ for each in get_args(choices))
    return " or ".join(f"{choices.__name__}.{each}" for each in choices.__members__)
