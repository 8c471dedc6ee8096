"""Pipelines from files: `FILE.py` with `Pipeline` objects in it, or `FILE.toml` (see `toml`).

Errors begin with the file's name and come before Spark starts. Code beside the file is sent to the executors with the
job, so they need only lanemq and third-party packages.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from lanemq.model.errors import InvalidOption, LaneError, UsageError
from lanemq.pipelines.declare.options import option_error
from lanemq.pipelines.declare.toml import ChangeSource, read_toml
from lanemq.pipelines.pipeline import Pipeline


def load(path: Path, name: str | None = None, change_source: ChangeSource = dict) -> Pipeline:
    """The pipeline that a file declares; `name` chooses one of several. `change_source`: see `load_all`."""
    found = load_all(path, change_source)
    if name is not None:
        if name not in found:
            raise UsageError(f"{path}: there is no pipeline {name!r}, only {', '.join(sorted(found))}")
        return found[name]
    if len(found) > 1:
        raise UsageError(f"{path} declares {', '.join(sorted(found))}: choose one with --name")
    return next(iter(found.values()))


def load_all(path: Path, change_source: ChangeSource = dict) -> Mapping[str, Pipeline]:
    """Every pipeline of a file, by name.

    `change_source` may replace the source's options of a TOML file before they are checked, such as the path of a
    certificate that lies elsewhere on this machine. Python files make their sources themselves.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; give a .toml or .py file that declares a pipeline")
    with _errors_name(path), _modules_beside(path.parent):
        if path.suffix == ".toml":
            declared = read_toml(path, change_source)
            return {declared.name: declared}
        if path.suffix == ".py":
            return _of_module(path)
    raise UsageError(f"{path}: pipelines are declared in .toml or .py files")


def _of_module(path: Path) -> Mapping[str, Pipeline]:
    module = _imported(path)
    found: dict[str, Pipeline] = {}
    for value in vars(module).values():
        if isinstance(value, Pipeline) and found.setdefault(value.name, value) is not value:
            raise UsageError(f"two pipelines are called {value.name!r}: give one another name")
    if not found:
        raise UsageError("no pipeline is declared: write pipeline = Pipeline(...) at the top level")
    return found


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError("it cannot be imported as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except LaneError:
        raise
    except TypeError as error:
        ours = option_error(error)
        if ours is None:
            raise UsageError(f"{_line_in(path, error)}TypeError: {error}") from error
        raise InvalidOption(f"{_line_in(path, error)}{ours}") from error
    except Exception as error:
        raise UsageError(f"{_line_in(path, error)}{type(error).__name__}: {error}") from error
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """The last line of the file in the traceback of an error."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f"line {trace.tb_lineno}: "
        trace = trace.tb_next
    return line


@contextlib.contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Let errors begin with the name of the file."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        kind = InvalidOption if isinstance(error, InvalidOption) else UsageError
        raise kind(text if text.startswith(str(path)) else f"{path}: {text}") from error


@contextlib.contextmanager
def _modules_beside(folder: Path) -> Iterator[None]:
    """Let modules of this folder be imported, now and later, and be pickled with the functions in them."""
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)
    yield
    for module in list(sys.modules.values()):
        if _lies_in(module, folder.resolve()):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether the module is a file directly in this folder; packages installed below it do not count."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__ == "__main__":
        return False
    path = Path(file).resolve()
    return path.parent == folder and module.__name__.partition(".")[0] != "lanemq"
