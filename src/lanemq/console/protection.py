"""What the console trusts: which hosts, which requests, who may change something.

ConsoleReads is open to every client that reaches the console. A change needs all of these:

1. a session, which begins with the token that the console prints at its start, or with a user of the broker;
2. a form of the console itself: the browser's `Origin` or `Sec-Fetch-Site` says so, and the form holds the session's
   secret;
3. a client on the same machine, unless the console was started with `--remote-writes`.

A page of another site could otherwise use the browser of an operator: cookies are not sent with its requests
(`SameSite=Strict`), and its forms do not know the secret. A name that an attacker lets point to 127.0.0.1 (DNS
rebinding) is refused by the `Host` header.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanemq.clock import Clock
from lanemq.model.units import Millis
from lanemq.wire.signing import Credentials

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
COOKIE = "lanemq_console"
SESSION_MS = 12 * 3600 * 1000
MAX_SESSIONS = 100


@dataclass(slots=True)
class ConsoleSession:
    """A person who has signed in. `credentials` are those of a broker's user; None: the console's own."""

    name: str
    secret: str
    """The value that every form of this session holds."""
    until: Millis
    credentials: Credentials | None = None


@dataclass(slots=True)
class Sessions:
    """The sessions of one console, in memory: a restart ends all of them."""

    token: str
    clock: Clock
    remote_writes: bool = False
    """Whether clients on other machines may change something."""
    _open: dict[str, ConsoleSession] = field(default_factory=dict)

    def sign_in(self, token: str) -> str | None:
        """Begins a session with the token; returns the value of its cookie, or None if the token is wrong."""
        if not hmac.compare_digest(token.strip().encode(), self.token.encode()):
            return None
        return self._begin("token")

    def sign_in_user(self, credentials: Credentials) -> str:
        """Begins a session of a broker's user, whose credentials a broker has accepted."""
        return self._begin(credentials.access_key, credentials)

    def _begin(self, name: str, credentials: Credentials | None = None) -> str:
        now = self.clock.now()
        self._open = {cookie: each for cookie, each in self._open.items() if each.until > now}
        while len(self._open) >= MAX_SESSIONS:
            del self._open[next(iter(self._open))]
        cookie = secrets.token_urlsafe(32)
        self._open[cookie] = ConsoleSession(name, secrets.token_urlsafe(32), Millis(now + SESSION_MS), credentials)
        return cookie

    def sign_out(self, cookie: str) -> None:
        self._open.pop(cookie, None)

    def of(self, cookie: str | None) -> ConsoleSession | None:
        found = self._open.get(cookie or "")
        return found if found is not None and found.until > self.clock.now() else None

    def refusal(
        self, client: str, headers: Mapping[str, str], session: ConsoleSession | None, secret: str
    ) -> str | None:
        """Why a change is refused; None if it is allowed."""
        if session is None:
            return "sign in first: the console printed its token when it started"
        if not self.remote_writes and not is_loopback(client):
            return (
                f"this console is read-only for other machines, and {client} is one: use it on its own machine, or "
                f"start it with --remote-writes"
            )
        if not same_site(headers) or not hmac.compare_digest(secret.encode(), session.secret.encode()):
            return "the form is not from this console, or is older than your session: open the page again"
        return None


def same_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of this console made the request. Browsers set these headers, and scripts cannot."""
    fetched = headers.get("sec-fetch-site")
    if fetched is not None:
        return fetched == "same-origin"
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] == headers.get("host")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_allowed(host: str, names: frozenset[str]) -> bool:
    """Whether a `Host` header names this console: an address, localhost, or one of the given names.

    An attacker can make a name point to this machine, but not an address.
    """
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    if name.lower() in names or name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Protection:
    """Sets the headers that tell the browser what to refuse, and refuses requests for other hosts."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not host_allowed(host, self._hosts):
            refused = PlainTextResponse(f"unknown host: start the console with --allow-host {host[:100]}", 421)
            await refused(scope, receive, protected)
            return
        await self._app(scope, receive, protected)
