"""The second shape: message brokers without rules, beside a coordinator. Seeds pass; without a guard, one fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lanemq.broker.handlers.owner_parking import OwnerParkingHandler
from lanemq.client.consumer.queues import read_log
from lanemq.client.consumer.queues.pull import Puller
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.testing.sim.coordinated.run import coordinated_plan, run_plan, run_seed
from lanemq.testing.sim.judge import Result

Patch = Callable[[object, str, Any], None]
BUSY = {
    "members": 3,
    "slow": 0.08,
    "keys": 6,
    "messages": 60,
    "calm_ms": 500,
    "producers": 3,
    "window": 4,
    "failing": 0.02,
}
HARSHER = ("log truncated", "answer lost", "answer lost", "member killed")


def busy(seed: int, *faults: str) -> Result:
    return run_plan(replace(coordinated_plan(seed), faults=faults, **BUSY))


def passed(result: Result) -> bool:
    replay = f"python -m lanemq.testing.sim --coordinated --seed {result.seed} --verbose"
    assert result.passed, "\n".join([*result.last_lines[-20:], *result.problems, replay])
    return True


@pytest.mark.parametrize("seed", [0, 1, 17, 621])
def test_seeds_pass(seed: int) -> None:
    """In 17 an owner reports while the operator compares its log: nothing of it may be dropped. In 621 a message was
    handled, lost with the log, and sent again behind newer ones of another producer: that is its place now."""
    assert passed(run_seed(seed))


def test_a_reset_reaches_an_owner_that_gives_the_queue_up() -> None:
    assert passed(busy(33, *HARSHER))


def test_a_message_that_was_lost_before_it_was_handled_is_not_stored_twice() -> None:
    """A member handles what it had read of the log that is gone, and then what was sent again."""
    assert passed(busy(156, *HARSHER))


@pytest.mark.parametrize(("seed", "problem"), [(1055, "no progress")])
def test_a_parked_message_that_the_log_lost_before_the_next_report_is_noticed(
    seed: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark that comes with the message, its lane waits for ever, or new messages of its key are skipped."""
    assert passed(run_seed(seed))
    monkeypatch.setattr(OwnerParkingHandler, "_see", lambda *_: ())
    assert any(problem in each for each in run_seed(seed).problems)


def no_comparison(patch: Patch) -> None:
    """Members do not compare what the group has read with the log."""
    patch(read_log, "differs", lambda *_: None)


def no_stamps(patch: Patch) -> None:
    """Members do not leave repeats out."""
    patch(Puller, "_drops_repeats", lambda *_: False)


def no_mark_of_repeats(patch: Patch) -> None:
    """Members report repeats as finished, but no mark of them."""
    leave_out = LaneQueue.leave_out

    def unmarked(queue: LaneQueue[Any], repeats: Sequence[Any]) -> None:
        newest = queue.newest_finished
        leave_out(queue, repeats)
        queue.newest_finished = newest

    patch(LaneQueue, "leave_out", unmarked)


@dataclass(frozen=True)
class Case:
    remove: Callable[[Patch], None]
    seed: int
    faults: tuple[str, ...]
    shown_by: str


CASES = (
    Case(no_comparison, 1, ("log truncated", "log truncated", "member killed"), "was lost"),
    Case(no_mark_of_repeats, 195, HARSHER, "was lost"),
    Case(no_stamps, 2, ("answer lost", "answer lost", "connection cut", "broker killed"), "delivered twice"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.remove.__name__)
def test_without_the_guard_a_seed_fails_and_with_it_the_same_seed_passes(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert passed(busy(case.seed, *case.faults))
    case.remove(monkeypatch.setattr)
    result = busy(case.seed, *case.faults)
    assert any(case.shown_by in problem for problem in result.problems)
