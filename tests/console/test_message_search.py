"""A search that ends at a limit says so, and goes on where it ended: nothing is skipped or shown twice."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import Stage, until

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.client.topic_route import TopicRoute
from lanemq.console import message_search
from lanemq.console.message_search import MAX_ROWS, FoundMessages, find
from lanemq.console.views.messages import FROM_THE_END, Search

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
    monkeypatch.setattr(TopicRoute, "is_lane", lambda *_: False)
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
