"""The broker with sample state that all tests of the console share, in a process of its own.

It lives through many other tests of the same worker. Some of them take a guard out of a class of this package
(`tests/chaos/mutants.py`). Members in the same process would lose that guard too, and what they do without it may stay:
one that commits what it has fetched instead of what it has finished passes its held key for good.

    python -m tests.console.stage FOLDER

prints the broker's address, and ends when its input does.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey
from lanemq.history import open_history
from lanemq.testing.embedded import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
END_SECONDS = 30


def until(what: str, happened: Callable[[], bool], seconds: float = 60.0, instead: Callable[[], str] = str) -> None:
    """Waits for a condition; a busy machine may take its time. `instead` says what there is if it never holds."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}: {instead()}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Stage:
    """A broker: `shipping` has parked three keys, `billing` holds one, and `mail` has given one message up."""

    address: str
    history: Path


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Starts the process and waits until its keys are parked; `folder` is for its history and its log."""
    log = folder / "stage.log"
    with log.open("w") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.console.stage", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
        )  # fmt: skip
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        address = running.stdout.readline().strip()
        assert address, f"the process of the stage has ended: {log.read_text()}"
        yield Stage(address, history_in(folder))
    finally:
        running.stdin.close()
        try:
            running.wait(END_SECONDS)
        finally:
            running.kill()
            running.stdout.close()


def history_in(folder: Path) -> Path:
    return folder / "history"


def main(folder: Path) -> None:
    """Plays until the input ends, which it also does if the process of the tests is killed."""
    history = history_in(folder)
    with EmbeddedBroker() as broker, contextlib.ExitStack() as members:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 2, ordered=True)
            admin.create_topic("returns", 1, ordered=True)
        _send(broker.address, history)
        members.enter_context(_member(broker.address, history))
        members.enter_context(_quitter(broker.address))
        members.enter_context(_holder(broker.address))
        with ParkedAdmin(broker.address) as parked:
            until("three keys to be parked", lambda: len(parked.lanes("shipping")) == 3)
        sys.stdout.write(f"{broker.address}\n")
        sys.stdout.flush()
        sys.stdin.read()


def _send(address: str, history: Path) -> None:
    record = open_history(history, "shop", SystemClock().now_ns, role="producer")
    with Producer(address, history=record) as producer:
        for status in ("created", "paid", "shipped"):
            for order in ("order-1", "order-7", "order-8", HOSTILE):
                producer.send("orders", {"order": order, "status": status}, key=order, tag=status)
        producer.send("returns", HOSTILE.encode(), key="return-1")
        producer.send("returns", b"\x00\xffnot text\x1b[31m", key="return-2")
    record.close()


@contextlib.contextmanager
def _member(address: str, history: Path) -> Iterator[None]:
    """Fails at the second event of three keys until they are parked."""
    record = open_history(history, "worker-1", SystemClock().now_ns, role="consumer")
    app = App(address, group="shipping", history=record, client_id="worker-1@1")
    quick = HoldKey(retries=1, backoff=Backoff(first=0.01, factor=1.0, max=0.01))

    @app.ordered("orders", on_fail=quick)
    def ship(message: Message) -> None:
        if message.tag == "paid" and message.key != "order-1":
            raise ValueError(f"no carrier takes {message.key}")

    with app:
        yield
    record.close()


@contextlib.contextmanager
def _quitter(address: str) -> Iterator[None]:
    """Gives up the first message of `returns`."""
    app = App(address, group="mail", client_id="mailer-1@2")
    once = DeadLetter(skip=True, hold=HoldKey(retries=0))

    @app.ordered("returns", on_fail=once)
    def mail(message: Message) -> None:
        if message.key == "return-1":
            raise ValueError("no mail address")

    with app:
        yield


@contextlib.contextmanager
def _holder(address: str) -> Iterator[None]:
    """Holds `return-2` for an hour."""
    app = App(address, group="billing", client_id="biller-1@3")
    hold = HoldKey(retries=-1, backoff=Backoff(first=3600.0, factor=1.0, max=3600.0))

    @app.ordered("returns", on_fail=hold)
    def bill(message: Message) -> None:
        if message.key == "return-2":
            raise ValueError("the payment service does not answer")

    with app:
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]))
