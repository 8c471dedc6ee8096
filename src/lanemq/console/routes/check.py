"""`/check`: the order check of a recorded history, its own or an uploaded one.

The checker runs in a child process. The history of `--history` is checked again at intervals, at most a tenth of the
time.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.console.child import run_module
from lanemq.console.reading import ConsoleBusy
from lanemq.console.screens import Console, Context, Screen, console_of, routes_of, show
from lanemq.console.views.check import CheckReport, check_view
from lanemq.console.views.home import OrderVerdict
from lanemq.model.errors import LaneError
from lanemq.model.wording import plural

Check = Callable[[Sequence[Path]], CheckReport]

CHECK_EVERY = 30.0
"""Seconds between two checks of the history at least."""
CHECK_SECONDS = 120.0
"""Time limit of one check."""
FIRST_SECONDS = 2.0
"""Seconds until the next check while there is no result yet, or the last one failed."""
SHARE_OF_TIME = 10
MAX_UPLOAD_BYTES = 256 << 20
"""The largest upload. Larger histories fill the machine's temporary folder and take longer than `CHECK_SECONDS`."""

log = logging.getLogger(__name__)


def run_check(paths: Sequence[Path]) -> CheckReport:
    """Checks histories in a child process. Producers and members without a history are accepted."""
    foreign = ("--foreign-producers", "--foreign-members")
    ended = run_module("lanemq.checker", *map(str, paths), "--json", *foreign, seconds=CHECK_SECONDS)
    try:
        return msgspec.json.decode(ended.out, type=CheckReport)
    except msgspec.MsgspecError:
        why = ended.error.splitlines()[-1] if ended.error else "it printed nothing"
        raise LaneError(f"the history could not be checked: {why.removeprefix('Error: ')}") from None


async def keep_checking(
    console: Console, *, check: Check = run_check, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Checks the console's own history at intervals, until it is cancelled."""
    folder = console.settings.history
    if folder is None:
        return
    while True:
        begin = console.clock.now()
        await check_once(console, folder, check)
        took = (console.clock.now() - begin) / 1000
        is_first = console.verdict is None or bool(console.verdict.problem)
        await sleep(max(FIRST_SECONDS if is_first else CHECK_EVERY, took * SHARE_OF_TIME))


async def check_once(console: Console, folder: Path, check: Check) -> None:
    """Checks the history once. If that fails, the last report stays, and the verdict says that it is an old one."""

    def checked() -> CheckReport | None:
        return check([folder]) if any(folder.rglob("*.jsonl")) else None

    try:
        report = await asyncio.to_thread(checked)
        if report is None and console.verdict is not None:
            raise LaneError(f"{folder} has no history any more")
    except (LaneError, OSError) as error:
        last = console.verdict or OrderVerdict("unknown", 0, 0, console.clock.wall())
        console.verdict = replace(last, problem=str(error))
        log.warning("the order check failed: %s", error)
        return
    if report is not None:
        console.report = report
        console.verdict = OrderVerdict(report.verdict, report.events, sum(report.counts.values()), console.clock.wall())


async def _load(console: Console, request: Request) -> Context:
    report = console.report
    return {
        "title": "Order check",
        "view": None if report is None else check_view(report),
        "source": str(console.settings.history or ""),
        "checked_at": console.verdict.at if console.verdict is not None else None,
        "problem": console.verdict.problem if console.verdict is not None else "",
    }


async def _upload(request: Request) -> Response:
    """Checks an uploaded history. It is a read: nothing of it is kept."""
    console = console_of(request)
    await console.check_write(request, upload=MAX_UPLOAD_BYTES)
    async with request.form() as form:
        files = [each for each in form.getlist("history") if not isinstance(each, str)]
        if not files or not any(each.size for each in files):
            raise HTTPException(400, "choose one or more .jsonl files of a history")
        if console.uploads.locked():
            raise ConsoleBusy("another uploaded history is being checked: try again when it is done")
        async with console.uploads:
            report = await asyncio.to_thread(_check_files, [each.file for each in files])
    source = plural(len(files), "uploaded file")
    view = check_view(report)
    return await show(
        request,
        UPLOADED,
        {"title": "Order check", "view": view, "source": source, "checked_at": None, "problem": ""},
    )


def _check_files(files: Sequence[BinaryIO]) -> CheckReport:
    with tempfile.TemporaryDirectory(prefix="lanemq-check-") as folder:
        for number, each in enumerate(files):
            with (Path(folder) / f"{number}.jsonl").open("wb") as stored:
                shutil.copyfileobj(each, stored)
        return run_check([Path(folder)])


SCREEN = Screen("/check", "check", "check.html", _load)
UPLOADED = Screen("/check", "check", "check.html", _load, live=False)


def routes() -> list[BaseRoute]:
    return [*routes_of(SCREEN), Route("/check", _upload, methods=["POST"])]
