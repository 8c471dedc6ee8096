"""Fetches Apache RocketMQ from Maven into a cache, and compiles the harness against it.

`python -m interop.maven` fills the cache, or says why it cannot. A cache entry is named by the digest of
its sources, so a changed pom or source makes a new entry.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

JAVA_SOURCES = Path(__file__).parent / "java"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
CLIENTS = ("4.9", "5")
SERVERS = ("5",)
"""Resolved before a run; others when they are asked for."""


class UnavailableError(Exception):
    """Apache RocketMQ is not available here; the text says why, in one line."""


def missing_tool() -> str | None:
    """The first of the needed programs that is not installed."""
    return next((tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None), None)


def server_classpath(version: str) -> str:
    return f"{_jars(f'server-{version}')}/*"


def client_classpath(version: str) -> str:
    return f"{_compiled(version)}:{_jars(f'client-{version}')}/*"


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lanemq" / "interop"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _jars(name: str) -> Path:
    return jars(JAVA_SOURCES / f"pom-{name}.xml")


def jars(pom: Path, properties: Mapping[str, str] | None = None) -> Path:
    """The folder with the jars that a file `pom-<name>.xml` needs, with these properties; fetches them if missing."""
    given = properties or {}
    name = "-".join([pom.stem.removeprefix("pom-"), *given.values()])
    return cached(name, [pom], lambda new: _resolve(pom, new, given))


def _compiled(version: str) -> Path:
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    jars = _jars(f"client-{version}")
    place = cache() / f"harness-{version}-{_digest(*sources, JAVA_SOURCES / f'pom-client-{version}.xml')}"
    return place if place.is_dir() else _filled(place, lambda new: _compile(sources, jars, new))


def cached(name: str, sources: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """The cache entry of something built from these sources; builds it if it is missing."""
    place = cache() / f"{name}-{_digest(*sources)}"
    return place if place.is_dir() else _filled(place, fill)


def _filled(place: Path, fill: Callable[[Path], None]) -> Path:
    """Builds an entry in another folder and moves it when complete: an interrupted run leaves no partial entry."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="filling-") as folder:
        new = Path(folder) / place.name
        new.mkdir()
        fill(new)
        try:
            new.rename(place)
        except OSError:
            if not place.is_dir():  # otherwise another run has filled it in the meantime
                raise
    return place


def _resolve(pom: Path, place: Path, properties: Mapping[str, str]) -> None:
    given = (f"-D{name}={value}" for name, value in properties.items())
    run_tool(
        "mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "--file", str(pom), COPY_DEPENDENCIES,
        "-DincludeScope=runtime", f"-DoutputDirectory={place}", *given,
    )  # fmt: skip


def _compile(sources: list[Path], jars: Path, place: Path) -> None:
    run_tool("javac", "-nowarn", "-Xlint:none", "-d", str(place), "-cp", f"{jars}/*", *map(str, sources))


def run_tool(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a build tool; raise `UnavailableError` with its first error if it fails."""
    try:
        environment = {**os.environ, **(env or {})}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    except FileNotFoundError:
        raise UnavailableError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        errors = [line for line in last if "ERROR" in line or "error:" in line] or last
        raise UnavailableError(f"{command[0]} failed: {errors[0][:300]}")


def main() -> int:
    """Fill the cache for everything the suite can use."""
    if (tool := missing_tool()) is not None:
        print(f"skipped: {tool} is not installed; interop needs a JDK (17 or later) and Maven")
        return 1
    try:
        for version in CLIENTS:
            client_classpath(version)
        for version in SERVERS:
            server_classpath(version)
    except UnavailableError as reason:
        print(f"skipped: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
