"""Several members of one group in the test's process, with a real broker."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.roles import FOUR_QUEUES, GROUP, TOPIC

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.consuming.retry_policy import FailurePolicy
from lanemq.core.sending.sharding import pick_queue
from lanemq.history import open_history
from lanemq.model.queue import MessageQueue
from lanemq.testing.embedded import EmbeddedBroker

TIMEOUT = 60.0
"""Seconds after which a wait fails; long enough for a busy machine."""
Handle = Callable[[Message], None]


def until(what: str, true: Callable[[], object], seconds: float = TIMEOUT) -> None:
    """Waits until `true` returns something true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds:.0f} s until {what}")
        time.sleep(0.005)


def key_in(number: int, of: int = 4) -> str:
    """A key that belongs to this queue."""
    queues = [MessageQueue(TOPIC, "lanemq", each) for each in range(of)]
    return next(f"k{n}" for n in range(1000) if pick_queue(f"k{n}", queues).queue_id == number)


class LocalGroup:
    """One broker, one producer, any number of members, and their histories."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self.address = address
        self.producer = Producer(self.address, create=FOUR_QUEUES)
        self.done: list[tuple[str, str, int]] = []
        """Member, key and offset of every handler call that returned, in that order."""
        self._ends: list[Callable[[], None]] = [self.producer.close]

    def member(
        self,
        name: str,
        handle: Handle = lambda message: None,
        *,
        on_fail: FailurePolicy | None = None,
        servers: str | None = None,
        **options: Any,
    ) -> App:
        """Starts a member; its history has its name."""
        history = open_history(self._folder / "history", name, SystemClock().now_ns, role="consumer")
        settings = {"client_id": name, "history": history, **options}
        app = App(servers or self.address, group=GROUP, **settings)

        @app.ordered(TOPIC, on_fail=on_fail, lanes=8)
        def on_message(message: Message) -> None:
            handle(message)
            self.done.append((name, message.key or "", message.queue_offset))

        app.start()
        self._ends += [history.close, app.stop]
        return app

    def judge(self, *require: str) -> Report:
        """Ends everything and returns the checker's report. Producers write no history, and all have the same clock."""
        self.close()
        return check([self._folder / "history"], CheckOptions(require=require, foreign_producers=True, slack_ns=0))

    def close(self) -> None:
        while self._ends:
            self._ends.pop()()


def owns(app: App, number: int) -> bool:
    return MessageQueue(TOPIC, "lanemq", number) in app.snapshot().queues


class BlockingHandler:
    """A handler whose first call blocks until it is released, and that records overlapping calls."""

    def __init__(self, key: str) -> None:
        self.inside = threading.Event()
        self.released = threading.Event()
        self.began: list[tuple[str, int]] = []
        self.overlapping: list[tuple[str, int]] = []
        """Calls that began while the first one was blocked."""
        self._key = key
        self._mutex = threading.Lock()

    def of(self, name: str) -> Handle:
        def handle(message: Message) -> None:
            if message.key != self._key:
                return
            with self._mutex:  # without a guard two calls may come at once
                first = not self.began
                self.began.append((name, message.queue_offset))
                if self.inside.is_set() and not self.released.is_set():
                    self.overlapping.append((name, message.queue_offset))
                if first:
                    self.inside.set()
            if first:
                assert self.released.wait(TIMEOUT)

        return handle


@contextlib.contextmanager
def local_group_in(
    folder: Path, server: Callable[[], AbstractContextManager[Any]] = EmbeddedBroker
) -> Iterator[LocalGroup]:
    """`server` runs what the group connects to; it has an address."""
    with server() as running:
        group = LocalGroup(folder, running.address)
        try:
            yield group
        finally:
            group.close()
