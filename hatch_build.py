"""Builds the compiled twins in `src/lanemq/_fast` if possible, and says in one line if not.

Runs with every wheel and every editable install (the files then lie beside their sources, ignored by git), or by hand:

    python hatch_build.py

Invariant: an install never fails because a compiler, Python's headers or Cython are missing. Without them the same
functions run, only slower. `LANEMQ_BUILD=pure` builds a wheel without them, `LANEMQ_BUILD=compiled` one with them or
none at all; `make dist` uses both.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, where hatchling is not installed
    BuildHookInterface = object

HERE = Path(__file__).resolve().parent
FOLDER = "src/lanemq/_fast"
SECONDS = 300
"""The time limit of one compiler run."""


class CompiledTwins(BuildHookInterface):  # type: ignore[misc]
    """The hook that hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("LANEMQ_BUILD", "")
        built = [] if wanted == "pure" else build(Path(self.root))
        if wanted == "compiled" and not built:
            sys.exit("lanemq: no compiled wheel: install a C compiler, Python's headers and Cython")
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"] += [f"/{FOLDER}/{path.name}" for path in built]


def build(root: Path) -> list[Path]:
    """Builds all modules or none; returns those that were built."""
    built: list[Path] = []
    sources = sorted((root / FOLDER).glob("*.pyx"))
    with tempfile.TemporaryDirectory(prefix="lanemq-build-") as scratch:
        try:
            made = _compile_all(sources, Path(scratch))
        except (OSError, subprocess.SubprocessError) as error:
            _say(f"pure Python, nothing compiled: {_reason(error)}")
            for source in sources:  # left by an earlier build of other sources
                (source.parent / _module_name(source)).unlink(missing_ok=True)
            return built
        for source, module in zip(sources, made, strict=True):
            target = source.with_name(module.name)
            ready = target.with_suffix(".new")
            ready.write_bytes(module.read_bytes())
            os.replace(ready, target)  # noqa: PTH105 - a running process keeps the file that it has open
            built.append(target)
    _say(f"compiled {', '.join(source.stem for source in sources)}")
    return built


def source_mark(folder: Path, name: str) -> str:
    """A hash of the sources of a module, by which a stale build is recognised."""
    parts = [folder / f"{name}.pyx", folder / "bytes.h", *sorted(folder.glob("*.px[di]"))]
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]


def _compile_all(sources: list[Path], scratch: Path) -> list[Path]:
    """Compiles several at a time, and says which: `pip install -v` shows it."""

    def compiled(number: int, source: Path) -> Path:
        _say(f"compiling {source.stem} ({number} of {len(sources)})")
        return _compile(source, scratch)

    sysconfig.get_config_vars()  # two threads must not be the first: the second would get a part of them
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return [*workers.map(compiled, range(1, len(sources) + 1), sources)]


def _compile(source: Path, scratch: Path) -> Path:
    """Translates a source to C, and compiles that to a module."""
    text, module = scratch / f"{source.stem}.c", scratch / _module_name(source)
    _run([sys.executable, "-m", "cython", "-3", "-I", str(source.parent.parent), "-o", str(text), str(source)])
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    include = sysconfig.get_paths()["include"], str(source.parent)
    mark = source_mark(source.parent, source.stem)
    flags = ["-O3", "-fPIC", "-DNDEBUG", "-fno-strict-aliasing", f'-DLANEMQ_SOURCES="{mark}"', "-w"]
    _run([*linker, *flags, *(f"-I{folder}" for folder in include), str(text), "-o", str(module)])
    return module


def _module_name(source: Path) -> str:
    return f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)


def _reason(error: Exception) -> str:
    """The last line of the error."""
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return lines[-1] if lines else repr(error)


def _say(text: str) -> None:
    print(f"lanemq: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(0 if build(HERE) else 1)
