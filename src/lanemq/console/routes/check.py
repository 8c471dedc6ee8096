"""`/check`: the order check of a recorded history, its own or an uploaded one.

The checker runs in a child process. The history of `--history` is checked again at intervals, at most a tenth of the
time.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.console.child import run_module
from lanemq.console.screens import Console, Context, Screen, console_of, routes_of, show
from lanemq.console.views.check import CheckReport, check_view
from lanemq.console.views.home import OrderVerdict
from lanemq.model.errors import LaneError

CHECK_EVERY = 30.0
"""Seconds between two checks of the history at least."""
CHECK_SECONDS = 120.0
"""Time limit of one check."""
SHARE_OF_TIME = 10
MAX_UPLOAD_BYTES = 256 << 20


def run_check(paths: Sequence[Path]) -> CheckReport:
    """Checks histories in a child process. Producers without a history, such as `lanemq send`, are accepted."""
    ended = run_module("lanemq.checker", *map(str, paths), "--json", "--foreign-producers", seconds=CHECK_SECONDS)
    try:
        return msgspec.json.decode(ended.out, type=CheckReport)
    except msgspec.MsgspecError:
        why = ended.error.splitlines()[-1] if ended.error else "it printed nothing"
        raise LaneError(f"the history could not be checked: {why}") from None


async def keep_checking(console: Console) -> None:
    """Checks the console's own history at intervals, until it is cancelled."""
    folder = console.settings.history
    if folder is None:
        return
    while True:
        begin = console.clock.now()
        with contextlib.suppress(LaneError):
            if any(folder.rglob("*.jsonl")):
                console.report = await asyncio.to_thread(run_check, [folder])
                report = console.report
                console.verdict = OrderVerdict(
                    report.verdict, report.events, sum(report.counts.values()), console.clock.wall()
                )
        took = (console.clock.now() - begin) / 1000
        await asyncio.sleep(max(CHECK_EVERY if console.verdict is not None else 2.0, took * SHARE_OF_TIME))


async def _load(console: Console, request: Request) -> Context:
    report = console.report
    return {
        "title": "Order check",
        "view": None if report is None else check_view(report),
        "source": str(console.settings.history or ""),
        "checked_at": console.verdict.at if console.verdict is not None else None,
    }


async def _upload(request: Request) -> Response:
    """Checks an uploaded history. It is a read: nothing of it is kept."""
    console = console_of(request)
    if not console.may_write(request):
        raise HTTPException(403, "only clients on the console's own machine may upload a history")
    await console.check_write(request)
    form = await request.form()
    files = [each for each in form.getlist("history") if not isinstance(each, str)]
    if not files or not any(each.size for each in files):
        raise HTTPException(400, "choose one or more .jsonl files of a history")
    if sum(each.size or 0 for each in files) > MAX_UPLOAD_BYTES:
        raise HTTPException(413, "the files are larger than 256 MiB: use lanemq check on the machine that has them")
    with tempfile.TemporaryDirectory(prefix="lanemq-check-") as folder:
        for number, each in enumerate(files):
            (Path(folder) / f"{number}.jsonl").write_bytes(await each.read())
        report = await console.reading.do(lambda: run_check([Path(folder)]))
    return await show(
        request,
        UPLOADED,
        {"title": "Order check", "view": check_view(report), "source": "the uploaded files", "checked_at": None},
    )


SCREEN = Screen("/check", "check", "check.html", _load)
UPLOADED = Screen("/check", "check", "check.html", _load, live=False)


def routes() -> list[BaseRoute]:
    return [*routes_of(SCREEN), Route("/check", _upload, methods=["POST"])]
