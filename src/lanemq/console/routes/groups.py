"""`/groups`: all groups, one group, and the reset of its offsets."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.group_offsets import Position
from lanemq.client.admin.resets import reset_as_shown
from lanemq.client.admin.views import AtOffset, AtTime, OffsetChange
from lanemq.console.links import group_link
from lanemq.console.pipeline_reading import pipelines_now
from lanemq.console.screens import Console, Context, Screen, back, console_of, missing, routes_of, show
from lanemq.console.views.groups import (
    GroupScreen,
    ResetPreview,
    group_rows,
    group_view,
    never_read_notes,
    parse_shown,
    reset_preview,
)
from lanemq.console.views.pipelines import PipelineNow
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.units import QueueOffset, parse_duration
from lanemq.wire.lane_bodies import FrontClientBody
from lanemq.wire.lane_fields import FRONT_SUFFIX


async def _list(console: Console, request: Request) -> Context:
    now, pipelines = await console.watch.fresh(), await pipelines_now(console)
    rows = group_rows(now, console.watch.trends, pipelines)
    return {"title": "Groups", "rows": rows, "notes": never_read_notes(pipelines)}


async def _one(console: Console, request: Request) -> Context:
    view = await _found(console, request, await pipelines_now(console))
    return {"title": f"Group {view.row.name}", "view": view, "clients": await _clients(console, view)}


async def _clients(console: Console, view: GroupScreen) -> tuple[FrontClientBody, ...]:
    """The gRPC clients behind members that are fronts; empty if there is no front, or the brokers do not answer."""
    if not any(member.client_id.endswith(FRONT_SUFFIX) for member, _ in view.members):
        return ()

    def read() -> tuple[FrontClientBody, ...]:
        with contextlib.suppress(LaneError), Admin(console.settings.server) as admin:
            return admin.front_clients(admin.group_progress(view.row.name))
        return ()

    return await console.reading.ask(("clients", view.row.name), read)


async def _found(console: Console, request: Request, pipelines: Sequence[PipelineNow] = ()) -> GroupScreen:
    now = await console.watch.fresh()
    name = request.path_params["group"]
    view = group_view(name, now, console.watch.trends, pipelines)
    if view is None:
        raise missing(now, f"there is no group {name!r}")
    return view


@dataclass(frozen=True, slots=True)
class _Asked:
    """The fields of the form."""

    topic: str
    to: str
    queue: str

    @property
    def queues(self) -> list[int] | None:
        if self.queue and not self.queue.isdecimal():
            raise InvalidOption(f"{self.queue!r} is not the number of a queue")
        return [int(self.queue)] if self.queue else None


async def _resetting(console: Console, request: Request) -> Context:
    """The form; with a position, also the preview."""
    view = await _found(console, request)
    asked = _Asked(*(request.query_params.get(name, "") for name in ("topic", "to", "queue")))
    preview, problem = None, ""
    if asked.topic and asked.to:
        try:
            plan = await _plan(console, view.row.name, asked)
            if not plan:
                raise InvalidOption(f"topic {asked.topic!r} has no queue {asked.queue}")
            preview = reset_preview(plan)
        except InvalidOption as error:
            problem = str(error)
    return _reset_page(view, asked, preview, problem=problem)


def _reset_page(
    view: GroupScreen, asked: _Asked, preview: ResetPreview | None, *, problem: str = "", refused: str = ""
) -> Context:
    return {
        "title": f"Reset group {view.row.name}", "view": view, "asked": asked, "preview": preview, "problem": problem,
        "refused": refused,
    }  # fmt: skip


async def _plan(console: Console, group: str, asked: _Asked) -> tuple[OffsetChange, ...]:
    to, queues = position(asked.to, datetime.now().astimezone()), asked.queues

    def read() -> tuple[OffsetChange, ...]:
        with Admin(console.settings.server) as admin:
            return admin.reset_offsets(group, asked.topic, to=to, queues=queues, dry_run=True)

    return await console.reading.ask(("reset", group, asked), read, max_age=0)


async def _do_reset(request: Request) -> Response:
    """Does what the page showed. If that is something else by now, shows the page again with what it would be."""
    console = console_of(request)
    session = await console.check_write(request)
    form = await request.form()
    asked = _Asked(*(str(form.get(name, "")) for name in ("topic", "to", "queue")))
    shown = parse_shown(asked.topic, map(str, form.getlist("shown")))
    if not shown:
        raise HTTPException(400, "the form does not say what its page showed: open the page again")
    view = await _found(console, request)
    group, to, queues = view.row.name, position(asked.to, datetime.now().astimezone()), asked.queues

    def reset() -> tuple[tuple[OffsetChange, ...], str]:
        with Admin(console.settings.server, **console.credentials(session)) as admin:
            return reset_as_shown(admin, group, asked.topic, shown, to=to, queues=queues)

    plan, refused = await console.reading.do(reset)
    done = reset_preview(plan)
    if refused:
        return await show(request, RESET, _reset_page(view, asked, done, refused=refused), 409)
    await console.watch.changed()
    text = f"Group {group} was reset: {done.repeats:,} messages are repeated, {done.skips:,} are skipped."
    return back(group_link(group), text)


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
    except OverflowError:
        raise InvalidOption(f"{text[:40]!r} is longer ago than there are dates: write first") from None
    try:
        return AtTime(datetime.fromisoformat(text).astimezone())
    except (ValueError, OverflowError):
        raise InvalidOption(
            f"{text[:40]!r} is not a position: write first, last, an offset, 10m for ten minutes ago, or "
            f"2026-01-31T12:00"
        ) from None


RESET = Screen("/groups/{group}/reset", "groups", "group_reset.html", _resetting, live=False)


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/groups", "groups", "groups.html", _list),
        Screen("/groups/{group}", "groups", "group.html", _one),
        RESET,
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route("/groups/{group}/reset", _do_reset, methods=["POST"]),
    ]
