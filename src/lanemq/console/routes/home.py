"""`/`: the home screen, and whether the console runs."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.console.pipeline_reading import pipelines_now
from lanemq.console.screens import Console, Context, Screen, console_of, routes_of
from lanemq.console.views.home import OrderVerdict, home_view


async def _load(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    pipelines, verdict = await pipelines_now(console), console.verdict
    if verdict is None and console.settings.history is not None:
        verdict = OrderVerdict("none yet", 0, 0, console.clock.wall())
    return {"title": "Home", "view": home_view(now, console.watch.trends, verdict, pipelines)}


async def _health(request: Request) -> Response:
    """Whether the console itself runs; the brokers may be down."""
    now = console_of(request).watch.now
    brokers = "refuse the console" if now.refused else "down" if now.error else "up"
    return JSONResponse({"console": "up", "brokers": brokers})


def routes() -> list[BaseRoute]:
    return [*routes_of(Screen("/", "home", "home.html", _load)), Route("/health", _health)]
