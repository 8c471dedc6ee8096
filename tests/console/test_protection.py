"""What the console refuses, and that it refuses it before it reads a body: sessions, origins, sizes, and links."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, TOKEN

from lanemq.clock import SystemClock
from lanemq.console import protection
from lanemq.console.protection import COOKIE, ConsoleSession, Sessions
from lanemq.console.routes import check
from lanemq.model.units import Millis

OURS = {"origin": BASE}
REMOTE = "192.0.2.7"
CHUNK = b"x" * 4096
URLENCODED = "application/x-www-form-urlencoded"


@dataclass
class Sent:
    """A request that is sent piece by piece, and its answer."""

    pieces: Iterator[bytes]
    taken: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    async def receive(self) -> dict[str, Any]:
        piece = next(self.pieces, None)
        self.taken += len(piece or b"")
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")


def post(
    client: TestClient,
    path: str,
    pieces: Iterator[bytes],
    headers: Mapping[str, str],
    *,
    kind: str = URLENCODED,
    host: str = "127.0.0.1",
    scheme: str = "http",
) -> Sent:
    """Sends a request below the level of a test client, which would send a body whole."""
    sent = Sent(pieces)
    named = {"host": "127.0.0.1:9870", "content-type": kind, **headers}
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "http_version": "1.1", "scheme": scheme, "root_path": "", "client": (host, 50000),
        "server": ("127.0.0.1", 9870), "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip

    async def call() -> None:
        await client.app(scope, sent.receive, sent.send)

    assert client.portal is not None
    client.portal.call(call)
    return sent


def endless() -> Iterator[bytes]:
    while True:
        yield CHUNK


def form(**fields: str) -> Iterator[bytes]:
    return iter([urlencode(fields).encode()])


def cookie(client: TestClient) -> dict[str, str]:
    answer = client.post("/sign-in", data={"token": TOKEN}, headers=OURS, follow_redirects=False)
    value = answer.cookies[COOKIE]
    client.cookies.clear()
    return {"cookie": f"{COOKIE}={value}"}


# before a body is read


@pytest.mark.parametrize("path", ["/topic/new", "/waiting/chosen", "/waiting/redrive", "/dead/discard", "/check"])
def test_a_body_without_a_session_is_not_read(client: TestClient, path: str) -> None:
    sent = post(client, path, endless(), OURS)
    assert (sent.status, sent.taken) == (403, 0)


@pytest.mark.parametrize("path", ["/topic/new", "/check", "/sign-in"])
def test_a_body_from_another_site_is_not_read(client: TestClient, path: str) -> None:
    sent = post(client, path, endless(), {**cookie(client), "origin": "http://evil.example"})
    assert (sent.status, sent.taken) == (403, 0)


def test_a_body_from_another_machine_is_not_read(client: TestClient) -> None:
    for path in ("/topic/new", "/check", "/sign-in"):
        sent = post(client, path, endless(), {**cookie(client), **OURS}, host=REMOTE)
        assert (sent.status, sent.taken) == (403, 0), path
        assert b"--remote-writes" in sent.body


@pytest.mark.parametrize("path", ["/sign-in", "/topic/new"])
def test_a_form_is_read_up_to_its_limit(client: TestClient, path: str) -> None:
    sent = post(client, path, endless(), {**cookie(client), **OURS})
    assert sent.status == 413
    assert sent.taken <= protection.MAX_FORM_BYTES + len(CHUNK)


def test_an_upload_is_read_up_to_its_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds while the files are stored, and is that of uploads, not that of forms."""
    limit = protection.MAX_FORM_BYTES + 16 * len(CHUNK)
    monkeypatch.setattr(check, "MAX_UPLOAD_BYTES", limit)

    def pieces() -> Iterator[bytes]:
        yield b'--edge\r\nContent-Disposition: form-data; name="history"; filename="a.jsonl"\r\n\r\n'
        yield from endless()

    sent = post(client, "/check", pieces(), {**cookie(client), **OURS}, kind="multipart/form-data; boundary=edge")
    assert sent.status == 413
    assert limit < sent.taken <= limit + len(CHUNK)
    assert b"lanemq check" in sent.body


def test_an_upload_that_says_it_is_too_large_is_not_read(client: TestClient) -> None:
    said = {"content-length": str(check.MAX_UPLOAD_BYTES + 1)}
    sent = post(client, "/check", endless(), {**cookie(client), **OURS, **said}, kind="multipart/form-data; boundary=e")
    assert (sent.status, sent.taken) == (413, 0)


# other machines


def refused(client: str, *, remote_writes: bool) -> str | None:
    sessions = Sessions(TOKEN, SystemClock(), remote_writes)
    session = ConsoleSession("token", "secret", Millis(2**50))
    return sessions.refusal(client, {"origin": BASE, "host": "127.0.0.1:9870"}, session)


def test_a_session_from_another_machine_may_change_something_only_if_the_console_was_started_so() -> None:
    assert refused("127.0.0.1", remote_writes=False) is None
    assert refused(REMOTE, remote_writes=True) is None
    assert "read-only" in (refused(REMOTE, remote_writes=False) or "")


def test_no_page_shows_a_form_to_a_session_on_another_machine(client: TestClient) -> None:
    """A cookie may arrive through another address than the one it was given to."""
    lane = re.search(r"/waiting/lane\?[^\"]*order-7", client.get("/waiting").text)
    assert lane is not None
    forms = (
        "/topic/new?name=invoices&queues=8&order=key", "/topics/orders/delete", "/check", "/dead/discard?group=mail",
        "/groups/shipping/reset?topic=orders&to=first", lane[0].replace("&amp;", "&"),
    )  # fmt: skip
    session = cookie(client)
    for path in forms:
        assert 'method="post"' in shown(client, path, session, "127.0.0.1"), path
        assert not re.search(r'method="post" action="(?!/sign-out)', shown(client, path, session, REMOTE)), path
    assert "read-only" in shown(client, "/", session, REMOTE)


def shown(client: TestClient, path: str, headers: Mapping[str, str], host: str) -> str:
    """The content of a page, asked for from `host`."""
    sent, parts = Sent(iter(())), urlsplit(path)
    named = {"host": "127.0.0.1:9870", **headers}
    scope = {
        "type": "http", "method": "GET", "path": parts.path, "raw_path": parts.path.encode(), "http_version": "1.1",
        "query_string": parts.query.encode(), "scheme": "http", "root_path": "", "client": (host, 50000),
        "server": ("127.0.0.1", 9870), "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip

    async def call() -> None:
        await client.app(scope, sent.receive, sent.send)

    assert client.portal is not None
    client.portal.call(call)
    assert sent.status == 200, path
    return sent.body.decode().partition("<main")[2] + ("read-only" if b"read-only" in sent.body else "")


# cookies and links


@pytest.mark.parametrize(
    ("scheme", "origin", "secure"),
    [("http", BASE, False), ("https", BASE.replace("http", "https"), True), ("http", "https://127.0.0.1:9870", True)],
    ids=["plain", "a proxy says https", "the browser says https"],
)
def test_the_cookie_is_sent_over_https_only_if_the_page_came_over_https(
    client: TestClient, scheme: str, origin: str, secure: bool
) -> None:
    sent = post(client, "/sign-in", form(token=TOKEN), {"origin": origin}, scheme=scheme)
    assert sent.status == 303
    assert ("Secure" in sent.headers["set-cookie"].split("; ")) is secure


def test_a_link_shows_no_text_of_its_own(client: TestClient) -> None:
    said = "Call +1 555 0100, your cluster was hacked."
    for path in ("/waiting?", "/waiting?mark=x&"):
        assert "Call +1" not in client.get(path + urlencode({"done": said})).text


def test_a_change_says_what_it_did_on_the_next_page_and_only_that(client: TestClient) -> None:
    session = {**cookie(client), **OURS}
    page = shown(client, "/topics/orders/delete", session, "127.0.0.1")
    secret = re.search(r'name="secret" value="([^"]+)"', page)
    assert secret is not None
    named = {"group": "shipping", "topic": "orders", "broker": "lanemq", "queue": "0", "key": "gone"}
    sent = post(client, "/waiting/redrive", form(**named, secret=secret[1]), session)
    assert "Nothing to do: this lane" in client.get(sent.headers["location"]).text
    (done,) = parse_qs(urlsplit(sent.headers["location"]).query)["done"]
    assert "Nothing" not in client.get(f"/waiting?{urlencode({'done': done + ' Call +1 555 0100'})}").text


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("/topics", "New topic"),
        ("/topics/orders", "Delete…"),
        ("/groups/shipping", "Reset"),
        ("/waiting", "Sign in to choose and redrive"),
    ],
)
def test_changes_are_offered_before_the_sign_in_to_those_who_may_make_them(
    client: TestClient, path: str, link: str
) -> None:
    assert link in client.get(path).text
    assert link not in shown(client, path, {}, "192.0.2.7")
