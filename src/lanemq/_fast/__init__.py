"""The compiled twins of the hot functions, where they were built: nobody can tell them apart except by their speed.

A function that has a twin carries `@compiled` and stays where it belongs, as the text to read and as the reference.
Twins know the straight path only. Whatever they do not like (a length that makes no sense, a type that is not the
usual one) they hand to the reference, so that both refuse the same input in the same words.

They come from the `.pyx` files beside this one, built by `hatch_build.py` when a compiler is there. Without one, or
with `LANEMQ_PURE=1` in the environment (the twins look themselves and refuse to load), the references run. All of
them or none: half of a build is no build.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

PARTS = ("records", "keys", "hashes", "frames", "sends", "submissions", "producer", "messages", "lanes", "columns")
"""Compiled modules, each with the twins it names in `TWINS`."""

references: dict[str, Callable[..., Any]] = {}
"""By name: what the twins fall back to, and what the tests hold them against."""


def _load() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    try:
        for part in PARTS:
            found.update(import_module(f"lanemq._fast.{part}").TWINS)
    except ImportError:
        return {}
    return found


twins = _load()
VARIANT = "compiled" if twins else "pure"
"""Which of the two runs in this process."""


def compiled(reference: F) -> F:
    """The twin of this function if there is one, else the function itself."""
    name = reference.__name__
    references[name] = reference
    return cast(F, twins.get(name, reference))
