"""The official gRPC clients as programs, one for each language, and a front for them to use."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from interop.maven import JAVA_SOURCES, UnavailableError, cache, cached, jars, run_tool
from interop.ports import eventually, lasting_port, listens

HERE = Path(__file__).parent
PYTHON_PACKAGE = "rocketmq-python-client==5.1.2"
START_SECONDS, LINE_SECONDS = 60.0, 60.0


def _python() -> list[str]:
    """The client's environment: its package has the name of another client that this one may have installed."""

    def build(place: Path) -> None:
        run_tool(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), PYTHON_PACKAGE)

    pom = HERE / "client.py"
    folder = cached("grpc-python", [pom], build)
    return ["env", f"PYTHONPATH={folder}", sys.executable, str(pom)]


def _java() -> list[str]:
    source = HERE / "java" / "GrpcClient.java"
    libraries = jars(JAVA_SOURCES / "pom-grpc-5.xml")

    def build(place: Path) -> None:
        run_tool("javac", "-nowarn", "-d", str(place), "-cp", f"{libraries}/*", str(source))

    classes = cached("grpc-java", [source, JAVA_SOURCES / "pom-grpc-5.xml"], build)
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
    return ["java", *options, "-cp", f"{classes}:{libraries}/*", "GrpcClient"]


def _node() -> list[str]:
    sources = [HERE / "node" / name for name in ("client.js", "package.json")]

    def build(place: Path) -> None:
        for source in sources:
            shutil.copy(source, place)
        run_tool("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent", cwd=place)

    return ["node", str(cached("grpc-node", sources, build) / "client.js")]


def _go() -> list[str]:
    sources = [HERE / "go" / name for name in ("main.go", "go.mod", "go.sum")]

    def build(place: Path) -> None:
        for source in sources:
            shutil.copy(source, place)
        run_tool("go", "build", "-o", "client", ".", cwd=place, env={"GOFLAGS": "-mod=readonly"})

    return [str(cached("grpc-go", sources, build) / "client")]


def _rust() -> list[str]:
    sources = [HERE / "rust" / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    if shutil.which("protoc") is None:
        raise UnavailableError("protoc is not installed: the package of the Rust client needs it to be built")

    def build(place: Path) -> None:
        run_tool(
            "cargo", "build", "--quiet", "--locked", cwd=HERE / "rust", env={"CARGO_TARGET_DIR": str(rust_target())}
        )
        shutil.copy(rust_target() / "debug" / "client", place)

    return [str(cached("grpc-rust", sources, build) / "client")]


def rust_target() -> Path:
    """Where Rust's packages are compiled, which takes minutes. Other programs with the same packages use it, too."""
    return cache() / "grpc-rust-target"


CLIENTS: Mapping[str, Callable[[], list[str]]] = {
    "python": _python,
    "java": _java,
    "node": _node,
    "go": _go,
    "rust": _rust,
}
"""How to build each client, which returns how to start it."""
ONLY_SIMPLE = frozenset({"rust"})
"""Clients whose package has no push consumer."""
WITHOUT_TLS = frozenset({"rust"})
"""Clients whose package does not implement TLS yet."""


class ClientRun:
    """A client at work; a thread collects its lines."""

    def __init__(
        self, command: Sequence[str], role: str, log: Path, environment: Mapping[str, str], **options: object
    ) -> None:
        words = [f"{name}={value}" for name, value in options.items()]
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._log = log.open("ab")
        # Libraries write their own logs into the home folder.
        self._child = subprocess.Popen(
            [*command, role, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=log.parent,
            env={**os.environ, "HOME": str(log.parent), **environment}, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for line in output:
                if line.startswith(b"{"):
                    with self._changed:
                        self.lines.append(json.loads(line))
                        self._changed.notify_all()

    def ready(self) -> "ClientRun":
        self.wait(lambda run: any("ready" in line for line in run.lines), "ready", START_SECONDS)
        return self

    def wait(self, until: Callable[["ClientRun"], object], what: str, seconds: float = LINE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not until(self):
                left = deadline - time.monotonic()
                assert left > 0, f"not {what}: {self.lines[-30:]}; see {self._log.name}"
                self._changed.wait(min(left, 0.5))

    def column(self, name: str) -> list[Any]:
        """The values of a field in all lines that have it."""
        with self._changed:
            return [line[name] for line in self.lines if name in line]

    def send(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Sends these by a client whose role that is, and waits until each is stored."""
        assert self._child.stdin is not None
        for message in messages:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
        self._child.stdin.flush()
        bodies = {message["body"] for message in messages}
        self.wait(lambda run: bodies <= {*run.column("sent"), *run.column("failed")}, "sent")

    def send_signal(self, number: int) -> None:
        self._child.send_signal(number)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Ends it as a program does: it tells the front."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(40)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self.kill()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        self._reader.join(5)
        self._log.close()


class FrontRun:
    """A front in a process of its own."""

    def __init__(self, server: str, folder: Path, *options: str) -> None:
        self.port = lasting_port()
        self.address = f"127.0.0.1:{self.port}"
        self._words = [
            sys.executable, "-m", "lanemq.cli.main", "grpc", "--server", server, "--listen", self.address,
            "--log-level", "info", *options,
        ]  # fmt: skip
        self._log = (folder / "front.log").open("ab")
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> "FrontRun":
        self._child = subprocess.Popen(self._words, stdout=self._log, stderr=self._log)
        eventually(lambda: listens(self.port), 30, f"the front listens; see {self._log.name}")
        return self

    def send_signal(self, number: int) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
            self._child.wait(30)

    def close(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._log.close()


def by_key(bodies: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of each key, in the order of the bodies `key:number`."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for body in bodies:
        key, _, number = body.partition(":")
        found[key].append(int(number))
    return dict(found)


def messages(keys: Sequence[str], each: int, first: int = 0) -> list[dict[str, str]]:
    return [{"key": key, "body": f"{key}:{number}"} for number in range(first, first + each) for key in keys]
