"""Processes of a run: servers with an empty data folder each, and clients that do one job and print JSON lines."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from interop.ports import HOST, free_port

from benchmarks.peers.clients.job import cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS, STOP_SECONDS = 120.0, 20.0
CLIENT_SECONDS = 300.0
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class PeerServer:
    """A server on a free loopback port with an empty data folder. Its subclasses say how it starts."""

    name = ""
    settings = ""
    """In words, for the results: package, version, what differs from the defaults."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.port = free_port()
        self.start_seconds = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @staticmethod
    def fetch() -> object:
        """Fetches what the server needs; raises `UnavailableError` if it cannot be had."""
        return None

    def prepare(self) -> None:
        """Writes the settings; not part of the start-up time."""

    def start(self) -> None:
        """Starts the processes."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether the server answers a request of its protocol."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="lanemq-peers-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        try:
            self.prepare()
            began = time.perf_counter()
            self.start()
            self._until_ready(began)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            stop(process)
        self._folder.cleanup()

    def _until_ready(self, began: float) -> None:
        while not self._answers():
            if time.perf_counter() - began > START_SECONDS or any(each.poll() is not None for each in self._processes):
                last = (self.folder / "output").read_text(errors="replace").splitlines()[-5:]
                raise ClientFailed(f"{self.name} did not start: {' / '.join(last)}")
            time.sleep(0.01)
        self.start_seconds = time.perf_counter() - began

    def _answers(self) -> bool:
        try:
            return self.is_ready()
        except OSError:
            return False

    def run(self, command: list[str], env: dict[str, str] | None = None) -> None:
        """Adds a process; what it prints goes to the file `output` of the folder."""
        with (self.folder / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pids)

    def memory_mib(self) -> float:
        """Resident memory of all its processes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids) * _PAGE_MIB

    def disk_bytes(self) -> int:
        """Blocks in use, so that room reserved in sparse files does not count."""
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a file that the server replaced
                total += path.stat().st_blocks * 512
        return total


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ClientProcess:
    """A client that does one job; a thread collects the JSON lines that it prints."""

    def __init__(self, command: list[str], words: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = subprocess.Popen(
            [*command, *(f"{name}={value}" for name, value in words.items())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self, within: float = CLIENT_SECONDS) -> list[dict[str, Any]]:
        """Waits for its end; what it printed. A job that failed or takes too long raises `ClientFailed`."""
        try:
            if self._process.wait(within) != 0:
                raise ClientFailed(f"the client failed: {self._last_error()}")
            self._reader.join()
            return self._lines
        except subprocess.TimeoutExpired:
            raise ClientFailed(f"the client did not finish within {within:.0f} s: {self._last_error()}") from None
        finally:
            self.close()

    def wait_for(self, word: str, within: float = CLIENT_SECONDS) -> None:
        """Waits until it has printed a line with this word."""
        until(lambda: self._said(word), within, f"the client has not said {word}")

    def _said(self, word: str) -> bool:
        if self._process.poll() not in (None, 0):
            raise ClientFailed(f"the client failed: {self._last_error()}")
        return any(word in line for line in self._lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """Ends the process if it still runs. May be called again."""
        if self._errors.closed:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith(b"{"):
                    self._lines.append(json.loads(line))

    def _last_error(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-400:] or "no output"


class ClientFailed(Exception):
    """A client or a server did not do its part; the text says which and shows the end of its output."""


def until(condition: Callable[[], Any], within: float, what: str) -> Any:
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise ClientFailed(f"{what}: not within {within:.0f} s")
        time.sleep(0.02)
    return answer
