"""What a rolling restart costs: messages delivered twice, and pauses of queues that do not move.

    python -m benchmarks lanes_restart        or, for a shorter run: python -m benchmarks.lanes_restart 5

Three members share 6 queues under load; one after the other is asked to end (SIGTERM) and replaced, 20 times. A
message that any handler saw twice counts as redelivered. A queue that changes hands neither at the end nor at the
replacement must not notice: its longest time without a turn is reported beside the longest one of a calm stretch of
the same run.
"""

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.chaos.system import Child, Event, SystemUnderTest, complaint, system_in

from benchmarks.harness import report

RESTARTS, MEMBERS, QUEUES = 20, 3, 6


def main(restarts: int = RESTARTS) -> None:
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder, system_in(Path(folder)) as system:
        calm, stayed = roll(system, restarts)
        twice = redelivered(system)
        verdict = system.judge("rebalance", "redelivery=0")
    more = {"restarts": restarts, "target": 0, "checker": verdict.verdict.name}
    report("lanes/restart_redelivered", twice, "messages", **more)
    report("lanes/restart_pause_unmoved", stayed, "ms", calm_ms=round(calm, 1), restarts=restarts)
    if verdict.violations:
        print(complaint(verdict), file=sys.stderr)


def roll(system: SystemUnderTest, restarts: int) -> tuple[float, float]:
    """Longest pauses in ms: of any queue before the restarts, and of queues that stayed where they were."""
    system.broker(default_queues=QUEUES)
    producer = system.producer(pause_ms=1, keys=60)
    system.until("something is stored", lambda: system.seen("acked"))
    members = [system.consumer(f"m{number}") for number in range(MEMBERS)]
    _all_work(system, members)
    calm = _pause(system, members, _all_work)
    stayed = 0.0
    for number in range(restarts):
        leaving = members.pop(0)

        def restart(system: SystemUnderTest, rest: list[Child], leaving: Child = leaving, number: int = number) -> None:
            system.finish(leaving)
            members.append(system.consumer(f"m{number + MEMBERS}"))
            _all_work(system, members)

        stayed = max(stayed, _pause(system, members, restart))
    system.finish(producer)
    system.until("everything is done", system.is_drained)
    system.finish(*members)
    return calm, stayed


def redelivered(system: SystemUnderTest) -> int:
    """Messages that more than one turn began with."""
    seen = Counter((e["queue"], e["offset"]) for e in system.seen("turn"))
    return sum(1 for count in seen.values() if count > 1)


def _all_work(system: SystemUnderTest, members: list[Child]) -> None:
    """Every member has handled something new, and owns its share of the queues."""
    names, mark = {member.name for member in members}, len(system.look())

    def work() -> bool:
        fresh = [e for e in system.look()[mark:] if e["e"] == "turn"]
        return names <= {e["by"] for e in fresh} and len({e["queue"] for e in fresh}) == QUEUES and len(fresh) > 300

    system.until("every member works", work)


def _pause(system: SystemUnderTest, members: list[Child], act: Callable[[SystemUnderTest, list[Child]], None]) -> float:
    """The longest time without a turn, in ms, of queues that no member was granted during the act."""
    queues, mark = set(system.owners()), len(system.look())
    act(system, members)
    unmoved = queues - {event["queue"] for event in system.look()[mark:] if event["e"] == "lease_granted"}
    times: dict[int, list[int]] = defaultdict(list)
    for event in _turns(system.look()[mark:], unmoved):
        times[event["queue"]].append(event["t"])
    gaps = [second - first for each in times.values() for first, second in pairwise(sorted(each))]
    return max(gaps, default=0) / 1e6


def _turns(events: list[Event], queues: set[int]) -> list[Event]:
    return [event for event in events if event["e"] == "turn" and event["queue"] in queues]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
