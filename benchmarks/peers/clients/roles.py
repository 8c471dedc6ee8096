"""What a client process does, whatever its contender: send, read everything, send at a pace, be a member of a group.

A contender's module offers:

- `create(job)`: create the topic with so many queues; `durable=1` if acknowledgements wait for the disk.
- `sender(job)`: a context manager. `send(key, value)` returns when the message is acknowledged, `pipelined(messages)`
  and `batch(messages)` when all are: with a future or callback each, and with the client's fastest call.
  `offer(messages)` sends without waiting, `settle()` waits for what was offered. What a client cannot do is missing.
- `async_sender(job)`: the same on an event loop, for clients that have such a form.
- `consume(job, handle)`: calls `handle(key, event, position)` for each message, in the order of its key, until it
  returns true. The event is the decoded JSON.
"""

import asyncio
import gc
import itertools
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.clients.job import Job, Stopwatch, say
from benchmarks.peers.order import Messages, Numbered, OrderCheck, body, verdict

WARM_UP_ONE, WARM_UP_MANY = 100, 2_000
LEAST, MOST = 200, 100_000
"""Messages of a timed round; the rate of the warm-up decides between the two."""
TASKS = 1_000


def run(client: ModuleType, job: Job) -> None:
    roles = {"fill": _fill, "send": _send, "read": _read, "pace": _pace, "listen": _listen, "member": _member}
    if job.text("do") == "create":
        client.create(job)
    else:
        roles[job.text("do")](client, job)


# fill


def _fill(client: ModuleType, job: Job) -> None:
    """Sends exactly `count` messages, as fast as it goes."""
    messages = Numbered(job.number("keys"), job.number("size"), job.text("prefix", "key")).messages(job.number("count"))
    if hasattr(client, "sender"):
        with client.sender(job) as sender:
            sender.batch(messages)
    else:
        asyncio.run(_fill_async(client, job, messages))
    say(sent=len(messages))


async def _fill_async(client: ModuleType, job: Job, messages: Messages) -> None:
    async with client.async_sender(job) as sender:
        await sender.pipelined(messages)


# send


def _send(client: ModuleType, job: Job) -> None:
    """Each way of sending for about `ms` milliseconds; one line each, then how many messages the topic has now."""
    ways = job.text("ways").split(",")
    made = Numbered(job.number("keys"), job.number("size"))
    for_tasks = Numbered(TASKS, job.number("size"), "task")
    if blocking := [way for way in ways if not way.startswith("async ")]:
        with client.sender(job) as sender:
            for way in blocking:
                _measure(way, _blocking_call(sender, way), made, job)
    if on_loop := [way.removeprefix("async ") for way in ways if way.startswith("async ")]:
        asyncio.run(_on_loop(client, on_loop, made, for_tasks, job))
    say(sent=made.made + for_tasks.made)


def _blocking_call(sender: Any, way: str) -> Any:
    def one(messages: Messages) -> None:
        for key, value in messages:
            sender.send(key, value)

    return one if way == "one" else getattr(sender, way)


def _measure(way: str, send: Any, made: Numbered, job: Job) -> None:
    count, target = _warm_up(way), job.number("ms") / 1000
    for seconds in (target / 4, target):
        messages = made.messages(count)
        began = time.perf_counter()
        send(messages)
        count = _worth(seconds, count, time.perf_counter() - began)
    messages, watch = _ready(made, count, job)
    watch.start()
    send(messages)
    say(way=way, count=count, **watch.stop())


async def _on_loop(client: ModuleType, ways: list[str], made: Numbered, for_tasks: Numbered, job: Job) -> None:
    async with client.async_sender(job) as sender:
        for way in ways:
            await _measure_async(way, _async_call(sender, way), for_tasks if way == "tasks" else made, job)


def _async_call(sender: Any, way: str) -> Any:
    async def one(messages: Messages) -> None:
        for key, value in messages:
            await sender.send(key, value)

    async def tasks(messages: Messages) -> None:
        """A task per key, each of which waits for its acknowledgement before it sends again."""
        by_key: dict[str, Messages] = {}
        for key, value in messages:
            by_key.setdefault(key, []).append((key, value))
        async with asyncio.TaskGroup() as group:
            for of_key in by_key.values():
                group.create_task(one(of_key))

    return {"one": one, "tasks": tasks}.get(way) or getattr(sender, way)


async def _measure_async(way: str, send: Any, made: Numbered, job: Job) -> None:
    count, target = _warm_up(way), job.number("ms") / 1000
    for seconds in (target / 4, target):
        messages = made.messages(count)
        began = time.perf_counter()
        await send(messages)
        count = _worth(seconds, count, time.perf_counter() - began)
    messages, watch = _ready(made, count, job)
    watch.start()
    await send(messages)
    say(way=f"async {way}", count=count, **watch.stop())


def _warm_up(way: str) -> int:
    return WARM_UP_ONE if way == "one" else WARM_UP_MANY


def _worth(seconds: float, count: int, took: float) -> int:
    """As many messages as take so many seconds at the last rate."""
    return min(MOST, max(LEAST, int(count / took * seconds)))


def _ready(made: Numbered, count: int, job: Job) -> tuple[Messages, Stopwatch]:
    messages = made.messages(count)
    gc.collect()
    return messages, Stopwatch(job.server_pids)


# read


def _read(client: ModuleType, job: Job) -> None:
    """Reads `expect` messages with a handler that uses key, event and position. The clock runs from the end of
    the first `warm` calls to the last. `handler_ms` makes each call wait so long."""
    warm = job.number("warm", 1)
    expect, pause = job.number("expect"), job.number("handler_ms", 0) / 1000
    check, watch = OrderCheck(), Stopwatch(job.server_pids)
    turns, ended, positions = itertools.count(1), [], {}
    last = [expect]

    def handle(key: str, event: Any, position: Any) -> bool:
        if pause:
            time.sleep(pause)
        if not check.see(key, event["n"]):
            last[0] += 1  # a repeat does not count towards the end
        positions[key] = position
        turn = next(turns)
        if turn == warm:
            watch.start()
        if turn == last[0]:
            ended.append(watch.stop())
        return turn >= last[0]

    gc.collect()
    client.consume(job, handle)
    say(count=expect - warm, repeats=check.repeats, verdict=verdict(check, expect), **ended[0])


# latency


def _pace(client: ModuleType, job: Job) -> None:
    """Sends `count` messages, `rate` a second, each with the moment at which it was due to be sent; fewer if the file
    `stop` appears before."""
    if hasattr(client, "sender"):
        _pace_blocking(client, job)
    else:
        asyncio.run(_pace_async(client, job))


class _Schedule:
    """Which messages are due. A late sender does not hide its delay: each message carries the moment it was due."""

    def __init__(self, job: Job) -> None:
        self.count, self._size, self._keys = job.number("count"), job.number("size"), job.number("keys")
        self._step = 1e9 / job.number("rate")
        self._stop = Path(job.text("stop", ""))
        self._next = 0

    def start(self) -> None:
        self._began = time.monotonic_ns()

    @property
    def over(self) -> bool:
        if self._stop.is_file():
            self.count = self._next
        return self._next >= self.count

    def due(self) -> Messages:
        until = min(self.count, int((time.monotonic_ns() - self._began) / self._step) + 1)
        first, self._next = self._next, max(self._next, until)
        return [self._message(number) for number in range(first, self._next)]

    def wait(self) -> float:
        """Seconds until the next message is due."""
        return max(0.0, (self._began + self._next * self._step - time.monotonic_ns()) / 1e9)

    def _message(self, number: int) -> tuple[str, bytes]:
        key = f"key-{number % self._keys}"
        return key, body(key, number // self._keys, self._size, int(self._began + number * self._step))


def _pace_blocking(client: ModuleType, job: Job) -> None:
    schedule, watch = _Schedule(job), Stopwatch(job.server_pids)
    with client.sender(job) as sender:
        watch.start()
        schedule.start()
        while not schedule.over:
            sender.offer(schedule.due())
            time.sleep(schedule.wait())
        sender.settle()
        say(count=schedule.count, **watch.stop())


async def _pace_async(client: ModuleType, job: Job) -> None:
    schedule, watch = _Schedule(job), Stopwatch(job.server_pids)
    async with client.async_sender(job) as sender:
        watch.start()
        schedule.start()
        while not schedule.over:
            await sender.offer(schedule.due())
            await asyncio.sleep(schedule.wait())
        await sender.settle()
        say(count=schedule.count, **watch.stop())


def _listen(client: ModuleType, job: Job) -> None:
    """Reads `expect` messages as they come.

    Says `ready` when the first, whose key begins with `probe`, is handled. Prints the delays from due to handled of all
    but the first `skip`, in microseconds.
    """
    expect, check, watch = job.number("expect"), OrderCheck(), Stopwatch(job.server_pids)
    delays: list[int] = []
    last = [expect]

    def handle(key: str, event: Any, position: Any) -> bool:
        if key.startswith("probe"):
            watch.start()
            say(ready=True)
            return False
        delays.append(time.monotonic_ns() - event["at"])
        if not check.see(key, event["n"]):
            last[0] += 1
        return len(delays) >= last[0]

    client.consume(job, handle)
    ended = watch.stop()
    late = [delay // 1000 for delay in delays[job.number("skip") :]]
    say(count=expect, verdict=verdict(check, expect), delays_us=late, **ended)


# take-over


def _member(client: ModuleType, job: Job) -> None:
    """Handles messages for ever and writes a line for each: when, key, number. It is killed or frozen by its parent."""
    file = os.open(job.text("lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pause = job.number("handler_ms", 0) / 1000

    def handle(key: str, event: Any, position: Any) -> bool:
        time.sleep(pause)
        os.write(file, f"{time.monotonic_ns()} {key} {event['n']}\n".encode())
        return False

    client.consume(job, handle)
