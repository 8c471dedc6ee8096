"""A real broker in this process, on a thread of its own, for tests, examples and demonstrations.

    with EmbeddedBroker() as broker:
        producer = Producer(broker.address)

It uses real sockets and files.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import NoneType, TracebackType
from typing import TypeVar

from lanemq.broker.app import Broker, OpenStore
from lanemq.broker.config import BrokerOptions
from lanemq.clock import Clock
from lanemq.log.store import Store
from lanemq.model.checks import check_kind
from lanemq.model.errors import UsageError
from lanemq.net.address import Address

R = TypeVar("R")


class EmbeddedBroker:
    """A context manager that starts a broker and stops it cleanly. By default, data is in a temporary folder."""

    def __init__(
        self, options: BrokerOptions | None = None, *, clock: Clock | None = None, open_store: OpenStore = Store
    ) -> None:
        """`clock` and `open_store` replace the clock and the store, for example by one on a faulty disk."""
        check_kind("options", options, (BrokerOptions, NoneType), "BrokerOptions(...), or None")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if options is None:
            self._folder = tempfile.TemporaryDirectory(prefix="lanemq-")
            options = BrokerOptions(Path(self._folder.name), listen=Address("127.0.0.1", 0))
        self.options = options
        self._clock = clock
        self._open_store = open_store
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None
        self._paused: threading.Event | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return str(self.broker.address)

    @property
    def broker(self) -> Broker:
        """The broker itself. Use its parts only through `call`."""
        return self._check_running()

    def start(self) -> "EmbeddedBroker":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lanemq-embedded", daemon=True)
        self._thread.start()
        self._broker = Broker(self.options, self._clock, self._open_store)
        try:
            asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop).result(30)
        except BaseException:
            self._broker = None
            self._end_loop()
            raise
        self.options = replace(self.options, listen=self._broker.address)
        return self

    def stop(self) -> None:
        """Stops cleanly. `start` may follow, on the same data and port."""
        self.resume()
        if self._broker is not None:
            running, self._broker = self._broker, None
            try:
                asyncio.run_coroutine_threadsafe(running.stop(), self._loop).result(30)
            finally:
                self._end_loop()

    # faults

    def pause(self) -> None:
        """Freezes the broker, as SIGSTOP would: connections stay open, and nothing is answered until `resume`."""
        self._check_running()
        if self._paused is None:
            self._paused = released = threading.Event()
            frozen = threading.Event()

            def freeze() -> None:
                frozen.set()
                released.wait()

            self._loop.call_soon_threadsafe(freeze)
            frozen.wait()

    def resume(self) -> None:
        """Lets a paused broker continue."""
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.set()

    def kill(self) -> None:
        """Ends the broker as a crash would: connections break, and nothing more is answered or saved.

        What was acknowledged is on disk. Offsets that members committed in the last moments are lost, and the next
        start reads the log again. `restart` starts it on the same data and port.
        """
        self.resume()
        if self._broker is not None:
            running, self._broker = self._broker, None
            try:
                asyncio.run_coroutine_threadsafe(_crash(running), self._loop).result(30)
            finally:
                self._end_loop()

    def restart(self) -> None:
        """Starts again on the same data and port; stops cleanly first if it runs."""
        self.stop()
        self.start()

    def heal(self) -> None:
        """Undoes `pause`, `kill` and `stop`: the broker runs again."""
        self.resume()
        if self._broker is None:
            self.start()

    def call(self, function: Callable[[], R]) -> R:
        """Calls `function` on the broker's thread, where its parts may be used, and returns the result."""

        async def on_the_loop() -> R:
            return function()

        return asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop).result(30)

    def _check_running(self) -> Broker:
        if self._broker is None:
            raise UsageError("the broker is not running: call start() first, or restart() after kill() or stop()")
        return self._broker

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(30)
        self._loop.close()

    def __enter__(self) -> "EmbeddedBroker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()


async def _crash(broker: Broker) -> None:
    """Ends everything without the steps of a clean stop."""
    running, context = broker.running, broker.running.context
    running.ticking.cancel()
    await asyncio.gather(running.ticking, return_exceptions=True)
    for peer in tuple(running.server.peers):
        peer.abort()
    await running.server.close()
    for thread in (context.search_thread, context.thread, context.row_thread):
        thread.stop()
    context.recording.close()
    context.store.close(clean=False)
    broker.close_monitor()
