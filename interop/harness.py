"""A client under test as a child process, controlled by JSON lines.

To it:    {"id": 7, "do": "send", "name": "p1", …}
From it:  {"event": "ready"}                                     once, when it listens
          {"id": 7, "ok": …} or {"id": 7, "error": "text"}       one answer per request, in any order
          {"event": "turn", "name": "c1", "turn": 3, "messages": […], "at_us": …}
          {"event": "end", "name": "c1", "turn": 3, "verdict": "success", "at_us": …}

The child ends when its stdin does. `java/Harness.java` is one such program; any client can have one. The
commands and their fields are listed in `README.md`.
"""

import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from interop.clients import ClientError

START_SECONDS = 60.0
CALL_SECONDS = 90.0

EventListener = Callable[[dict[str, Any]], None]


class Harness:
    """Owns the child process. Every request is answered or fails, even if the child dies."""

    def __init__(self, command: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, Future[Any]] = {}
        self._listeners: dict[str, EventListener] = {}
        self._guard = threading.Lock()
        self._ready = threading.Event()
        self._ended = False
        self._log = log.open("ab")
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=cwd
        )
        self._reader = threading.Thread(target=self._read, name=f"harness-{self._child.pid}", daemon=True)
        self._reader.start()
        if not self._ready.wait(START_SECONDS) or self._ended:
            self.kill()
            raise ClientError(f"the client process did not start: see {log}")

    def call(self, what: str, /, **fields: Any) -> Any:
        """Sends one request and returns its value, or raises `ClientError` with the client's own text."""
        number = next(self._numbers)
        answer: Future[Any] = Future()
        with self._guard:
            if self._ended:
                raise ClientError(f"{what}: the client process has ended")
            self._pending[number] = answer
            self._write({"id": number, "do": what, **fields})
        try:
            return answer.result(CALL_SECONDS)
        except FutureTimeout:
            raise ClientError(f"{what}: no answer from the client process in {CALL_SECONDS:.0f} s") from None

    def listen(self, name: str, listener: EventListener) -> None:
        """Passes events of this name to the listener, on the reader's thread."""
        self._listeners[name] = listener

    def kill(self) -> None:
        """kill -9."""
        self._child.kill()
        self._reap()

    def close(self) -> None:
        """Closes stdin and waits; kills a child that does not end."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._reap()

    def _reap(self) -> None:
        self._child.wait()
        self._reader.join()
        for stream in (self._child.stdin, self._child.stdout, self._log):
            if stream is not None and not stream.closed:
                _close_quietly(stream)

    def _write(self, request: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as broken:
            raise ClientError(f"the client process is gone: {broken}") from broken

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._dispatch(json.loads(line))
        with self._guard:
            self._ended = True
            waiting = list(self._pending.values())
            self._pending.clear()
        self._ready.set()
        for answer in waiting:
            answer.set_exception(ClientError("the client process ended before it answered"))

    def _dispatch(self, line: dict[str, Any]) -> None:
        if "id" in line and "event" not in line:
            with self._guard:
                answer = self._pending.pop(line["id"])
            if "error" in line:
                answer.set_exception(ClientError(line["error"]))
            else:
                answer.set_result(line.get("ok"))
        elif line["event"] == "ready":
            self._ready.set()
        elif (listener := self._listeners.get(line["name"])) is not None:
            listener(line)


def _close_quietly(stream: Any) -> None:
    """Closes a pipe; flushing to a dead child fails, which is ignored."""
    try:
        stream.close()
    except BrokenPipeError:
        return
