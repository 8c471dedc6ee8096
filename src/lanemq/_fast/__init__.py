"""Compiled twins of the hot functions: same results, only faster.

A function that has a twin carries `@compiled`. It stays in its module, as the text to read and as the reference. A twin
handles the usual case. Anything else (a length that makes no sense, an unusual type) it passes to the reference, so
that both refuse the same input with the same error.

Twins are written in the `.pyx` files here and built by `hatch_build.py` if a compiler is installed. Without one, or
with `LANEMQ_PURE=1` in the environment (the twins check it and refuse to load), the references run. Either all twins
are used or none.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

PARTS = (
    "records",
    "keys",
    "hashes",
    "frames",
    "sends",
    "ids",
    "submissions",
    "loop_futures",
    "producer",
    "messages",
    "lanes",
    "columns",
)
"""Compiled modules. Each maps the qualified names of references to twins in `TWINS`."""

references: dict[str, Callable[..., Any]] = {}
"""By qualified name without `lanemq.`, such as `wire.record.seal_records`; the tests compare twins with them."""


def _load() -> tuple[dict[str, Callable[..., Any]], dict[str, dict[str, Callable[..., Any]]]]:
    found: dict[str, Callable[..., Any]] = {}
    fallbacks: dict[str, dict[str, Callable[..., Any]]] = {}
    try:
        parts = [import_module(f"lanemq._fast.{part}") for part in PARTS]
    except ImportError:
        return {}, {}
    for part in parts:
        for name, twin in part.TWINS.items():
            if name in found:
                raise RuntimeError(f"{name} has two compiled twins: keep one, then run python hatch_build.py")
            found[name], fallbacks[name] = twin, part.references
    return found, fallbacks


twins, _fallbacks = _load()
VARIANT = "compiled" if twins else "pure"
"""Which of the two runs in this process."""


def compiled(reference: F) -> F:
    """The twin of this function or class, or the reference itself if nothing is compiled.

    Raises `RuntimeError` if other twins are compiled and this one is missing: a function that was moved or renamed
    would otherwise silently lose its speed.
    """
    name = f"{reference.__module__.removeprefix('lanemq.')}.{reference.__qualname__}"
    if twins and name not in twins:
        raise RuntimeError(
            f"{name} has no compiled twin: correct its name in TWINS of a module in lanemq/_fast and run "
            f"python hatch_build.py, or set LANEMQ_PURE=1 to run without compiled modules"
        )
    references[name] = reference
    if not twins:
        return reference
    twin = twins[name]
    _fallbacks[name][twin.__name__] = reference
    return cast(F, twin)
