"""Promise 8: redelivery rewinds, never skips."""

import threading

import pytest
from tests.chaos.members import TIMEOUT, LocalGroup, key_in, until
from tests.chaos.mutants import finished_ranges, first_unfinished
from tests.chaos.system import TOPIC, complaint

from lanemq.checker.verdict import Report, Verdict
from lanemq.client.consumer.app import App
from lanemq.client.message import Message

SLOW = key_in(0)
QUICK = 20


def crash_with_a_slow_key(group: LocalGroup, committed: int) -> tuple[list[int], list[int], Report]:
    """Kills `a` when it has finished all but the second message of a slow key; returns what `b` gets of that key."""
    slow = [group.producer.send(TOPIC, 0, key=SLOW, queue=0).offset]
    never = threading.Event()

    def stuck(message: Message) -> None:
        if message.key == SLOW and message.value() == 1:
            never.wait(TIMEOUT)

    a = group.member("a", stuck)
    until("a has committed the first", lambda: 1 in commits(a))
    slow += [group.producer.send(TOPIC, number, key=SLOW, queue=0).offset for number in (1, 2)]
    for number in range(QUICK):
        group.producer.send(TOPIC, number, key="quick", queue=0)
    until("a is stuck, the rest is done", lambda: len(group.done) == 1 + QUICK)
    until("a has committed what it will", lambda: committed in commits(a))
    a.stop(now=True)
    before = len(group.done)
    group.member("b")
    last = group.producer.send(TOPIC, "behind all", key="last", queue=0).offset
    until("b is through", lambda: ("b", "last", last) in group.done)
    replayed = [offset for name, key, offset in group.done[before:] if (name, key) == ("b", SLOW)]
    report = group.judge("turns")
    never.set()
    return slow, replayed, report


def crash_among_other_keys(group: LocalGroup) -> list[tuple[str, int]]:
    """Kills `a` when all but one key are reported as finished; returns what `b` gets of all keys."""
    never = threading.Event()
    group.producer.send(TOPIC, 0, key=SLOW, queue=0)
    for number in range(QUICK):
        group.producer.send(TOPIC, number, key=f"quick{number % 3}", queue=0)

    def stuck(message: Message) -> None:
        if message.key == SLOW:
            never.wait(TIMEOUT)

    a = group.member("a", stuck)
    until("a is stuck, the rest is done", lambda: len(group.done) == QUICK)
    until("a has reported the rest", lambda: reported(a) == [[(1, 1 + QUICK)]])
    a.stop(now=True)
    before = len(group.done)
    b = group.member("b")
    last = group.producer.send(TOPIC, "behind all", key="last", queue=0).offset
    until("b is through", lambda: last + 1 in commits(b))
    got = [(key, offset) for name, key, offset in group.done[before:] if name == "b"]
    report = group.judge("turns")
    never.set()
    assert report.verdict is Verdict.PASS, complaint(report)
    return sorted(got, key=lambda each: each[1])


def reported(app: App) -> list[object]:
    """The finished ranges that the broker has."""
    assert app._thread is not None
    queues = [each for each in app._thread.engine.assignment if each.queue[0::2] == (TOPIC, 0)]
    return [each.confirmed.finished.ranges() for each in queues if each.confirmed is not None]


def commits(app: App) -> list[int | None]:
    return [each.committed for each in app.snapshot().queues.values()]


def test_the_lane_is_replayed_from_its_first_unfinished_message(group: LocalGroup) -> None:
    """ "After a crash the lane replays from its first unfinished message.\""""
    slow, replayed, report = crash_with_a_slow_key(group, committed=1)
    assert replayed == slow[1:]
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.slow
def test_committing_what_was_fetched_skips_the_unfinished_one(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: commits of the fetch position, as many consumers do."""
    first_unfinished(monkeypatch.setattr)
    slow, replayed, report = crash_with_a_slow_key(group, committed=3 + QUICK)
    assert slow[1] not in replayed
    assert report.verdict is Verdict.VIOLATION
    assert "D2" in report.counts, complaint(report)


def test_what_other_keys_finished_is_not_delivered_again(group: LocalGroup) -> None:
    """ "What was reported as finished is not repeated, whatever another key is waiting for.\""""
    assert crash_among_other_keys(group) == [(SLOW, 0), ("last", 1 + QUICK)]


@pytest.mark.slow
def test_an_offset_alone_repeats_everything_behind_it(group: LocalGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same crash, and a next owner that starts at the committed offset."""
    finished_ranges(monkeypatch.setattr)
    assert [offset for _, offset in crash_among_other_keys(group)] == list(range(2 + QUICK))
