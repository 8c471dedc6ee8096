"""A broker with sample state, and a console for it: one of each for all tests of the console."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey
from lanemq.history import open_history
from lanemq.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "the-token"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
BASE = "http://127.0.0.1:9870"


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


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("console-history")) as found:
        yield found


@contextlib.contextmanager
def staged(history: Path) -> Iterator[Stage]:
    with EmbeddedBroker() as broker, contextlib.ExitStack() as running:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 2, ordered=True)
            admin.create_topic("returns", 1, ordered=True)
        _send(broker.address, history)
        running.enter_context(_member(broker.address, history))
        running.enter_context(_quitter(broker.address))
        running.enter_context(_holder(broker.address))
        with ParkedAdmin(broker.address) as parked:
            until("three keys to be parked", lambda: len(parked.lanes("shipping")) == 3)
        yield Stage(broker.address, history)


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


@pytest.fixture(scope="session")
def client(stage: Stage) -> Iterator[TestClient]:
    """A browser without scripts, on the console's own machine."""
    settings = ConsoleSettings(stage.address, every=0.2, history=stage.history)
    with TestClient(console_app(settings, TOKEN), base_url=BASE, client=("127.0.0.1", 50000)) as found:
        until(
            "the dead letter and the held key",
            lambda: _is_complete(found),
            instead=lambda: "".join(found.get(path).text for path in ("/waiting", "/groups", "/groups/billing")),
        )
        yield found


def _is_complete(client: TestClient) -> bool:
    text = client.get("/waiting").text
    return "the payment service does not answer" in text and "/dead?group=mail" in text


@pytest.fixture
def signed_in(client: TestClient) -> Iterator[TestClient]:
    client.post("/sign-in", data={"token": TOKEN, "then": "/"}, headers={"origin": BASE})
    yield client
    client.cookies.clear()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium. While it runs, the thread of the tests has an event loop, so it ends with the module."""
    playwright = pytest.importorskip("playwright.sync_api")
    script = ["bash", ROOT / "scripts" / "browser.sh", "--path"]
    found = subprocess.run(script, capture_output=True, text=True, check=False, cwd=ROOT)
    if found.returncode:
        pytest.skip("Chromium is not installed: make browser installs it, or says how")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def axe() -> Path:
    """The script of axe-core, which scripts/browser.sh fetches in the version that it names."""
    found = subprocess.run(
        ["bash", ROOT / "scripts" / "browser.sh", "--axe"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if found.returncode:
        pytest.skip(found.stdout.strip() or "axe-core could not be fetched")
    return ROOT / found.stdout.strip()
