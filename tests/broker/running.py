"""A broker in this process, whose clock and disk a test may replace, and a broker in its own process."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.broker.raw_client import RawClient

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.clock import SystemClock
from lanemq.core.brokering.queue_progress import QueueProgress
from lanemq.log.filesystem import Disk
from lanemq.log.store import Store
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address

R = TypeVar("R")
WALL = 1_700_000_000_000


class ManualClock:
    """A clock that a test moves. `wall_ahead` moves the wall clock alone, as an operator or a time server does."""

    def __init__(self) -> None:
        self.passed = 0
        self.wall_ahead = 0

    def now(self) -> Millis:
        return Millis(1_000_000 + self.passed)

    def wall(self) -> Millis:
        return Millis(WALL + self.passed + self.wall_ahead)


class RunningBroker:
    """A broker with real sockets and files, on its own thread."""

    def __init__(
        self, data: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **options: object
    ) -> None:
        self.options = replace(BrokerOptions(data, listen=Address("127.0.0.1", 0)), **options)  # type: ignore[arg-type]
        self.clock = clock
        self._disk = disk
        self._clients: list[RawClient] = []
        self._start()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        open_store = Store if self._disk is None else partial(Store, disk=self._disk)
        self.broker = Broker(self.options, self.clock or SystemClock(), open_store)
        try:
            self.wait_for(self.broker.start())
        except BaseException:
            self._end()
            raise
        self.address = str(self.broker.address)

    def connect(self) -> RawClient:
        raw = RawClient(self.address)
        self._clients.append(raw)
        return raw

    def stop(self) -> None:
        if not self._loop.is_closed():
            for raw in self._clients:
                raw.close()
            try:
                self.wait_for(self.broker.stop())
            finally:
                self._end()

    def restart(self) -> None:
        """Stop cleanly and start again; connections are closed."""
        self.stop()
        self._clients.clear()
        self._start()

    def crash_image(self, folder: Path) -> Path:
        """Copy all files as a kill -9 at this moment would leave them."""
        self.wait_for(self.broker.running.context.search_thread.call(lambda: None))
        gate = Gate(self)
        try:
            shutil.copytree(self.options.data, folder)
        finally:
            gate.open()
        return folder

    def progress(self, group: str, topic: str, queue_id: int = 0) -> QueueProgress:
        """The progress of a group in a queue; to be changed on the broker's loop."""
        return self.broker.running.context.progress.at(group, MessageQueue(topic, self.options.name, queue_id))

    # calls from the test's thread into the broker's loop

    def wait_for(self, awaitable: "asyncio.Future[R] | object") -> R:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(60)  # type: ignore[arg-type]

    def call(self, function: Callable[[], R]) -> R:
        async def run() -> R:
            return function()

        return self.wait_for(run())

    def advance(self, millis: int) -> None:
        """Advance the clock, run the housekeeping, and wait for its writes. It also runs before, as it often does."""
        assert self.clock is not None
        self.call(self.broker.running.housekeeping.tick)
        self.clock.passed += millis
        self.tick()

    def run_for(self, millis: int) -> None:
        """Advance the clock in steps, as it is for a broker that runs: a jump would be a pause of the broker."""
        assert self.clock is not None
        for _ in range(millis // 500):
            self.clock.passed += 500
            self.call(self.broker.running.housekeeping.tick)
        self.advance(millis % 500)

    def tick(self) -> None:
        for _ in range(2):
            self.call(self.broker.running.housekeeping.tick)
            self.settle()

    def settle(self) -> None:
        self.wait_for(self.broker.running.context.group_commit.drained())
        self.wait_for(self.broker.running.context.search_thread.call(lambda: None))
        self.wait_for(self.broker.running.context.thread.call(lambda: None))
        self.wait_for(self.broker.running.context.row_thread.call(lambda: None))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


def retire_now(running: RunningBroker) -> None:
    """Let retention look, and wait until the files that it chose are deleted."""
    housekeeping = running.broker.running.housekeeping

    def begin() -> bool:
        if housekeeping.retiring:
            return False  # a look that began earlier may have missed what is due now
        housekeeping._retire()
        return True

    while not running.call(begin):
        pass
    while running.call(lambda: housekeeping.retiring):
        pass
    running.settle()


class Gate:
    """Blocks the threads that write between two jobs: records and rows do not reach the disk before `open`."""

    def __init__(self, running: RunningBroker) -> None:
        self._opened, closed = threading.Event(), threading.Barrier(3)

        def wait() -> None:
            closed.wait(60)
            self._opened.wait(60)

        context = running.broker.running.context
        for thread in (context.thread, context.row_thread):
            running.call(partial(thread.submit, wait, lambda *_: None))
        closed.wait(60)

    def open(self) -> None:
        self._opened.set()


class BrokerProcess:
    """A broker in its own process, to be killed; `log` is its standard error."""

    def __init__(self, data: Path, **options: int) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, str(Path(__file__).with_name("serve.py")), str(data), json.dumps(options)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self._process.stdout.close()
        if not self.address:
            self.kill()
            raise AssertionError(f"the broker did not start: {self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(30)
        if not self._errors.closed:
            self._errors.seek(0)
            self.log = self._errors.read()
            self._errors.close()
        return code
