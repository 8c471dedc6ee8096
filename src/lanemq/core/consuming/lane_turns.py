"""From messages to turns and back: the steps that are taken for every message.

They are functions, and not methods of the queue and the scheduler that call them, because each has a compiled twin.

The rule guarded here: a key is in one place. Either a lane keeps its messages, or one turn with its only message stands
for the lane; a lane that is made for such a turn (`grow`) takes its place, whether it waits or runs, and the turn goes
on knowing its lane.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from lanemq._fast import compiled
from lanemq.core.consuming.process_queue import Stored
from lanemq.core.consuming.runs import Gate, Lane, LaneRun, M
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

Place: TypeAlias = Lane[M] | LaneRun[M]
"""Where the messages of a key wait: its lane, or the turn that stands for it."""


class Home(Protocol[M]):
    """What is asked of a queue."""

    queue: MessageQueue
    ready: deque[Place[M]]
    failures: dict[int, int]
    running: int

    def take(self, lane: Lane[M], limit: int) -> list[M]: ...


def grow(run: LaneRun[M]) -> Lane[M]:
    """The lane for which the turn stood. A turn that waits keeps its place in line, for the lane."""
    lane: Lane[M] = Lane(run.key, [] if run.running else list(run.messages))
    run.lane = lane
    if run.running:
        lane.run, lane.slice_end = run, run.slice_end
    return lane


@compiled
def lay_in_lanes(
    lanes: dict[str | None, Place[M]],
    ready: deque[Place[M]],
    messages: Sequence[M],
    queue: MessageQueue,
    gate: Gate,
) -> None:
    """Every message into its key's lane; the first one of a key stands in line for itself."""
    for message in messages:
        key = message.key
        place = lanes.get(key)
        if place is None:
            lanes[key] = place = LaneRun(queue, key, (message,), 1, 0, gate, 0)
            ready.append(place)
            continue
        if isinstance(place, LaneRun):
            lanes[key] = place = grow(place)
        place.pending.append(message)


@compiled
def cut_runs(messages: Sequence[M], size: int, queue: MessageQueue, gate: Gate) -> list[LaneRun[M]]:
    """Without order: turns of so many messages, each as good as a lane."""
    starts = range(0, len(messages), size)
    return [LaneRun(queue, None, tuple(messages[at : at + size]), 1, 0, gate, 0) for at in starts]


@compiled
def take_runs(home: Home[M], most: int, limit: int, slice_end: int, tokens: Iterator[int]) -> list[LaneRun[M]]:
    """Turns of the lanes in line, at most `limit` messages each, until they have `most` messages or more.

    `slice_end` is for lanes that come from a pause, or from nowhere.
    """
    ready, runs = home.ready, []
    while most > 0 and ready:
        place = ready.popleft()
        if isinstance(place, Lane) or place.lane is not None:
            lane = place if isinstance(place, Lane) else place.lane
            assert lane is not None
            taken = home.take(lane, limit)
            if not taken:
                continue
            run = _run_of(home, lane, taken, slice_end)
        else:
            run = place
            run.slice_end = slice_end
        run.token = next(tokens)
        run.running = True
        runs.append(run)
        most -= len(run.messages)
    home.running += len(runs)
    return runs


def _run_of(home: Home[M], lane: Lane[M], taken: list[M], slice_end: int) -> LaneRun[M]:
    if lane.slice_end is None:
        lane.slice_end = slice_end
    failures = home.failures
    attempt = failures.get(taken[0].queue_offset, 0) + 1 if failures else 1
    assert isinstance(home, Gate)
    run = lane.run = LaneRun(home.queue, lane.key, tuple(taken), attempt, 0, home, lane.slice_end, lane)
    return run


@compiled
def count_messages(runs: list[LaneRun[M]]) -> int:
    return sum([len(run.messages) for run in runs])


@compiled
def end_runs(
    runs: Sequence[LaneRun[M]], lanes: dict[str | None, Place[M]] | None
) -> tuple[list[M], list[Lane[M]], list[Lane[M]]]:
    """Turns that went well are over: their messages, the lanes that have more, and those whose message the broker gave
    back. Lanes with nothing left are closed, where there are any (`lanes`)."""
    done: list[M] = []
    more: list[Lane[M]] = []
    redriven: list[Lane[M]] = []
    for run in runs:
        run.running = False
        lane = run.lane
        if lane is not None:
            lane.run = None
            if lane.redriven is not None:
                redriven.append(lane)
                continue
            if lane.pending:
                more.append(lane)
                done += run.messages
                continue
        if lanes is not None:
            del lanes[run.key]
        done += run.messages
    return done, more, redriven


@compiled
def pass_finished(offsets: deque[QueueOffset], finished: set[int], done: Sequence[Stored]) -> int:
    """Takes what is done off the unfinished `offsets`, as far as nothing unfinished is before it; else it is `finished`
    above them. How many bytes it had."""
    size = 0
    for message in done:
        size += message.size
        if offsets and offsets[0] == message.queue_offset:
            offsets.popleft()
        else:
            finished.add(message.queue_offset)
    while finished and offsets and offsets[0] in finished:
        finished.remove(offsets.popleft())
    return size
