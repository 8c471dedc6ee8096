"""`/topics/{topic}/settings`: changes the queues or the order of a topic, after a preview; retention to look at."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import TopicDescription
from lanemq.console.links import topic_link
from lanemq.console.routes.settings import broker_settings
from lanemq.console.screens import Console, Context, Screen, back, console_of, missing, routes_of
from lanemq.console.views.settings import SettingRow, setting_rows
from lanemq.console.views.topic_settings import current_settings, effects, parse_settings, why_not
from lanemq.model.errors import InvalidOption

FIELDS = ("queues", "order")
RETENTION = frozenset({"retention", "retention_bytes", "fileReservedTime"})
"""The options of brokers, LaneMQ's and RocketMQ's, that say how long messages are kept."""


async def _topic(console: Console, request: Request) -> TopicDescription:
    now, name = await console.watch.fresh(), request.path_params["topic"]
    topic = now.topic(name)
    if topic is None:
        raise missing(now, f"there is no topic {name!r}")
    return topic


async def _retention(console: Console) -> list[SettingRow]:
    return [row for row in setting_rows(await broker_settings(console)) if row.name in RETENTION]


async def _load(console: Console, request: Request) -> Context:
    """The form; with a choice, also the preview."""
    topic = await _topic(console, request)
    now = current_settings(topic)
    asked = {field: request.query_params.get(field, "") for field in FIELDS}
    wanted, problem = None, ""
    if any(asked.values()):
        try:
            wanted = parse_settings(**asked)
            problem = why_not(topic, wanted)
        except InvalidOption as error:
            problem = str(error)
    return {
        "title": f"Settings of {topic.topic}", "name": topic.topic, "now": now, "asked": asked, "problem": problem,
        "wanted": None if problem else wanted, "effects": () if wanted is None or problem else effects(now, wanted),
        "retention": await _retention(console),
    }  # fmt: skip


async def _change(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    form = await request.form()
    topic = await _topic(console, request)
    if str(form.get("now", "")) != current_settings(topic).text:
        raise HTTPException(409, "the topic has changed since the preview: open the page again")
    wanted = parse_settings(**{field: str(form.get(field, "")) for field in FIELDS})
    if problem := why_not(topic, wanted):
        raise HTTPException(400, problem)

    def change() -> None:
        with Admin(console.settings.server, **console.credentials(session)) as admin:
            admin.create_topic(topic.topic, wanted.queues, ordered=wanted.ordered)

    await console.reading.do(change)
    await console.watch.changed()
    return back(topic_link(topic.topic), f"Topic {topic.topic} now has {wanted.text}.")


def routes() -> list[BaseRoute]:
    path = "/topics/{topic}/settings"
    return [
        *routes_of(Screen(path, "topics", "topic_settings.html", _load, live=False)),
        Route(path, _change, methods=["POST"]),
    ]
