"""Options of the wrong kind, in words: text where a number belongs would otherwise fail in the middle of a rule."""

from collections.abc import Mapping
from typing import Any

from lanemq.net.tls import TlsOptions
from lanemq.wire.signing import Credentials

_WORDS: dict[object, str] = {
    int: "a whole number",
    int | None: "a whole number, or None",
    float: "a number of seconds",
    float | None: "a datetime, a number of seconds since 1970, or None",
    TlsOptions | None: "TlsOptions(...), or None",
    Credentials | None: "Credentials(access_key, secret_key), or None",
}

_SECRET = (Credentials | None,)
"""Of these the value itself is not told."""


def wrong_kinds(options: object, kinds: Mapping[str, Any]) -> list[str]:
    """What is said about each option that is not of its kind."""
    given = {name: getattr(options, name) for name in kinds}
    return [
        f"{name}{'' if kinds[name] in _SECRET else f'={value!r}'} must be "
        f"{_WORDS.get(kinds[name]) or _one_of(kinds[name])}"
        for name, value in given.items()
        if not _is(value, kinds[name])
    ]


def _is(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, kind | int if kind in (float, float | None) else kind)


def _one_of(choices: Any) -> str:
    return " or ".join(f"{choices.__name__}.{each}" for each in choices.__members__)
