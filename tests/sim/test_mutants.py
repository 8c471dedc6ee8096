"""With a guard removed, one of a few seeds fails; with the guard, the same seed passes.

Each guard is tested with the faults that it is there for, so that a few seeds are enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.chaos import mutants
from tests.chaos.mutants import Patch

from lanemq.log.commit_log import CommitLog
from lanemq.testing.sim.plan import Plan, plan_of
from lanemq.testing.sim.run import run_plan


def sync_before_ack(patch: Patch) -> None:
    """Broker: acknowledges messages that are not on disk yet."""
    patch(CommitLog, "sync", lambda self: None)


@dataclass(frozen=True)
class Case:
    """A guard, the faults that it is there for, and the problems that show its absence."""

    remove: Callable[[Patch], None]
    faults: tuple[str, ...]
    shown_by: tuple[str, ...]
    changes: dict[str, Any]
    seeds: int = 12
    first: int = 0
    """The first seed. Of most guards one of the first seeds shows that they are missing; some are needed rarely."""


BUSY = {
    "members": 3,
    "late": 0,
    "polling": 0,
    "slow": 0.08,
    "keys": 6,
    "messages": 60,
    "calm_ms": 700,
    "dead_letters": False,
}
CUTS = BUSY | {"slow": 0.0, "calm_ms": 300, "window": 4, "producers": 3}
LARGE_GROUPS = CUTS | {
    "window": 32,
    "answer_ms": 3_000,
    "producers": 4,
    "messages": 300,
    "orders_queues": 1,
    "audit_queues": 1,
    "chaos_seconds": 20.0,
    "members": 1,
    "concurrent": 0,
    "broadcasting": 0,
}
HELD = {"set_aside": True, "parking": False, "failing": 0.35, "keys": 3}
"""Keys fail often, and are set aside at the broker while they have retries left."""
CASES = {
    "epoch at commit": Case(mutants.epoch_check, ("process frozen",), ("C3",), BUSY),
    "one owner": Case(mutants.broker_lock, ("member leaves",), ("C1", "C2", "B5"), BUSY),
    "end of the lease": Case(mutants.lease_end, ("process frozen", "path blocked"), ("C5", "B5"), BUSY),
    "turns start before the keep-alive deadline": Case(
        mutants.keep_alive_deadline, ("connection swallowed",), ("was granted", "C5"), BUSY
    ),
    "the broker waits for the keep-alive deadline": Case(
        mutants.keep_alive_waited_for, ("connection swallowed",), ("was granted", "C5"), BUSY
    ),
    "one turn per lane": Case(mutants.lane_lock, (), ("B",), BUSY),
    "drained before unlocked": Case(mutants.drain, ("member leaves",), ("gave queue",), BUSY),
    "stamps": Case(mutants.stamp_check, ("answer lost", "connection cut"), ("B6", "B1", "S"), BUSY | {"slow": 0.0}),
    "first unfinished": Case(mutants.first_unfinished, ("consumer killed",), ("D2", "S1"), BUSY),
    "flushed before acknowledged": Case(
        mutants.flush_before_ack, ("broker killed", "disk slow"), ("S",), BUSY | {"slow": 0.0, "calm_ms": 300}
    ),
    "checksum of a record": Case(
        mutants.record_checksum, ("power cut inside a write",), ("S", "B", "lanes", "the run"), CUTS, 30
    ),
    "cut at the first torn record": Case(
        mutants.torn_end, ("power cut inside a write", "disk slow"), ("S", "B"), LARGE_GROUPS, 20
    ),
    "finished ranges": Case(
        mutants.finished_ranges, ("consumer killed", "member leaves"), ("again, known to be finished",), BUSY
    ),
    "finished ranges instead of their span": Case(mutants.finished_span, ("consumer killed",), ("S1", "D2", "B"), BUSY),
    "a lane runs at the broker until nothing is left of it": Case(mutants.lane_fence, (), ("B", "E4"), BUSY | HELD),
    "a lane is finished when the broker has it": Case(
        mutants.confirmed_lane, ("consumer killed",), ("D2", "S1"), BUSY | HELD, first=20
    ),
    "offsets saved every 200 ms": Case(mutants.saved_offsets, ("broker killed",), ("D3",), BUSY | {"slow": 0.0}),
    "offsets saved at a stop": Case(mutants.offsets_at_stop, ("broker restarted",), ("D3",), BUSY | {"slow": 0.0}),
    "synced before acknowledged": Case(sync_before_ack, ("broker loses power",), ("S", "B", "D"), BUSY | {"slow": 0.0}),
}


def plan_for(case: Case, seed: int) -> Plan:
    return replace(plan_of(seed), faults=case.faults, durable=True, **case.changes)


def shows(case: Case, problems: Sequence[str]) -> bool:
    """A run that fails in another way, for example without progress, shows nothing about the guard."""
    return any(problem.startswith(case.shown_by) or case.shown_by[0] in problem for problem in problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_without_its_guard_a_promise_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.check_alone()
    case = CASES[name]
    for seed in range(case.first, case.first + case.seeds):
        with monkeypatch.context() as patched:
            case.remove(patched.setattr)
            result = run_plan(plan_for(case, seed))
        if shows(case, result.problems):
            break
    else:
        pytest.fail(f"none of {case.seeds} seeds fails without it")
    with_guard = run_plan(plan_for(case, seed))
    assert with_guard.passed, with_guard.problems
