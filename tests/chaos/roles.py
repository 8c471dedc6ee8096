"""The programs that tests kill, freeze and restart: a broker, a producer, a consumer.

    python -m tests.chaos.roles consume '{"name": "a", "address": "127.0.0.1:9876", ...}'

Each writes a history. `without` names guards to remove (`mutants`).
"""

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.chaos.mutants import MUTANTS

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.client.consumer.app import App
from lanemq.client.identity import new_message_ids
from lanemq.client.message import Message
from lanemq.client.producer import batches
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.client.topics import NewTopic
from lanemq.clock import SystemClock
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.queue_lease import LeaseTimes
from lanemq.core.consuming.retry_policy import HoldKey, HoldQueue
from lanemq.history import History, Place, open_history
from lanemq.net.address import parse_address

TOPIC = "orders"
FOUR_QUEUES = NewTopic(TOPIC, 4, ordered=False)
"""As a send without a key would create it."""
GROUP = "chaos"


def broker(settings: dict[str, Any]) -> None:
    """A broker, until SIGTERM. `recorded`: it writes a history.

    `file_bytes`: the maximum size of its files, to imitate a full disk.
    """
    if (limit := settings["options"].pop("file_bytes", None)) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    ready = Path(settings["ready"])
    history = Path(settings["history"]) if settings["options"].pop("recorded", False) else None

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        listen = parse_address(settings["listen"])
        options = BrokerOptions(Path(settings["data"]), listen=listen, history=history, **settings["options"])
        running = Broker(options)
        await running.start()
        ready.write_text(str(running.address))  # noqa: ASYNC240 - once, before the first request
        await stop.wait()
        await running.stop()

    asyncio.run(serve())


class KnownIds:
    """Message ids that are known before a message is sent, so that its send can be recorded first."""

    def __init__(self) -> None:
        self._ids, self._coming = new_message_ids(), deque[str]()
        source = SimpleNamespace(next=self._coming.popleft)
        batches.new_message_ids = lambda: source  # type: ignore[assignment, return-value]

    def next(self) -> str:
        """The id of the next message sent."""
        name = self._ids.next()
        self._coming.append(name)
        return name


def produce(settings: dict[str, Any]) -> None:
    """Sends `count` messages (0: until SIGTERM) with `keys` keys, at most `ahead` of them unanswered."""
    history = open_history(Path(settings["history"]), settings["name"], SystemClock().now_ns, role="producer")
    # No event: the signal may come while this thread holds the event's own lock.
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    ids = KnownIds()
    waiting: deque[Future[Receipt]] = deque()
    steps: dict[str, int] = {}
    topic = NewTopic(TOPIC, settings["queues"], ordered=False)
    with Producer(settings["address"], create=topic, **settings["options"]) as producer:
        number = 0
        while not signals and (not settings["count"] or number < settings["count"]):
            key = f"{settings['name']}-{number % settings['keys']}"
            steps[key] = steps.get(key, -1) + 1
            name = ids.next()
            history.send(TOPIC, key, name)
            future = producer.submit(TOPIC, {"step": steps[key]}, key=key)
            future.add_done_callback(_recorded(history, key, name))
            waiting.append(future)
            while len(waiting) > settings["ahead"]:
                waiting.popleft().exception()
            number += 1
            if settings["pause_ms"]:
                time.sleep(settings["pause_ms"] / 1000)
        for future in waiting:
            future.exception()
    history.close()


def _recorded(history: History, key: str, name: str) -> Any:
    def ended(future: "Future[Receipt]") -> None:
        if future.exception() is not None:
            history.send_unknown(TOPIC, key, name)
            return
        receipt = future.result()
        assert receipt.message_id == name
        history.acked(TOPIC, key, name, receipt.queue.queue_id, receipt.offset)

    return ended


class Sink:
    """A table in a file that all consumers write to, with the highest epoch of each queue."""

    def __init__(self, path: Path, history: History) -> None:
        self._path = path
        self._history = history
        self._local = threading.local()

    def write(self, message: Message) -> None:
        asked = self._history.now()
        with self._table() as table:
            table.execute("BEGIN IMMEDIATE")
            number = message.queue.queue_id
            known = table.execute("SELECT epoch FROM queues WHERE number = ?", (number,)).fetchone()
            if known is not None and known[0] > message.epoch:
                return
            table.execute("INSERT OR REPLACE INTO queues VALUES (?, ?)", (number, message.epoch))
            last = table.execute("SELECT offset FROM keys WHERE key = ?", (message.key,)).fetchone()
            if last is not None and last[0] >= message.queue_offset:
                return
            table.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (message.key, message.queue_offset))
            place = Place(GROUP, TOPIC, number, message.queue_offset)
            self._history.effect(place, message.key or "", "sink", epoch=message.epoch, asked=asked)

    def _table(self) -> sqlite3.Connection:
        if not hasattr(self._local, "table"):
            self._local.table = table = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            table.execute("PRAGMA synchronous = OFF")
            table.execute("CREATE TABLE IF NOT EXISTS queues (number INTEGER PRIMARY KEY, epoch INTEGER)")
            table.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, offset INTEGER)")
        connection: sqlite3.Connection = self._local.table
        return connection


def consume(settings: dict[str, Any]) -> None:
    """Consumes in order until SIGTERM; each turn takes `work_ms`, and those of the key `stuck` never end.

    Every third key fails while the file `broken` exists, and is parked at once. With `forks`, the first turn
    forks a child, which does nothing but keep the sockets open.
    """
    history = open_history(Path(settings["history"]), settings["name"], SystemClock().now_ns, role="consumer")
    options = dict(settings["options"])
    if "lease" in settings:
        options["lease_times"] = LeaseTimes(*(each / 1000 for each in settings["lease"]))
    app = App(settings["address"], group=GROUP, history=history, client_id=settings["name"], **options)
    work = settings["work_ms"] / 1000
    sink = Sink(Path(settings["sink"]), history) if "sink" in settings else None

    broken = Path(settings["broken"]) if "broken" in settings else None
    hold = HoldKey(retries=1, backoff=Backoff(0.01, 1.0, 0.01)) if broken else HoldKey()
    policy = HoldQueue() if settings["whole_queue"] else hold

    forks = [settings["name"]] if settings["forks"] else []

    @app.ordered(TOPIC, on_fail=policy, lanes=settings["lanes"])
    def on_order(message: Message) -> None:
        if forks:
            _fork_once(forks)
        if message.key == settings["stuck"]:
            threading.Event().wait()
        if broken is not None and int((message.key or "0")[-1]) % 3 == 0 and broken.exists():
            raise ValueError("broken")
        if work:
            time.sleep(work)
        if sink is not None:
            sink.write(message)

    app.run()
    history.close()


def _fork_once(names: list[str]) -> None:
    with contextlib.suppress(IndexError):  # another worker was faster
        name = names.pop()
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        Path(f"{name}.child.{child}").touch()


def _print_stacks(*_: object) -> None:
    faulthandler.dump_traceback()
    with contextlib.suppress(RuntimeError):
        for task in asyncio.all_tasks():
            task.print_stack()


def main() -> None:
    signal.signal(signal.SIGUSR1, _print_stacks)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    settings = json.loads(sys.argv[2])
    for guard in settings["without"]:
        MUTANTS[guard](setattr)
    {"broker": broker, "produce": produce, "consume": consume}[sys.argv[1]](settings)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
