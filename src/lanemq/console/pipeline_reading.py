"""How the console reads pipelines: by `lanemq pipeline`, in child processes, one at a time.

Reading a checkpoint imports Spark's library, which would fill the console's memory. A status takes about a second, so
pages do not wait for it: they show the last one that was read, and ask for the next. They wait only while there is
none, or an old one, and for a few seconds; after that they say that the pipeline was not read. The reading continues,
and an open page shows it when it is done.
"""

import asyncio
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException

from lanemq.console.child import run_module
from lanemq.console.reading import SHARE_OF_TIME
from lanemq.console.screens import Console
from lanemq.console.views.pipelines import (
    NOT_IN_TIME,
    PipelineDeadLetter,
    PipelineLane,
    PipelineNow,
    PipelineRow,
    PipelineStatus,
    ShownLane,
    StatusAt,
    pipeline_row,
)
from lanemq.console.views.steps import KeyInPipeline
from lanemq.model.errors import LaneError

T = TypeVar("T")

STATUS_AGE = 10.0
"""Seconds after which a status is read again, if a page asks; longer if reading it takes long."""
STATUS_SECONDS = 60.0
"""A child process that takes longer is ended."""
READ_ALONE = 3
"""Child processes that the page of one pipeline takes: its status, its keys, its dead letters."""
MAX_SHOWN_AGE = 60.0
"""Seconds up to which a page shows the last status without waiting for a newer one."""
MAX_WAIT = 5.0
"""Seconds that a page waits for everything that it asks of pipelines. With less, the first page of a console does not
have them; with more, a pipeline that cannot be read delays each page that shows it."""


def ask_pipeline(kind: type[T], *words: str) -> T:
    """What `lanemq pipeline` answers. Names from a browser come after `--`, or after `=`, so none is an option."""
    if any("\0" in word for word in words):
        raise HTTPException(400, "a name with a zero byte is not a key")
    ended = run_module("lanemq.cli.main", "pipeline", *words, seconds=STATUS_SECONDS)
    try:
        return msgspec.json.decode(ended.out, type=kind)
    except msgspec.MsgspecError:
        why = ended.error.splitlines()[-1] if ended.error else "it printed nothing"
        raise LaneError(why.removeprefix("Error: ")) from None


def lanes_of(place: str) -> list[PipelineLane]:
    """The held and parked keys of a pipeline."""
    return ask_pipeline(list[PipelineLane], "parked", "list", "--held", "--json", "--", place)


def dead_letters_of(place: str, key: str | None = None) -> list[PipelineDeadLetter]:
    """The dead letters of a pipeline, or those of one key."""
    only = () if key is None else (f"--key={key}",)
    return ask_pipeline(list[PipelineDeadLetter], "dead-letters", "list", "--all", *only, "--json", "--", place)


@dataclass(frozen=True, slots=True)
class PipelinePage:
    """What the page of a pipeline shows, read at one moment: its figures fit its lists."""

    status: StatusAt
    lanes: list[PipelineLane]
    """Parked ones first, each kind by age."""
    letters: list[PipelineDeadLetter] | LaneError
    """Dead letters in a sink of the pipeline's own cannot be listed; the error says so."""


async def read_page(console: Console, place: Path) -> tuple[PipelinePage, PipelineRow]:
    """The page and its figures; waits for it if it is due. The rate is between the last two readings of any page."""
    page = await console.pipeline_reading.ask(
        ("pipeline page", place), partial(_read_page, console, place), max_age=_max_age(console, str(place), READ_ALONE)
    )
    if isinstance(page, LaneError):
        raise page
    rate = pipeline_row(*_noted(console, place, page.status)).rate
    return page, replace(pipeline_row(page.status, None), rate=rate)


def _read_page(console: Console, place: Path) -> PipelinePage | LaneError:
    """An error is an answer too, as in `_read`."""
    status = _read(console, place)
    if isinstance(status, LaneError):
        return status
    try:
        lanes = lanes_of(str(place))
    except LaneError as error:
        return error
    letters: list[PipelineDeadLetter] | LaneError
    try:
        letters = dead_letters_of(str(place))
    except LaneError as error:
        letters = error
    return PipelinePage(status, sorted(lanes, key=_age), letters)


def _age(lane: PipelineLane) -> tuple[bool, float, str]:
    return lane.state != "parked", math.inf if lane.since is None else lane.since.timestamp(), lane.key


def _max_age(console: Console, place: str, children: int = 1) -> float:
    """Seconds after which a pipeline is read again, if a page asks. `children`: processes that a reading takes."""
    known = console.pipelines.get(place)
    return STATUS_AGE if known is None else max(STATUS_AGE, SHARE_OF_TIME * children * known[0].took)


async def read_status(console: Console, place: Path) -> tuple[StatusAt, StatusAt | None]:
    """The newest status and the one before it, also if a page of this pipeline read it; waits for it if it is due."""
    max_age, known = _max_age(console, str(place)), console.pipelines.get(str(place))
    if known is not None and console.clock.wall() - known[0].at < max_age * 1000:
        return known
    now = await console.pipeline_reading.ask(("pipeline", place), partial(_read, console, place), max_age=max_age)
    if isinstance(now, LaneError):
        raise now
    return _noted(console, place, now)


async def read_statuses(console: Console) -> list[tuple[StatusAt, StatusAt | None] | LaneError]:
    """`read_status` of every pipeline that the console was given, or why there is none. Waits at most `MAX_WAIT`."""
    return await asyncio.gather(*(_read_in_time(console, place) for place in console.settings.pipelines))


async def _read_in_time(console: Console, place: Path) -> tuple[StatusAt, StatusAt | None] | LaneError:
    try:
        async with asyncio.timeout(MAX_WAIT):
            return await read_status(console, place)
    except TimeoutError:  # the reading continues, and the next page has it
        return LaneError(f"{NOT_IN_TIME}. The page tries again")
    except LaneError as error:
        return error


def _noted(console: Console, place: Path, now: StatusAt) -> tuple[StatusAt, StatusAt | None]:
    """Keeps a status if it is newer than those that are known; the newest, and the one before it."""
    newest, before = console.pipelines.get(str(place), (now, None))
    if now.at > newest.at:
        newest, before = now, newest
    console.pipelines[str(place)] = newest, before
    return newest, before


def _read(console: Console, place: Path) -> StatusAt | LaneError:
    """An error is an answer too: a pipeline that cannot be read is not asked again with every new page."""
    begun = console.clock.now()
    try:
        status = ask_pipeline(PipelineStatus, "status", "--waiting", "--json", "--", str(place))
    except LaneError as error:
        return error
    return StatusAt(console.clock.wall(), status, (console.clock.now() - begun) / 1000)


async def pipelines_now(console: Console) -> tuple[PipelineNow, ...]:
    """Every pipeline that the console was given, as far as it is known. Waits at most `MAX_WAIT`."""
    places = enumerate(console.settings.pipelines)
    return tuple(await asyncio.gather(*(_pipeline_now(console, number, place) for number, place in places)))


async def _pipeline_now(console: Console, number: int, place: Path) -> PipelineNow:
    known = console.pipelines.get(str(place))
    is_fresh = known is not None and console.clock.wall() - known[0].at < MAX_SHOWN_AGE * 1000
    try:
        async with asyncio.timeout(0 if is_fresh else MAX_WAIT):
            return PipelineNow(number, place.stem, (await read_status(console, place))[0].status)
    except TimeoutError:  # the reading continues, and the next page has it
        if known is not None and is_fresh:
            return PipelineNow(number, place.stem, known[0].status)
        return PipelineNow(number, place.stem, None, NOT_IN_TIME, known[0].status if known else None)
    except LaneError as error:
        return PipelineNow(number, place.stem, None, str(error), known[0].status if known else None)


async def key_in_pipelines(console: Console, topic: str, key: str | None) -> tuple[KeyInPipeline, ...]:
    """How far the pipelines that read the topic are with a key. Waits at most `MAX_WAIT` for all of it."""
    until = asyncio.get_running_loop().time() + MAX_WAIT
    readers = [each for each in await pipelines_now(console) if each.may_read(topic)]
    return tuple(await asyncio.gather(*(_key_in_pipeline(console, each, key, until) for each in readers)))


async def _key_in_pipeline(console: Console, pipeline: PipelineNow, key: str | None, until: float) -> KeyInPipeline:
    place = str(console.settings.pipelines[pipeline.number])
    status = pipeline.status
    shown: ShownLane | None = None
    letters: list[PipelineDeadLetter] = []
    if status is None:
        return KeyInPipeline(pipeline)
    try:
        async with asyncio.timeout_at(until):
            if key is not None and (status.lanes_left_out or any(each.key == key for each in status.lanes)):
                shown = await console.pipeline_reading.ask(
                    ("pipeline key", place, key),
                    lambda: ask_pipeline(ShownLane, "parked", "show", "--json", "--", place, key),
                    max_age=STATUS_AGE,
                )
            if status.letters:
                letters = await console.pipeline_reading.ask(
                    ("pipeline letters", place, key or ""), lambda: dead_letters_of(place, key), max_age=STATUS_AGE
                )
    except TimeoutError:
        return KeyInPipeline(pipeline, shown, letters, NOT_IN_TIME)
    except LaneError as error:
        return KeyInPipeline(pipeline, shown, letters, str(error))
    # `lanemq pipeline` cannot name the lane of messages without a key.
    is_unnamed = key is None and any(each.key.startswith("\0") for each in status.lanes)
    return KeyInPipeline(pipeline, shown, letters, f"see the page of pipeline {pipeline.name}" if is_unnamed else "")
