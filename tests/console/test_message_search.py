"""A search that ends at a limit says so, and continues where it ended: nothing is skipped or shown twice."""

import tracemalloc
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from tests.broker.running import ManualClock
from tests.console.conftest import Stage, until

from lanemq.client.admin.admin import Admin
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.client.topic_route import TopicRoute
from lanemq.console import message_search
from lanemq.console.message_search import MAX_ROWS, FoundMessages, find
from lanemq.console.views.messages import FROM_THE_END, Search
from lanemq.model.units import Millis
from lanemq.wire.compression import compress_zlib

COUNT = 150
"""Messages of the key `busy`: more than the index returns, many of them stored in the same millisecond."""


@pytest.fixture(scope="module")
def topic(stage: Stage) -> str:
    with Admin(stage.address) as admin:
        admin.create_topic("searched", 2, ordered=True)
    with Producer(stage.address) as producer:
        producer.send_many("searched", [("busy", {"n": number}) for number in range(COUNT)])
        for number in range(10):
            producer.send("searched", {"rare": number}, key=f"key-{number}")
    return "searched"


def pages(stage: Stage, topic: str, search: Search) -> Iterator[FoundMessages]:
    """All pages, as a person gets them who follows "older"."""
    older = FROM_THE_END
    while True:
        found = find(stage.address, topic, search, older)
        yield found
        if found.older is None:
            return
        older = found.older


def test_a_key_that_the_broker_does_not_index_is_searched_in_the_queues(
    stage: Stage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Apache broker indexes only what a sender adds as search keys."""
    monkeypatch.setattr(Admin, "find_key", lambda *_, **__: [])
    assert find(stage.address, topic, Search(key="key-3")).rows == ()
    monkeypatch.setattr(TopicRoute, "is_lanemq", lambda *_: False)
    found = find(stage.address, topic, Search(key="key-3"))
    assert [row.key for row in found.rows] == ["key-3"]
    assert found.kept == COUNT + 10, "the page says how many were read"


@pytest.mark.parametrize(
    ("search", "count"),
    [
        (Search(), COUNT + 10),
        (Search(key="busy"), COUNT),
        (Search(key="busy", text="7"), 24),
        (Search(text="rare"), 10),
        (Search(after=1), COUNT + 10),
        (Search(key="key-3"), 1),
        (Search(before=1), 0),
    ],
)
def test_older_pages_have_every_message_once(
    stage: Stage, topic: str, search: Search, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "MAX_SCANNED", 120)
    found = list(pages(stage, topic, search))
    rows = [(row.queue, row.offset) for page in found for row in page.rows]
    assert len(rows) == len(set(rows)) == count
    assert [page.is_cut for page in found] == [True] * (len(found) - 1) + [False]
    for queue in (0, 1):
        offsets = [offset for number, offset in rows if number == queue]
        assert offsets == sorted(offsets, reverse=True)


def test_a_search_by_time_that_ends_at_its_limit_does_not_look_complete(
    stage: Stage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "MAX_SCANNED", 100)
    assert find(stage.address, topic, Search(after=1, text="not in any body")).is_cut


def test_the_page_of_a_search_says_that_it_is_not_complete_and_leads_to_older_messages(
    client: TestClient, topic: str
) -> None:
    until("the console to know the topic", lambda: client.get(f"/messages?topic={topic}").status_code == 200)
    page = client.get(f"/messages?topic={topic}").text
    assert "Not complete" in page
    link = page.split('rel="next"')[0].rpartition('href="')[2].split('"')[0].replace("&amp;", "&")
    following = client.get(link).text
    assert following.count('<tr><th scope="row"') == MAX_ROWS
    assert "Live tail" not in following
    assert "Newest</a>" in following
    rare = client.get(f"/messages?{urlencode({'topic': topic, 'q': 'key:key-3'})}").text
    assert "Not complete" not in rare
    assert 'rel="next"' not in rare
    assert "is not a place" in client.get(f"/messages?topic={topic}&from=x").text


class Passing(ManualClock):
    """A clock on which each look takes a second."""

    def now(self) -> Millis:
        self.passed += 1000
        return super().now()


def test_a_search_that_takes_too_long_says_how_far_it_got_and_continues_there(stage: Stage, topic: str) -> None:
    """Each page reads a few messages; together they find every message once."""
    older, found, scanned = FROM_THE_END, list[tuple[int, int]](), list[int]()
    while older is not None and len(scanned) < 200:
        page = find(stage.address, topic, Search(text="rare"), older, clock=Passing())
        found += [(row.queue, row.offset) for row in page.rows]
        scanned.append(page.scanned)
        assert page.late == (page.older is not None)
        older = page.older
    assert len(found) == len(set(found)) == 10
    assert sum(scanned) == COUNT + 10
    assert max(scanned) == message_search.SEARCH_SECONDS


def test_the_page_of_a_search_that_took_too_long_says_so(
    client: TestClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    until("the console to know the topic", lambda: client.get(f"/messages?topic={topic}").status_code == 200)
    monkeypatch.setattr(client.app.state.console, "clock", Passing())  # type: ignore[attr-defined]
    page = client.get(f"/messages?topic={topic}&q=rare").text
    assert "read 5 of 160" in page
    assert "Not complete</strong>: the search ended after 5.0 s, and older messages were not looked at" in page
    assert 'rel="next"' in page


class ManyTopics(Admin):
    def topics(self, *, internal: bool = False) -> list[str]:
        return ["orders", *["returns"] * 100]


def test_a_search_for_the_topics_of_a_key_that_took_too_long_names_those_that_are_left(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.console.routes.key.Admin", ManyTopics)
    monkeypatch.setattr(client.app.state.console, "clock", Passing())  # type: ignore[attr-defined]
    page = client.get("/key?key=order-8", follow_redirects=False).text
    assert "The search ended after 5.0 s. 96 topics were not searched: returns, returns" in page
    assert "This topic has messages of <code>order-8</code>" in page


@pytest.fixture(scope="module")
def bombs(stage: Stage) -> str:
    """Messages of a few kilobytes that hold 48 MiB each."""
    packed = compress_zlib(b"needle" + bytes(48 << 20), 9)
    assert len(packed) < 50_000
    with Admin(stage.address) as admin:
        admin.create_topic("bombs", 1, ordered=True)
    with pytest.MonkeyPatch.context() as patch, Producer(stage.address) as producer:
        patch.setattr("lanemq.client.producer.batches.compress_zlib", lambda _: packed)
        for _ in range(3):
            producer.send("bombs", bytes(100_000), key="bomb")
    return "bombs"


@pytest.mark.parametrize(
    "path",
    [
        "/messages?topic=bombs",
        "/messages?topic=bombs&q=key:bomb",
        "/messages?topic=bombs&q=needle",
        "/key?topic=bombs&key=bomb",
        "/message?topic=bombs&broker=lanemq&queue=0&offset=0",
    ],
)
def test_a_page_expands_only_as_much_of_a_body_as_it_shows(
    client: TestClient, bombs: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole body is never expanded, and a search stops far below its size."""

    def refuse(*_: object) -> bytes:
        raise AssertionError("the whole body was expanded")

    until("the console to know the topic", lambda: client.get(f"/messages?topic={bombs}").status_code == 200)
    monkeypatch.setattr("lanemq.wire.compression.decompress", refuse)
    monkeypatch.setattr("lanemq.client.message.decompress", refuse)
    monkeypatch.setattr(Message, "body", property(refuse))
    tracemalloc.start()
    try:
        text = client.get(path).text
        # A search for words holds one body at a time, up to its limit, in two pieces.
        assert tracemalloc.get_traced_memory()[1] < (36 << 20 if "q=needle" in path else 8 << 20)
    finally:
        tracemalloc.stop()
    assert "needle" in text
    if path.startswith("/message?"):
        assert "more than 390.6 KiB, compressed to 47" in text
