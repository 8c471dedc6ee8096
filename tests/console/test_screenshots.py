"""The screenshots of the console's guide, made from `lanemq up --demo` and one more Spark pipeline.

Only `make screenshots` runs this. It writes every screen, light and dark, wide and narrow, into var/screens, and those
that the guide shows into docs/images.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.console.conftest import ROOT, until
from tests.console.histories import write_history

from lanemq.client.admin.parked import ParkedAdmin
from lanemq.console.links import lane_query
from lanemq.core.lane_status import LaneStatus

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(os.environ.get("LANEMQ_SCREENSHOTS") != "1", reason="only `make screenshots` makes the images"),
]

IMAGES = ROOT / "docs" / "images"
GUIDE = ROOT / "docs" / "guides" / "console.md"
ALL = ROOT / "var" / "screens"
HEIGHTS = {1280: (560, 1150), 390: (844, 1600)}
"""The least and the largest height of an image, by its width. A longer page is cut between two rows of its list."""
WHOLE = {"key": 2600, "group": 2000, "check-violation": 2000, "redrive-keys": 1600}
"""The largest height of pages whose lower part is what their image is for: the journey, owners and members, events."""
NOT_YET = {
    "key": ("it is still being read", "Waits for a batch of the pipeline", "was not read in time"),
    "pipelines": ("none yet",),
}
"""What a page says while the console has not read the pipelines, or has read them before their first batch."""
LEFT = 4
"""Parked keys that are left in the group `shipping`, so that the page of the group shows more than them."""
FOLDER = Path("/tmp/shop")
"""Images show its name, so it is the same on every machine."""
SCREENS = {
    "home": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&broker=lanemq&queue=0&offset=1",
    "key": "/key?topic=orders&key=order-7",
    "groups": "/groups",
    "group": "/groups/shipping",
    "waiting": "/waiting",
    "dead": "/dead?group=mail",
    "dead-letter": "/dead/letter?group=mail&id=lanemq/0/0",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/0",
    "pipeline-key": "/pipelines/0/key?key=order-7",
    "pipeline-dead": "/pipelines/1",
    "check": "/check",
    "settings": "/settings",
    "find": "/key",
    "not-found": "/nothing",
}
FORMS = {
    "redrive-dead": "/dead/redrive?group=mail",
    "discard-dead": "/dead/discard?group=mail",
    "reset": "/groups/billing/reset?topic=orders&to=10m",
    "pipeline-discard": "/pipelines/0/change?action=discard-first&key=order-7",
    "new-topic": "/topic/new?name=invoices&queues=8&order=key",
    "publish": "/topics/orders/publish?key=order-7&value=%7B%22kind%22%3A+%22note%22%7D",
    "topic-settings": "/topics/orders/settings",
    "delete-topic": "/topics/orders/delete",
}
"""Pages for a person who has signed in."""


NOTICES = """
from lanemq.pipelines import DeadLetter, DeltaSink, Pipeline, Topic, Transitions
from lanemq.testing.demo.shipments import OUTPUTS, ship

source = Topic("SERVER", "orders", group="notices", startingOffsets="earliest")
stage = Transitions(step=ship, outputs=OUTPUTS, on_failure=DeadLetter(skip=True))
pipeline = Pipeline("notices", source, stage, DeltaSink("notices-rows"), "notices")
"""


@dataclass(frozen=True)
class Demo:
    """The addresses of the demonstration."""

    console: str
    server: str
    token: str


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """An empty folder. One that another program made is left alone."""
    mark = FOLDER / ".screenshots"
    assert mark.exists() or not FOLDER.exists(), f"{FOLDER} exists and was not made for screenshots: move it away"
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    mark.touch()
    yield FOLDER
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(scope="module")
def demo(folder: Path) -> Iterator[Demo]:
    """`lanemq up --demo`, until there is something to see on every screen."""
    with contextlib.ExitStack() as running:
        at = ("--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
        up = _start(running, folder, "up", "--demo", "--data", "data", "--history", "history", *at)
        found = Demo(_line(up, r"console +(\S+)/"), _line(up, r"broker +(\S+)"), _line(up, r"token +(\S+)"))
        until("a key to be parked", lambda: "parked</span>" in _text(found, "/waiting"), 120)
        until("a dead letter", lambda: "/dead?group=mail" in _text(found, "/waiting"), 120)
        (folder / "notices.py").write_text(NOTICES.replace("SERVER", found.server))
        words = ("--master", "local[1]", "--quiet", "--history", "history")
        runs = [_start(running, folder, "pipeline", "run", "notices.py", *words)]
        chosen = ("--pipeline", "data/pipeline/shipments", "--pipeline", "notices", "--history", "history")
        second = _start(
            running, folder, "console", "--server", found.server, "--listen", "127.0.0.1:0", "--every", "1s", *chosen
        )
        found = Demo(_line(second, r"console on (\S+)/"), found.server, _line(second, r"token for changes: (\S+)"))
        until("both pipelines to run", lambda: _both_run(found, runs), 200)
        until("keys that wait in a pipeline", lambda: "parked</dd>" in _text(found, "/pipelines"), 200)
        until("the order to be checked", lambda: "0 violations" in _text(found, "/"), 120)
        key = SCREENS["key"]
        until(
            "the pipelines to read the key", lambda: not any(each in _text(found, key) for each in NOT_YET["key"]), 400
        )
        time.sleep(20)  # so that the plots show something
        yield found


@pytest.fixture(scope="module")
def broken(folder: Path) -> Path:
    """A history in which a worker runs two messages of a key in the wrong order."""
    write_history(folder / "broken", (0, 2, 1))
    return folder / "broken"


def _start(
    running: contextlib.ExitStack, folder: Path, *arguments: str, output: int = subprocess.PIPE
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lanemq.cli.main", *arguments]
    made = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running.enter_context(made)  # waits for its end
    running.callback(made.send_signal, signal.SIGTERM)
    return made


def _line(process: "subprocess.Popen[str]", pattern: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"the process ended without {pattern}")


def _both_run(demo: Demo, runs: "list[subprocess.Popen[str]]") -> bool:
    for each in runs:
        assert each.poll() is None, f"a pipeline has ended: {each.stdout.read() if each.stdout else ''}"
    return _text(demo, "/pipelines").count(">running</span>") == 2


def _text(demo: Demo, path: str) -> str:
    with urllib.request.urlopen(demo.console + path, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def _forms(demo: Demo) -> dict[str, str]:
    """The forms, with the page of the first parked lane."""
    with ParkedAdmin(demo.server) as admin:
        lane = next(each for each in admin.lanes("shipping") if each.status is LaneStatus.PARKED)
    named = lane_query(lane.group, lane.queue.topic, lane.queue.broker, lane.queue.queue_id, lane.key)
    return {
        "lane": f"/waiting/lane?{named}",
        "discard-lane": f"/waiting/discard?{named}&all=1",
        **FORMS,
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_screenshots_of_every_screen(browser: "Browser", demo: Demo, broken: Path, scheme: str, width: int) -> None:
    _tidy(demo)
    suffix = f"{'-dark' if scheme == 'dark' else ''}{'-phone' if width < 1000 else ''}"
    context = browser.new_context(locale="en-US", color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    names = [*_shoot(page, demo, SCREENS, width, suffix)]
    page.goto(f"{demo.console}/sign-in")
    names += _shoot(page, demo, {"sign-in": "/sign-in"}, width, suffix)
    page.get_by_label("Token").fill(demo.token)
    page.get_by_role("button", name="Sign in").first.click()
    page.get_by_role("button", name="Sign out").wait_for()
    names += _shoot(page, demo, _forms(demo), width, suffix)
    page.goto(f"{demo.console}/waiting")
    page.get_by_role("checkbox", name="Choose all parked keys").check()
    page.get_by_role("button", name="Redrive chosen keys").click()
    page.get_by_role("heading", name="Redrive").wait_for()
    names.append(_save(page, "redrive-keys", width, suffix))
    page.goto(f"{demo.console}/check")
    page.locator("input[type=file]").set_input_files(sorted(broken.glob("*.jsonl")))
    page.get_by_role("button", name="Check").click()
    page.get_by_role("heading", name="The first violation").wait_for()
    names.append(_save(page, "check-violation", width, suffix))
    context.close()
    assert all((ALL / f"{name}{suffix}.png").stat().st_size > 5_000 for name in names)


def _tidy(demo: Demo) -> None:
    """Discards the newest parked keys of `shipping`; the traffic continues, and parks further ones."""
    with ParkedAdmin(demo.server) as admin:
        lanes = sorted(admin.lanes("shipping"), key=lambda lane: lane.parked_since)
        for lane in lanes[LEFT:]:
            admin.discard(lane, lane.last)


def _shoot(page: "Page", demo: Demo, screens: dict[str, str], width: int, suffix: str) -> Iterator[str]:
    ALL.mkdir(parents=True, exist_ok=True)
    for name, path in screens.items():
        page.set_viewport_size({"width": width, "height": HEIGHTS[width][0]})
        page.goto(demo.console + path)
        page.wait_for_load_state("load")
        if name in ("home", "group"):
            page.locator(".plot .area").first.wait_for(timeout=60_000)
        for text in NOT_YET.get(name, ()):
            page.get_by_text(text).first.wait_for(state="detached", timeout=200_000)
        yield _save(page, name, width, suffix)


def _save(page: "Page", name: str, width: int, suffix: str) -> str:
    """An image of the page as it is, as high as its content, within limits."""
    low, high = HEIGHTS[width]
    high = max(high, WHOLE.get(name, 0))
    full = page.evaluate("document.documentElement.scrollHeight")
    if full > high:
        page.set_viewport_size({"width": width, "height": high})
        full = page.evaluate(ROW_ENDS, high) or high
    page.set_viewport_size({"width": width, "height": max(low, full)})
    image = ALL / f"{name}{suffix}.png"
    page.screenshot(path=image)
    shown = f"console-{name}{suffix}.png"
    if f"../images/{shown}" in GUIDE.read_text():
        (IMAGES / shown).write_bytes(image.read_bytes())
    return name


ROW_ENDS = """
(most) => Math.floor(Math.max(0, ...[...document.querySelectorAll("main tr, main .stop, main .card, main pre")]
  .map((each) => each.getBoundingClientRect().bottom).filter((bottom) => bottom <= most)))
"""
"""The end of the last row or card that fits into this height; 0 if there is none."""
