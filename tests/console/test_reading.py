"""How the console reads: answers are shared, work has a bound, and snapshots are taken when a page needs one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.broker.running import ManualClock

from lanemq.console.reading import (
    CLIENT,
    MAX_ANSWERS,
    MAX_PAUSE,
    MAX_WAITING,
    MAX_WAITING_PER_CLIENT,
    ConsoleBusy,
    ConsoleReads,
    Watch,
)
from lanemq.console.snapshot import Snapshot
from lanemq.model.errors import LaneError

T = TypeVar("T")


class Work:
    """Reads that wait until the test lets them continue, and the number of them that have begun."""

    def __init__(self) -> None:
        self.has_begun, self.go_on = threading.Event(), threading.Event()
        self.begun = 0

    def read(self) -> int:
        self.begun += 1
        self.has_begun.set()
        assert self.go_on.wait(30)
        return self.begun


def with_reads(use: Callable[[ConsoleReads, ManualClock], Awaitable[T]], *, threads: int = 1) -> T:
    async def run() -> T:
        clock = ManualClock()
        reads = ConsoleReads(clock, threads=threads)
        try:
            return await use(reads, clock)
        finally:
            reads.close()

    return asyncio.run(run())


def counter() -> Callable[[], int]:
    numbers: Iterator[int] = iter(range(1000))
    return lambda: next(numbers)


def test_an_answer_is_used_again_until_it_is_too_old() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> list[int]:
        read, found = counter(), []
        for pause in (0, 900, 200, 0):
            clock.passed += pause
            found.append(await reads.ask("question", read, max_age=1.0))
        found.append(await reads.ask("question", read, max_age=0))
        return [*found, await reads.ask("another", read)]

    assert with_reads(use) == [0, 0, 1, 1, 2, 3]


def test_pages_that_ask_at_once_share_one_read() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> tuple[list[int], int]:
        work = Work()
        asking = [asyncio.ensure_future(reads.ask("question", work.read, max_age=0)) for _ in range(50)]
        await asyncio.sleep(0)
        work.go_on.set()
        return await asyncio.gather(*asking), work.begun

    assert with_reads(use) == ([1] * 50, 1)


def test_a_read_that_fails_is_told_to_all_who_asked_and_not_kept() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> int:
        def fail() -> int:
            raise LaneError("the broker is away")

        asked = await asyncio.gather(*(reads.ask("question", fail) for _ in range(2)), return_exceptions=True)
        assert [str(each) for each in asked] == ["the broker is away"] * 2
        return await reads.ask("question", lambda: 5)

    assert with_reads(use) == 5


def test_a_change_forgets_what_was_read_before_it_and_a_read_for_one_page_does_not() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> list[int]:
        read = counter()
        found = [await reads.ask("question", read)]
        await reads.read(lambda: None)
        found.append(await reads.ask("question", read))
        await reads.do(lambda: None)
        return [*found, await reads.ask("question", read)]

    assert with_reads(use) == [0, 0, 1]


@pytest.mark.parametrize("kind", ["ask", "read", "do"])
def test_work_above_the_bound_is_refused_whatever_it_is(kind: str) -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> int:
        work, number = Work(), counter()

        def more() -> Awaitable[int]:
            return {"ask": lambda: reads.ask(number(), work.read), "read": lambda: reads.read(work.read)}.get(
                kind, lambda: reads.do(work.read)
            )()

        asking = [asyncio.ensure_future(more()) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        for refused in (reads.ask("one more", work.read), reads.read(work.read), reads.do(work.read)):
            with pytest.raises(ConsoleBusy, match=f"{MAX_WAITING} pages wait for the brokers: try again"):
                await refused
        work.go_on.set()
        await asyncio.gather(*asking)
        await reads.do(lambda: None)  # there is room again
        return work.begun

    assert with_reads(use) == MAX_WAITING


def test_work_whose_page_was_closed_counts_until_its_thread_is_done() -> None:
    """Otherwise pages that are opened and closed quickly would pile up work."""

    async def use(reads: ConsoleReads, clock: ManualClock) -> None:
        work = Work()
        closed = asyncio.ensure_future(reads.read(work.read))
        await asyncio.to_thread(work.has_begun.wait, 30)
        closed.cancel()
        asking = [asyncio.ensure_future(reads.read(lambda: None)) for _ in range(MAX_WAITING - 1)]
        await asyncio.sleep(0)
        with pytest.raises(ConsoleBusy):
            await reads.read(lambda: None)
        work.go_on.set()
        await asyncio.gather(*asking)

    with_reads(use)


def of_client(client: str, asked: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """What a page of this address asks for."""
    context = copy_context()
    context.run(CLIENT.set, client)
    return asyncio.get_running_loop().create_task(asked, context=context)


def test_one_address_cannot_take_the_reads_of_all() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> None:
        work = Work()
        asking = [of_client("10.0.0.1", reads.read(work.read)) for _ in range(MAX_WAITING_PER_CLIENT)]
        await asyncio.sleep(0)
        refused = of_client("10.0.0.1", reads.ask("one more", work.read))
        try:
            with pytest.raises(
                ConsoleBusy, match=r"pages of 10\.0\.0\.1 wait for the brokers, the limit for one address"
            ):
                await asyncio.wait_for(refused, 5)
        finally:
            work.go_on.set()
        other = of_client("10.0.0.2", reads.ask("one more", work.read))
        await asyncio.gather(other, *asking)
        await of_client("10.0.0.1", reads.read(lambda: None))  # there is room again

    with_reads(use)


def test_addresses_take_turns() -> None:
    """A page waits for one read of every other address, not for all that they have asked before."""

    async def use(reads: ConsoleReads, clock: ManualClock) -> list[str]:
        work, order = Work(), list[str]()
        running = of_client("a", reads.read(work.read))
        await asyncio.to_thread(work.has_begun.wait, 30)
        names = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]
        asking = [of_client(client, reads.read(partial(order.append, name))) for client, name in names]
        await asyncio.sleep(0)
        asking[2].cancel()  # its page was closed
        work.go_on.set()
        await asyncio.gather(running, *asking, return_exceptions=True)
        return order

    assert with_reads(use) == ["a1", "b1", "c1", "a2", "b2"]


def test_what_waits_when_the_console_ends_is_cancelled() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> "asyncio.Task[int]":
        work = Work()
        running = asyncio.ensure_future(reads.read(work.read))
        waiting = asyncio.ensure_future(reads.read(work.read))
        await asyncio.to_thread(work.has_begun.wait, 30)
        work.go_on.set()
        reads.close()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert await running == 1
        return waiting

    assert with_reads(use).cancelled()


def test_only_so_many_answers_are_kept() -> None:
    async def use(reads: ConsoleReads, clock: ManualClock) -> tuple[int, int]:
        read = counter()
        for question in range(MAX_ANSWERS + 1):
            await reads.ask(question, read)
        return await reads.ask(MAX_ANSWERS, read), await reads.ask(0, read)

    assert with_reads(use) == (MAX_ANSWERS, MAX_ANSWERS + 1)


# snapshots


class Reader:
    """Takes numbered snapshots, each when the test lets it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.begun = 0
        self.begins = threading.Semaphore(0)
        self.closed = False
        self.allowed = threading.Semaphore(0)
        self.error = ""

    def take(self) -> Snapshot:
        self.begun += 1
        self.begins.release()
        number = self.begun
        assert self.allowed.acquire(timeout=30)
        return Snapshot(self.clock.wall(), took=number / 1000, error=self.error)

    def close(self) -> None:
        self.closed = True


def with_watch(use: Callable[[Watch, Reader, ManualClock], Awaitable[None]], *, every: float = 1000.0) -> Reader:
    """Runs a watch whose snapshots `took` as many milliseconds as their number says."""

    async def run() -> Reader:
        clock = ManualClock()
        reader = Reader(clock)
        watch = Watch(reader, clock, every=every)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(watch.run())
            await begins(reader)
            await use(watch, reader, clock)
            reader.allowed.release(10)
            running.cancel()
        return reader

    return asyncio.run(run())


async def begins(reader: Reader) -> None:
    """Waits until the reader begins with the next snapshot."""
    assert await asyncio.to_thread(reader.begins.acquire, timeout=30)


def number(snapshot: Snapshot) -> int:
    return round(snapshot.took * 1000)


def test_a_page_gets_the_newest_snapshot_and_a_new_one_only_if_it_is_old() -> None:
    async def use(watch: Watch, reader: Reader, clock: ManualClock) -> None:
        assert watch.now.error == "the brokers have not been read yet"
        reader.allowed.release(2)
        assert number(await watch.fresh()) == 1
        assert number(await watch.fresh()) == 1
        clock.passed += 1_000_001
        assert number(await watch.fresh()) == 2

    assert with_watch(use).closed


def test_brokers_that_did_not_answer_are_asked_again_for_the_next_page() -> None:
    async def use(watch: Watch, reader: Reader, clock: ManualClock) -> None:
        reader.error = "the brokers are away"
        reader.allowed.release(2)
        assert (await watch.fresh()).error
        assert number(await watch.fresh()) == 2

    with_watch(use)


def test_after_a_change_a_snapshot_that_was_begun_before_it_is_not_enough() -> None:
    """It may have been read before the change, and the next page would show the old state."""

    async def use(watch: Watch, reader: Reader, clock: ManualClock) -> None:
        async with asyncio.TaskGroup() as tasks:
            changed = tasks.create_task(watch.changed())
            await asyncio.sleep(0)
            reader.allowed.release()
            await begins(reader)
            assert (changed.done(), number(watch.now)) == (False, 1)
            reader.allowed.release()
            await changed
            assert number(watch.now) == 2

    with_watch(use)


def test_an_open_page_makes_snapshots_more_frequent_and_waits_for_the_next() -> None:
    async def use(watch: Watch, reader: Reader, clock: ManualClock) -> None:
        reader.allowed.release()
        assert number(await watch.next()) == 1
        assert watch.pause() == 5000.0
        async with watch.open_page():
            assert watch.pause() == 1000.0
            reader.allowed.release()
            assert number(await watch.next()) == 2
        assert watch.pause() == 5000.0

    with_watch(use)


def test_snapshots_take_a_tenth_of_the_time_and_one_slow_answer_does_not_make_pages_old() -> None:
    async def use(watch: Watch, reader: Reader, clock: ManualClock) -> None:
        watch._every = 0.1
        watch.now = Snapshot(clock.wall(), took=0.6)
        assert watch.pause() == 6.0
        watch.now = Snapshot(clock.wall(), took=60.0)
        assert watch.pause() == MAX_PAUSE
        watch._every = 1000.0

    with_watch(use)
