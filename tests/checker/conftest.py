"""Histories as text: one event per line, ten milliseconds apart.

    p send m0 k            who, what, and its fields in a fixed order
    a turn 0 k epoch=2     more fields by name
    a commit 1 at=35       at another time; times are milliseconds

Processes called `p…` are producers, `broker` is the broker, `broker2` its next run, all others are consumers.
"""

from collections.abc import Callable, Iterable

import msgspec
import pytest

from lanemq.checker.checking import Checker, CheckOptions
from lanemq.checker.events import AnyEvent, HistoryEvent, Process, Role
from lanemq.checker.verdict import Report

MS = 1_000_000

FIELDS = {
    "send": ("send", "id", "key"),
    "acked": ("acked", "id", "key", "offset"),
    "failed": ("send_failed", "id", "key"),
    "unknown": ("send_unknown", "id", "key"),
    "stored": ("stored", "id", "key", "offset"),
    "trimmed": ("trimmed", "offset"),
    "deleted": ("topic_deleted",),
    "turn": ("turn", "offset", "key"),
    "end": ("turn_end", "offset", "key", "outcome"),
    "filtered": ("filtered", "offset", "tags"),
    "subscribed": ("subscribed", "tags"),
    "dead": ("dead_lettered", "offset", "key"),
    "skip": ("skipped", "offset", "key"),
    "parked": ("parked", "offset", "key"),
    "redriven": ("redriven", "offset", "key", "last"),
    "discarded": ("discarded", "offset", "key"),
    "commit": ("committed", "offset"),
    "refused": ("commit_refused", "offset"),
    "reset": ("reset", "offset"),
    "crashed": ("crashed",),
    "recovered": ("recovered", "offset"),
    "granted": ("lease_granted", "member", "epoch"),
    "renewed": ("lease_renewed", "member", "epoch"),
    "released": ("lease_released", "member", "epoch"),
    "expired": ("lease_expired", "member", "epoch"),
    "effect": ("effect", "offset", "key"),
    "fault": ("fault", "kind"),
    "begin": ("begin", "name"),
}
COMMON: dict[str, object] = {"group": "g", "topic": "orders", "queue": 0}
TIMES = {"until", "asked", "alive", "ended"}
TEXTS = {
    "id",
    "name",
    "key",
    "broker",
    "member",
    "outcome",
    "kind",
    "group",
    "topic",
    "sink",
    "reason",
    "tag",
    "tags",
    "lost",
}


def parse(script: str) -> list[HistoryEvent]:
    """The events of a script, in time order."""
    processes: dict[str, Process] = {}
    counters: dict[str, int] = {}
    events: list[HistoryEvent] = []
    now = 0
    for line in script.strip().splitlines():
        now += 10
        who, what, *words = line.split()
        at, fields = _fields(what, words)
        now = now if at is None else at
        n = counters[who] = counters.get(who, -1) + 1
        event: HistoryEvent = msgspec.convert(COMMON | fields | {"n": n, "t": now * MS}, AnyEvent)
        event.process = processes.setdefault(who, Process(who, _role(who)))
        events.append(event)
    return sorted(events, key=lambda event: event.t)


def _judge(script: str | Iterable[HistoryEvent], options: CheckOptions | None = None) -> Report:
    checker = Checker(options)
    checker.feed(parse(script) if isinstance(script, str) else script)
    return checker.finish()


@pytest.fixture(scope="session")
def judge() -> Callable[..., Report]:
    """Checks a script, or a list of events."""
    return _judge


def _fields(what: str, words: list[str]) -> tuple[int | None, dict[str, object]]:
    tag, *names = FIELDS[what]
    found: dict[str, object] = {"e": tag}
    at = None
    for position, word in enumerate(words):
        name, _, value = word.partition("=") if "=" in word else (names[position], "", word)
        if name == "at":
            at = int(value)
        elif name in TIMES:
            found[name] = int(value) * MS
        else:
            found[name] = value if name in TEXTS else int(value)
    return at, found


def _role(who: str) -> Role:
    if who.startswith("broker"):
        return Role.BROKER
    return Role.PRODUCER if who.startswith("p") else Role.CONSUMER
