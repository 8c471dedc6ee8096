"""A consumer is killed under load, and others continue with its queues after a short pause."""

import signal

import pytest
from tests.chaos.system import Child, SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow

LONG_LEASE = (1_000, 50_000, 60_000)
"""Milliseconds: renewed every, used by the member for, kept by the broker for.

So long that the test would fail if a take-over waited for it."""
TAKE_OVER_SECONDS = 30.0
"""Long enough for a busy machine; `benchmarks.lanes_take_over` measures an idle one."""


def test_a_killed_consumers_queues_go_on_in_order_within_seconds(system: SystemUnderTest) -> None:
    system.broker(default_queues=4)
    producer = system.producer(pause_ms=1)
    system.until("something is stored", lambda: system.seen("acked"))
    victim, _ = system.consumer("a", lease=LONG_LEASE), system.consumer("b", lease=LONG_LEASE)
    system.until(
        "both work", lambda: {"a", "b"} == set(system.owners().values()) and len(system.seen("turn", "b")) > 50
    )
    lost = {queue for queue, owner in system.owners().items() if owner == "a"}
    system.kill(victim)
    killed_at = system.seen("fault")[-1]["t"]

    def taken_over() -> set[int]:
        return {e["queue"] for e in system.seen("turn", "b", after=killed_at)}

    system.until("the other has taken over", lambda: lost <= taken_over())
    first = {e["queue"]: e["t"] for e in reversed(system.seen("turn", "b", after=killed_at))}
    slowest = max(first[queue] - killed_at for queue in lost) / 1e9
    assert slowest < TAKE_OVER_SECONDS
    system.finish(producer)
    system.until("everything is done", system.is_drained)
    report = system.judge("rebalance", "faults", "redelivery=0")
    assert report.verdict is Verdict.PASS, complaint(report)


def test_without_waiting_for_the_first_unfinished_a_kill_loses_messages(system: SystemUnderTest) -> None:
    """Negative control: members that commit what they fetched lose messages, and the checker finds it."""
    system.broker(default_queues=4)
    producer = system.producer(pause_ms=1)
    system.until("something is stored", lambda: system.seen("acked"))
    naive = {"without": ["first_unfinished"], "work_ms": 20, "lanes": 2}
    victim, _ = system.consumer("a", **naive), system.consumer("b", **naive)
    system.until(
        "both work", lambda: {"a", "b"} == set(system.owners().values()) and len(system.seen("turn", "a")) > 20
    )
    stop_with_unfinished_work_committed(system, victim)
    system.kill(victim)
    killed_at = system.seen("fault")[-1]["t"]
    system.until("the other continues", lambda: len(system.seen("turn", "b", after=killed_at)) > 20)
    system.finish(producer)
    report = system.judge("faults", drained=False)
    assert report.verdict is Verdict.VIOLATION, complaint(report)
    assert {"D2", "S1", "B4"} & report.counts.keys(), complaint(report)


def stop_with_unfinished_work_committed(system: SystemUnderTest, child: Child) -> None:
    """Stops a consumer when a commit has passed many messages that no member has begun, in a queue with a turn before.

    Without an earlier turn or commit, the checker takes the first commit for the place where the group began.

    With a producer that is slower than its consumers, as on a slow disk, there are moments without any. A few are not
    enough: the other member may have done them as the queue's former owner, and not yet written its lines.
    """

    def has_many() -> bool:
        begun: dict[int, int] = {}
        first: dict[int, int] = {}
        for turn in system.seen("turn"):
            begun[turn["queue"]] = max(turn["offset"], begun.get(turn["queue"], 0))
            first[turn["queue"]] = min(turn["t"], first.get(turn["queue"], turn["t"]))
        passed = (
            event["offset"] - begun[event["queue"]]
            for event in system.seen("committed", child.name)
            if event["t"] > first.get(event["queue"], event["t"])
        )
        return max(passed, default=0) > 20

    def stopped_with_many() -> bool:
        if not has_many():
            return False
        child.stop()
        if has_many():
            return True
        child.signal(signal.SIGCONT)
        return False

    system.until("the victim has committed what it has not done", stopped_with_many)


def killed_with_a_stuck_key(
    system: SystemUnderTest, without: tuple[str, ...] = ()
) -> tuple[set[int], set[int], set[int]]:
    """`a` works with one stuck key and is killed; `b` does the rest.

    Offsets of the other keys: all that `a` finished, those of them that it cannot have reported, and what `b`
    did again. A commit knows at least what was finished when the one before it was answered, unless a turn of many
    messages takes longer than the time between the two.
    """
    system.broker(default_queues=1)
    producer = system.producer(pause_ms=1)
    system.until("something is stored", lambda: system.seen("acked"))
    victim = system.consumer("a", stuck="p-3")
    system.until("a works and reports", lambda: len(system.seen("turn", "a")) > 500 and reports(system) > 5)
    system.kill(victim)
    reported = [e["t"] for e in system.seen("committed", "a")][-2]
    finished = {e["offset"] for e in system.seen("turn_end", "a") if e["outcome"] == "ok"}
    late = {e["offset"] for e in system.seen("turn_end", "a", after=reported)}
    system.consumer("b", without)
    system.finish(producer)
    end = max(e["offset"] for e in system.seen("acked")) + 1
    system.until("b is through", lambda: end in {e["offset"] for e in system.seen("committed", "b")})
    again = {e["offset"] for e in system.seen("turn", "b")} & finished
    report = system.judge("rebalance", "faults")
    assert report.verdict is Verdict.PASS, complaint(report)
    return finished, late, again


def reports(system: SystemUnderTest) -> int:
    return len(system.seen("committed", "a"))


def test_a_stuck_key_does_not_make_the_next_owner_repeat_the_others(system: SystemUnderTest) -> None:
    finished, late, again = killed_with_a_stuck_key(system)
    assert again <= late
    assert len(finished) > 400


def test_without_finished_ranges_everything_behind_a_stuck_key_is_repeated(system: SystemUnderTest) -> None:
    """Negative control: still in order and nothing lost, but all of it twice."""
    finished, late, again = killed_with_a_stuck_key(system, without=("finished_ranges",))
    assert len(again) > len(finished) - 20, "all but what was before the stuck key's first message"
    assert not again <= late


def killed_inside_a_run(system: SystemUnderTest, *without: str) -> tuple[set[int], set[int], set[int]]:
    """`a` is killed in the middle of a run of 32 slow messages of one key; `b` does the rest.

    Offsets: all that `a` finished, those of them that it cannot have reported, and what `b` did again. A commit knows
    at least what was finished when the one before it was answered.
    """
    system.broker(default_queues=1)
    system.producer(count=32, keys=1)
    system.until("all are stored", lambda: len(system.seen("acked")) == 32)
    victim = system.consumer("a", without, work_ms=200)

    def in_the_middle() -> bool:
        finished = len(system.seen("turn_end", "a"))
        return finished >= 5 if without else finished >= 15 and reports(system) >= 3

    system.until("a has finished many messages", in_the_middle, alive=victim)
    system.kill(victim)
    finished = {e["offset"] for e in system.seen("turn_end", "a") if e["outcome"] == "ok"}
    commits = [0, 0, *(e["t"] for e in system.seen("committed", "a"))]
    late = {e["offset"] for e in system.seen("turn_end", "a", after=commits[-2])}
    system.consumer("b")
    system.until("b is through", lambda: 32 in {e["offset"] for e in system.seen("committed", "b")})
    again = {e["offset"] for e in system.seen("turn", "b")} & finished
    report = system.judge("rebalance", "faults")
    assert report.verdict is Verdict.PASS, complaint(report)
    return finished, late, again


def test_a_kill_inside_a_run_of_slow_messages_repeats_only_the_last_moments(system: SystemUnderTest) -> None:
    finished, late, again = killed_inside_a_run(system)
    assert again <= late
    assert len(finished - again) > 3, "much of the run was reported"


def test_without_reports_inside_a_run_all_of_it_is_repeated(system: SystemUnderTest) -> None:
    """Negative control."""
    finished, _, again = killed_inside_a_run(system, "progress_inside_a_run")
    assert again == finished
