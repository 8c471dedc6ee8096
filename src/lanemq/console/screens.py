"""How a screen becomes a page: loaded, rendered, and kept up to date while it is open.

A screen is a path, a template and a function that loads what the template shows. The same template renders the page
and, every time there is a new snapshot, the part of it that is sent to the open page as a server-sent event.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.client.security import SecuritySettings
from lanemq.clock import Clock, wall_time
from lanemq.console import wording
from lanemq.console.event_streams import RETRY_SECONDS, EventStream, EventStreams
from lanemq.console.links import (
    dead_change_link,
    dead_letter_link,
    dead_link,
    group_link,
    in_form,
    key_link,
    pipeline_link,
    topic_link,
)
from lanemq.console.protection import (
    BODY_LIMIT,
    COOKIE,
    MAX_FORM_FIELDS,
    OTHER_FORM,
    BodyLimit,
    ConsoleSession,
    Sessions,
    signed,
    signed_text,
)
from lanemq.console.reading import NO_ANSWER, SILENT_SECONDS, ConsoleBusy, ConsoleReads, Watch
from lanemq.console.settings import ConsoleSettings
from lanemq.console.snapshot import Snapshot
from lanemq.console.views.check import CheckReport
from lanemq.console.views.home import OrderVerdict
from lanemq.console.views.messages import preview_of
from lanemq.console.views.pipelines import PipelineReading
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.model.wording import printable
from lanemq.net.address import origin_of

HERE = Path(__file__).parent
KEEP_OPEN_SECONDS = 15.0
"""Silence after which a comment is sent on an event stream, so that proxies keep it open."""
DONE = "done"
"""The part of an address that says what a change did; `back` signs it."""

Context = Mapping[str, Any]


@dataclass(slots=True)
class Console:
    """What all requests share."""

    settings: ConsoleSettings
    clock: Clock
    sessions: Sessions
    reading: ConsoleReads
    searching: ConsoleReads
    """Searches messages. It has threads and a limit of its own, so that searches do not keep out other pages."""
    pipeline_reading: ConsoleReads
    """Reads pipelines. It has a thread of its own, so that a large state does not delay other pages."""
    watch: Watch
    stopping: asyncio.Event
    verdict: OrderVerdict | None = None
    """The newest result of checking the history."""
    report: CheckReport | None = None
    uploads: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an uploaded history is checked: one at a time."""
    streams: EventStreams = field(default_factory=EventStreams)
    """Event streams that are open, live tails included."""
    tails: int = 0
    """Live tails that are open."""
    pipelines: dict[str, tuple[PipelineReading, PipelineReading | None]] = field(default_factory=dict)
    """The last two readings of each pipeline, by its place."""

    def session(self, request: Request) -> ConsoleSession | None:
        return self.sessions.of(request.cookies.get(COOKIE))

    def may_write(self, request: Request) -> bool:
        """Whether buttons that change something are shown at all."""
        return self.sessions.may_write(client_host(request))

    async def check_write(self, request: Request, *, upload: int = 0) -> ConsoleSession:
        """The session of a request that changes something; 403 if it may not.

        The headers are checked before the form is read. `upload`: bytes that its files may have.
        """
        session = self.session(request)
        why = self.sessions.refusal(client_host(request), request.headers, session)
        if why is not None or session is None:
            raise HTTPException(403, why)
        if upload:
            limit: BodyLimit = request.scope[BODY_LIMIT]
            limit.allow(upload, request.headers.get("content-length"), "use lanemq check on the machine that has them")
        if not session.wrote(str((await request.form(max_fields=MAX_FORM_FIELDS)).get("secret", ""))):
            raise HTTPException(403, OTHER_FORM)
        return session

    def credentials(self, session: ConsoleSession) -> SecuritySettings:
        """What a change is signed with: the user's own credentials, or the console's."""
        return {} if session.credentials is None else {"credentials": session.credentials}


@dataclass(frozen=True, slots=True)
class Screen:
    """A page. `load` returns what the template shows, `title` among it."""

    path: str
    name: str
    """The entry of the navigation that is marked."""
    template: str
    load: Callable[[Console, Request], Awaitable[Context]]
    live: bool = True
    """Whether the page is kept up to date while it is open."""


def client_host(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def environment() -> Environment:
    """Templates escape everything that is put into them: names and bodies come from strangers."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=wording.number,
        known=wording.known,
        rate=wording.rate,
        span=wording.span,
        lateness=wording.lateness,
        size=wording.size,
        clock_time=wording.clock_time,
        exact_time=wording.exact_time,
        time_of_day=wording.time_of_day,
        printable=printable,
        in_form=in_form,
    )
    links = (topic_link, group_link, key_link, dead_link, dead_letter_link, dead_change_link, pipeline_link)
    made.globals.update(plural=wording.counted, preview_of=preview_of, **{each.__name__: each for each in links})
    return made


_TEMPLATES = environment()


def routes_of(screen: Screen) -> list[BaseRoute]:
    """The page, and its event stream if it is live."""

    async def page(request: Request) -> Response:
        return await show(request, screen, await screen.load(console_of(request), request))

    async def live(request: Request) -> Response:
        console = console_of(request)
        try:
            return EventStream(_events(console, request, screen), console.streams, origin_of(client_host(request)))
        except ConsoleBusy as busy:  # the page shows it as it is, and tries again
            return PlainTextResponse(str(busy), 503, {"retry-after": str(RETRY_SECONDS)})

    found: list[BaseRoute] = [Route(screen.path, page)]
    return [*found, Route(f"/live{screen.path}".rstrip("/"), live)] if screen.live else found


async def show(request: Request, screen: Screen, context: Context, status: int = 200) -> Response:
    """The whole page."""
    return HTMLResponse(_render(console_of(request), request, screen, context, "page.html"), status)


def missing(now: Snapshot, what: str) -> HTTPException:
    """The answer to a question for something that the snapshot does not have.

    It is not there only if the brokers were read.
    """
    return HTTPException(503, now.error) if now.error else HTTPException(404, what)


def _render(
    console: Console,
    request: Request,
    screen: Screen,
    context: Context,
    frame: str,
    *,
    stale: str = "",
    read_at: Millis | None = None,
) -> str:
    """`stale`: why the content could not be read again since `read_at`."""
    now, session, may_write = console.watch.now, console.session(request), console.may_write(request)
    read_at = read_at if read_at is not None else console.watch.last_read
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != DONE])
    path, rest = request.url.path, f"?{query}" if query else ""
    return _TEMPLATES.get_template(frame).render(
        screen=screen,
        live=f"/live{path}".rstrip("/") + rest if screen.live else "",
        here=path + rest,
        server=console.settings.server,
        signed_in=session is not None,
        # Forms are for a session that may change something from where it is.
        session=session if may_write else None,
        secret=session.secret if session is not None else "",
        may_write=may_write,
        broker_error=now.error,
        brokers_refuse=now.refused,
        stale=stale,
        age="" if read_at is None else wording.ago(console.clock.wall() - read_at),
        age_seconds=0 if read_at is None else (console.clock.wall() - read_at) // 1000,
        wall=console.clock.wall(),
        zone=wording.time_zone(wall_time(console.clock.wall())),
        ago=lambda when: wording.ago(console.clock.wall() - when),
        flash=signed_text(request.query_params.get(DONE, "")),
        **context,
    )


def render_part(template: str, **context: Any) -> str:
    """A template on its own, without the frame of a page."""
    return _TEMPLATES.get_template(template).render(**context)


async def _events(console: Console, request: Request, screen: Screen) -> AsyncIterator[str]:
    shown, context, read_at = "", dict[str, Any](), console.watch.last_read
    async with console.watch.open_page():
        while not console.stopping.is_set():
            loading = asyncio.create_task(_loaded(screen, console, request))
            await asyncio.wait([loading], timeout=SILENT_SECONDS)
            if not loading.done() and context:
                yield _as_event(
                    _render(console, request, screen, context, "part.html", stale=NO_ANSWER, read_at=read_at)
                )
                shown = ""
            loaded = await loading
            stale = loaded if isinstance(loaded, str) else ""
            if not isinstance(loaded, str):
                context, read_at = dict(loaded), console.watch.last_read
            if context:
                text = _render(console, request, screen, context, "part.html", stale=stale, read_at=read_at)
            else:
                unread = {"title": "That did not work", "text": stale}
                text = _render(console, request, replace(screen, template="error.html"), unread, "part.html")
            if text != shown:
                shown = text
                yield _as_event(text)
            else:
                yield ": \n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(console.watch.next(), KEEP_OPEN_SECONDS)


async def _loaded(screen: Screen, console: Console, request: Request) -> Context | str:
    """What the template shows, or why that could not be read: the page then keeps what it shows, and says how old."""
    try:
        return await screen.load(console, request)
    except HTTPException as error:
        return error.detail
    except LaneError as error:
        return str(error)


def _as_event(text: str) -> str:
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"


def back(path: str, done: str) -> Response:
    """After a change: to a page that says what was done."""
    return RedirectResponse(f"{path}{'&' if '?' in path else '?'}{urlencode({DONE: signed(done)})}", 303)
