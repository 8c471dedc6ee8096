"""The verdict on a run: the independent checker over all histories, and a few things asked directly."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Verdict, Violation
from lanemq.log.store import Store
from lanemq.model.names import RETRY_PREFIX
from lanemq.testing.sim.consumers import EVERYBODY
from lanemq.testing.sim.producers import AUDIT, ORDERS
from lanemq.testing.sim.world import World
from lanemq.wire.record import RecordView, record_starts

FOR_EVER = 2**62
"""Offsets are written without a sync, so a power cut takes all since the last change of an owner."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a seed."""

    seed: int
    problems: list[str]
    digest: str
    """A hash over everything that happened, with its times."""
    seconds: float
    """Virtual ones."""
    seen: dict[str, int]
    last_lines: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems


def write_down_log(world: World, store: Store) -> None:
    """Every record of the log, for the checker. No broker may run."""
    dump = world.histories.open(world.new_host("dump"), "dump", "other")
    for topic, queue_id in sorted(store.queues()):
        if topic in (ORDERS, AUDIT):
            for view in _records(store, topic, queue_id):
                names = view.properties
                dump.stored(topic, names["__SHARDINGKEY"], names["UNIQ_KEY"], queue_id, view.queue_offset)


def _records(store: Store, topic: str, queue_id: int) -> Iterator[RecordView]:
    offset, end = store.bounds(topic, queue_id)
    while offset < end:
        result = store.read(topic, queue_id, offset, 1000, 1 << 22)
        for start in record_starts(result.data):
            yield RecordView(result.data, start)
        offset = result.next_offset


def _may_forget(world: World) -> int:
    """Nanoseconds of commits that a crash may take: what is promised, and what kept the broker from saving them."""
    seen = world.trace.seen
    if seen["power cut"]:
        return FOR_EVER
    slow, failed, frozen = seen["disk slow"], seen["disk: commit failed"], seen["broker frozen"]
    return 500_000_000 + 20_000_000_000 * bool(slow) + 8_000_000_000 * bool(failed) + 12_000_000_000 * bool(frozen)


def _was_waited_for(left_over: Violation) -> bool:
    """Not what was sent back, which comes again after a delay by a wall clock that jumps; nor broadcasting members."""
    return not left_over.topic.startswith(RETRY_PREFIX) and not left_over.group.startswith(EVERYBODY)


def checked(world: World, folder: Path) -> list[str]:
    """What the checker holds against the run, and what it has seen."""
    folder.mkdir()
    world.histories.save(folder)
    report = check([folder], CheckOptions(drained=not world.problems, forgets_ns=_may_forget(world)))
    for name, count in report.coverage.items():
        world.trace.count(name, count)
    against = [each for each in report.violations if each.invariant != "L1" or _was_waited_for(each)]
    found = [f"{each.invariant} {each.text}" for each in against[:5]]
    if report.verdict is Verdict.UNKNOWN:
        found += [f"the checker cannot tell: {reason}" for reason in report.reasons]
    if against:
        found += ["around the first violation:", *report.around]
    return found
