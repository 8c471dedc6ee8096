"""The console in a real browser: no errors, no violations of the policy, live changes; what strangers wrote stays text.

`make browser` runs these tests and makes the screenshots of the guide. They need Chromium: scripts/browser.sh says how
to get it. All tests share one browser.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import pytest
import uvicorn
from tests.console.conftest import HOSTILE, TOKEN, Stage, until

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.console.app import console_app
from lanemq.console.server import listening_socket, url_of
from lanemq.console.settings import ConsoleSettings
from lanemq.net.address import Address

playwright = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
AXE = ROOT / "var" / "axe" / "package" / "axe.min.js"
SHOTS = os.environ.get("LANEMQ_SCREENSHOTS") == "1"
"""Whether the images of the guide are made anew."""

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

HOSTILE_KEY = f"/key?{urlencode({'topic': 'orders', 'key': HOSTILE})}"
SCREENS = {
    "home": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&broker=lanemq&queue=0&offset=0",
    "key": "/key?topic=orders&key=order-7",
    "hostile-key": HOSTILE_KEY,
    "groups": "/groups",
    "group": "/groups/shipping",
    "waiting": "/waiting",
    "pipelines": "/pipelines",
    "check": "/check",
    "settings": "/settings",
    "sign-in": "/sign-in",
    "not-found": "/nothing",
}


@dataclass
class Window:
    """A page of the browser, and everything that it complained about."""

    page: "playwright.Page"
    base: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.problems.clear()
        self.page.goto(self.base + path)
        self.page.wait_for_load_state("load")

    def complain(self, text: str) -> None:
        # A page that is left ends its event stream, and the 404 of the error page is meant.
        if "ERR_ABORTED" not in text and "ERR_INCOMPLETE" not in text and "status of 404" not in text:
            self.problems.append(text)


@pytest.fixture(scope="module")
def served(stage: Stage) -> Iterator[str]:
    """A console with a real socket, because a browser needs one."""
    listener = listening_socket(Address("127.0.0.1", 0))
    settings = ConsoleSettings(stage.address, every=0.3, history=stage.history)
    server = uvicorn.Server(
        uvicorn.Config(console_app(settings, TOKEN), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until("the console to start", lambda: server.started)
    yield url_of(listener).rstrip("/")
    server.should_exit = True
    thread.join(20)
    listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    found = subprocess.run(
        ["bash", ROOT / "scripts" / "browser.sh", "--path"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip("the console's browser tests need Chromium: scripts/browser.sh says how to get it")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(params=["laptop"])
def window(browser: "playwright.Browser", served: str, request: pytest.FixtureRequest) -> Iterator[Window]:
    context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 800})
    page = context.new_page()
    found = Window(page, served)
    page.on("console", lambda message: found.complain(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.complain(str(error)))
    page.on("dialog", lambda dialog: (found.complain(f"a dialog: {dialog.message}"), dialog.dismiss()))
    yield found
    context.close()


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_opens_without_complaints_and_fits_its_window(window: Window, name: str) -> None:
    """Violations of the policy, and scripts in names and bodies, would be complaints."""
    window.open(SCREENS[name])
    assert window.page.locator("h1").count() == 1
    for width in (390, 1280):
        window.page.set_viewport_size({"width": width, "height": 800})
        assert not window.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert window.page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert window.problems == []


def test_the_complaints_are_heard(window: Window) -> None:
    """Control: what the test above looks for does arrive."""
    window.open("/")
    window.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(1)>')")
    until("the violation to be reported", lambda: window.page.wait_for_timeout(20) or bool(window.problems))


def test_an_open_page_shows_a_change(window: Window, stage: Stage) -> None:
    window.open("/topics")
    with Admin(stage.address) as admin:
        admin.create_topic("appears-live", 1, ordered=True)
    window.page.get_by_role("link", name="appears-live").wait_for(timeout=60_000)
    with Admin(stage.address) as admin:
        admin.delete_topic("appears-live")
    window.page.get_by_role("link", name="appears-live").wait_for(state="detached", timeout=60_000)
    assert window.problems == []


def test_the_live_tail_shows_new_messages_as_text(window: Window, stage: Stage) -> None:
    with Admin(stage.address) as admin:
        admin.ensure_topic("tailed", 1, ordered=True)
    until("the console to know the topic", lambda: _opens(window, "/messages?topic=tailed"))
    window.page.get_by_role("button", name="Live tail").click()
    end = time.monotonic() + 60
    with Producer(stage.address) as producer:
        while not window.page.locator("#rows tr").count() and time.monotonic() < end:
            producer.send("tailed", HOSTILE.encode(), key=HOSTILE)
            window.page.wait_for_timeout(200)
    assert HOSTILE in window.page.locator("#rows td.body").first.inner_text()
    window.page.get_by_role("button", name="Pause").click()
    assert window.problems == []


def _opens(window: Window, path: str) -> bool:
    answer = window.page.goto(window.base + path)
    window.problems.clear()
    return answer is not None and answer.status == 200


def test_a_person_signs_in_and_redrives_a_key(window: Window, stage: Stage) -> None:
    """Its first message fails again, so the key is parked again, and other tests find it where it was."""
    window.open("/waiting")
    window.page.get_by_role("link", name="Sign in").click()
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.get_by_role("button", name="Sign in").first.click()
    window.page.locator("tr", has_text="order-7").get_by_role("link", name="Inspect").first.click()
    window.page.get_by_role("button", name="Redrive 2 messages").click()
    assert "of key order-7 are redriven" in window.page.get_by_role("status").inner_text()
    assert window.problems == []


def test_the_keyboard_reaches_the_search_and_the_content(window: Window) -> None:
    window.open("/groups")
    window.page.keyboard.press("/")
    assert window.page.evaluate("document.activeElement.id") == "find"
    window.page.keyboard.type("order-7")
    window.page.keyboard.press("Enter")
    window.page.get_by_role("heading", name="Key order-7").wait_for()
    window.page.keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_issue(browser: "playwright.Browser", served: str, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not there: scripts/browser.sh fetches it")
    # The page's policy forbids the injected script, and it is a tool of the test, not of the page.
    context = browser.new_context(locale="en-US", color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    issues = []
    for name, path in SCREENS.items():
        page.goto(served + path)
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run().then(result => result.violations)")
        issues += [
            (name, each["id"], each["nodes"][0]["html"][:200])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
    context.close()
    assert issues == []


@pytest.mark.skipif(not SHOTS, reason="only `make browser` makes the images of the guide")
def test_screenshots_of_every_screen(browser: "playwright.Browser", screenshots_of: str) -> None:
    """Made from the traffic of `lanemq up --demo`."""
    for scheme, width, names in (
        ("light", 1280, DEMO_SCREENS),
        ("dark", 1280, ("home",)),
        ("light", 390, ("home", "key")),
    ):
        context = browser.new_context(
            locale="en-US", color_scheme=scheme, viewport={"width": width, "height": 860 if width > 400 else 844}
        )
        page = context.new_page()
        for name in names:
            page.goto(screenshots_of + DEMO_SCREENS[name])
            page.locator(".uplot").first.wait_for(timeout=60_000) if name == "home" else page.wait_for_timeout(300)
            suffix = f"{'-dark' if scheme == 'dark' else ''}{'-phone' if width < 400 else ''}"
            page.screenshot(path=IMAGES / f"console-{name}{suffix}.png")
        context.close()


DEMO_SCREENS = {
    "home": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&broker=lanemq&queue=0&offset=1",
    "key": "/key?topic=orders&key=order-7",
    "groups": "/groups",
    "group": "/groups/shipping",
    "waiting": "/waiting",
    "check": "/check",
    "settings": "/settings",
    "pipelines": "/pipelines",
    "sign-in": "/sign-in",
}


@pytest.fixture
def screenshots_of(tmp_path: Path) -> Iterator[str]:
    """`lanemq up --demo`, until a key is parked and the order was checked."""
    import re
    import signal
    import sys
    import urllib.request

    command = [sys.executable, "-m", "lanemq.cli.main", "up", "--demo", "--data", str(tmp_path)]
    ports = ["--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        found = re.match(r"console +(\S+)/", running.stdout.readline())
        assert found is not None

        def shows(path: str, text: str) -> bool:
            with urllib.request.urlopen(found[1] + path, timeout=30) as answer:
                return text in answer.read().decode()

        until("a key to be parked", lambda: shows("/waiting", "parked</span>"), 120)
        until("the order to be checked", lambda: shows("/", "0 violations"), 120)
        time.sleep(20)  # so that the plots show something
        yield found[1]
        running.send_signal(signal.SIGTERM)
