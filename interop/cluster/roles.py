"""The clients of the cluster as processes: a producer and a consumer that write down what they see, one JSON line each.

    python -m interop.cluster.roles produce '{"name": "p1", "servers": "127.0.0.1:9876", "topic": "orders", ...}'

They run until SIGTERM. Times are those of the machine's monotonic clock, which all processes share.
"""

import contextlib
import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

from lanemq import App, HoldKey, Message, Producer, Receipt
from lanemq.errors import LaneError, LaneFrozen


class Notes:
    """A file of JSON lines, written by any thread."""

    def __init__(self, path: str) -> None:
        self._file: TextIO = Path(path).open("a", buffering=1)  # noqa: SIM115 - until the process ends
        self._lock = threading.Lock()

    def write(self, **fields: object) -> None:
        line = json.dumps({"t": time.monotonic(), **fields}) + "\n"
        with self._lock:
            self._file.write(line)


def produce(settings: dict[str, Any]) -> None:  # noqa: PLR0915 - one loop, read from top to bottom
    """Sends numbered messages of `keys` keys, at most `ahead` unanswered for each key, so that one key that waits
    does not stop the others."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    notes, topic, name = Notes(settings["notes"]), settings["topic"], settings["name"]
    keys = [f"{name}-{number}" for number in range(settings["keys"])]
    numbers = dict.fromkeys(keys, 0)
    waiting: dict[str, deque[Future[Receipt]]] = {key: deque() for key in keys}

    def ended(key: str, number: int, future: Future[Receipt]) -> None:
        error = future.exception()
        if error is not None:
            notes.write(e="failed", key=key, n=number, error=f"{type(error).__name__}: {error}"[:300])
            return
        receipt = future.result()
        queue = f"{receipt.queue.broker}/{receipt.queue.queue_id}"
        notes.write(e="acked", key=key, n=number, queue=queue, offset=receipt.offset, id=receipt.message_id)

    with Producer(settings["servers"], **settings["options"]) as producer:
        while not stop.is_set():
            began, sent = time.monotonic(), 0
            for key in keys:
                line = waiting[key]
                while line and line[0].done():
                    line.popleft()
                if len(line) >= settings["ahead"]:
                    continue
                number = numbers[key]
                try:
                    future = producer.submit(topic, {"key": key, "n": number}, key=key)
                except LaneError as error:
                    notes.write(e="refused", key=key, n=number, error=f"{type(error).__name__}: {error}"[:300])
                    continue
                if future.done() and isinstance(future.exception(), LaneFrozen):
                    notes.write(e="frozen", key=key, n=number, error=str(future.exception())[:300])
                    producer.resume(topic, key=key)
                    continue
                numbers[key] += 1
                future.add_done_callback(lambda done, key=key, number=number: ended(key, number, done))  # type: ignore[misc]
                line.append(future)
                sent += 1
            stop.wait(max(0.0 if sent else 0.002, len(keys) / settings["rate"] - (time.monotonic() - began)))
        notes.write(e="closing")
    notes.write(e="closed")


def consume(settings: dict[str, Any]) -> None:
    """Consumes in order; every turn takes `work` seconds."""
    notes = Notes(settings["notes"])
    app = App(settings["servers"], group=settings["group"], **settings["options"])

    @app.ordered(settings["topic"], on_fail=HoldKey(), lanes=settings.get("lanes", 20))
    def on_order(message: Message) -> None:
        value = message.value()
        queue = f"{message.queue.broker}/{message.queue.queue_id}"
        notes.write(e="turn", key=value["key"], n=value["n"], queue=queue, offset=message.queue_offset)
        if settings["work"]:
            time.sleep(settings["work"])
        notes.write(e="end", key=value["key"], n=value["n"], queue=queue, offset=message.queue_offset)

    app.run()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")
    with contextlib.suppress(KeyboardInterrupt):
        {"produce": produce, "consume": consume}[role](settings)


if __name__ == "__main__":
    main()
