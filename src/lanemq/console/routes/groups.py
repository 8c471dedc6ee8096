"""`/groups`: all groups, one group, and the reset of its offsets."""

from datetime import datetime, timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin, Position
from lanemq.client.admin.views import AtOffset, AtTime, OffsetChange
from lanemq.client.security import SecuritySettings
from lanemq.console.links import group_link
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of
from lanemq.console.views.groups import GroupScreen, group_rows, group_view, lag_series, reset_preview
from lanemq.model.errors import InvalidOption
from lanemq.model.units import QueueOffset, parse_duration


async def _list(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    return {"title": "Groups", "rows": group_rows(now, console.watch.trends)}


async def _one(console: Console, request: Request) -> Context:
    view = await _found(console, request)
    return {"title": f"Group {view.row.name}", "view": view}


async def _found(console: Console, request: Request) -> GroupScreen:
    now = await console.watch.fresh()
    name = request.path_params["group"]
    view = group_view(name, now, console.watch.trends)
    if view is None:
        raise HTTPException(404, now.error or f"there is no group {name!r}")
    return view


async def _plots(request: Request) -> Response:
    """The data of a group's plots. A group that is not known has no figures."""
    return JSONResponse(lag_series(request.path_params["group"], list(console_of(request).watch.trends.samples)))


async def _resetting(console: Console, request: Request) -> Context:
    """The form; with a position, also the preview."""
    view = await _found(console, request)
    asked = {name: request.query_params.get(name, "") for name in ("topic", "to", "queue")}
    preview, problem = None, ""
    if asked["topic"] and asked["to"]:
        try:
            plan = await console.reading.ask(
                ("reset", view.row.name, *asked.values()),
                _reset(console, view.row.name, asked, {}, dry_run=True),
                max_age=0,
            )
            preview = reset_preview(plan)
        except InvalidOption as error:
            problem = str(error)
    return {
        "title": f"Reset group {view.row.name}", "view": view, "asked": asked, "preview": preview, "problem": problem,
    }  # fmt: skip


async def _do_reset(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    form = await request.form()
    asked = {name: str(form.get(name, "")) for name in ("topic", "to", "queue")}
    group = (await _found(console, request)).row.name
    plan = reset_preview(await console.reading.do(_reset(console, group, asked, console.credentials(session))))
    await console.watch.changed()
    text = f"Group {group} was reset: {plan.repeats:,} messages are repeated, {plan.skips:,} are skipped."
    return back(group_link(group), text)


def _reset(console: Console, group: str, asked: dict[str, str], secured: SecuritySettings, *, dry_run: bool = False):  # type: ignore[no-untyped-def]
    to = position(asked["to"], datetime.now().astimezone())
    if asked["queue"] and not asked["queue"].isdecimal():
        raise InvalidOption(f"{asked['queue']!r} is not the number of a queue")
    queues = [int(asked["queue"])] if asked["queue"] else None

    def reset() -> tuple[OffsetChange, ...]:
        with Admin(console.settings.server, **secured) as admin:
            return admin.reset_offsets(group, asked["topic"], to=to, queues=queues, dry_run=dry_run)

    return reset


def position(text: str, now: datetime) -> Position:
    """`first`, `last`, an offset, `10m` (ten minutes ago), or a time."""
    text = text.strip()
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    if text.isdecimal():
        return AtOffset(QueueOffset(int(text)))
    try:
        return AtTime(now - timedelta(seconds=parse_duration(text)))
    except InvalidOption:
        pass
    try:
        return AtTime(datetime.fromisoformat(text).astimezone())
    except ValueError:
        raise InvalidOption(
            f"{text[:40]!r} is not a position: write first, last, an offset, 10m for ten minutes ago, or "
            f"2026-01-31T12:00"
        ) from None


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/groups", "groups", "groups.html", _list),
        Screen("/groups/{group}", "groups", "group.html", _one),
        Screen("/groups/{group}/reset", "groups", "group_reset.html", _resetting, live=False),
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route("/groups/{group}/plots", _plots),
        Route("/groups/{group}/reset", _do_reset, methods=["POST"]),
    ]
