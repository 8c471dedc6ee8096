"""Messages that retention deletes before a group has finished them are counted, and nothing else is."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.handlers.test_parking import Owner
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.config import BrokerOptions
from lanemq.broker.storage import unread
from lanemq.broker.storage.pinning import Pinning
from lanemq.broker.storage.unread import Unread, UnreadMessages
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import CommitKind
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.core.lane_status import Failure
from lanemq.model.queue import MessageQueue
from lanemq.model.steps import in_one_piece
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.codes import RequestCode

HOUR = 3_600_000
NAME = "lanemq_unread_deleted_total"


def deleted(raw: RawClient) -> dict[str, int]:
    """Of topic T, by group."""
    suffix = ',topic="T"}'
    shown = {name: text for name, text in raw.runtime().items() if name.startswith(NAME)}
    return {name.removeprefix(f'{NAME}{{group="').removesuffix(f'"{suffix}'): int(text) for name, text in shown.items()}


def running_with_commits(start: Start, **finished: list[tuple[int, int]]) -> tuple[RunningBroker, RawClient]:
    """A broker with 40 messages in one queue of several log files; group `done` has finished all of them."""
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw = running.connect()
    for _ in range(40):
        raw.send("T", bytes(10_000))
    queue = running.progress("done", "T").queue
    rows = [SavedOffset("done", queue, QueueOffset(40))]
    rows += [
        SavedOffset(group, queue, QueueOffset(3), False, FinishedRanges.of(ranges).encode(3))
        for group, ranges in finished.items()
    ]
    running.call(lambda: running.broker.running.context.progress.restore(rows))
    return running, raw


def expire(running: RunningBroker) -> None:
    for hours in (66, 7):
        running.advance(hours * HOUR)
        running.advance(20_000)


def test_what_a_group_has_not_finished_is_counted_when_retention_deletes_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running, raw = running_with_commits(start, behind=[], ahead=[(5, 15), (35, 38)])
    assert deleted(raw) == {"done": 0, "behind": 0, "ahead": 0}, "known, and so 0"
    expire(running)
    low, _ = raw.bounds("T")
    assert 30 < low < 40
    finished = 10 + max(0, low - 35)
    assert deleted(raw) == {"done": 0, "behind": low - 3, "ahead": low - 3 - finished}
    assert f"group behind has not read {low - 3} messages of topic T that retention deletes now" in caplog.text
    expire(running)
    assert deleted(raw)["behind"] == low - 3, "once"
    raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "behind", "cleanOffset": "true"})
    assert "behind" not in deleted(raw)


def test_a_group_that_has_committed_nothing_has_no_figure_instead_of_zero(start: Start) -> None:
    running, raw = running_with_commits(start)
    raw.heartbeat("a", group="new", topics={"T": "*"})
    expire(running)
    assert deleted(raw) == {"done": 0}


def test_files_that_are_kept_for_parked_messages_are_not_counted_as_deleted(start: Start) -> None:
    running, raw = running_with_commits(start, behind=[])
    owner = Owner(running)
    owner.park(0, key="parked")
    expire(running)
    assert raw.bounds("T") == (0, 40)
    assert deleted(raw)["behind"] == 0


def counted_while(running: RunningBroker, change: Callable[[ProgressTable], object]) -> dict[str, int]:
    """What groups have not finished of topic T, if something changes after they were looked at."""
    context = running.broker.running.context

    def count() -> dict[str, int]:
        steps = context.unread.below(context.store.log_end)
        for _ in context.progress.groups():
            next(steps)
        change(context.progress)
        return {group: count for (group, _), count in in_one_piece(steps).counts.items()}

    return running.call(count)


QUEUE = MessageQueue("T", BrokerOptions(Path()).name, 0)


def finish_all(table: ProgressTable) -> None:
    table.at("behind", QUEUE).commit(QueueOffset(40), kind=CommitKind.FORWARD)


def begin_anew(table: ProgressTable) -> None:
    table.forget_group("behind")
    table.at("behind", QUEUE).commit(QueueOffset(35), kind=CommitKind.FORWARD)


@pytest.mark.parametrize("at_once", [unread.AT_ONCE, 0], ids=["in the last step", "in a round of its own"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (finish_all, {}),
        (lambda table: table.at("done", QUEUE).move(QueueOffset(0), pending=False), {"behind": 37, "done": 40}),
        (lambda table: table.forget_group("behind"), {}),
        (lambda table: table.forget_topic("T"), {}),
        (begin_anew, {"behind": 5}),
    ],
    ids=["finished", "reset", "group deleted", "topic deleted", "group deleted, which commits again"],
)
def test_what_changes_while_groups_are_counted_is_counted_again(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ProgressTable], object],
    expected: dict[str, int],
    at_once: int,
) -> None:
    monkeypatch.setattr(unread, "AT_ONCE", at_once)
    running, _ = running_with_commits(start, behind=[])
    assert counted_while(running, change) == expected


def test_control_without_another_look_finished_messages_would_count_as_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "MAX_ROUNDS", 0)
    running, _ = running_with_commits(start, behind=[])
    assert counted_while(running, finish_all) == {"behind": 37}


@pytest.mark.parametrize("looks_again", [True, False], ids=["", "control"])
def test_a_message_that_is_parked_while_groups_are_counted_keeps_its_file(
    start: Start, monkeypatch: pytest.MonkeyPatch, looks_again: bool
) -> None:
    running, raw = running_with_commits(start, behind=[])
    below = UnreadMessages.below

    def park_first(self: UnreadMessages, position: int) -> Generator[None, None, Unread]:
        running.progress("g", "T").park("key", [2], Failure("broken", 1), now=Millis(1))
        return (yield from below(self, position))

    monkeypatch.setattr(UnreadMessages, "below", park_first)
    monkeypatch.setattr(UnreadMessages, "warn", lambda *_: iter(()))
    if not looks_again:
        monkeypatch.setattr(Pinning, "still_deletable", lambda _self, count, _since: count)
    expire(running)
    low, _ = raw.bounds("T")
    assert (low == 0) is looks_again
    assert (deleted(raw)["behind"] == 0) is looks_again
