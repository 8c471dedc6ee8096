"""The journey of a key, from recorded histories: turns, errors, missing messages, and what is no longer stored."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lanemq.client.admin.key_progress import KeyFacts
from lanemq.client.message import Message
from lanemq.console.key_history import KeyHistory, read_key_history
from lanemq.console.screens import render_part
from lanemq.console.views.key import ClockPair, KeyView, key_view
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

QUEUE = MessageQueue("orders", "b", 0)
SECOND = 10**9
KEY = {"topic": "orders", "queue": 0, "key": "k"}
PLACE = {**KEY, "group": "g", "offset": 3}


def write(path: Path, *lines: dict[str, object]) -> None:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def stored(offset: int, id: str, at_ms: int) -> Message:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    facts = {"message_id": id, "stored_at": at, "born_at": at, "tag": None, "body": b""}
    return cast(Message, SimpleNamespace(queue=QUEUE, queue_offset=offset, **facts))


def recorded(tmp_path: Path, *more: dict[str, object]) -> KeyHistory:
    """Messages `old-0` and `old-1` are sent at 1 s, and the first is run."""
    write(
        tmp_path / "all.jsonl",
        {"e": "acked", "t": SECOND, "offset": 0, "id": "old-0", **KEY},
        {"e": "acked", "t": SECOND, "offset": 1, "id": "old-1", **KEY},
        {"e": "turn", "t": SECOND, "offset": 0, "id": "old-0", "group": "g", **KEY},
        {"e": "turn_end", "t": SECOND, "offset": 0, "outcome": "ok", "group": "g", **KEY},
        {"e": "parked", "t": SECOND, "offset": 0, "group": "g", **KEY},
        *more,
    )
    return read_key_history(tmp_path, "orders", "k")


OLD_1 = {"e": "turn", "t": SECOND, "offset": 1, "id": "old-1", "group": "g", **KEY}


def seen(history: KeyHistory, *messages: Message, kept: int = 0) -> KeyView:
    """`kept`: the first offset that retention has kept."""
    facts = KeyFacts("k", QUEUE, QUEUE, list(messages), [])
    return key_view(facts, 64, history, ClockPair(0, Millis(0)), {0: kept})


def journey(history: KeyHistory, *messages: Message) -> list[tuple[int, bool, int]]:
    """Offset, whether it is missing, and the number of turns, of each stop."""
    return [(stop.offset, bool(stop.missing), len(stop.turns)) for stop in seen(history, *messages).stops]


def page(view: KeyView) -> str:
    return render_part("key.html", view=view, found=(), asked="k")


def test_a_history_gives_the_turns_of_one_key_each_once(tmp_path: Path) -> None:
    write(
        tmp_path / "worker.jsonl",
        {"e": "begin", "n": 0, "t": 0, "name": "worker-1"},
        {"e": "turn", "n": 1, "t": 10, "attempt": 1, **PLACE},
        {"e": "turn", "n": 2, "t": 11, "attempt": 1, **PLACE, "key": "kk", "offset": 4},
        {"e": "turn_end", "n": 3, "t": 20, "outcome": "retry", "why": "no carrier", **PLACE},
        {"e": "parked", "n": 4, "t": 30, **PLACE},
    )
    with (tmp_path / "worker.jsonl").open("a") as file:
        file.write("{torn")
    write(
        tmp_path / "broker.jsonl",
        {"e": "begin", "n": 0, "t": 0, "name": "broker"},
        {"e": "parked", "n": 1, "t": 29, **PLACE},
    )
    found = read_key_history(tmp_path, "orders", "k")
    assert [(turn.what, turn.process, turn.ended, turn.why) for turn in found.turns] == [
        ("retry", "worker-1", 20, "no carrier"), ("parked", "broker", 29, ""),
    ]  # fmt: skip


def test_a_message_that_was_acknowledged_and_is_gone_is_missing(tmp_path: Path) -> None:
    assert journey(recorded(tmp_path), stored(0, "old-0", 1000)) == [(0, False, 2), (1, True, 0)]


def test_what_was_recorded_about_a_deleted_topic_is_not_shown_for_one_of_the_same_name(tmp_path: Path) -> None:
    """Whether the broker has recorded the deletion, or the later message at an earlier offset shows it."""
    assert journey(recorded(tmp_path), stored(0, "new-0", 60_000)) == [(0, False, 0)]
    assert seen(recorded(tmp_path, OLD_1), stored(0, "new-0", 60_000)).past == ()
    deleted = recorded(tmp_path, {"e": "topic_deleted", "t": 2 * SECOND, "topic": "orders"})
    assert journey(deleted) == []
    other = recorded(tmp_path, {"e": "topic_deleted", "t": 2 * SECOND, "topic": "other"})
    assert journey(other) == [(0, True, 2), (1, True, 0)]


def test_turns_of_messages_that_retention_deleted_are_shown_the_newest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def past() -> str:
        view = seen(recorded(tmp_path, OLD_1), stored(2, "new", 1000), kept=2)
        assert [stop.offset for stop in view.stops] == [2]
        return page(view).partition("no longer shown</h3>")[2]

    assert "What was recorded about 2 messages" in past()
    assert re.findall(r'<p class="what">([^<]+)</p>', past()) == ["0@0", "0@1"]
    states = re.findall(r'<code>all</code> <span class="chip \w+">([^<]+)</span>', past())
    assert states == ["done", "parked", "running"]
    monkeypatch.setattr("lanemq.console.views.key.MAX_PAST", 1)
    assert re.findall(r'<p class="what">([^<]+)</p>', past()) == ["0@1"]
    assert "1 older message with recorded turns is left out" in past()
