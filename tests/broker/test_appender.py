"""Group commit: who is told when, and what is written together."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanemq.broker.storage.group_commit import Appender
from lanemq.clock import SystemClock
from lanemq.log.options import StoreOptions
from lanemq.log.staging import Pending
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis
from lanemq.wire.hosts import NO_HOST

ANN, BOB = 1, 2
"""Numbers of peers."""


class CountingStore(Store):
    """Knows how often it was asked to write."""

    flushes = 0

    def flush(self, pending: Pending, now: Millis | None = None) -> None:
        self.flushes += 1
        super().flush(pending, now)


class HandThread:
    """A log thread whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    @property
    def idle(self) -> bool:
        return not self.jobs

    def submit(self, job: Callable[[], object], done: Callable[[object, StorageError | None], None]) -> None:
        self.jobs.append(lambda: done(job(), None))


class Desk:
    """An appender with its surroundings."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.store = CountingStore(folder, StoreOptions(durable=durable))
        self.store.recover()
        self.thread = HandThread()
        thread: Any = self.thread
        self.appender = Appender(self.store, thread, SystemClock(), lambda arrivals: None, 1 << 20)
        self.told: list[bytes] = []

    def put(self, body: bytes) -> None:
        parts = (body, b"", 0, 0, 0, 0, 0)
        self.appender.append("T", 0, [parts], NO_HOST, 1, lambda error: self.told.append(body))

    def read(self, peer: int, *bodies: bytes) -> None:
        """As a server does with what one read of a socket brought."""
        self.appender.begin()
        for body in bodies:
            self.put(body)
        self.appender.end(peer)


def on_a_loop(folder: Path, test: Callable[[Desk], Any], *, durable: bool = False) -> None:
    async def run() -> None:
        desk = Desk(folder, durable=durable)
        try:
            await test(desk)
        finally:
            desk.store.close()

    asyncio.run(run())


async def turn() -> None:
    """Two of the loop: what was called soon has run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_who_sends_alone_is_answered_at_the_end_of_the_read(tmp_path: Path) -> None:
    """Three turns of the loop for one send were a quarter of what it cost."""

    async def test(desk: Desk) -> None:
        desk.read(ANN, b"1")
        await turn()
        desk.read(ANN, b"2", b"3")
        assert desk.told == [b"1", b"2", b"3"]
        assert desk.store.flushes == 2

    on_a_loop(tmp_path, test)


def test_peers_that_send_at_the_same_time_share_a_write(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        for _ in range(3):
            before = desk.store.flushes
            desk.read(ANN, b"a")
            desk.read(BOB, b"b")
            await turn()
            assert desk.store.flushes == before + 1
        assert desk.told == [b"a", b"b"] * 3

    on_a_loop(tmp_path, test)


def test_nobody_is_told_before_a_durable_write_has_ended(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        desk.read(ANN, b"1")
        await turn()
        desk.thread.jobs.pop()()
        desk.read(ANN, b"2")
        assert (desk.told, len(desk.thread.jobs)) == ([b"1"], 1)
        desk.read(ANN, b"3")
        await turn()
        assert (desk.told, len(desk.thread.jobs)) == ([b"1"], 1)
        while desk.thread.jobs:
            desk.thread.jobs.pop()()
        assert desk.told == [b"1", b"2", b"3"]

    on_a_loop(tmp_path, test, durable=True)


def test_a_write_waits_for_what_the_log_thread_was_given_before(tmp_path: Path) -> None:
    """The row of a new topic, say: its messages may not be there without it."""

    async def test(desk: Desk) -> None:
        desk.read(ANN, b"1")
        await turn()
        desk.thread.submit(lambda: None, lambda *_: None)
        desk.read(ANN, b"2")
        assert desk.told == [b"1"]
        while desk.thread.jobs:
            desk.thread.jobs.pop(0)()
        assert desk.told == [b"1", b"2"]

    on_a_loop(tmp_path, test)


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_appended_outside_a_read_is_committed_in_the_same_turn(tmp_path: Path, durable: bool) -> None:
    """Delayed messages come due without anybody's request."""

    async def test(desk: Desk) -> None:
        desk.read(ANN)
        desk.put(b"due")
        await turn()
        while desk.thread.jobs:
            desk.thread.jobs.pop(0)()
        assert desk.told == [b"due"]

    on_a_loop(tmp_path, test, durable=durable)
