"""The journey of a key, from recorded histories: turns, errors, missing messages, and what is no longer stored."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lanemq.client.admin.key_progress import KeyFacts, KeyProgress
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import GroupQueue
from lanemq.client.message import Message
from lanemq.console.key_history import KeyHistory, read_key_history
from lanemq.console.screens import render_part
from lanemq.console.views.key import ClockPair, KeyView, key_view
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

QUEUE = MessageQueue("orders", "b", 0)
SECOND = 10**9
KEY = {"topic": "orders", "queue": 0, "key": "k"}
PLACE = {**KEY, "group": "g", "offset": 3}


def write(path: Path, *lines: dict[str, object]) -> None:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def stored(offset: int, id: str, at_ms: int) -> Message:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    record = SimpleNamespace(sys_flag=0)
    facts = {"message_id": id, "stored_at": at, "born_at": at, "tag": None, "stored_body": b"", "record": record}
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


def killed(folder: Path) -> KeyHistory:
    """`worker-1` has begun offset 3 under epoch 5, and nothing more was recorded of it."""
    write(
        folder / "worker-1.jsonl",
        {"e": "begin", "t": 0, "name": "worker-1"},
        {"e": "turn", "t": SECOND, "attempt": 1, "epoch": 5, **PLACE},
    )
    return read_key_history(folder, "orders", "k")


def states(history: KeyHistory) -> list[tuple[str, str]]:
    return [(turn.process, turn.what) for turn in history.turns]


def test_a_turn_without_an_end_is_interrupted_once_another_worker_begins_its_message(tmp_path: Path) -> None:
    assert states(killed(tmp_path)) == [("worker-1", "running")]
    again = {"e": "turn", "t": 2 * SECOND, "attempt": 1, "epoch": 6, **PLACE}
    write(tmp_path / "worker-2.jsonl", {"e": "begin", "t": 0, "name": "worker-2"}, again, {**again, "offset": 4})
    found = killed(tmp_path)
    assert states(found) == [("worker-1", "interrupted"), ("worker-2", "running"), ("worker-2", "running")]
    assert "its end is not recorded, and the message was begun again" in page(seen(found, stored(3, "", 1000)))


def test_a_turn_without_an_end_is_interrupted_once_its_process_is_started_again(tmp_path: Path) -> None:
    """The second run of the process appends to the same file."""
    killed(tmp_path)
    with (tmp_path / "worker-1.jsonl").open("a") as file:
        file.write(json.dumps({"e": "begin", "t": 2 * SECOND, "name": "worker-1"}) + "\n")
    assert states(read_key_history(tmp_path, "orders", "k")) == [("worker-1", "interrupted")]


def test_a_turn_that_is_begun_twice_without_an_end_is_shown_twice(tmp_path: Path) -> None:
    """An iterator that is closed gives its messages back without recording an end."""
    killed(tmp_path)
    with (tmp_path / "worker-1.jsonl").open("a") as file:
        file.write(json.dumps({"e": "turn", "t": 2 * SECOND, "epoch": 6, **PLACE}, separators=(",", ":")) + "\n")
    found = read_key_history(tmp_path, "orders", "k")
    assert states(found) == [("worker-1", "interrupted"), ("worker-1", "running")]


@pytest.mark.parametrize(
    ("owner", "epoch", "group", "seconds_later", "state"),
    [
        ("worker-1@1", 5, "g", 60, "running"),
        ("worker-2@1", 6, "g", 0, "interrupted"),
        (None, None, "g", 60, "interrupted"),
        (None, None, "g", 1, "running"),
        ("worker-2@1", 6, "another", 60, "running"),
    ],
)
def test_a_turn_without_an_end_runs_only_while_its_worker_owns_the_queue(
    tmp_path: Path, owner: str | None, epoch: int | None, group: str, seconds_later: int, state: str
) -> None:
    """A turn that has just begun may be newer than what is known about the owner."""
    at = GroupQueue(QUEUE, QueueOffset(3), QueueOffset(4), owner, None if epoch is None else Epoch(epoch))
    progress = KeyProgress(group, 1, QueueBacklog(at, None, None), 0, (3,))
    clock = ClockPair((1 + seconds_later) * SECOND, Millis(1000 * (1 + seconds_later)))
    facts = KeyFacts("k", QUEUE, QUEUE, [stored(3, "", 1000)], [progress])
    (stop,) = key_view(facts, 64, killed(tmp_path), clock, {}).stops
    assert [turn.what for turn in stop.turns] == [state]
