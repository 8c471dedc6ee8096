"""The console as an ASGI application: routes, errors, and what runs beside the requests."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from lanemq.clock import Clock, SystemClock
from lanemq.console.protection import Protection, Sessions
from lanemq.console.reading import MAX_SEARCHES, MAX_SEARCHES_PER_CLIENT, ConsoleBusy, ConsoleReads, Watch
from lanemq.console.routes import (
    check,
    dead,
    groups,
    home,
    key,
    messages,
    pipelines,
    publish,
    sign_in,
    topic_settings,
    topics,
    waiting,
)
from lanemq.console.routes import settings as settings_screen
from lanemq.console.screens import Console, Context, Screen, show
from lanemq.console.settings import ConsoleSettings
from lanemq.console.snapshot import SnapshotReader
from lanemq.model.errors import LaneError, NotAllowed, TransportError, UsageError

log = logging.getLogger(__name__)
ASSETS = Path(__file__).parent / "assets"
DOCUMENTS = Path(__file__).parent / "documents"
"""The site that `make docs` builds. Wheels of `make dist` have it; a checkout where it was not built does not."""


class _Assets(StaticFiles):
    """Files of the wheel. Their names do not change with their content, so browsers ask again each time."""

    def file_response(self, *args: object, **options: object) -> Response:
        found = super().file_response(*args, **options)  # type: ignore[arg-type]
        found.headers["cache-control"] = "no-cache"
        return found


class _Documents:
    """The site under /docs; until it is built, a page that says how to build it.

    The folder is looked at with every request, so that `make docs` in a checkout needs no restart.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site = _Assets(directory=folder, html=True, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._site
        if not (self._folder / "index.html").is_file():
            is_start = scope["path"].removeprefix("/docs") in ("", "/", "/index.html")
            answer = await show(Request(scope), _NO_DOCUMENTS, {"title": "Documents"}, 200 if is_start else 404)
        await answer(scope, receive, send)


def document_routes(folder: Path = DOCUMENTS) -> list[BaseRoute]:
    """The site under /docs, or a page that says how to build it."""
    return [Mount("/docs", _Documents(folder))]


def console_app(settings: ConsoleSettings, token: str, *, clock: Clock | None = None) -> Starlette:
    """The application. Its background work begins with the first event of the server, and ends with the last."""
    clock = clock or SystemClock()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watch = Watch(SnapshotReader(settings.server, clock), clock, every=settings.every)
        console = Console(
            settings=settings,
            clock=clock,
            sessions=Sessions(token, clock, settings.remote_writes),
            reading=ConsoleReads(clock),
            searching=ConsoleReads(clock, most=MAX_SEARCHES, per_client=MAX_SEARCHES_PER_CLIENT),
            pipeline_reading=ConsoleReads(clock, threads=1),
            watch=watch,
            stopping=asyncio.Event(),
        )
        app.state.console = console
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(watch.run()), tasks.create_task(check.keep_checking(console))]
            try:
                yield
            finally:
                console.stopping.set()
                for task in running:
                    task.cancel()
        console.reading.close()
        console.searching.close()
        console.pipeline_reading.close()

    screens = (
        home,
        topics,
        publish,
        topic_settings,
        groups,
        waiting,
        dead,
        key,
        messages,
        pipelines,
        check,
        settings_screen,
        sign_in,
    )
    return Starlette(
        routes=[
            *(route for each in screens for route in each.routes()),
            Mount("/assets", _Assets(directory=ASSETS)),
            *document_routes(),
        ],
        lifespan=lifespan,
        middleware=[Middleware(Protection, hosts=frozenset(name.lower() for name in settings.allow_hosts))],
        exception_handlers={HTTPException: _refused, LaneError: _failed, ClientDisconnect: _left},
    )


_ERROR = Screen("", "", "error.html", lambda console, request: asyncio.sleep(0, {}), live=False)
_NO_DOCUMENTS = Screen("", "docs", "no_documents.html", lambda console, request: asyncio.sleep(0, {}), live=False)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {403: "Not allowed", 404: "Not found", 405: "Not found"}.get(error.status_code, "That did not work")
    text = "There is no page at this address." if error.detail == "Not Found" else str(error.detail)
    return await _error_page(request, title, text, error.status_code)


async def _left(request: Request, error: Exception) -> Response:
    """The client closed the connection before its form had arrived. Nobody reads this answer, and nothing is logged."""
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    """A `LaneError` as a page: whose fault it is decides the status."""
    status = 502
    if isinstance(error, UsageError):
        status = 400
    elif isinstance(error, NotAllowed):
        status = 403
    elif isinstance(error, ConsoleBusy | TransportError):
        status = 503
    return await _error_page(request, "That did not work", str(error), status)


async def _error_page(request: Request, title: str, text: str, status: int) -> Response:
    context: Context = {"title": title, "text": text[:2000]}
    if "text/html" not in request.headers.get("accept", "text/html"):
        return JSONResponse(context, status)
    return await show(request, _ERROR, context, status)
