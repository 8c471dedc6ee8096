"""What pages say while the brokers do not answer, or refuse the console: what is not known, and how old the rest is."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from tests.console.test_views import QUEUE, group, snapshot

from lanemq.client.admin.key_progress import KeyFacts
from lanemq.clock import SystemClock
from lanemq.console import app as console
from lanemq.console import reading, screens
from lanemq.console.routes import groups, key
from lanemq.console.settings import ConsoleSettings
from lanemq.console.snapshot import Snapshot, SnapshotReader
from lanemq.model.errors import LaneError, NotAllowed, TransportError

AWAY = TransportError("127.0.0.1:9876 does not answer")
WRONG = NotAllowed(16, "the signature is wrong")


class FakeReader(SnapshotReader):
    """Snapshots without a broker; `problem` is raised while there is one."""

    problem: ClassVar[Exception | None] = None

    def __init__(self, server: str, clock: SystemClock) -> None:
        self._clock = clock

    def close(self) -> None:
        pass

    def _take(self, wall: int) -> Snapshot:
        if self.problem is not None:
            raise self.problem
        return replace(snapshot(wall, group(5, 5)), taken=wall)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(FakeReader, "problem", None)
    monkeypatch.setattr(console, "SnapshotReader", FakeReader)
    app = console.console_app(ConsoleSettings("127.0.0.1:1", every=0.2), "token")
    with TestClient(app, base_url="http://127.0.0.1:9870", client=("127.0.0.1", 50000)) as client:
        app.state.console.watch._every = 0.01
        yield client


def fail(page: TestClient, problem: Exception) -> None:
    """The next snapshot fails."""
    FakeReader.problem = problem
    page.portal.call(page.app.state.console.watch.changed)


def never_read(page: TestClient, problem: Exception) -> None:
    """As a console that was started while the brokers were away."""
    fail(page, problem)
    watch = page.app.state.console.watch
    watch._last_good, watch.now = None, Snapshot(SystemClock().wall())


FALSE_WHEN_UNREAD = {
    "/waiting": ("No key waits", "No message was given up", "0 keys"),
    "/dead": ("There are no dead letters",),
    "/topics": ("There is no topic yet",),
    "/groups": ("There is no group yet",),
    "/messages": ("Choose a topic to see",),
}


@pytest.mark.parametrize("problem", [AWAY, WRONG])
def test_a_page_does_not_take_what_was_not_read_for_nothing(page: TestClient, problem: LaneError) -> None:
    never_read(page, problem)
    fail(page, problem)
    for path, texts in FALSE_WHEN_UNREAD.items():
        shown = page.get(path).text
        assert "Unknown: the brokers could not be read." in shown, path
        assert str(problem) in shown
        assert not [text for text in texts if text in shown], path
    for path in ("/messages?topic=orders", "/tail?topic=orders", "/topics/orders", "/groups/shipping"):
        answer = page.get(path)
        assert (answer.status_code, "there is no" in answer.text) == (503, False), path


def test_brokers_that_refuse_the_console_are_not_called_down(page: TestClient) -> None:
    never_read(page, WRONG)
    fail(page, WRONG)
    shown = page.get("/").text
    assert "The brokers refuse the console:" in shown
    assert "the brokers answer, and refuse the console: the broker refused (16): the signature is wrong" in shown
    assert not [text for text in ("Down", "cannot be reached", "do not answer") if text in shown]
    assert page.get("/health").json()["brokers"] == "refuse the console"
    fail(page, AWAY)
    assert "Down" in page.get("/").text


def opened(page: TestClient, screen: screens.Screen, path: str, query: str = "", **named: str) -> AsyncIterator[str]:
    """The events that an open page gets."""
    where = {"path": path, "path_params": named, "query_string": query.encode(), "server": ("127.0.0.1", 9870)}
    scope = {"type": "http", "scheme": "http", "method": "GET", "headers": [], "client": ("127.0.0.1", 1), **where}
    return screens._events(page.app.state.console, Request(scope), screen)


async def first_with(events: AsyncIterator[str], text: str) -> str:
    async with asyncio.timeout(30):
        async for event in events:
            if text in event:
                return event
    raise AssertionError


def test_an_open_page_says_that_the_brokers_are_gone_and_how_old_it_is(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = False

    def facts(*_: object) -> KeyFacts:
        if gone:
            raise AWAY
        return KeyFacts("order-7", QUEUE, QUEUE, [], [])

    monkeypatch.setattr(key, "key_facts", facts)
    of_group = screens.Screen("/groups/{group}", "groups", "group.html", groups._one)

    async def watch_both() -> None:
        nonlocal gone
        shared = page.app.state.console
        clock = shared.clock
        both = {
            "Queues and owners": opened(page, of_group, "/groups/shipping", group="shipping"),
            "Journey": opened(page, key.SCREEN, "/key", "topic=orders&key=order-7"),
        }
        for text, events in both.items():
            assert "Read now, kept up to date" in await first_with(events, text)
        gone, FakeReader.problem, wall = True, AWAY, clock.wall
        monkeypatch.setattr(type(clock), "wall", lambda self: wall() + 60_000)
        await shared.reading.do(lambda: None)  # forgets the answers that are less than a second old
        for text, events in both.items():
            shown = re.sub(r"</?span[^>]*>", "", await first_with(events, "The brokers cannot be reached:"))
            assert text in shown, "the page keeps what it showed"
            assert "127.0.0.1:9876 does not answer. What follows was read 1 min ago." in shown
            assert "Last read 1 min ago" in shown
            assert "kept up to date" not in shown
        gone, FakeReader.problem = False, None
        for text, events in both.items():
            assert text in await first_with(events, "Read now, kept up to date")
            await events.aclose()

    page.portal.call(watch_both)


@pytest.mark.parametrize("path", ["/groups", "/topics", "/groups/shipping", "/"])
def test_what_was_read_stays_grey_with_its_age_and_the_reason(page: TestClient, path: str) -> None:
    page.portal.call(page.app.state.console.watch.changed)
    before = rows(page.get(path).text)
    assert before
    fail(page, AWAY)
    shown = page.get(path).text
    assert 'class="old"' in shown
    assert "127.0.0.1:9876 does not answer" in shown
    assert re.search(r'Last read <span data-age="\d+">', shown)
    assert rows(shown) == before
    FakeReader.problem = None
    page.portal.call(page.app.state.console.watch.changed)
    assert 'class="old"' not in page.get(path).text


def rows(text: str) -> list[str]:
    """Where the rows and the tiles of a page lead."""
    return re.findall(r'<t[rd][^>]*>.*?<a href="([^"]+)"', text.partition("<main")[2])[:5] or re.findall(
        r'class="question">([^<]+)<', text
    )


def test_a_frozen_broker_is_said_before_its_request_fails(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen broker refuses nothing: a request ends after seconds only, and with it a reading."""
    frozen = threading.Event()
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.05)
    taken = FakeReader._take

    def hang(self: FakeReader, wall: int) -> Snapshot:
        frozen.wait(30)
        return taken(self, wall)

    async def watch() -> None:
        watching = page.app.state.console.watch
        await watching.changed()
        monkeypatch.setattr(FakeReader, "_take", hang)
        events = opened(page, screens.Screen("/groups", "groups", "groups.html", groups._list), "/groups")
        shown = await first_with(events, "</strong> no answer for some seconds. What follows was read")
        assert 'class="old"' in shown
        assert 'href="/groups/shipping"' in shown
        frozen.set()
        await first_with(events, "kept up to date")
        await events.aclose()

    page.portal.call(watch)


def test_an_open_page_says_that_its_group_is_gone(page: TestClient) -> None:
    of_group = screens.Screen("/groups/{group}", "groups", "group.html", groups._one)

    async def watch() -> None:
        events = opened(page, of_group, "/groups/none", group="none")
        assert "there is no group" in await first_with(events, "That did not work")
        await events.aclose()

    page.portal.call(watch)


def test_a_reading_that_ends_with_a_defect_is_said_and_tried_again(page: TestClient) -> None:
    fail(page, KeyError("an answer without a name"))
    shown = page.get("/waiting").text
    assert "the console cannot read what the brokers answer: KeyError(" in shown
    FakeReader.problem = None
    page.portal.call(page.app.state.console.watch.changed)
    assert "cannot read" not in page.get("/waiting").text
