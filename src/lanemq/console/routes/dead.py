"""`/dead`: dead letters of all groups, one of them, and redrive and discard with a preview.

A change concerns the dead letters that the page before it showed: its form names the last one of each queue, and what
arrives later stays.
"""

import threading
from collections.abc import Iterable, Mapping
from itertools import islice

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.dead_letters import (
    GroupDeadLetter,
    check_topic_is_known,
    discard_dead_letters,
    open_dead_letters,
    parse_id,
    read_dead_letter,
    read_dead_letters,
    send_again,
    with_states,
)
from lanemq.client.producer.producer import Producer
from lanemq.client.security import SecuritySettings
from lanemq.console.links import dead_link, of_form
from lanemq.console.screens import Console, Context, Screen, back, console_of, routes_of
from lanemq.console.views.dead import dead_change, dead_letters_view
from lanemq.console.views.messages import message_view
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.wording import plural

MAX_SHOWN = 100
"""Dead letters that a list shows. For each of them a broker is asked whether it was redriven."""
MAX_CHANGED = 1_000
"""Dead letters that one redrive or discard concerns, oldest first. `lanemq dead` has no limit."""

_one_redrive = threading.Lock()
"""Two redrives of the same dead letter at once would both find that it was not redriven yet."""


async def _list(console: Console, request: Request) -> Context:
    now = await console.watch.fresh()
    group, key = request.query_params.get("group", ""), request.query_params.get("key", "")
    names = tuple(each.group for each in now.dead if each.messages and group in ("", each.group))

    def read() -> list[GroupDeadLetter]:
        letters = (each for name in names for each in read_dead_letters(console.settings.server, name))
        return _with_states(console, islice((each for each in letters if key in ("", each.key)), MAX_SHOWN))

    found = await console.reading.ask(("dead", names, key), read)
    title = f"Dead letters of {group}" if group else "Dead letters"
    return {"title": title, "view": dead_letters_view(now, group, key, found), "max_shown": MAX_SHOWN}


async def _one(console: Console, request: Request) -> Context:
    group, id = request.query_params.get("group", ""), request.query_params.get("id", "")
    try:
        found = await console.reading.ask(
            ("dead letter", group, id),
            lambda: _with_states(console, [read_dead_letter(console.settings.server, group, id)]),
        )
    except UsageError as error:
        raise HTTPException(404, str(error)) from None
    (letter,) = found
    return {"title": f"Dead letter {id}", "letter": letter, "shown": message_view(letter.message)}


async def _redriving(console: Console, request: Request) -> Context:
    return {"title": "Redrive dead letters", **await _preview(console, request, redrive=True)}


async def _discarding(console: Console, request: Request) -> Context:
    return {"title": "Discard dead letters", **await _preview(console, request, redrive=False)}


async def _preview(console: Console, request: Request, *, redrive: bool) -> Context:
    named = {name: request.query_params.get(name, "") for name in ("group", "id", "key")}

    def read() -> list[GroupDeadLetter]:
        choose = _to_redrive if redrive else _to_discard
        return _with_states(console, islice(choose(console, named), MAX_CHANGED))

    try:
        found = await console.reading.ask(("dead change", redrive, *named.values()), read)
    except UsageError as error:
        raise HTTPException(404, str(error)) from None
    change = dead_change(await console.watch.fresh(), named["group"], found)
    return {"named": named, "change": change, "max_shown": MAX_SHOWN, "max_changed": MAX_CHANGED}


def _with_states(console: Console, letters: Iterable[GroupDeadLetter]) -> list[GroupDeadLetter]:
    with Admin(console.settings.server) as admin:
        return with_states(admin, letters)


def _to_redrive(console: Console, named: Mapping[str, str]) -> list[GroupDeadLetter]:
    """The one with the id, also if it was redriven before; otherwise those of the key, or all, that were not."""
    server, group = console.settings.server, named["group"]
    if named.get("id"):
        letter = read_dead_letter(server, group, named["id"])
        check_topic_is_known(letter)
        return [letter]
    key = named.get("key")
    with Admin(server) as admin:
        wanted = (each for each in read_dead_letters(server, group) if not key or each.key == key)
        return open_dead_letters(admin, islice(wanted, MAX_CHANGED))


def _to_discard(console: Console, named: Mapping[str, str]) -> list[GroupDeadLetter]:
    """The one with the id and the older ones before it, or all."""
    server, group = console.settings.server, named["group"]
    letters = read_dead_letters(server, group)
    if not named.get("id"):
        return list(islice(letters, MAX_CHANGED))
    last = read_dead_letter(server, group, named["id"]).message
    before = (
        each for each in letters if each.message.queue == last.queue and each.message.queue_offset <= last.queue_offset
    )
    return list(islice(before, MAX_CHANGED))


async def _redrive(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    named, through = await _named(request)
    done = await console.reading.do(lambda: _redriven(console, named, through, console.credentials(session)))
    await console.watch.changed()
    return back(dead_link(named["group"]), done)


def _redriven(
    console: Console, named: Mapping[str, str], through: Mapping[MessageQueue, int], secured: SecuritySettings
) -> str:
    with _one_redrive:
        letters = [
            each
            for each in _to_redrive(console, named)
            if each.message.queue_offset <= through.get(each.message.queue, -1)
        ]
        if not letters:
            return "Nothing to do: these dead letters were redriven or discarded."
        with Producer(console.settings.server, codec="bytes", **secured) as producer:
            for each in letters:
                send_again(producer, each)
    topics = ", ".join(sorted({each.topic for each in letters}))
    sent = f"{plural(len(letters), 'dead letter')} sent to {topics} again, in order."
    return f"{sent} Listed as redriven until you discard."


async def _discard(request: Request) -> Response:
    console = console_of(request)
    session = await console.check_write(request)
    named, through = await _named(request)

    def discard() -> int:
        with Admin(console.settings.server, **console.credentials(session)) as admin:
            return discard_dead_letters(admin, named["group"], through)

    count = await console.reading.do(discard)
    await console.watch.changed()
    return back("/dead", f"{plural(count, 'dead letter')} of group {named['group']} discarded.")


async def _named(request: Request) -> tuple[dict[str, str], dict[MessageQueue, int]]:
    """The fields of a form, and the last dead letter of each queue that its page showed."""
    form = await request.form()
    named = {name: str(form.get(name, "")) for name in ("group", "id", "key")}
    named["key"] = of_form(named["key"])
    through = dict(parse_id(named["group"], str(each)) for each in form.getlist("through"))
    if not through:
        raise HTTPException(400, "the form does not say which dead letters it concerns: open the page again")
    return named, through


def routes() -> list[BaseRoute]:
    screens = (
        Screen("/dead", "waiting", "dead.html", _list, live=False),
        Screen("/dead/letter", "waiting", "dead_letter.html", _one, live=False),
        Screen("/dead/redrive", "waiting", "dead_redrive.html", _redriving, live=False),
        Screen("/dead/discard", "waiting", "dead_discard.html", _discarding, live=False),
    )
    return [
        *(route for screen in screens for route in routes_of(screen)),
        Route("/dead/redrive", _redrive, methods=["POST"]),
        Route("/dead/discard", _discard, methods=["POST"]),
    ]
