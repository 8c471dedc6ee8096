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

from tests.chaos.stage import TOPIC, Event, Part, Stage, complaint, stage_in

from benchmarks.harness import report
from lanemq.client.admin.admin import Admin

RESTARTS, MEMBERS, QUEUES = 20, 3, 6


def main(restarts: int = RESTARTS) -> None:
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder, stage_in(Path(folder)) as stage:
        calm, stayed = roll(stage, restarts)
        twice = redelivered(stage)
        verdict = stage.judge("rebalance", "redelivery=0")
    more = {"restarts": restarts, "target": 0, "checker": verdict.verdict.name}
    report("lanes/restart_redelivered", twice, "messages", **more)
    report("lanes/restart_pause_unmoved", stayed, "ms", calm_ms=round(calm, 1), restarts=restarts)
    if verdict.violations:
        print(complaint(verdict), file=sys.stderr)


def roll(stage: Stage, restarts: int) -> tuple[float, float]:
    """Longest pauses in ms: of any queue before the restarts, and of queues that stayed where they were."""
    stage.broker()
    with Admin(stage.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES, ordered=True)
    producer = stage.producer(pause_ms=1, keys=60)
    stage.until("something is stored", lambda: stage.seen("acked"))
    members = [stage.consumer(f"m{number}") for number in range(MEMBERS)]
    _all_work(stage, members)
    calm = _pause(stage, members, _all_work)
    stayed = 0.0
    for number in range(restarts):
        leaving = members.pop(0)

        def restart(stage: Stage, rest: list[Part], leaving: Part = leaving, number: int = number) -> None:
            stage.finish(leaving)
            members.append(stage.consumer(f"m{number + MEMBERS}"))
            _all_work(stage, members)

        stayed = max(stayed, _pause(stage, members, restart))
    stage.finish(producer)
    stage.until("everything is done", stage.is_drained)
    stage.finish(*members)
    return calm, stayed


def redelivered(stage: Stage) -> int:
    """Messages that more than one turn began with."""
    seen = Counter((e["queue"], e["offset"]) for e in stage.seen("turn"))
    return sum(1 for count in seen.values() if count > 1)


def _all_work(stage: Stage, members: list[Part]) -> None:
    """Every member has handled something new, and owns its share of the queues."""
    names, mark = {member.name for member in members}, len(stage.look())

    def work() -> bool:
        fresh = [e for e in stage.look()[mark:] if e["e"] == "turn"]
        return names <= {e["by"] for e in fresh} and len({e["queue"] for e in fresh}) == QUEUES and len(fresh) > 300

    stage.until("every member works", work)


def _pause(stage: Stage, members: list[Part], act: Callable[[Stage, list[Part]], None]) -> float:
    """The longest time without a turn, in ms, of queues that no member was granted during the act."""
    queues, mark = set(stage.owners()), len(stage.look())
    act(stage, members)
    unmoved = queues - {event["queue"] for event in stage.look()[mark:] if event["e"] == "lease_granted"}
    times: dict[int, list[int]] = defaultdict(list)
    for event in _turns(stage.look()[mark:], unmoved):
        times[event["queue"]].append(event["t"])
    gaps = [second - first for each in times.values() for first, second in pairwise(sorted(each))]
    return max(gaps, default=0) / 1e6


def _turns(events: list[Event], queues: set[int]) -> list[Event]:
    return [event for event in events if event["e"] == "turn" and event["queue"] in queues]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
