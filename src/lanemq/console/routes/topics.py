"""`/topics`: all topics, one topic, and forms that create or delete one."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.console.links import topic_link
from lanemq.console.screens import Console, Context, Screen, back, console_of, missing, routes_of
from lanemq.console.views.topics import TopicView, kept_for, new_topic_view, parse_new_topic, topic_rows, topic_view
from lanemq.model.errors import InvalidName, InvalidOption

NEW_FIELDS = ("name", "queues", "order")


async def _list(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    return {"title": "Topics", "rows": topic_rows(now, console.watch.trends)}


async def _one(console: Console, request: Request) -> Context:
    view = await _found(console, request)
    retention = await _retention(console)
    return {"title": f"Topic {view.row.name}", "view": view, "retention": retention}


async def _found(console: Console, request: Request) -> TopicView:
    now = await console.watch.fresh()
    name = request.path_params["topic"]
    view = topic_view(name, now, console.watch.trends)
    if view is None:
        raise missing(now, f"there is no topic {name!r}")
    return view


async def _retention(console: Console) -> tuple[str, str]:
    """For how many seconds, and how many bytes, a broker keeps messages; empty if it does not say."""
    from lanemq.console.routes.settings import broker_settings

    return kept_for({each.name: each.value for each in await broker_settings(console)})


async def _new(console: Console, request: Request) -> Context:
    """The form; with a name, also the preview."""
    asked = {field: request.query_params.get(field, "") for field in NEW_FIELDS}
    preview, problem = None, ""
    if any(asked.values()):
        try:
            preview = new_topic_view(parse_new_topic(**asked), await console.watch.fresh())
        except (InvalidName, InvalidOption) as error:
            problem = str(error)
    retention = await _retention(console)
    return {"title": "New topic", "asked": asked, "preview": preview, "problem": problem, "retention": retention}


async def _deleting(console: Console, request: Request) -> Context:
    view = await _found(console, request)
    return {"title": f"Delete topic {view.row.name}", "view": view}


async def _create(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    form = await request.form()
    topic = parse_new_topic(**{field: str(form.get(field, "")) for field in NEW_FIELDS})
    brokers = {each.name for each in (await console.watch.fresh()).brokers}
    if not _are_as_shown(brokers, shown=set(map(str, form.getlist("broker")))):
        raise HTTPException(409, "there are other brokers than the preview showed: open the page again")

    def create() -> bool:
        with Admin(console.settings.server, **console.credentials(session)) as admin:
            return admin.ensure_topic(topic.name, topic.count, ordered=topic.ordered)

    name, created = topic.name, await console.reading.do(create)
    await console.watch.changed()
    return back(topic_link(name), f"Topic {name} was created." if created else f"Topic {name} exists already.")


def _are_as_shown(brokers: set[str], shown: set[str]) -> bool:
    """Whether a topic would be created on the brokers that its preview showed."""
    return brokers == shown


async def _delete(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    name = request.path_params["topic"]
    if (await request.form()).get("name") != name:
        raise HTTPException(400, f"write the topic's name, {name}, to delete it")

    def delete() -> None:
        with Admin(console.settings.server, **console.credentials(session)) as admin:
            admin.delete_topic(name)

    await console.reading.do(delete)
    await console.watch.changed()
    return back("/topics", f"Topic {name} and its messages were deleted.")


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/topics", "topics", "topics.html", _list),
        Screen("/topic/new", "topics", "topic_new.html", _new, live=False),
        Screen("/topics/{topic}", "topics", "topic.html", _one),
        Screen("/topics/{topic}/delete", "topics", "topic_delete.html", _deleting, live=False),
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route("/topic/new", _create, methods=["POST"]),
        Route("/topics/{topic}/delete", _delete, methods=["POST"]),
    ]
