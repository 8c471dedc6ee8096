"""`lanemq spark pack`: one archive with LaneMQ, its compiled module and its dependencies, for `spark.archives`.

Spark unpacks the archive in the working folder of every executor, so executors need a Python and nothing else: no pip,
no compiler, no shared folder. PySpark is not in the archive, because every executor has Spark's own.

Invariant: the archive has what is installed here, so executors run the versions that the driver runs. A distribution
that is needed and not installed is an error; nothing is left out silently.
"""

import re
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import msgspec

from lanemq.model.environment import install_extra
from lanemq.model.errors import InvalidOption, UsageError

FOLDER: Final = "lanemq-pack"
"""The folder that executors unpack the archive into. Not a module name, so Python never imports the folder itself."""
CONTENTS: Final = "lanemq-pack.json"
EXTRAS: Final = ("spark", "objects", "hdfs", "postgres")
"""The extras of LaneMQ that executors may need; all but the first only if they are installed."""
HAS_SPARK: Final = frozenset({"pyspark", "py4j"})
"""Distributions that come with Spark itself."""

_REQUIREMENT: Final = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^]]*)\])?[^;]*(?:;(?P<marker>.*))?"
)
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_UNWANTED: Final = frozenset({".pyc", ".pyx", ".pxd", ".pxi", ".c"})
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file, so that the same files give the same archive."""

Find = Callable[[str], Distribution]


class Contents(msgspec.Struct, frozen=True):
    """What an archive has, in its file `lanemq-pack.json`."""

    python: str
    """The Python that its compiled modules are for, such as `cpython-311-x86_64-linux-gnu`."""
    distributions: dict[str, str]
    """Versions by name."""
    own: list[str] = []
    """The modules of the user."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive that was written."""

    path: Path
    contents: Contents
    size: int

    @property
    def settings(self) -> dict[str, str]:
        """The settings of Spark with which executors use the archive."""
        return {"spark.archives": f"{self.path.absolute()}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def python_tag() -> str:
    """The Python that compiled modules of this process are for."""
    return str(sysconfig.get_config_var("SOABI") or f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}")


def normal(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(found: Distribution, extras: Sequence[str] = ()) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """The distributions that one requires directly, whether each is required in every environment, and its extras.

    A requirement with a condition, such as a version of Python, counts if it is installed.
    """
    for text in found.requires or ():
        parsed = _REQUIREMENT.fullmatch(text)
        if parsed is None:
            continue
        marker = parsed["marker"] or ""
        wanted = _EXTRA.findall(marker)
        if not wanted or set(wanted) & set(extras):
            own = tuple(name.strip() for name in (parsed["extras"] or "").split(",") if name.strip())
            yield normal(parsed["name"]), not _EXTRA.sub("", marker).strip(), own


def closure(leave_out: Iterable[str] = (), find: Find = distribution) -> dict[str, Distribution]:
    """LaneMQ's dependencies, and theirs, by name; without those of Spark and those in `leave_out`."""
    excluded = HAS_SPARK | {normal(name) for name in leave_out}
    own = find("lanemq")
    optional = {name for extra in EXTRAS[1:] for name, _, _ in requirements(own, (extra,))} - {
        name for name, _, _ in requirements(own, EXTRAS[:1])
    }
    waiting = [(name, needed and name not in optional, more) for name, needed, more in requirements(own, EXTRAS)]
    found: dict[str, Distribution] = {}
    while waiting:
        name, needed, extras = waiting.pop()
        if name in excluded or name in found:
            continue
        try:
            found[name] = find(name)
        except PackageNotFoundError:
            if needed:
                raise UsageError(f"{name} is not installed, and executors need it: {install_extra('spark')}") from None
            continue
        waiting += requirements(found[name], extras)
    unknown = excluded - HAS_SPARK - {normal(name) for name in leave_out if _is_installed(name, find)}
    if unknown:
        raise InvalidOption(f"leave_out: {', '.join(sorted(unknown))} is not installed, so it would not be packed")
    return dict(sorted(found.items()))


def _is_installed(name: str, find: Find) -> bool:
    try:
        find(name)
    except PackageNotFoundError:
        return False
    return True


def installed_files(found: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution that Python imports or reads, with their names in the archive."""
    for file in found.files or ():
        place = Path(str(found.locate_file(file)))
        if ".." not in file.parts and place.suffix not in _UNWANTED and place.is_file():
            yield file.as_posix(), place


def module_files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a module or package, with their names in the archive."""
    if path.is_file():
        yield path.name, path
        return
    for place in sorted(path.rglob("*")):
        if place.is_file() and place.suffix not in _UNWANTED and "__pycache__" not in place.parts:
            yield place.relative_to(path.parent).as_posix(), place


def pack(output: Path, own: Sequence[Path] = (), leave_out: Sequence[str] = ()) -> Packed:
    """Write the archive.

    Args:
        output: The file, `.zip`.
        own: Modules or packages of the user that executors import, such as the one with the step of `Transitions`.
        leave_out: Distributions that executors have already, in the same version.
    """
    if output.suffix != ".zip":
        raise InvalidOption(f"output: {output} does not end with .zip, by which Spark knows how to unpack it")
    for path in own:
        if not path.exists() or (path.is_file() and path.suffix != ".py"):
            raise InvalidOption(f"add: {path} is not a Python file and not a folder: name a module or a package")
    package = Path(__file__).parent.parent
    found = closure(leave_out)
    files = dict(module_files(package))
    for each in found.values():
        files |= dict(installed_files(each))
    for path in own:
        files |= dict(module_files(path))
    versions = {name: each.version for name, each in found.items()}
    contents = Contents(
        python_tag(), {"lanemq": distribution("lanemq").version, **versions}, [path.name for path in own]
    )
    _write(output, files, contents)
    return Packed(output, contents, output.stat().st_size)


def _write(output: Path, files: dict[str, Path], contents: Contents) -> None:
    """Write to a file beside it first: half an archive never has the name of a whole one."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            _add(archive, CONTENTS, msgspec.json.format(msgspec.json.encode(contents)))
            for name, place in sorted(files.items()):
                _add(archive, name, place.read_bytes())
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
