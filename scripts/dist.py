"""`make dist`: builds the source archive and both wheels into `dist/`, and tries each wheel as a user would install it.

Both wheels are built from the unpacked archive, so a file that the archive lacks is missed here and not by a user. A
trial installs the wheel into a new virtual environment, whose PATH has neither a compiler nor LaneMQ's sources, and
runs `scripts/smoke.py` there twice: without extras, and with the extra `console`.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def main() -> None:
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("lanemq-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="lanemq-dist-") as scratch:
        archive = build_archive(DIST)
        sources = unpack(archive, Path(scratch) / "sources")
        wheels = [build_wheel(sources, DIST, kind) for kind in ("compiled", "pure")]
        for wheel in wheels:
            say(f"trying {wheel.name} in a clean environment")
            try_wheel(wheel, Path(scratch) / wheel.stem)
    for made in (archive, *wheels):
        say(f"dist/{made.name}  {made.stat().st_size / 1e6:.1f} MB")


def build_archive(target: Path) -> Path:
    say("building the source archive")
    run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(target), str(ROOT)])
    return next(target.glob("lanemq-*.tar.gz"))


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return next(target.iterdir())


def build_wheel(sources: Path, target: Path, kind: str) -> Path:
    """`kind` is `compiled` or `pure`."""
    say(f"building the {kind} wheel")
    before = {*target.glob("*.whl")}
    words = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(target), str(sources)]
    run(words, {**os.environ, "LANEMQ_BUILD": kind})
    for left in (sources / "src" / "lanemq" / "_fast").glob("*.so"):
        left.unlink()
    return next(iter({*target.glob("*.whl")} - before))


def try_wheel(wheel: Path, place: Path) -> None:
    """Installs the wheel into a new environment at `place` and uses it from an empty folder."""
    venv.create(place, with_pip=True)
    empty = place / "empty"
    empty.mkdir()
    shutil.copy(ROOT / "scripts" / "smoke.py", place / "smoke.py")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt")]
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
