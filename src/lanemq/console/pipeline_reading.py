"""How the console reads pipelines: from their checkpoints, one at a time, on a thread of its own.

Reading a large state takes a while, so pages do not wait for it: they show the last reading, and ask for the next. They
wait only while there is none, or an old one, and for a few seconds; after that they say that the pipeline was not read.
The reading continues, and an open page shows it when it is done.

A checkpoint is read without Spark. A file that declares a pipeline is loaded once, with the libraries that it imports.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from starlette.exceptions import HTTPException

from lanemq.console.reading import SHARE_OF_TIME
from lanemq.console.screens import Console
from lanemq.console.views.pipelines import NOT_IN_TIME, PipelineNow, PipelineReading
from lanemq.console.views.steps import KeyInPipeline
from lanemq.model.environment import install_extra
from lanemq.model.errors import LaneError, StorageError, UsageError

if TYPE_CHECKING:  # a console without pipelines does not load their libraries
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord, DeadLetters
    from lanemq.pipelines.operate.parked import LaneState, ParkedLanes, WaitingKey
    from lanemq.pipelines.pipeline import Pipeline

log = logging.getLogger(__name__)

T = TypeVar("T")

STATUS_AGE = 10.0
"""Seconds after which a pipeline is read again, if a page asks; longer if reading it takes long."""
MAX_SHOWN_AGE = 60.0
"""Seconds up to which a page shows the last reading without waiting for a newer one."""
MAX_WAIT = 5.0
"""Seconds that a page waits for everything that it asks of pipelines. With less, the first page of a console does not
have them; with more, a pipeline that cannot be read delays each page that shows it."""


@lru_cache(maxsize=256)
def _declared_in(file: Path) -> "Pipeline":
    """The pipeline that a file declares, as it was when the file was first read."""
    from lanemq.pipelines.declare.files import load

    return load(file)


def _pipeline(place: Path) -> "Pipeline | Path":
    return _declared_in(place) if place.is_file() else place


def lanes_of(place: Path) -> "ParkedLanes":
    """The held and parked keys of a pipeline, given its checkpoint or the file that declares it."""
    from lanemq.pipelines.operate.parked import parked

    return parked(_pipeline(place))


def letters_of(place: Path) -> "DeadLetters":
    """The dead letters of a pipeline."""
    from lanemq.pipelines.operate.dead_letters import dead_letters

    return dead_letters(_pipeline(place))


def read_now(read: Callable[[], T]) -> T:
    """What `read` returns. Every failure is a `LaneError`, so that a page can say why a pipeline was not read."""
    try:
        return read()
    except (LaneError, HTTPException):
        raise
    except ModuleNotFoundError as missing:
        raise UsageError(f"pipelines need {missing.name}: {install_extra('spark')}") from missing
    except Exception as error:
        log.warning("a pipeline cannot be read", exc_info=True)
        raise StorageError(f"{type(error).__name__}: {error}") from error


def _read(console: Console, place: Path) -> PipelineReading | LaneError:
    """An error is an answer too: a pipeline that cannot be read is not read again for every new page."""
    began = console.clock.now()
    try:
        return read_now(lambda: _reading(console, place, began))
    except LaneError as error:
        return error


def _reading(console: Console, place: Path, began: int) -> PipelineReading:
    from lanemq.pipelines.operate.status import read_status

    pipeline, lanes = _pipeline(place), lanes_of(place)
    keys = tuple(sorted(lanes.keys(held=True), key=_rank))
    status = read_status(lanes, keys, None if isinstance(pipeline, Path) else pipeline.source.options)
    letters: tuple[DeadLetterRecord, ...] | None
    try:
        letters, problem = tuple(letters_of(place).records(redriven=True)), ""
    except UsageError as error:  # they are in a sink of the pipeline's own
        letters, problem = None, str(error)
    took = (console.clock.now() - began) / 1000
    return PipelineReading(console.clock.wall(), status, keys, letters, problem, took)


def _rank(key: "WaitingKey") -> tuple[bool, float, str]:
    """Parked ones first, each kind by age."""
    return key.state != "parked", key.since.timestamp(), key.key


async def read_pipeline(console: Console, place: Path) -> tuple[PipelineReading, PipelineReading | None]:
    """The newest reading and the one before it; waits for a new one if it is due."""
    known = console.pipelines.get(str(place))
    max_age = STATUS_AGE if known is None else max(STATUS_AGE, SHARE_OF_TIME * known[0].took)
    if known is not None and console.clock.wall() - known[0].at < max_age * 1000:
        return known
    now = await console.pipeline_reading.ask(("pipeline", place), partial(_read, console, place), max_age=max_age)
    if isinstance(now, LaneError):
        raise now
    newest, before = console.pipelines.get(str(place), (now, None))
    if now.at > newest.at:
        newest, before = now, newest
    console.pipelines[str(place)] = newest, before
    return newest, before


async def read_pipelines(console: Console) -> list[tuple[PipelineReading, PipelineReading | None] | LaneError]:
    """`read_pipeline` of every pipeline of the console, or why there is none. Waits at most `MAX_WAIT`."""
    return await asyncio.gather(*(_read_in_time(console, place) for place in console.settings.pipelines))


async def _read_in_time(console: Console, place: Path) -> tuple[PipelineReading, PipelineReading | None] | LaneError:
    try:
        async with asyncio.timeout(MAX_WAIT):
            return await read_pipeline(console, place)
    except TimeoutError:  # the reading continues, and the next page has it
        return LaneError(f"{NOT_IN_TIME}. The page tries again")
    except LaneError as error:
        return error


async def pipelines_now(console: Console) -> tuple[PipelineNow, ...]:
    """Every pipeline that the console was given, as far as it is known. Waits at most `MAX_WAIT`."""
    places = enumerate(console.settings.pipelines)
    return tuple(await asyncio.gather(*(_pipeline_now(console, number, place) for number, place in places)))


async def _pipeline_now(console: Console, number: int, place: Path) -> PipelineNow:
    known = console.pipelines.get(str(place))
    is_fresh = known is not None and console.clock.wall() - known[0].at < MAX_SHOWN_AGE * 1000
    try:
        async with asyncio.timeout(0 if is_fresh else MAX_WAIT):
            return PipelineNow(number, place.stem, (await read_pipeline(console, place))[0])
    except TimeoutError:  # the reading continues, and the next page has it
        if known is not None and is_fresh:
            return PipelineNow(number, place.stem, known[0])
        return PipelineNow(number, place.stem, None, NOT_IN_TIME, known[0].status if known else None)
    except LaneError as error:
        return PipelineNow(number, place.stem, None, str(error), known[0].status if known else None)


async def key_in_pipelines(console: Console, topic: str, key: str | None) -> tuple[KeyInPipeline, ...]:
    """How far the pipelines that read the topic are with a key. Waits at most `MAX_WAIT` for all of it."""
    until = asyncio.get_running_loop().time() + MAX_WAIT
    readers = [pipeline for pipeline in await pipelines_now(console) if pipeline.may_read(topic)]
    return tuple(await asyncio.gather(*(_key_in_pipeline(console, pipeline, key, until) for pipeline in readers)))


async def _key_in_pipeline(console: Console, pipeline: PipelineNow, key: str | None, until: float) -> KeyInPipeline:
    place, reading = console.settings.pipelines[pipeline.number], pipeline.reading
    if reading is None:
        return KeyInPipeline(pipeline)
    letters = [letter for letter in reading.letters or () if letter.key == key]
    shown: LaneState | None = None
    try:
        async with asyncio.timeout_at(until):
            if key is not None and any(waiting.key == key for waiting in reading.keys):
                shown = await console.pipeline_reading.ask(
                    ("pipeline key", place, key),
                    lambda: read_now(lambda: lanes_of(place).show(key)),
                    max_age=STATUS_AGE,
                )
    except TimeoutError:
        return KeyInPipeline(pipeline, shown, letters, NOT_IN_TIME)
    except LaneError as error:
        return KeyInPipeline(pipeline, shown, letters, str(error))
    # A request cannot name the lane of messages without a key.
    is_unnamed = key is None and any(waiting.key.startswith("\0") for waiting in reading.keys)
    return KeyInPipeline(pipeline, shown, letters, f"see the page of pipeline {pipeline.name}" if is_unnamed else "")
