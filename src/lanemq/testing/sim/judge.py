"""The verdict on a run: the checker over all histories, and the log as it was found at the end."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Verdict, Violation
from lanemq.log.store import Store
from lanemq.model.names import RETRY_PREFIX
from lanemq.testing.sim.consumers import BROADCASTING
from lanemq.testing.sim.producers import AUDIT, ORDERS
from lanemq.testing.sim.world import World
from lanemq.wire.record import RecordView, record_starts

ANY_AGE = 2**62
"""For power cuts: offsets are written without a sync, so all since the last change of owner may be lost."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a seed."""

    seed: int
    problems: list[str]
    digest: str
    """A hash over everything that happened, with times."""
    seconds: float
    """Virtual seconds."""
    seen: dict[str, int]
    last_lines: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems


def record_log(world: World, store: Store) -> None:
    """Records every message of the log for the checker. No broker may be running."""
    dump = world.histories.open(world.new_host("dump"), "dump", "other")
    for topic, queue_id in sorted(store.queues()):
        if topic in (ORDERS, AUDIT):
            for view in _records(store, topic, queue_id):
                properties = view.properties
                dump.stored(topic, properties["__SHARDINGKEY"], properties["UNIQ_KEY"], queue_id, view.queue_offset)


def _records(store: Store, topic: str, queue_id: int) -> Iterator[RecordView]:
    offset, end = store.bounds(topic, queue_id)
    while offset < end:
        result = store.read(topic, queue_id, offset, 1000, 1 << 22)
        for start in record_starts(result.data):
            yield RecordView(result.data, start)
        offset = result.next_offset


def _forgets_ns(world: World) -> int:
    """Age in nanoseconds of commits that a crash may undo: the promise, and the time the broker could not save them."""
    seen = world.trace.seen
    if seen["power cut"]:
        return ANY_AGE
    slow, failed, frozen = seen["disk slow"], seen["disk: commit failed"], seen["broker frozen"]
    return 500_000_000 + 20_000_000_000 * bool(slow) + 8_000_000_000 * bool(failed) + 12_000_000_000 * bool(frozen)


def _was_waited_for(left_over: Violation) -> bool:
    """Not for messages in retry topics, whose delay follows a wall clock that jumps, nor for broadcasting members."""
    return not left_over.topic.startswith(RETRY_PREFIX) and not left_over.group.startswith(BROADCASTING)


def checked(world: World, folder: Path) -> list[str]:
    """Runs the checker; returns the problems it found, and adds its coverage to the trace."""
    folder.mkdir()
    world.histories.save(folder)
    report = check([folder], CheckOptions(drained=not world.problems, forgets_ns=_forgets_ns(world)))
    for name, count in report.coverage.items():
        world.trace.count(name, count)
    against = [each for each in report.violations if each.invariant != "L1" or _was_waited_for(each)]
    problems = [f"{each.invariant} {each.text}" for each in against[:5]]
    if report.verdict is Verdict.UNKNOWN:
        problems += [f"the checker cannot decide: {reason}" for reason in report.reasons]
    if against:
        problems += ["around the first violation:", *report.around]
    return problems
