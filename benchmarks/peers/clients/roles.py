"""What a client process does, whatever its contender: send, read everything, send at a pace, be a member of a group.

A contender's module offers:

- `create(job)`: create the topic with so many queues; `durable=1` if acknowledgements wait for the disk.
- `sender(job)`: a context manager. `send(key, value)` returns when the message is acknowledged, `pipelined(messages)`
  and `batch(messages)` when all are: with a future or callback each, and with the client's fastest call. A call
  gets all messages of a round, up to millions; how many of them are under way at once is the client's choice.
  `offer(messages)` sends without waiting, `settle()` waits for what was offered. What a client cannot do is missing.
- `async_sender(job)`: the same on an event loop, for clients that have such a form.
- `consume(job, handle)`: calls `handle(key, event, position)` for each message, in the order of its key, until it
  returns true. The event is the decoded JSON.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.clients.job import Job, Stopwatch, say
from benchmarks.peers.order import ArrayCheck, Messages, Numbered, OrderCheck, body, verdict

WARM_UP_ONE, WARM_UP_MANY = 100, 2_000
WARM_UP_SHARE = 8
"""A round begins with a warm-up of an eighth of its length, which is not timed and decides how many messages it has."""
LEAST, MOST, MOST_BYTES = 200, 3_000_000, 1_500_000_000
"""Messages of a timed round. They are made before the clock starts, so memory limits how many there can be."""
TASKS = 1_000
CLIENT_KEYS = 2
"""Keys of each client that sends one message after the other."""
QUIET_SECONDS = 30.0
"""A reader that has got nothing new for so long ends with the verdict on what it has."""
FIRST_SHARE = 4
"""Before its first message it waits so many times as long, then it fails: a reader that could not read says nothing
about what is stored."""
PROBES = 64
"""Messages that a listener reads before the clock starts: enough for at least one in each queue."""


def run(client: ModuleType, job: Job) -> None:
    roles = {
        "fill": _fill,
        "send": _send,
        "clients": _clients,
        "read": _read,
        "pace": _pace,
        "listen": _listen,
        "member": _member,
    }
    if job.text("do") == "create":
        client.create(job)
    else:
        roles[job.text("do")](client, job)


# fill


def _fill(client: ModuleType, job: Job) -> None:
    """Sends exactly `count` messages, as fast as it goes; `first` were sent before."""
    keys, prefix = job.number("keys"), job.text("prefix", "key")
    messages = Numbered(keys, job.number("size"), prefix, job.number("first", 0)).messages(job.number("count"))
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
    """Each way of sending for about `ms` milliseconds; one line each.

    The keys of a way begin with its name, and `sent` counts all its messages, so that a reader can say of each way
    whether everything is there.
    """
    ways = job.text("ways").split(",")
    if blocking := [way for way in ways if not way.startswith("async ")]:
        with client.sender(job) as sender:
            for way in blocking:
                _measure(way, _blocking_call(sender, way), _numbered(way, job), job)
    if on_loop := [way for way in ways if way.startswith("async ")]:
        asyncio.run(_on_loop(client, on_loop, job))


def _numbered(way: str, job: Job) -> Numbered:
    keys = TASKS if way == "async tasks" else job.number("keys")
    return Numbered(keys, job.number("size"), prefix_of(way))


def prefix_of(way: str) -> str:
    """How the keys of a way of sending begin."""
    return way.replace(" ", "")


def _blocking_call(sender: Any, way: str) -> Any:
    def one(messages: Messages) -> None:
        for key, value in messages:
            sender.send(key, value)

    return one if way == "one" else getattr(sender, way)


def _measure(way: str, send: Any, made: Numbered, job: Job) -> None:
    warm_up = WarmUp(way, job.number("ms") / 1000, job.number("size"), job.number("count", 0))
    while not warm_up.is_over:
        messages = made.messages(warm_up.count)
        began = time.perf_counter()
        send(messages)
        warm_up.took(time.perf_counter() - began)
    messages, watch = made.messages(warm_up.count), Stopwatch(job.server_pids)
    gc.collect()
    watch.start()
    send(messages)
    say(way=way, count=len(messages), sent=made.made, **watch.stop())


async def _on_loop(client: ModuleType, ways: list[str], job: Job) -> None:
    async with client.async_sender(job) as sender:
        for way in ways:
            await _measure_async(way, _async_call(sender, way.removeprefix("async ")), _numbered(way, job), job)


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
    warm_up = WarmUp(way, job.number("ms") / 1000, job.number("size"), job.number("count", 0))
    while not warm_up.is_over:
        messages = made.messages(warm_up.count)
        began = time.perf_counter()
        await send(messages)
        warm_up.took(time.perf_counter() - began)
    messages, watch = made.messages(warm_up.count), Stopwatch(job.server_pids)
    gc.collect()
    watch.start()
    await send(messages)
    say(way=way, count=len(messages), sent=made.made, **watch.stop())


class WarmUp:
    """Sends more and more until one call lasts an eighth of a round; that rate decides how many messages a round has.

    The first calls open connections and wait for partial batches, so their rate says nothing. One send at a time gets
    half of the time: its thousands of sends are alike. With a `count`, a round has that many, after one call with an
    eighth of them.
    """

    def __init__(self, way: str, seconds: float, size: int, count: int = 0) -> None:
        one, self._fixed = way.endswith("one"), count
        self._target = seconds / 2 if one else seconds
        self._most = min(MOST, MOST_BYTES // size)
        self.count = count // WARM_UP_SHARE or (WARM_UP_ONE if one else WARM_UP_MANY)
        """Messages of the next call."""
        self.is_over = False

    def took(self, seconds: float) -> None:
        """The call lasted so long."""
        if self._fixed:
            self.count, self.is_over = self._fixed, True
            return
        self.is_over = seconds >= self._target / WARM_UP_SHARE or self.count >= self._most
        wanted = self._target if self.is_over else 1.5 * self._target / WARM_UP_SHARE
        worth = int(self.count / max(seconds, 1e-6) * wanted)
        self.count = min(self._most, max(LEAST, worth if self.is_over else max(worth, 2 * self.count)))


# many clients


def _clients(client: ModuleType, job: Job) -> None:
    """`threads` clients, each with keys of its own, send one message after the other for `ms` milliseconds.

    Says `ready` when each has sent a message, and starts when the file `go` appears. Threads share a sender, or have
    one each where the client says `OWN_SENDERS`, because its call waits for the messages of all threads.
    """
    threads, seconds, go = job.number("threads"), job.number("ms") / 1000, Path(job.text("go"))
    with contextlib.ExitStack() as stack:
        own = getattr(client, "OWN_SENDERS", False)
        senders = [stack.enter_context(client.sender(job)) for _ in range(threads if own else 1)]
        made = [
            Numbered(CLIENT_KEYS, job.number("size"), f"client{job.text('process')}x{thread}")
            for thread in range(threads)
        ]
        started, watch = threading.Event(), Stopwatch(job.server_pids)

        def one_client(thread: int) -> list[int]:
            send, delays = senders[thread % len(senders)].send, list[int]()
            send(*made[thread].messages(1)[0])
            ready.wait()
            started.wait()
            until = time.perf_counter() + seconds
            began = 0.0
            while began < until:
                key, value = made[thread].messages(1)[0]
                began = time.perf_counter()
                send(key, value)
                delays.append(int((time.perf_counter() - began) * 1e6))
            return delays

        ready = threading.Barrier(threads + 1)
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(one_client, thread) for thread in range(threads)]
            ready.wait(60)
            say(ready=True)
            while not go.exists():
                time.sleep(0.001)
            watch.start()
            started.set()
            delays = [delay for each in running for delay in each.result()]
        sent = sum(numbered.made for numbered in made)
        say(count=len(delays), sent=sent, delays_us=delays, **watch.stop())


# read


def _read(client: ModuleType, job: Job) -> None:
    """Reads `expect` messages with a handler that uses key, event and position. The clock runs from the end of
    the first `warm` calls to the last. `handler_ms` makes each call wait so long. `parts` are the prefixes of keys with
    the number of messages of each, for a verdict on each: `one:300,batch:2000`. `array_keys` is the number of keys, for
    a check whose cost does not depend on it.

    Messages that never come end the reading after `QUIET_SECONDS`, with a verdict and without a time.
    """
    warm = job.number("warm", 1)
    expect, pause = job.number("expect"), job.number("handler_ms", 0) / 1000
    keys = job.number("array_keys", 0)
    check, watch = ArrayCheck(keys) if keys else OrderCheck(), Stopwatch(job.server_pids)
    turns, ended, latest = itertools.count(1), [], [None]
    last = [expect]

    def handle(key: str, event: Any, position: Any) -> bool:
        if pause:
            time.sleep(pause)
        if not check.see(key, event["n"]):
            last[0] += 1  # a repeat does not count towards the end
        latest[0] = position
        turn = next(turns)
        if turn == warm:
            watch.start()
        if turn == last[0]:
            ended.append(watch.stop())
        return turn >= last[0]

    def result() -> None:
        sizes = (part.split(":") for part in job.text("parts", f":{expect}").split(","))
        verdicts = {prefix: verdict(check, int(size), prefix) for prefix, size in sizes}
        times = ended[0] if ended else {}
        say(count=expect - warm, repeats=check.repeats, verdict=verdict(check, expect), verdicts=verdicts, **times)

    gc.collect()
    _end_when_quiet(check, result, job)
    client.consume(job, handle)
    result()


def _end_when_quiet(check: OrderCheck, result: Callable[[], None], job: Job) -> None:
    """Ends the process with its result if nothing new comes for a while, in whatever call the client then waits."""
    seconds = job.number("quiet_ms", int(QUIET_SECONDS * 1000)) / 1000

    def watch() -> None:
        seen, since = 0, time.monotonic()
        while time.monotonic() - since < (seconds if seen else FIRST_SHARE * seconds):
            time.sleep(seconds / 20)
            if (now := check.distinct()) != seen:
                seen, since = now, time.monotonic()
        if not seen:
            os.write(2, f"no message came within {FIRST_SHARE * seconds:g} s".encode())
            os._exit(1)
        result()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


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

    Says `ready` when all messages whose key begins with `probe` are handled, so that every queue is being read. Prints
    the delays, from due to handled, of the messages that were due `skip_ms` after the first or later, in microseconds.
    """
    expect, check, watch = job.number("expect"), OrderCheck(), Stopwatch(job.server_pids)
    delays: list[tuple[int, int]] = []
    last, probes = [expect], set[str]()

    def handle(key: str, event: Any, position: Any) -> bool:
        if key.startswith("probe"):
            probes.add(key)
            if len(probes) == PROBES:
                watch.start()
                say(ready=True)
            return False
        due = event["at"]
        delays.append((due, time.monotonic_ns() - due))
        if not check.see(key, event["n"]):
            last[0] += 1
        return len(delays) >= last[0]

    def result() -> None:
        ended = watch.stop()
        counted_from = min((due for due, _ in delays), default=0) + job.number("skip_ms") * 1_000_000
        late = [delay // 1000 for due, delay in delays if due >= counted_from]
        say(count=len(delays), verdict=verdict(check, expect), delays_us=late, **ended)

    def watch_once_ready() -> None:
        while len(probes) < PROBES:
            time.sleep(0.1)
        _end_when_quiet(check, result, job)

    threading.Thread(target=watch_once_ready, daemon=True).start()
    client.consume(job, handle)
    result()


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
