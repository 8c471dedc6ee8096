"""`/waiting`: everything that waits, the messages of one lane, redrive and discard with a preview."""

import contextlib
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.message import Message
from lanemq.client.security import SecuritySettings
from lanemq.console.links import lane_query, of_form
from lanemq.console.pipeline_reading import pipelines_now
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of, show
from lanemq.console.views.messages import message_row
from lanemq.console.views.waiting import parked_row, waiting_view
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import OffsetNotFound
from lanemq.model.units import QueueOffset
from lanemq.model.wording import plural

MAX_SHOWN = 100
"""Messages of a lane that its page shows."""
MAX_CHOSEN = 500
"""Keys that one redrive concerns; a broker is asked about each of them. `lanemq parked redrive --all` has no limit."""
LANE_FIELDS = ("group", "topic", "broker", "queue", "key")
"""What names a lane; one without a key has no `key`."""


async def _list(console: Console, request: Request) -> Context:
    now, pipelines = await console.watch.fresh(), await pipelines_now(console)
    return {"title": "Waiting", "view": waiting_view(now, pipelines), "max_chosen": MAX_CHOSEN}


Shown = tuple[ParkedLaneView, list[Message]]
"""A lane and its first messages."""


async def _lane(console: Console, request: Request) -> Context:
    """One lane: its messages in the order in which a redrive runs them."""
    lane, messages = await _read(console, dict(request.query_params))
    row = parked_row(lane)
    query = lane_query(row.group, row.topic, row.broker, row.queue, row.key)
    return {
        "title": f"Key {lane.key}" if lane.key is not None else "Messages without a key",
        "lane": row, "rows": list(map(message_row, messages)), "discard_link": f"/waiting/discard?{query}",
    }  # fmt: skip


async def _read(console: Console, named: Mapping[str, str]) -> Shown:
    def read() -> Shown | None:
        with ParkedAdmin(console.settings.server) as admin:
            lane = _find(admin, named)
            return None if lane is None else (lane, admin.messages(lane, MAX_SHOWN))

    found = await console.reading.ask(("lane", *(named.get(name) for name in LANE_FIELDS)), read)
    if found is None:
        raise HTTPException(404, "this lane does not wait any more: it was redriven, discarded, or succeeded")
    return found


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


# redrive


async def _choosing(console: Console, request: Request) -> Context:
    """The page before a redrive of chosen keys. It changes nothing."""
    chosen = _chosen(await request.form())

    def read() -> list[ParkedLaneView]:
        with ParkedAdmin(console.settings.server) as admin:
            found = (_find(admin, each) for each in chosen)
            return [lane for lane in found if lane is not None and lane.status is LaneStatus.PARKED]

    lanes = await console.reading.read(read)
    return {
        "title": "Redrive keys", "rows": [(parked_row(lane), lane.last) for lane in lanes],
        "messages": sum(lane.messages for lane in lanes), "gone": len(chosen) - len(lanes),
    }  # fmt: skip


async def _choose(request: Request) -> Response:
    """Shows what a redrive of the chosen keys would do.

    The keys of a long list do not fit into an address, so the list is a form like those that change something, and is
    accepted from the same clients.
    """
    console = console_of(request)
    await console.check_write(request)
    return await show(request, CHOSEN, await CHOSEN.load(console, request))


async def _choose_again(request: Request) -> Response:
    """The page of chosen keys was opened by its address, which does not name them."""
    return RedirectResponse("/waiting", 303)


def _chosen(form: FormData) -> list[dict[str, str]]:
    """The lanes that the check boxes of a form name."""
    values = list(dict.fromkeys(str(each) for each in form.getlist("lane")))
    if len(values) > MAX_CHOSEN:
        raise HTTPException(
            400,
            f"{len(values)} keys are chosen, and at most {MAX_CHOSEN} are redriven at a time: choose fewer, or use "
            f"lanemq parked redrive --all --group NAME, which has no limit. Nothing was changed.",
        )
    return list(map(_named, values))


def _named(chosen: str) -> dict[str, str]:
    """The lane that a check box names; its value is the query of the lane's page."""
    return dict(parse_qsl(chosen, keep_blank_values=True))


def _fields(form: FormData) -> dict[str, str]:
    """The lane that a form's own fields name."""
    named = {name: str(value) for name, value in form.items()}
    return {**named, "key": of_form(named["key"])} if "key" in named else named


async def _redrive(request: Request) -> Response:
    """Redrives the lane that the form's fields name, or all that its `lane` fields do."""
    console = console_of(request)
    session = await console.check_write(request)
    form = await request.form()
    named = _chosen(form) or [_fields(form)]
    begun = await console.reading.do(lambda: _redriven(console, named, console.credentials(session)))
    await console.watch.changed()
    return back("/waiting", begun)


def _redriven(console: Console, named: Sequence[Mapping[str, str]], secured: SecuritySettings) -> str:
    begun: list[ParkedLaneView] = []
    with ParkedAdmin(console.settings.server, **secured) as admin:
        for each in named:
            lane = _find(admin, each)
            with contextlib.suppress(OffsetNotFound):  # it was emptied in between
                if lane is not None and admin.redrive(lane):
                    begun.append(lane)
    left_out = len(named) - len(begun)
    if not begun:
        what = "this lane is" if left_out == 1 else "these lanes are"
        return f"Nothing to do: {what} already being redriven, or not waiting any more."
    count = sum(lane.messages for lane in begun)
    messages, are = plural(count, "message"), "is" if count == 1 else "are"
    which = _name(begun[0]) if len(named) == 1 else plural(len(begun), "key")
    rest = f" {plural(left_out, 'chosen key')} did not wait any more." if left_out else ""
    return f"{messages} of {which} {are} redriven, in order, before newer ones.{rest}"


# discard


async def _discarding(console: Console, request: Request) -> Context:
    """The page before a discard: of the first message, or with `all` of all that the lane has now."""
    named = dict(request.query_params)
    return _discard_page(await _read(console, named), everything=bool(named.get("all")))


def _discard_page(found: Shown, *, everything: bool, refused: str = "") -> Context:
    lane, messages = found
    rows = list(map(message_row, messages))
    return {
        "title": "Discard messages", "lane": parked_row(lane), "rows": rows if everything else rows[:1],
        "count": lane.messages if everything else 1, "first": lane.first,
        "last": lane.last if everything else lane.first, "refused": refused,
    }  # fmt: skip


async def _discard(request: Request) -> Response:
    """Discards what the page showed. If the lane begins elsewhere by now, shows the page again as it would be now."""
    console = console_of(request)
    session = await console.check_write(request)
    named = _fields(await request.form())
    numbers = [named.get(name, "") for name in ("first", "through", "count")]
    if not all(number.isdecimal() for number in numbers):
        raise HTTPException(400, "the form does not say what its page showed: open the page again")
    first, through, count = map(int, numbers)
    secured = console.credentials(session)
    done, why = await console.reading.do(lambda: _discarded(console, named, first, through, count, secured))
    if why:
        page = _discard_page(await _read(console, named), everything=count > 1, refused=why)
        return await show(request, DISCARD, page, 409)
    await console.watch.changed()
    return back("/waiting", done)


def _discarded(
    console: Console, named: Mapping[str, str], first: int, through: int, count: int, secured: SecuritySettings
) -> tuple[str, str]:
    """Discards up to the offset that the page showed, so that newer messages stay. Returns what was done, or why
    nothing was.

    Messages leave a lane at its beginning and join it at its end. So if it still begins at the same offset, and has not
    become shorter, what is discarded is what the page showed.
    """
    with ParkedAdmin(console.settings.server, **secured) as admin:
        lane = _find(admin, named)
        if lane is None:
            return "Nothing to do: this lane does not wait any more.", ""
        if lane.first != first or lane.last < through or lane.messages < count:
            return "", f"The page showed {plural(count, 'message')} from offset {first} to {through}."
        done = admin.discard(lane, QueueOffset(through))
        return f"{plural(done, 'message')} of {_name(lane)} discarded.", ""


def _name(lane: ParkedLaneView) -> str:
    return "the lane without a key" if lane.key is None else f"key {lane.key}"


CHOSEN = Screen("/waiting/chosen", "waiting", "waiting_redrive.html", _choosing, live=False)
DISCARD = Screen("/waiting/discard", "waiting", "waiting_discard.html", _discarding, live=False)


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/waiting", "waiting", "waiting.html", _list),
        Screen("/waiting/lane", "waiting", "lane.html", _lane, live=False),
        DISCARD,
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route(CHOSEN.path, _choose_again),
        Route(CHOSEN.path, _choose, methods=["POST"]),
        Route("/waiting/redrive", _redrive, methods=["POST"]),
        Route("/waiting/discard", _discard, methods=["POST"]),
    ]
