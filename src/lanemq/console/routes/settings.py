"""`/settings`: the values in use of console and brokers, where each came from, and the brokers' figures."""

from starlette.requests import Request
from starlette.routing import BaseRoute

from lanemq.client.admin.watching import BrokerSetting, BrokerUsers, WatchAdmin
from lanemq.console.screens import Console, Context, Screen, routes_of
from lanemq.console.views.settings import broker_rows, console_rows, setting_rows
from lanemq.model.errors import LaneError

SETTINGS_SECONDS = 60.0
"""A broker's options change only with a restart."""


USERS_SECONDS = 5.0
"""A broker reads its file of users again when the file changes."""


async def broker_settings(console: Console) -> tuple[BrokerSetting, ...]:
    """The options of all brokers; none if they do not answer."""

    def read() -> tuple[BrokerSetting, ...]:
        with WatchAdmin(console.settings.server) as admin:
            return admin.broker_settings()

    try:
        return await console.reading.ask("broker settings", read, max_age=SETTINGS_SECONDS)
    except LaneError:
        return ()


async def _users(console: Console, request: Request) -> tuple[BrokerUsers, ...] | None:
    """The users of the brokers and their rights; None for a reader who has not signed in."""
    if console.session(request) is None:
        return None

    def read() -> tuple[BrokerUsers, ...]:
        with WatchAdmin(console.settings.server) as admin:
            return admin.broker_users()

    try:
        return await console.reading.ask("broker users", read, max_age=USERS_SECONDS)
    except LaneError:
        return ()


async def _load(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    return {
        "title": "Settings",
        "brokers": broker_rows(now.brokers),
        "own": console_rows(console.settings),
        "rows": setting_rows(await broker_settings(console)),
        "took": now.took,
        "users": await _users(console, request),
    }


def routes() -> list[BaseRoute]:
    return routes_of(Screen("/settings", "settings", "settings.html", _load))
