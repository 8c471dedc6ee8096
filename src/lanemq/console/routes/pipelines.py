"""`/pipelines`: the pipelines whose checkpoints the console was given, their keys that wait and their dead letters.

A pipeline is read again after ten seconds at the earliest, and only while a page that shows it is open.

A change is a request that is written to the checkpoint; the running pipeline carries it out, or its next start does. It
needs the console's own token: a checkpoint is a folder, about which the users of a broker say nothing.
"""

from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.console.links import of_form, pipeline_link
from lanemq.console.pipeline_reading import lanes_of, letters_of, read_now, read_pipeline, read_pipelines
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of
from lanemq.console.views.pipelines import (
    PipelineAction,
    PipelineChange,
    PipelineReading,
    body_text,
    dead_letter_change,
    lane_change,
    rate_between,
    value_text,
)
from lanemq.model.errors import LaneError
from lanemq.model.wording import plural

MAX_SHOWN = 100
"""Keys, messages and dead letters that a list shows."""
ACTIONS: tuple[PipelineAction, ...] = ("redrive", "discard", "discard-first", "redrive-dead")


async def _list(console: Console, request: Request) -> Context:
    await console.watch.fresh()
    rows: list[tuple[int, PipelineReading, float | None]] = []
    problems: list[tuple[str, str]] = []
    for number, found in enumerate(await read_pipelines(console)):
        if isinstance(found, LaneError):
            problems.append((str(console.settings.pipelines[number]), str(found)))
        else:
            rows.append((number, found[0], rate_between(*found)))
    page = console.settings.spark_page
    return {"title": "Pipelines", "rows": rows, "problems": problems, "spark_page": page}


def _place(console: Console, request: Request) -> tuple[int, Path]:
    number = int(request.path_params["number"])
    if number >= len(console.settings.pipelines):
        raise HTTPException(404, "the console was not started with so many pipelines")
    return number, console.settings.pipelines[number]


def _name(console: Console, place: Path) -> str:
    """The pipeline's name, or that of its checkpoint if it was not read yet."""
    known = console.pipelines.get(str(place))
    return known[0].status.pipeline if known is not None else place.stem


async def _one(console: Console, request: Request) -> Context:
    number, place = _place(console, request)
    reading, before = await read_pipeline(console, place)
    return {
        "title": f"Pipeline {reading.status.pipeline}", "number": number, "reading": reading,
        "per_second": rate_between(reading, before), "lanes": reading.keys, "letters": reading.letters,
        "max_shown": MAX_SHOWN, "spark_page": console.settings.spark_page,
    }  # fmt: skip


async def _key(console: Console, request: Request) -> Context:
    """One key: its state, and its messages in the order in which a redrive passes them to the step."""
    number, place = _place(console, request)
    key = request.query_params.get("key", "")
    try:
        read = partial(read_now, lambda: lanes_of(place).show(key))
        lane = await console.pipeline_reading.ask(("pipeline key", place, key), read)
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    waiting = lane.held.messages[:MAX_SHOWN] if lane.held is not None else ()
    return {
        "title": f"Key {key}", "number": number, "name": _name(console, place), "lane": lane,
        "messages": [(message, body_text(message.value, indent=None)) for message in waiting],
        "state": "none" if lane.state is None else value_text(lane.state),
    }  # fmt: skip


async def _letter(console: Console, request: Request) -> Context:
    number, place = _place(console, request)
    id = request.query_params.get("id", "")
    try:
        read = partial(read_now, lambda: letters_of(place).show(id))
        found = await console.pipeline_reading.ask(("pipeline letter", place, id), read)
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    letter = found[-1]
    return {
        "title": f"Dead letter {letter.id}", "number": number, "name": _name(console, place),
        "letter": letter, "times": found, "text": body_text(letter.value),
    }  # fmt: skip


async def _preview(console: Console, request: Request) -> Context:
    number, place = _place(console, request)
    action, key, id = (request.query_params.get(name, "") for name in ("action", "key", "id"))
    try:
        read = partial(read_now, partial(_change, place, action, key, id))
        change = await console.pipeline_reading.ask(("pipeline change", place, action, key, id), read, max_age=0)
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    return {
        "title": "What will happen", "number": number, "name": _name(console, place), "change": change,
        "max_shown": MAX_SHOWN,
    }  # fmt: skip


def _change(place: Path, action: str, key: str, id: str) -> PipelineChange:
    if action not in ACTIONS:
        raise HTTPException(400, f"{action[:40]!r} is not one of {', '.join(ACTIONS)}")
    if action != "redrive-dead":
        return lane_change(action, key, lanes_of(place).keys(held=True))
    return dead_letter_change(key, id, letters_of(place).chosen(**_which(key, id)))


def _which(key: str, id: str) -> dict[str, Any]:
    """What chooses dead letters: an id, a key, or nothing for all that are open."""
    if id:
        return {"id": id}
    return {"key": key} if key else {"everything": True}


async def _do(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    if session.credentials is not None:
        raise HTTPException(
            403,
            "sign in with the console's token: a checkpoint is a folder, and a user of the broker has no rights there",
        )
    number, place = _place(console, request)
    form = await request.form()
    action, key, id, shown = (str(form.get(name, "")) for name in ("action", "key", "id", "shown"))
    key = of_form(key)
    change = await console.pipeline_reading.do(partial(read_now, partial(_done, place, action, key, id, shown)))
    console.pipelines.pop(str(place), None)  # pages wait for a status that was read after the change
    await console.watch.changed()
    then = "turned into dead letters" if action.startswith("discard") else "passed to the step again"
    said = f"{plural(change.messages, 'message')} of {plural(change.keys, 'key')} will be {then}"
    return back(pipeline_link(number), f"{said} by the running pipeline within a second, or by its next start.")


def _done(place: Path, action: str, key: str, id: str, shown: str) -> PipelineChange:
    """Asks for the change, if it still is what the page showed."""
    change = _change(place, action, key, id)
    if change.shown != shown or not change.messages:
        raise HTTPException(409, f"nothing was done: now it would be {change.shown}. Open the page again")
    if action == "redrive-dead":
        letters_of(place).redrive(**_which(key, id))
    elif action == "redrive":
        lanes_of(place).redrive(key or None, everything=not key)
    else:
        lanes_of(place).discard(key or None, everything=not key, first_only=action == "discard-first")
    return change


def routes() -> list[BaseRoute]:
    below = "/pipelines/{number:int}"
    screens = (
        Screen("/pipelines", "pipelines", "pipelines.html", _list),
        Screen(below, "pipelines", "pipeline.html", _one),
        Screen(f"{below}/key", "pipelines", "pipeline_key.html", _key, live=False),
        Screen(f"{below}/dead-letter", "pipelines", "pipeline_dead_letter.html", _letter, live=False),
        Screen(f"{below}/change", "pipelines", "pipeline_change.html", _preview, live=False),
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route(f"{below}/change", _do, methods=["POST"]),
    ]
