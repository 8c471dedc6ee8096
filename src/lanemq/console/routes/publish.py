"""`/topics/{topic}/publish`: sends one message, after a preview of what will happen to it."""

import json
from typing import NamedTuple

from starlette.datastructures import ImmutableMultiDict, QueryParams, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.console.links import key_link, topic_link
from lanemq.console.screens import Console, Context, Screen, back, console_of, missing, routes_of
from lanemq.console.snapshot import Snapshot
from lanemq.console.views.topics import TopicView, topic_view

FIELDS = ("key", "tag", "value")
MAX_VALUE = 4_000
"""Characters of a value: the preview is an address, and servers limit those. `lanemq send` takes larger ones."""


class Draft(NamedTuple):
    """A message that is not sent yet."""

    key: str
    tag: str
    value: str

    def problem(self, topic: TopicView) -> str:
        """Why it cannot be sent; empty if it can."""
        if topic.row.ordered and not self.key:
            return f"{topic.row.name} is ordered: a message needs a key."
        if len(self.value) > MAX_VALUE:
            return (
                f"The value has {len(self.value)} characters, at most {MAX_VALUE} are possible here: use lanemq send."
            )
        return ""

    def warnings(self, now: Snapshot, topic: str) -> list[str]:
        """What a person may not expect."""
        found = [
            f"Key {self.key} is parked in group {lane.group}: the message waits behind it there until a redrive."
            for lane in now.parked
            if lane.key == self.key and lane.queue.topic == topic
        ]
        if self.value.lstrip()[:1] in ("{", "["):
            try:
                json.loads(self.value)
            except ValueError as error:
                found.append(f"The value looks like JSON and is none: {error}.")
        return found


def _draft(fields: ImmutableMultiDict[str, str | UploadFile] | QueryParams) -> Draft:
    return Draft(*(str(fields.get(field, "")) for field in FIELDS))


async def _load(console: Console, request: Request) -> Context:
    """The form; with a message, also the preview."""
    now, name = await console.watch.fresh(), request.path_params["topic"]
    view = topic_view(name, now, console.watch.trends)
    if view is None:
        raise missing(now, f"there is no topic {name!r}")
    draft = _draft(request.query_params)
    preview = any(draft)
    return {
        "title": f"Publish to {name}", "view": view, "draft": draft, "preview": preview,
        "problem": draft.problem(view) if preview else "", "warnings": draft.warnings(now, name) if preview else [],
        "max_value": MAX_VALUE,
    }  # fmt: skip


async def _send(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    name, draft = request.path_params["topic"], _draft(await request.form())
    view = topic_view(name, await console.watch.fresh(), console.watch.trends)
    if view is None:
        raise HTTPException(404, f"there is no topic {name!r}")
    if problem := draft.problem(view):
        raise HTTPException(400, problem)

    def send() -> Receipt:
        with Producer(console.settings.server, codec="bytes", **console.credentials(session)) as producer:
            return producer.send(name, draft.value.encode(), key=draft.key or None, tag=draft.tag or None)

    receipt = await console.reading.do(send)
    where = f"queue {receipt.queue.queue_id}, offset {receipt.offset}"
    target = key_link(name, draft.key) if draft.key else topic_link(name)
    return back(target, f"The message is stored in {where}.")


def routes() -> list[BaseRoute]:
    path = "/topics/{topic}/publish"
    return [
        *routes_of(Screen(path, "topics", "publish.html", _load, live=False)),
        Route(path, _send, methods=["POST"]),
    ]
