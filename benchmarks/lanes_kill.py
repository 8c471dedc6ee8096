"""How long keys wait when their owner is killed, and whether two owners ever overlap.

    python -m benchmarks lanes_kill        or, for a shorter run: python -m benchmarks.lanes_kill 5

Two members share 4 queues under load; one is killed with SIGKILL and replaced, 50 times. The time runs from the kill
to the first turn of each queue that the victim owned, by its next owner. The checker reads all histories at the
end: a turn outside its owner's lease, two turns of one key at once or a lost message would be a violation.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos.system import Child, SystemUnderTest, complaint, system_in

from benchmarks.harness import report

KILLS, QUEUES = 50, 4
TARGET_SECONDS = 1.5


def main(kills: int = KILLS) -> None:
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder, system_in(Path(folder)) as system:
        waits = take_overs(system, kills)
        verdict = system.judge("rebalance", "faults")
    worst, p99 = max(waits), _p99(waits)
    median = round(statistics.median(waits), 2)
    more = {"median": median, "worst": round(worst, 2), "kills": kills, "queues": len(waits), "target": TARGET_SECONDS}
    report("lanes/take_over_p99", p99, "s", **more, checker=verdict.verdict.name, overlaps=dict(verdict.counts))
    if verdict.violations:
        print(complaint(verdict), file=sys.stderr)


def take_overs(system: SystemUnderTest, kills: int) -> list[float]:
    """Kills so many owners in a row; seconds that each of their queues waited."""
    system.broker(default_queues=QUEUES)
    producer = system.producer(pause_ms=2)
    system.until("something is stored", lambda: system.seen("acked"))
    members = [system.consumer("m0"), system.consumer("m1")]
    waits: list[float] = []
    for number in range(kills):
        _both_work(system, members)
        victim = members.pop(0)
        waits += _take_over(system, victim)
        members.append(system.consumer(f"m{number + 2}"))
    _both_work(system, members)
    system.finish(producer)
    system.until("everything is done", system.is_drained)
    system.finish(*members)
    return waits


def _both_work(system: SystemUnderTest, members: list[Child]) -> None:
    names = {member.name for member in members}
    mark = len(system.look())

    def work() -> bool:
        return names <= {e["by"] for e in system.look()[mark:] if e["e"] == "turn"}

    system.until("both members work", work)


def _take_over(system: SystemUnderTest, victim: Child) -> list[float]:
    lost = {queue for queue, owner in system.owners().items() if owner == victim.name}
    system.kill(victim)
    killed_at = system.seen("fault")[-1]["t"]
    mark = max(0, len(system.events) - 200)  # the other's newest lines may be read before the kill's own
    first: dict[int, int] = {}

    def taken_over() -> bool:
        for event in system.look()[mark:]:
            if _is_turn(event, lost, victim.name) and event["t"] > killed_at:
                first.setdefault(event["queue"], event["t"])
        return lost <= first.keys()

    system.until("the other has taken over", taken_over)
    return [(first[queue] - killed_at) / 1e9 for queue in lost]


def _is_turn(event: dict[str, Any], queues: set[int], not_by: str) -> bool:
    return event["e"] == "turn" and event["queue"] in queues and event["by"] != not_by


def _p99(waits: list[float]) -> float:
    return statistics.quantiles(waits, n=100, method="inclusive")[98] if len(waits) > 1 else waits[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
