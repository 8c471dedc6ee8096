"""Python code that a declaration refers to, and how it gets to the executors.

The rule guarded here: code that lies beside the file travels inside the job, so that only lanemq and third-party
packages must be installed on executors.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark import cloudpickle

from lanemq.model.errors import InvalidOption

_REFERENCE: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def referred(text: str, option: str) -> Any:
    """`module:function`, for what a TOML file cannot hold."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidOption(f"{option}: {text!r} should look like module:function, with module.py beside the file")
    try:
        return getattr(import_module(found["module"]), found["name"])
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{option}: module {error.name!r} is neither beside the file nor installed") from error
    except AttributeError as error:
        raise InvalidOption(f"{option}: module {found['module']!r} has no {found['name']!r}") from error


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Modules of this folder can be imported, now and later, and are sent along with the functions in them."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    yield
    for module in list(sys.modules.values()):
        if _lies_in(module, folder.resolve()):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether it is a file of this folder itself; what is installed somewhere below it is no part of it."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__ == "__main__":
        return False
    path = Path(file).resolve()
    return path.parent == folder and module.__name__.partition(".")[0] != "lanemq"
