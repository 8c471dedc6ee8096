"""How long queues wait when their owner is lost, in four ways, and whether two owners ever overlap.

    python -m benchmarks lanes_take_over        or, for a shorter run: python -m benchmarks.lanes_take_over 5 frozen

Two members with default settings share 4 queues under load; one of them is lost and comes back or is replaced, 50 times
for each way (`tests/chaos/losses`): killed, frozen, killed while a forked child keeps its socket, cut off from the
network. The time runs from the loss to the first turn of each of its queues at the other member. The checker reads all
histories at the end: a turn outside its owner's lease, two turns of one key at once or a lost message would be a
violation. Each way prints one JSON line.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from tests.chaos.losses import CLOSED_SECONDS, KINDS, QUEUES, SILENT_SECONDS, losses_in, why_no_namespaces
from tests.chaos.system import SystemUnderTest, complaint, system_in

from benchmarks.harness import report
from lanemq.checker.verdict import Report

TRIALS = 50


def main(trials: int = TRIALS, *kinds: str) -> None:
    for kind in kinds or KINDS:
        if kind == "cut off" and (reason := why_no_namespaces()):
            print(f"left out: {reason}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder, system_in(Path(folder)) as system:
            waits, verdict = take_overs(system, kind, trials)
        _report(kind, trials, waits, verdict)


def take_overs(system: SystemUnderTest, kind: str, trials: int) -> tuple[list[float], Report]:
    """Loses a member so many times; seconds that each of its queues waited, and what the checker says."""
    with losses_in(system, kind) as losses:
        producer = losses.start()
        waits = [wait for _ in range(trials) for wait in losses.trial()]
        system.finish(producer)
        system.until("everything is done", system.is_drained)
        system.finish(*losses.members)
        return waits, system.judge("rebalance", f"faults={trials}")


def _report(kind: str, trials: int, waits: list[float], verdict: Report) -> None:
    report(
        f"lanes/take_over_{kind.replace(' ', '_')}_p99",
        statistics.quantiles(waits, n=100, method="inclusive")[98] if len(waits) > 1 else waits[0],
        "s",
        median=round(statistics.median(waits), 2),
        worst=round(max(waits), 2),
        trials=trials,
        queues=len(waits),
        members=2,
        all_queues=QUEUES,
        target=CLOSED_SECONDS if kind == "killed" else SILENT_SECONDS,
        checker=verdict.verdict.name,
        overlaps=dict(verdict.counts),
    )
    if verdict.violations:
        print(complaint(verdict), file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS, *sys.argv[2:])
