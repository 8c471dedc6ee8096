"""`/pipelines`: the pipelines whose checkpoints the console was given, their keys that wait and their dead letters.

Everything is read and changed by `lanemq pipeline`, in a child process (`pipeline_reading`). A status is read again
after ten seconds at the earliest, and only while a page that shows it is open.

A change is a request that is written to the checkpoint; the running pipeline carries it out, or its next start does. It
needs the console's own token: a checkpoint is a folder, about which the users of a broker say nothing.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.console.links import of_form, pipeline_link
from lanemq.console.pipeline_reading import ask_pipeline, dead_letters_of, lanes_of, read_page, read_statuses
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of
from lanemq.console.views.pipelines import (
    PipelineAction,
    PipelineChange,
    PipelineDeadLetter,
    PipelineRow,
    ShownLane,
    dead_letter_change,
    lane_change,
    pipeline_row,
    value_text,
)
from lanemq.model.errors import LaneError
from lanemq.model.wording import plural

MAX_SHOWN = 100
"""Keys, messages and dead letters that a list shows."""
ACTIONS: tuple[PipelineAction, ...] = ("redrive", "discard", "discard-first", "redrive-dead")


class _Chosen(msgspec.Struct):
    """The answer of `lanemq pipeline dead-letters redrive --dry-run --json`."""

    dead_letters: list[str]


async def _list(console: Console, request: Request) -> Context:
    await console.watch.fresh()
    rows: list[tuple[int, PipelineRow]] = []
    problems: list[tuple[str, str]] = []
    for number, found in enumerate(await read_statuses(console)):
        if isinstance(found, LaneError):
            problems.append((str(console.settings.pipelines[number]), str(found)))
        else:
            rows.append((number, pipeline_row(*found)))
    page = console.settings.spark_page
    return {"title": "Pipelines", "rows": rows, "problems": problems, "spark_page": page}


def _place(console: Console, request: Request) -> tuple[int, str]:
    number = int(request.path_params["number"])
    if number >= len(console.settings.pipelines):
        raise HTTPException(404, "the console was not started with so many pipelines")
    return number, str(console.settings.pipelines[number])


def _name(console: Console, place: str) -> str:
    """The pipeline's name, or that of its checkpoint if its status was not read yet."""
    known = console.pipelines.get(place)
    return known[0].status.pipeline if known is not None else Path(place).stem


async def _one(console: Console, request: Request) -> Context:
    number, _ = _place(console, request)
    page, row = await read_page(console, console.settings.pipelines[number])
    letters = page.letters
    problem = str(letters) if isinstance(letters, LaneError) else ""
    return {
        "title": f"Pipeline {row.name}", "number": number, "row": row, "lanes": page.lanes,
        "letters": [] if isinstance(letters, LaneError) else letters, "problem": problem,
        "max_shown": MAX_SHOWN, "spark_page": console.settings.spark_page, "status_at": page.status.at,
    }  # fmt: skip


async def _key(console: Console, request: Request) -> Context:
    """One key: its state, and its messages in the order in which a redrive passes them to the step."""
    number, place = _place(console, request)
    key = request.query_params.get("key", "")
    words = ("parked", "show", "--json", "--", place, key)
    try:
        lane = await console.pipeline_reading.ask(words, partial(ask_pipeline, ShownLane, *words))
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    messages = [(each, value_text(each.value, indent=None)) for each in lane.messages[:MAX_SHOWN]]
    return {
        "title": f"Key {key}", "number": number, "name": _name(console, place), "lane": lane, "messages": messages,
        "state": "none" if lane.state is None else value_text(lane.state),
    }  # fmt: skip


async def _letter(console: Console, request: Request) -> Context:
    number, place = _place(console, request)
    words = ("dead-letters", "show", "--json", "--", place, request.query_params.get("id", ""))
    try:
        found = await console.pipeline_reading.ask(words, partial(ask_pipeline, list[PipelineDeadLetter], *words))
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    letter = found[-1]
    return {
        "title": f"Dead letter {letter.dead_letter}", "number": number, "name": _name(console, place),
        "letter": letter, "times": found, "text": value_text(letter.value),
    }  # fmt: skip


async def _preview(console: Console, request: Request) -> Context:
    number, place = _place(console, request)
    action, key, id = (request.query_params.get(name, "") for name in ("action", "key", "id"))
    try:
        change = await console.pipeline_reading.ask(
            ("pipeline change", place, action, key, id), partial(_change, place, action, key, id), max_age=0
        )
    except LaneError as error:
        raise HTTPException(404, str(error)) from None
    return {
        "title": "What will happen", "number": number, "name": _name(console, place), "change": change,
        "max_shown": MAX_SHOWN,
    }  # fmt: skip


def _change(place: str, action: str, key: str, id: str) -> PipelineChange:
    if action not in ACTIONS:
        raise HTTPException(400, f"{action[:40]!r} is not one of {', '.join(ACTIONS)}")
    if action != "redrive-dead":
        return lane_change(action, key, lanes_of(place))
    words = ("dead-letters", "redrive", "--dry-run", "--json", *_which(place, key, id))
    return dead_letter_change(key, id, ask_pipeline(_Chosen, *words).dead_letters, dead_letters_of(place))


def _which(place: str, key: str, id: str) -> Sequence[str]:
    """The arguments that choose dead letters: one, those of a key, or all that are open."""
    if id:
        return ("--", place, id)
    return (f"--key={key}", "--", place) if key else ("--all", "--", place)


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
    change = await console.pipeline_reading.do(partial(_done, place, action, key, id, shown))
    console.pipelines.pop(place, None)  # pages wait for a status that was read after the change
    await console.watch.changed()
    then = "turned into dead letters" if action.startswith("discard") else "passed to the step again"
    said = f"{plural(change.messages, 'message')} of {plural(change.keys, 'key')} will be {then}"
    return back(pipeline_link(number), f"{said} by the running pipeline within a second, or by its next start.")


def _done(place: str, action: str, key: str, id: str, shown: str) -> PipelineChange:
    """Asks for the change, if it still is what the page showed."""
    change = _change(place, action, key, id)
    if change.shown != shown or not change.messages:
        raise HTTPException(409, f"nothing was done: now it would be {change.shown}. Open the page again")
    if action == "redrive-dead":
        words = ["dead-letters", "redrive", "--json", *_which(place, key, id)]
    else:
        first = ["--first-only"] if action == "discard-first" else []
        options = ["redrive"] if action == "redrive" else ["discard", "--yes", *first]
        words = ["parked", *options, "--json", *(["--", place, key] if key else ["--all", "--", place])]
    ask_pipeline(dict, *words)
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
