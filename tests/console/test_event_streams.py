"""Event streams are bounded, for each client and over all, and a page that gets none says why."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from lanemq.console.event_streams import ADVICE, EventStreams
from lanemq.console.reading import ConsoleBusy


def test_a_place_is_free_again_when_a_stream_ends() -> None:
    streams = EventStreams(most=3, per_client=2)
    for client in ("a", "a", "b"):
        streams.take(client)
    with pytest.raises(ConsoleBusy, match="2 pages are open at a, the limit for one address"):
        streams.take("a")
    with pytest.raises(ConsoleBusy, match="3 pages are open, the limit of this console"):
        streams.take("b")
    streams.leave("a")
    streams.take("b")
    for client in ("a", "b", "b"):
        streams.leave(client)
    assert (streams.open, dict(streams._open)) == (0, {})


class Stream:
    """A request for an event stream, without a socket."""

    def __init__(self, app: Callable[..., Awaitable[None]], path: str, client: str) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(b"host", b"127.0.0.1")], "client": (client, 50000), "server": ("127.0.0.1", 9870),
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def status(self) -> int:
        start = await self.sent.get()
        return int(start["status"])

    async def body(self) -> str:
        return bytes((await self.sent.get())["body"]).decode()

    async def leave(self) -> None:
        self.gone.set()
        await self.task


@pytest.mark.parametrize("path", ["/live", "/live/topics", "/tail?topic=orders"])
def test_a_client_with_too_many_pages_is_refused_and_others_are_not(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    app, streams = client.app, EventStreams(most=3, per_client=2)
    monkeypatch.setattr(app.state.console, "streams", streams)

    async def visits() -> None:
        held = [Stream(app, path, "192.0.2.7") for _ in range(2)]
        assert [await each.status() for each in held] == [200, 200]
        refused = Stream(app, path, "192.0.2.7")
        assert await refused.status() == 503
        assert ADVICE in await refused.body()
        held.append(Stream(app, path, "192.0.2.8"))
        assert await held[-1].status() == 200
        assert await Stream(app, path, "192.0.2.9").status() == 503, "over all clients"
        await held.pop(0).leave()
        held.append(Stream(app, path, "192.0.2.9"))
        assert await held[-1].status() == 200
        for each in held:
            await each.leave()

    client.portal.call(visits)
    assert streams.open == 0


def test_a_refused_page_gets_the_sentence_alone_and_when_to_try_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of the page shows the text as it is."""
    monkeypatch.setattr(client.app.state.console, "streams", EventStreams(most=0))
    answer = client.get("/live/groups", headers={"accept": "text/html, text/event-stream"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == f"0 pages are open, the limit of this console: {ADVICE}"
