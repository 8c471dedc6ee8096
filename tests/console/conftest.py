"""A console for the broker of `stage`, and a browser: one of each for all tests of the console.

Their scope keeps these tests in one process of a parallel run (`tests/conftest.py`).
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient
from tests.console.stage import HOSTILE, ROOT, Stage, staged, until

from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["BASE", "HOSTILE", "ROOT", "TOKEN", "Stage", "until"]
TOKEN = "the-token"
BASE = "http://127.0.0.1:9870"


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("console-stage")) as found:
        yield found


@pytest.fixture(scope="package")
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
