"""Public names of a package that are imported on first use."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Collection[str]], *, install: str = "", extra_packages: Collection[str] = ()
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose public names are defined in `modules`.

    If one of `extra_packages` is missing, the error says with `install` how to install it.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"{package} has no public name {name!r}")
        try:
            value = getattr(import_module(module), name)
        except ModuleNotFoundError as missing:
            needed = (missing.name or "").partition(".")[0]
            if needed in extra_packages:
                raise ModuleNotFoundError(f"{package} needs {needed}: {install}", name=needed) from missing
            raise
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return sorted(module_of), get, names
