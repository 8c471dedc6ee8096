"""Anybody who reaches the console may search; nobody can keep others from their pages by searching."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.console.conftest import Stage, until
from tests.console.window import serving

from lanemq.console.message_search import FoundMessages
from lanemq.console.reading import MAX_SEARCHES_PER_CLIENT, ConsoleReads
from lanemq.console.routes import messages
from lanemq.console.settings import ConsoleSettings

FOUND = FoundMessages((), 0, 0, False)


@pytest.fixture(scope="module")
def served(stage: Stage) -> Iterator[str]:
    with serving(ConsoleSettings(stage.address, every=0.3)) as base:
        until("the console to know the topics", lambda: ask(base, "/topics/orders")[0] == 200)
        yield base


def ask(base: str, path: str, source: str = "127.0.0.1") -> tuple[int, str]:
    """The status and the text of a page that an address asks for."""
    connection = HTTPConnection("127.0.0.1", urlsplit(base).port or 0, timeout=30, source_address=(source, 0))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_one_address_that_searches_without_end_keeps_no_page_from_anybody(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, go_on = threading.Semaphore(0), threading.Event()
    begin = ConsoleReads._begin

    def search(*_: object, **__: object) -> FoundMessages:
        assert go_on.wait(30)
        return FOUND

    def counted(self: ConsoleReads, run: Callable[[], Any]) -> Any:
        running = begin(self, run)
        if self._per_client == MAX_SEARCHES_PER_CLIENT:
            accepted.release()
        return running

    monkeypatch.setattr(messages, "find", search)
    monkeypatch.setattr(ConsoleReads, "_begin", counted)
    with ThreadPoolExecutor() as clients:
        searches = [
            clients.submit(ask, served, f"/messages?topic=orders&q=word-{number}")
            for number in range(MAX_SEARCHES_PER_CLIENT)
        ]
        for _ in searches:
            assert accepted.acquire(timeout=30)
        status, text = ask(served, "/messages?topic=orders&q=one-more")
        assert status == 503
        assert "pages of 127.0.0.1 wait for the brokers, the limit for one address" in text
        for path in (
            "/topics",
            "/key?topic=orders&key=order-7",
            "/message?topic=orders&broker=lanemq&queue=0&offset=0",
        ):
            assert ask(served, path)[0] == 200, "the same address gets other pages"
        other = clients.submit(ask, served, "/messages?topic=orders&q=other", "127.0.0.2")
        go_on.set()
        assert [each.result()[0] for each in (other, *searches)] == [200] * (1 + MAX_SEARCHES_PER_CLIENT)
