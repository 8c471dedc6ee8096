"""Compares a twin with its reference. Both are found by the name of the function, which is unique here."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
from hypothesis import strategies as st

from lanemq import _fast


class ByFunction:
    """A registry of `lanemq._fast`, by the last part of its names."""

    def __init__(self, registry: Mapping[str, Callable[..., Any]]) -> None:
        self._registry = registry

    def __getitem__(self, function: str) -> Callable[..., Any]:
        (found,) = [each for name, each in self._registry.items() if name.rpartition(".")[2] == function]
        return found

    def __bool__(self) -> bool:
        return bool(self._registry)


twins, references = ByFunction(_fast.twins), ByFunction(_fast.references)

for module in {name.rpartition(".")[0] for name in _fast.twins if not name.startswith("spark.")}:
    import_module(f"lanemq.{module}")

needs_twins = pytest.mark.skipif(not twins, reason="nothing is compiled here, or LANEMQ_PURE is set")


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returns, or the type and text of its error."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - both must raise the same error, whatever it is
        return type(error), str(error)


def same(name: str, *arguments: Any) -> Any:
    """What both return. Each gets a copy of the arguments."""
    compiled, reference = outcome(twins[name], *deepcopy(arguments)), outcome(references[name], *deepcopy(arguments))
    assert compiled == reference
    assert type(compiled) is type(reference)
    return reference


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Valid bytes that were cut, lengthened, or changed in some places."""
    changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)
    return st.builds(_damage, whole, changes, st.integers(-9, 9))


def _damage(whole: bytes, changes: list[tuple[int, int]], longer: int) -> bytes:
    data = bytearray(whole)
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    return bytes(data[:longer] if longer < 0 else data + bytes(longer))
