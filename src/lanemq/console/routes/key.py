"""`/key`: the journey of a key. Without a topic, all topics are searched."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.key_progress import KeyFacts, key_facts
from lanemq.client.admin.topic_reader import MAX_FOUND
from lanemq.clock import nanoseconds_of
from lanemq.console.key_history import KeyHistory, read_key_history
from lanemq.console.links import key_link
from lanemq.console.message_search import SEARCH_SECONDS
from lanemq.console.pipeline_reading import key_in_pipelines
from lanemq.console.screens import Console, Context, Screen, console_of, routes_of, show
from lanemq.console.views.key import ClockPair, key_view

HISTORY_SECONDS = 5.0
"""Age of a history that is shown; reading it may take a second."""


async def _load(console: Console, request: Request) -> Context:
    topic, key = request.query_params["topic"], request.query_params["key"]
    server = console.settings.server

    def read() -> KeyFacts:
        return key_facts(key, topic, None, server)

    facts = await console.reading.ask(("key", topic, key), read)
    history = await _history(console, topic, key)
    pipelines = await key_in_pipelines(console, topic, key)
    clock = ClockPair(nanoseconds_of(console.clock)(), console.clock.wall())
    described = console.watch.now.topic(topic)
    kept = {each.queue.queue_id: int(each.first) for each in described.queues} if described is not None else {}
    view = key_view(facts, MAX_FOUND, history, clock, kept, pipelines)
    return {"title": f"Key {key}", "view": view, "found": (), "asked": key, "unindexed": (), "left": ()}


async def _history(console: Console, topic: str, key: str) -> KeyHistory | None:
    folder = console.settings.history
    if folder is None:
        return None
    return await console.reading.ask(
        ("history", topic, key), lambda: read_key_history(folder, topic, key), max_age=HISTORY_SECONDS
    )


async def _page(request: Request) -> Response:
    """The journey; or, without a topic, the topics that have messages of the key.

    An Apache broker does not index keys, so a person chooses among its topics.
    """
    console = console_of(request)
    key, topic = request.query_params.get("key", ""), request.query_params.get("topic", "")
    if key and topic:
        return await show(request, SCREEN, await _load(console, request))
    search = await console.searching.ask(("topics of", key), lambda: _topics_of(console, key)) if key else TopicsOfKey()
    if len(search.found) == 1 and not search.left:
        return RedirectResponse(key_link(search.found[0], key))
    now = console.watch.now
    unindexed = () if all(each.lane for each in now.brokers) else tuple(each.topic for each in now.topics)
    context = {"title": "Key", "view": None, "found": search.found, "asked": key, "unindexed": unindexed}
    return await show(request, SEARCH, {**context, "left": search.left, "search_seconds": SEARCH_SECONDS})


@dataclass(frozen=True, slots=True)
class TopicsOfKey:
    """The topics that have messages of a key, and those that were not asked because it took too long."""

    found: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def _topics_of(console: Console, key: str) -> TopicsOfKey:
    deadline, found = console.clock.now() + SEARCH_SECONDS * 1000, list[str]()
    with Admin(console.settings.server) as admin:
        topics = admin.topics()
        for number, topic in enumerate(topics, 1):
            if admin.find_key(topic, key, limit=1):
                found.append(topic)
            if console.clock.now() >= deadline:
                return TopicsOfKey(tuple(found), tuple(topics[number:]))
    return TopicsOfKey(tuple(found))


SCREEN = Screen("/key", "key", "key.html", _load)
SEARCH = Screen("/key", "key", "key.html", _load, live=False)


def routes() -> list[BaseRoute]:
    return [Route("/key", _page), routes_of(SCREEN)[1]]
