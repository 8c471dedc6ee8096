"""`/messages`: search, live tail, and one message."""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.key_progress import message_progress
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.message import Message
from lanemq.console.event_streams import EventStream
from lanemq.console.message_search import SEARCH_SECONDS, find
from lanemq.console.pipeline_reading import key_in_pipelines
from lanemq.console.reading import ConsoleBusy
from lanemq.console.screens import Console, Context, Screen, client_host, console_of, missing, render_part, routes_of
from lanemq.console.views.messages import (
    message_row,
    message_view,
    older_query,
    parse_older,
    parse_search,
    places_of,
)
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import origin_of

TAIL_SECONDS = 1.0
TAIL_AGE = 0.5
"""Tails that ask within this time share an answer, so a hundred tails of a topic cost its broker two reads a second."""
MAX_TAILS = 50
"""Live tails that may be open at a time. Each holds a connection, and one for each topic is read every second."""
MAX_TAIL_ROWS = 30
"""Messages of one second that the live tail shows; of the others it shows how many there were."""


async def _load(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    topics = tuple(each.topic for each in now.topics) + tuple(each.topic for each in now.dead)
    topic, text = request.query_params.get("topic", ""), request.query_params.get("q", "")
    found, problem, older = None, "", ""
    if topic and topic in topics:
        places = tuple(request.query_params.getlist("from"))
        try:
            search = parse_search(text, datetime.now().astimezone())
            begin = parse_older(topic, places, request.query_params.get("until", ""))
            found = await console.searching.ask(
                ("search", topic, text, places),
                lambda: find(console.settings.server, topic, search, begin, clock=console.clock),
                max_age=2.0,
            )
            older = "" if found.older is None else f"/messages?{older_query(topic, text, found.older)}"
        except InvalidOption as error:
            problem = str(error)
    elif topic:
        raise missing(now, f"there is no topic {topic!r}")
    title = f"Messages of {topic}" if topic else "Messages"
    return {
        "title": title, "topics": topics, "topic": topic, "q": text, "found": found, "problem": problem,
        "older": older, "is_first": not request.query_params.getlist("from"), "search_seconds": SEARCH_SECONDS,
    }  # fmt: skip


async def _one(console: Console, request: Request) -> Context:
    named = request.query_params
    numbers = [named.get(name, "") for name in ("queue", "offset")]
    if not all(number.isdecimal() for number in numbers) or not named.get("topic"):
        raise HTTPException(400, "the address does not name a message")
    queue, offset = MessageQueue(named["topic"], named.get("broker", ""), int(numbers[0])), int(numbers[1])

    def read() -> Message | None:
        with TopicReader(console.settings.server, queue.topic) as reader:
            found = reader.first(queue, offset, offset + 1) if queue in reader.queues else None
            return found if found is not None and found.queue_offset == offset else None

    message = await console.reading.ask(("message", queue, offset), read)
    if message is None:
        raise HTTPException(404, f"{queue} has no message at offset {offset}: it was deleted, or never stored")
    groups = await console.reading.ask(
        ("places", queue, offset), lambda: message_progress(message, console.settings.server)
    )
    pipelines = await key_in_pipelines(console, queue.topic, message.key)
    view = message_view(message, places_of(message, groups, pipelines))
    return {"title": f"Message {queue.topic} {queue.queue_id}@{offset}", "view": view}


async def _tail(request: Request) -> Response:
    """A stream of the topic's new messages, as rows."""
    console, topic = console_of(request), request.query_params.get("topic", "")
    now = console.watch.now
    if now.topic(topic) is None:
        raise missing(now, f"there is no topic {topic!r}")
    if console.tails >= MAX_TAILS:
        raise ConsoleBusy(f"{console.tails} live tails are open: close one, or use lanemq tail -f")
    return EventStream(new_rows(console, topic), console.streams, origin_of(client_host(request)))


async def new_rows(console: Console, topic: str) -> AsyncIterator[str]:
    """At most so many rows each second; what is skipped is counted. Tails of the same topic share their reads."""
    console.tails += 1
    try:
        at: dict[MessageQueue, int] | None = None
        while not console.stopping.is_set():
            text = ""
            with contextlib.suppress(LaneError):  # such as a broker that is away: the tail continues when it is back
                ends = await console.reading.ask(("ends", topic), partial(_ends, console, topic), max_age=TAIL_AGE)
                if at is not None and at != ends:
                    question = ("arrived", topic, tuple(at.items()), tuple(ends.items()))
                    messages, skipped = await console.reading.ask(
                        question, partial(_arrived, console, topic, at, ends), max_age=TAIL_AGE
                    )
                    text = render_part("tail_rows.html", rows=[*map(message_row, messages)], skipped=skipped)
                at = ends
            yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n" if text else ": \n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(console.stopping.wait(), TAIL_SECONDS)
    finally:
        console.tails -= 1


def _ends(console: Console, topic: str) -> dict[MessageQueue, int]:
    with TopicReader(console.settings.server, topic) as reader:
        return {queue: reader.bounds(queue)[1] for queue in reader.queues}


def _arrived(
    console: Console, topic: str, at: dict[MessageQueue, int], ends: dict[MessageQueue, int]
) -> tuple[list[Message], int]:
    """The newest messages between two readings of the ends, newest first, and how many were skipped."""
    total, found = 0, list[Message]()
    with TopicReader(console.settings.server, topic) as reader:
        for queue, end in ends.items():
            begin = at.get(queue, end)
            total += max(0, end - begin)
            found += reader.read(queue, max(begin, end - MAX_TAIL_ROWS), end)
    newest = heapq.nlargest(MAX_TAIL_ROWS, found, key=lambda each: (each.record.store_timestamp, each.queue_offset))
    return newest, max(0, total - len(newest))


def routes() -> list[BaseRoute]:
    return [
        *routes_of(Screen("/messages", "messages", "messages.html", _load, live=False)),
        *routes_of(Screen("/message", "messages", "message.html", _one, live=False)),
        Route("/tail", _tail),
    ]
