"""`/pipelines`: the pipelines whose checkpoints the console was given.

A status is read by a child process: reading a checkpoint imports Spark's library, which would fill the console's
memory. It is read again after ten seconds at the earliest, and only while the page is open.
"""

from functools import partial
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute

from lanemq.console.child import run_module
from lanemq.console.screens import Console, Context, Screen, routes_of
from lanemq.console.views.pipelines import PipelineRow, PipelineStatus, StatusAt, pipeline_row
from lanemq.model.errors import LaneError

STATUS_AGE = 10.0
STATUS_SECONDS = 60.0


async def _load(console: Console, request: Request) -> Context:
    await console.watch.fresh()
    rows: list[PipelineRow] = []
    problems: list[tuple[str, str]] = []
    for place in console.settings.pipelines:
        try:
            now = await console.reading.ask(
                ("pipeline", place), partial(read_status, console, place), max_age=STATUS_AGE
            )
        except LaneError as error:
            problems.append((str(place), str(error)))
            continue
        newest, before = console.pipelines.get(str(place), (now, None))
        if newest.at != now.at:
            newest, before = now, newest
        console.pipelines[str(place)] = newest, before
        rows.append(pipeline_row(newest, before))
    page = console.settings.spark_page
    return {"title": "Pipelines", "rows": rows, "problems": problems, "spark_page": page}


def read_status(console: Console, place: Path) -> StatusAt:
    ended = run_module("lanemq.cli.main", "pipeline", "status", str(place), "--json", seconds=STATUS_SECONDS)
    try:
        return StatusAt(console.clock.wall(), msgspec.json.decode(ended.out, type=PipelineStatus))
    except msgspec.MsgspecError:
        why = ended.error.splitlines()[-1] if ended.error else "it printed nothing"
        raise LaneError(why.removeprefix("Error: ")) from None


def routes() -> list[BaseRoute]:
    return routes_of(Screen("/pipelines", "pipelines", "pipelines.html", _load))
