"""`/waiting`: everything that waits, the messages of one lane, redrive and discard."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.message import Message
from lanemq.client.security import SecuritySettings
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of
from lanemq.console.views.messages import MessageRow, message_row
from lanemq.console.views.waiting import parked_row, waiting_view
from lanemq.model.errors import OffsetNotFound
from lanemq.model.units import QueueOffset
from lanemq.model.wording import plural

MAX_SHOWN = 100
"""Messages of a lane that its page shows."""


async def _list(console: Console, request: Request) -> Context:
    view = waiting_view(await console.watch.fresh())
    return {"title": "Waiting", "view": view, "pipelines": len(console.settings.pipelines)}


async def _lane(console: Console, request: Request) -> Context:
    """One lane: its messages in the order in which a redrive runs them."""
    named = dict(request.query_params)

    def read() -> tuple[ParkedLaneView | None, list[Message]]:
        with ParkedAdmin(console.settings.server) as admin:
            lane = _find(admin, named)
            return lane, [] if lane is None else admin.messages(lane, MAX_SHOWN)

    lane, messages = await console.reading.ask(("lane", *sorted(named.items())), read)
    if lane is None:
        raise HTTPException(404, "this lane does not wait any more: it was redriven, discarded, or succeeded")
    rows: list[MessageRow] = [message_row(message) for message in messages]
    return {
        "title": f"Key {lane.key}" if lane.key is not None else "Messages without a key",
        "lane": parked_row(lane), "last": lane.last, "rows": rows,
    }  # fmt: skip


def _find(admin: ParkedAdmin, named: Mapping[str, str]) -> ParkedLaneView | None:
    lanes = admin.lanes(named.get("group"), named.get("topic"), named.get("key"))
    return next(
        (
            lane
            for lane in lanes
            if (lane.queue.broker, str(lane.queue.queue_id)) == (named.get("broker"), named.get("queue"))
        ),
        None,
    )


async def _redrive(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    named = {name: str(value) for name, value in (await request.form()).items()}
    begun = await console.reading.do(lambda: _redriven(console, named, console.credentials(session)))
    await console.watch.changed()
    return back("/waiting", begun)


def _redriven(console: Console, named: Mapping[str, str], secured: SecuritySettings) -> str:
    with ParkedAdmin(console.settings.server, **secured) as admin:
        lane = _find(admin, named)
        try:
            if lane is None or not admin.redrive(lane):
                return "Nothing to do: this lane is already being redriven, or does not wait any more."
        except OffsetNotFound:
            return "Nothing to do: this lane does not wait any more."
        return f"{plural(lane.messages, 'message')} of {_name(lane)} are redriven, in order, before newer ones."


async def _discard(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    named = {name: str(value) for name, value in (await request.form()).items()}
    through = named.get("through", "")
    if not through.isdecimal():
        raise HTTPException(400, "the form does not say up to which offset to discard: open the page again")
    done = await console.reading.do(lambda: _discarded(console, named, int(through), console.credentials(session)))
    await console.watch.changed()
    return back("/waiting", done)


def _discarded(console: Console, named: Mapping[str, str], through: int, secured: SecuritySettings) -> str:
    """Discards up to the offset that the page showed, so that newer messages stay."""
    with ParkedAdmin(console.settings.server, **secured) as admin:
        lane = _find(admin, named)
        if lane is None:
            return "Nothing to do: this lane does not wait any more."
        count = admin.discard(lane, QueueOffset(through))
        return f"{plural(count, 'message')} of {_name(lane)} discarded."


def _name(lane: ParkedLaneView) -> str:
    return "the lane without a key" if lane.key is None else f"key {lane.key}"


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/waiting", "waiting", "waiting.html", _list),
        Screen("/waiting/lane", "waiting", "lane.html", _lane, live=False),
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route("/waiting/redrive", _redrive, methods=["POST"]),
        Route("/waiting/discard", _discard, methods=["POST"]),
    ]
