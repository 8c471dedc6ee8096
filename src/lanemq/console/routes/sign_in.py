"""`/sign-in`: begins and ends the session of a person who may change something."""

import secrets
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.console.protection import COOKIE, OTHER_FORM, SESSION_MS, is_https, same_site
from lanemq.console.screens import Console, Context, Screen, client_host, console_of, routes_of, show
from lanemq.model.errors import NotAllowed
from lanemq.wire.signing import Credentials


async def _load(console: Console, request: Request) -> Context:
    return {"title": "Sign in", "problem": "", "then": local_path(request.query_params.get("then", "/"))}


def local_path(text: str) -> str:
    """The address to go to after signing in; only one of this console."""
    parts = urlsplit(text)
    return text if text.startswith("/") and not text.startswith("//") and not parts.netloc and "\\" not in text else "/"


async def _sign_in(request: Request) -> Response:
    console = console_of(request)
    why = console.sessions.refusal_to_sign_in(client_host(request), request.headers)
    if why is not None:
        raise HTTPException(403, why)
    form = await request.form()
    then = local_path(str(form.get("then", "/")))
    user, token = str(form.get("user", "")).strip(), str(form.get("token", ""))
    cookie = await _user_session(console, user, token) if user else console.sessions.sign_in(token)
    if cookie is None:
        wrong = "The broker does not accept this user." if user else "This is not the token."
        return await show(request, SCREEN, {"title": "Sign in", "problem": wrong, "then": then}, 403)
    answer = RedirectResponse(then, 303)
    secure = is_https(request.url.scheme, request.headers)
    answer.set_cookie(COOKIE, cookie, max_age=SESSION_MS // 1000, httponly=True, samesite="strict", secure=secure)
    return answer


async def _user_session(console: Console, user: str, secret: str) -> str | None:
    """A session of a broker's user, if the broker accepts a request that this user signs.

    A broker without users accepts every signature, so a user that cannot exist is tried first.
    """
    if not secret.strip():
        return None
    credentials = Credentials(user, secret)

    def accepts(by: Credentials) -> bool:
        try:
            with Admin(console.settings.server, credentials=by) as admin:
                admin.topics()
        except NotAllowed:
            return False
        return True

    def accepted() -> bool:
        unknown = Credentials(f"no-user-{secrets.token_hex(8)}", secrets.token_hex(16))
        return not accepts(unknown) and accepts(credentials)

    return console.sessions.sign_in_user(credentials) if await console.reading.read(accepted) else None


async def _sign_out(request: Request) -> Response:
    console = console_of(request)
    if not same_site(request.headers):
        raise HTTPException(403, OTHER_FORM)
    console.sessions.sign_out(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE)
    return answer


SCREEN = Screen("/sign-in", "", "sign_in.html", _load, live=False)


def routes() -> list[BaseRoute]:
    return [
        *routes_of(SCREEN),
        Route("/sign-in", _sign_in, methods=["POST"]),
        Route("/sign-out", _sign_out, methods=["POST"]),
    ]
