"""A consumer dies in the middle of its work, and nobody may notice more than a short pause."""

import signal

import pytest
from tests.chaos.stage import Part, Stage, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow

LONG_LEASE = (1_000, 50_000, 60_000)
"""Milliseconds: renewed every, used by the member for, kept by the broker for.

So long that its end cannot be what helps."""
TAKE_OVER_SECONDS = 30.0
"""The broker sees the connection end and waits for a moment; the rest is how busy the machine is, and the time of a
quiet one is told by `benchmarks.lanes_take_over`."""


def test_a_killed_consumers_queues_go_on_in_order_within_seconds(stage: Stage) -> None:
    stage.broker(default_queues=4)
    producer = stage.producer(pause_ms=1)
    stage.until("something is stored", lambda: stage.seen("acked"))
    victim, _ = stage.consumer("a", lease=LONG_LEASE), stage.consumer("b", lease=LONG_LEASE)
    stage.until("both work", lambda: {"a", "b"} == set(stage.owners().values()) and len(stage.seen("turn", "b")) > 50)
    lost = {queue for queue, owner in stage.owners().items() if owner == "a"}
    stage.kill(victim)
    killed_at = stage.seen("fault")[-1]["t"]

    def taken_over() -> set[int]:
        return {e["queue"] for e in stage.seen("turn", "b", after=killed_at)}

    stage.until("the other has taken over", lambda: lost <= taken_over())
    first = {e["queue"]: e["t"] for e in reversed(stage.seen("turn", "b", after=killed_at))}
    slowest = max(first[queue] - killed_at for queue in lost) / 1e9
    assert slowest < TAKE_OVER_SECONDS
    stage.finish(producer)
    stage.until("everything is done", stage.is_drained)
    report = stage.judge("rebalance", "faults", "redelivery=0")
    assert report.verdict is Verdict.PASS, complaint(report)


def test_without_waiting_for_the_first_unfinished_a_kill_loses_messages(stage: Stage) -> None:
    """Negative control: members that commit what they fetched leave a hole behind, and the checker sees it."""
    stage.broker(default_queues=4)
    producer = stage.producer(pause_ms=1)
    stage.until("something is stored", lambda: stage.seen("acked"))
    naive = {"without": ["first_unfinished"], "work_ms": 20, "lanes": 2}
    victim, _ = stage.consumer("a", **naive), stage.consumer("b", **naive)
    stage.until("both work", lambda: {"a", "b"} == set(stage.owners().values()) and len(stage.seen("turn", "a")) > 20)
    stop_with_unfinished_work_committed(stage, victim)
    stage.kill(victim)
    killed_at = stage.seen("fault")[-1]["t"]
    stage.until("the other goes on", lambda: len(stage.seen("turn", "b", after=killed_at)) > 20)
    stage.finish(producer)
    report = stage.judge("faults", drained=False)
    assert report.verdict is Verdict.VIOLATION, complaint(report)
    assert {"D2", "S1", "B4"} & report.counts.keys(), complaint(report)


def stop_with_unfinished_work_committed(stage: Stage, part: Part) -> None:
    """Stands still at a moment when its commits have passed messages that nobody has finished.

    With a producer that is slower than its consumers, as on a slow disk, there are moments without any.
    """

    def has_some() -> bool:
        part.stop()
        done = {(e["queue"], e["offset"]) for e in stage.seen("turn_end")}
        for event in stage.seen("committed", part.name):
            if {(event["queue"], offset) for offset in range(event["offset"])} - done:
                return True
        part.signal(signal.SIGCONT)
        return False

    stage.until("the victim has committed what it has not done", has_some)


def killed_with_a_stuck_key(stage: Stage, without: tuple[str, ...] = ()) -> tuple[set[int], set[int], set[int]]:
    """`a` works for a while around one stuck key, is killed, and `b` does the rest.

    Offsets of the other keys: all that `a` finished, those of them that it cannot have reported, and what `b`
    did again. A commit knows at least what was finished when the one before it was answered, unless a turn of many
    messages takes longer than the time between the two.
    """
    stage.broker(default_queues=1)
    producer = stage.producer(pause_ms=1)
    stage.until("something is stored", lambda: stage.seen("acked"))
    victim = stage.consumer("a", stuck="p-3")
    stage.until("a works and reports", lambda: len(stage.seen("turn", "a")) > 500 and reports(stage) > 5)
    stage.kill(victim)
    reported = [e["t"] for e in stage.seen("committed", "a")][-2]
    finished = {e["offset"] for e in stage.seen("turn_end", "a") if e["outcome"] == "ok"}
    late = {e["offset"] for e in stage.seen("turn_end", "a", after=reported)}
    stage.consumer("b", without)
    stage.finish(producer)
    end = max(e["offset"] for e in stage.seen("acked")) + 1
    stage.until("b is through", lambda: end in {e["offset"] for e in stage.seen("committed", "b")})
    again = {e["offset"] for e in stage.seen("turn", "b")} & finished
    report = stage.judge("rebalance", "faults")
    assert report.verdict is Verdict.PASS, complaint(report)
    return finished, late, again


def reports(stage: Stage) -> int:
    return len(stage.seen("committed", "a"))


def test_a_stuck_key_does_not_make_the_next_owner_repeat_the_others(stage: Stage) -> None:
    finished, late, again = killed_with_a_stuck_key(stage)
    assert again <= late
    assert len(finished) > 400


def test_without_finished_ranges_everything_behind_a_stuck_key_is_repeated(stage: Stage) -> None:
    """Negative control: still in order, and still nothing lost, but all of it twice."""
    finished, late, again = killed_with_a_stuck_key(stage, without=("finished_ranges",))
    assert len(again) > len(finished) - 20, "all but what was before the stuck key's first message"
    assert not again <= late
