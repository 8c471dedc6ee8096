"""What the console trusts: which hosts, which requests, who may change something.

Every client that reaches the console may look. A change needs all of these:

1. a client on the same machine, unless the console was started with `--remote-writes`;
2. a session, which begins with the token that the console prints at its start, or with a user of the broker;
3. a form of the console itself: the browser's `Origin` or `Sec-Fetch-Site` says so, and the form holds the session's
   secret.

All but the secret is known from the headers, so a request that is refused for them is refused before its body is
read. A body is read up to a limit (`BodyLimit`).

A page of another site could otherwise use the browser of an operator: cookies are not sent with its requests
(`SameSite=Strict`), and its forms do not know the secret. A name that an attacker lets point to 127.0.0.1 (DNS
rebinding) is refused by the `Host` header. A link of an attacker cannot make a page say something: what a page says
about a change is signed (`signed`).
"""

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanemq.clock import Clock
from lanemq.console.reading import CLIENT
from lanemq.console.wording import size
from lanemq.model.units import Millis
from lanemq.net.address import origin_of
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
MAX_FORM_BYTES = 1 << 20
"""The largest body of a request. A form of the console has a few kilobytes; only an uploaded history may be larger."""
MAX_FORM_FIELDS = 10_000
"""The most fields of a form. One that is too long is refused by its own route, which knows what to advise."""
OTHER_FORM = "the form is not from this console, or is older than your session: open the page again"
BODY_LIMIT = "lanemq.body_limit"
"""Where the scope of a request holds its `BodyLimit`."""
_SIGNING_KEY = secrets.token_bytes(32)


@dataclass(slots=True)
class ConsoleSession:
    """A person who has signed in. `credentials` are those of a broker's user; None: the console's own."""

    name: str
    secret: str
    """The value that every form of this session holds."""
    until: Millis
    credentials: Credentials | None = None

    def wrote(self, secret: str) -> bool:
        """Whether a form with this secret is from a page of this session."""
        return hmac.compare_digest(secret.encode(), self.secret.encode())


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

    def may_write(self, client: str) -> bool:
        """Whether clients at this address may change something at all."""
        return self.remote_writes or is_loopback(client)

    def refusal_to_sign_in(self, client: str, headers: Mapping[str, str]) -> str | None:
        """Why the console refuses a sign-in by the request's headers, before it reads the form; None if it accepts."""
        if not self.may_write(client):
            return (
                f"this console is read-only for other machines, and {client} is one: use it on its own machine, or "
                f"start it with --remote-writes"
            )
        return None if same_site(headers) else OTHER_FORM

    def refusal(self, client: str, headers: Mapping[str, str], session: ConsoleSession | None) -> str | None:
        """Why a change is refused, from the headers alone; None if its form may be read.

        The form must hold the session's secret, too: `ConsoleSession.wrote`.
        """
        if session is None and self.may_write(client):
            return "sign in first: the console printed its token when it started"
        return self.refusal_to_sign_in(client, headers)


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


def is_https(scheme: str, headers: Mapping[str, str]) -> bool:
    """Whether the browser has the page over HTTPS.

    The console itself speaks HTTP. A proxy on this machine says `X-Forwarded-Proto`, which the server turns into
    `scheme`; for a proxy elsewhere, the browser's `Origin` says it.
    """
    return scheme == "https" or headers.get("origin", "").startswith("https://")


def signed(text: str) -> str:
    """A text in an address that only this process can have written."""
    return f"{_mark(text)}.{text}"


def signed_text(value: str) -> str:
    """The text of a value that `signed` made; empty for any other."""
    mark, _, text = value.partition(".")
    return text if hmac.compare_digest(mark.encode(), _mark(text).encode()) else ""


def _mark(text: str) -> str:
    return hmac.new(_SIGNING_KEY, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


@dataclass(slots=True)
class BodyLimit:
    """How much of a request's body the console reads. A route may raise the limit before it reads the body."""

    bytes: int = MAX_FORM_BYTES
    advice: str = "open the page again, and choose less"
    taken: int = 0

    def allow(self, bytes: int, length: str | None, advice: str) -> None:
        """Sets another limit, and refuses a body whose `Content-Length` is above it."""
        self.bytes, self.advice = bytes, advice
        if length is not None and length.isdecimal() and int(length) > bytes:
            raise self._too_large()

    def take(self, count: int) -> None:
        self.taken += count
        if self.taken > self.bytes:
            raise self._too_large()

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"what was sent is larger than {size(self.bytes)}: {self.advice}")


class Protection:
    """Sets the headers that tell the browser what to refuse, refuses requests for other hosts, and limits bodies."""

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

        limit = scope[BODY_LIMIT] = BodyLimit()
        CLIENT.set(origin_of(scope["client"][0]) if scope.get("client") else "")

        async def limited() -> Message:
            message = await receive()
            limit.take(len(message.get("body", b"")))
            return message

        host = Headers(scope=scope).get("host", "")
        if not host_allowed(host, self._hosts):
            refused = PlainTextResponse(f"unknown host: start the console with --allow-host {host[:100]}", 421)
            await refused(scope, receive, protected)
            return
        await self._app(scope, limited, protected)
