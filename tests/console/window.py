"""A console with a real socket, and a window of a browser that hears everything its page complains about."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.console.conftest import TOKEN, until

from lanemq.console.server import console_server, listening_socket, url_of
from lanemq.console.settings import ConsoleSettings
from lanemq.net.address import Address
from lanemq.net.serving.server import ConnectionLimits

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MAX_WAIT_MS = 120_000
"""How long a page may take: the pages of pipelines start processes, and the machine may be busy."""


@contextlib.contextmanager
def serving(settings: ConsoleSettings, limits: ConnectionLimits | None = None) -> Iterator[str]:
    """Serves a console, because a browser needs a socket; its address without the last slash."""
    listener = listening_socket(Address("127.0.0.1", 0))
    server = console_server(settings, TOKEN, lambda: None, limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    until("the console to start", lambda: server.started)
    yield url_of(listener).rstrip("/")
    server.should_exit = True
    thread.join(20)
    listener.close()


@dataclass
class Window:
    """A page of the browser, and everything that it complained about."""

    page: "Page"
    base: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.problems.clear()
        self.page.goto(self.base + path)
        self.page.wait_for_load_state("load")

    def complain(self, text: str) -> None:
        # A page that is left ends its event stream, and the 404 of the error page is meant.
        if "ERR_ABORTED" not in text and "ERR_INCOMPLETE" not in text and "status of 404" not in text:
            self.problems.append(text)


@contextlib.contextmanager
def opened(browser: "Browser", base: str) -> Iterator[Window]:
    context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(MAX_WAIT_MS)
    found = Window(page, base)
    page.on("console", lambda message: found.complain(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.complain(str(error)))
    page.on("dialog", lambda dialog: (found.complain(f"a dialog: {dialog.message}"), dialog.dismiss()))
    yield found
    context.close()
