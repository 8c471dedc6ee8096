"""Clients in other languages: small programs of ours over published packages, built once into the cache.

`python -m interop.programs` builds all of them, prints a line for each that cannot be built here, and then the names of
the others. A cache entry is named by the digest of its sources.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.maven import UnavailableError, cached, client_classpath, run_tool

HERE = Path(__file__).parent
LINE_SECONDS = 90.0
"""How long a program may take for its next line; RocketMQ's clients need up to 25 s to start."""
CPP_PACKAGE = "rocketmq==0.4.4"

Command = list[str]


@dataclass(frozen=True, slots=True)
class Program:
    """A client under test."""

    package: str
    """For the report."""
    language: str
    """As the client names it in its requests."""
    orderly: bool
    """Whether it has an ordered listener. The others handle a queue one message at a time, without a lock."""
    build: Callable[[], Command]
    """Builds the program if the cache does not have it; returns how to start it."""
    at_once: int = 12
    """Cases that run at the same time. A JVM that starts beside eleven others is late for its own time-outs of 3 s."""


def _go() -> Command:
    def build(place: Path) -> None:
        _copy("go", place)
        run_tool("go", "build", "-o", "client", ".", cwd=place, env={"GOFLAGS": "-mod=readonly"})

    return [str(_built("go", build) / "client")]


def _node() -> Command:
    def build(place: Path) -> None:
        _copy("node", place)
        run_tool("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent", cwd=place)

    return ["node", str(_built("node", build) / "client.js")]


def _rust() -> Command:
    def build(place: Path) -> None:
        _copy("rust", place)
        run_tool("cargo", "build", "--quiet", cwd=place)
        shutil.copy(place / "target/debug/client", place / "client")
        shutil.rmtree(place / "target")

    return [str(_built("rust", build) / "client")]


def _cpp() -> Command:
    def build(place: Path) -> None:
        _copy("cpp", place)
        options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(place))
        run_tool(sys.executable, "-m", "pip", "install", *options, CPP_PACKAGE)

    return [sys.executable, str(_built("cpp", build) / "client.py")]


def _java(version: str) -> Command:
    return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", client_classpath(version), "Job"]


PROGRAMS = {
    "java": Program("rocketmq-client 5.3.3 (Maven)", "JAVA", True, lambda: _java("5"), at_once=3),
    "go": Program("rocketmq-client-go/v2 2.1.2 (Go proxy)", "GO", True, _go),
    "cpp": Program("librocketmq 1.2 in rocketmq 0.4.4 (PyPI)", "CPP", True, _cpp),
    "node": Program("ali-ons 3.12.0 (npm)", "JAVA", False, _node),
    "rust": Program("rocketmq-client-v4 0.4.2 (crates.io)", "RUST", False, _rust),
}


class Unsupported(Exception):
    """The client has no such feature."""


class Run:
    """A program at work; a thread collects its lines."""

    def __init__(self, command: Sequence[str], address: str, job: dict[str, Any], log: Path) -> None:
        self.name = f"{job['do']} of {Path(command[0]).name}"
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._log = log.open("ab")
        # Libraries write their own logs into the home folder.
        env = {**os.environ, "HOME": str(log.parent)}
        self._child = subprocess.Popen(
            [*command, address, json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=log.parent, env=env,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, until: Callable[[list[dict[str, Any]]], bool], what: str, within: float = LINE_SECONDS) -> None:
        """Wait until the lines so far satisfy the condition."""
        deadline = time.monotonic() + within
        with self._changed:
            while not until(self.lines):
                if any("unsupported" in line for line in self.lines):
                    raise Unsupported(f"the client does not support: {self.lines[-1]['unsupported']}")
                left = deadline - time.monotonic()
                if left <= 0 or (self._child.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(
                        f"{self.name}: not {what}; it printed {self.lines[-40:]}; see {self._log.name}"
                    )
                self._changed.wait(min(left, 0.5))

    def bodies(self) -> list[str]:
        """The bodies of the messages received so far, in the order of arrival."""
        with self._changed:
            return [line["got"]["body"] for line in self.lines if "got" in line]

    def received(self) -> list[dict[str, Any]]:
        with self._changed:
            return [line["got"] for line in self.lines if "got" in line]

    def finished(self) -> list[dict[str, Any]]:
        """Wait until the program has ended by itself; its lines."""
        self.wait(lambda _: self._child.poll() is not None and not self._reader.is_alive(), "finished")
        if any("unsupported" in line for line in self.lines):
            raise Unsupported(f"the client does not support: {self.lines[-1]['unsupported']}")
        if self._child.returncode != 0:
            raise AssertionError(f"{self.name} failed: see {self._log.name}")
        return self.lines

    def stop(self) -> None:
        """End a consumer cleanly: it commits and leaves its group."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join()
        self._log.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for line in output:
                if not line.startswith(b"{"):
                    continue  # a library's own output
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()
        self._child.wait()
        with self._changed:
            self._changed.notify_all()


def _copy(language: str, place: Path) -> None:
    for file in _sources(language):
        shutil.copy(file, place / file.name)


def _sources(language: str) -> list[Path]:
    return sorted(file for file in (HERE / language).iterdir() if file.is_file())


def _built(language: str, build: Callable[[Path], None]) -> Path:
    return cached(f"program-{language}", _sources(language), build)


def main() -> None:
    ready = []
    for name, program in PROGRAMS.items():
        try:
            program.build()
            ready.append(name)
        except UnavailableError as reason:
            print(f"skipped: {name} ({program.package}): {reason}", file=sys.stderr)
    print(" ".join(ready))


if __name__ == "__main__":
    main()
