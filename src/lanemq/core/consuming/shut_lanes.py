"""Lanes of one held queue that may not run by themselves: their retries are used up, here or with a former owner.

A shut lane's messages go to the broker, which keeps them (`parked_lanes`); they count as finished here as soon as it
has them, so the queue's commit passes. When a person asks for another try, the broker's copies come back one by one,
run in the lane, and are taken off the broker's list; after the last one the lane is an ordinary one again.

Rules it guards:

1. No message of a shut lane runs, except the one that the broker gave back, and that one alone.
2. A message counts as finished only when the broker said that it has it; what it would not take stays here.
3. A lane opens only when the broker holds nothing of it any more. Newer messages wait until then.
4. At most one question about a lane is under way, so answers cannot overtake each other.
5. After a question that got no answer, the broker may have what was offered. It is offered again before anything else
   happens to the lane: else the broker's copies would run, and then those that are still here.

The shell asks `work`, does it, and reports `stored`, `given`, `told` or `failed`, once for each piece of work.
Afterwards lanes may be ready: the scheduler must look at the queue again.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeAlias

from lanemq.core.consuming.runs import Lane, LaneRun, M
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.model.units import Millis

MOST_AT_ONCE = 256
"""Messages of a lane in one question."""
NOTHING_DONE = -1
_AT_ONCE = Millis(-(2**62))


@dataclass(frozen=True, slots=True)
class ParkWork(Generic[M]):
    """Hand these messages to the broker. With a failure, the lane's first message is the one that failed."""

    key: str | None
    messages: tuple[M, ...]
    failure: Failure | None
    failed_again: int = NOTHING_DONE
    """Offset of a redriven message that failed; the broker still has it."""


@dataclass(frozen=True, slots=True)
class NextWork:
    """Tell the broker which redriven message is done, and ask for the next one."""

    key: str | None
    done: int


@dataclass(frozen=True, slots=True)
class RedriveWork:
    """A person asked this member, not the broker, for another try."""

    key: str | None


Work: TypeAlias = ParkWork[M] | NextWork | RedriveWork


class Home(Protocol[M]):
    """What the queue does for its shut lanes."""

    ready: deque[Lane[M] | LaneRun[M]]

    def set_aside(self, messages: Sequence[M]) -> None:
        """The broker keeps them: here they are finished."""

    def close_lane(self, lane: Lane[M]) -> None:
        """It is an ordinary lane again, and empty."""

    def forgive(self, lane: Lane[M]) -> None:
        """Count its failures from zero again."""


class KeptLane(NamedTuple):
    """What a queue's new owner knows of a lane that the broker keeps."""

    key: str | None
    redriving: bool
    through: int
    """The last offset that was ever parked in it: up to here its messages are the broker's, or done."""


class _Shut(Generic[M]):
    """One shut lane."""

    __slots__ = ("asked", "at_broker", "done", "doubt", "failed_again", "failure", "kept", "lane", "not_before",
                 "redriving", "through", "wanted")  # fmt: skip

    def __init__(self, lane: Lane[M], *, kept: bool, redriving: bool = False, through: int = NOTHING_DONE) -> None:
        self.lane = lane
        # Up to here a pull brings nothing that may run.
        self.through = through
        # The broker has this lane.
        self.kept = kept
        self.redriving = redriving
        # Whether its messages shall go to the broker at all.
        self.at_broker = kept
        # A question about it is under way.
        self.asked = False
        # What the broker does not know yet: a failure, a redriven message that is done, one that failed again.
        self.failure: Failure | None = None
        self.done = NOTHING_DONE
        self.failed_again = NOTHING_DONE
        # The broker may or may not have what was offered last.
        self.doubt = False
        self.wanted = False
        self.not_before = _AT_ONCE


class ShutLanes(Generic[M]):
    """The shut lanes of one queue, by key."""

    def __init__(self, home: Home[M]) -> None:
        self._home = home
        self._shut: dict[str | None, _Shut[M]] = {}
        # Lanes that may have work; looked at and thinned out by `work`.
        self._open: dict[str | None, None] = {}
        self.news = False
        """The queue made work since somebody last asked for it."""

    def __bool__(self) -> bool:
        return bool(self._shut)

    def __contains__(self, key: object) -> bool:
        return key in self._shut

    def __iter__(self) -> Iterator[str | None]:
        return iter(tuple(self._shut))

    # from the queue

    def keep(self, lane: Lane[M], kept: KeptLane) -> None:
        """A lane that a former owner parked."""
        self._shut[lane.key] = _Shut(lane, kept=True, redriving=kept.redriving, through=kept.through)
        self._look_at(lane.key)

    def settled(self, message: M) -> bool:
        """Whether a former owner parked it, or finished it before its lane failed: it counts as finished here too."""
        entry = self._shut.get(message.key)
        return entry is not None and message.queue_offset <= entry.through

    def shut(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """The retries of its first message, or of the one the broker gave back, are used up."""
        entry = self._shut.get(lane.key)
        if entry is None:
            entry = self._shut[lane.key] = _Shut(lane, kept=False)
            entry.at_broker = at_broker
        elif lane.redriven is not None:
            entry.failed_again = lane.redriven.queue_offset
            lane.redriven = None
        entry.failure = failure
        self._look_at(lane.key)

    def finished(self, lane: Lane[M]) -> None:
        """The message that the broker gave back is done."""
        assert lane.redriven is not None
        entry = self._shut[lane.key]
        entry.done, lane.redriven = lane.redriven.queue_offset, None
        self._look_at(lane.key)

    def arrived(self, keys: Iterable[str | None]) -> None:
        """A pull brought messages of these lanes."""
        for key in keys:
            if key in self._shut:
                self._look_at(key)

    def resume(self, key: str | None) -> bool:
        """A person lets the lane go on: at once if it is only here, else by way of the broker."""
        entry = self._shut.get(key)
        if entry is None:
            return False
        if entry.asked or entry.kept or entry.doubt:
            entry.wanted = True
            entry.not_before = _AT_ONCE
            self._look_at(key)
        else:
            self._open_lane(entry)
        return True

    # from the shell; a report about a lane that is not shut any more changes nothing

    def work(self, *, now: Millis) -> list[Work[M]]:
        """What to ask the broker; each piece is reported before its lane is asked about again."""
        found: list[Work[M]] = []
        self.news = False
        for key in tuple(self._open):
            entry = self._shut.get(key)
            if entry is not None and (entry.asked or now < entry.not_before):
                continue
            work = None if entry is None else _work_of(key, entry)
            if work is None:
                del self._open[key]
            else:
                assert entry is not None
                entry.asked = True
                found.append(work)
        return found

    def stored(self, work: ParkWork[M], settled: int, status: LaneStatus | None, *, now: Millis, pause: Millis) -> None:
        """The broker has the first `settled` of them; `status` is None if it has no such lane.

        What it did not take stays here, and is offered again after `pause`.
        """
        entry = self._answered(work)
        if entry is None:
            return
        entry.doubt = False
        self._home.set_aside(entry.lane.pending[:settled])
        del entry.lane.pending[:settled]
        if status is not None:
            entry.kept = True
            entry.redriving = status is LaneStatus.REDRIVING
            entry.failure, entry.failed_again = None, NOTHING_DONE
        elif entry.kept or entry.wanted:
            self._open_lane(entry)  # emptied meanwhile; or never taken, and a person wants it to go on
            return
        if settled < len(work.messages):
            entry.not_before = Millis(now + pause)

    def given(self, work: NextWork | RedriveWork, message: M | None, status: LaneStatus | None) -> None:
        """The broker's answer to "what comes next"; also to a redrive, if there was nothing left to redrive."""
        entry = self._answered(work)
        if entry is None:
            return
        entry.done = NOTHING_DONE
        if status is None:
            self._open_lane(entry)
            return
        entry.redriving = status is LaneStatus.REDRIVING
        if message is not None:
            entry.lane.redriven = message
            self._home.ready.append(entry.lane)

    def told(self, work: RedriveWork) -> None:
        """The broker knows that a person wants the lane to go on."""
        entry = self._answered(work)
        if entry is not None:
            entry.wanted = False
            entry.redriving = True

    def failed(self, work: Work[M], *, now: Millis, pause: Millis) -> None:
        """No answer; the same again after a pause."""
        entry = self._answered(work)
        if entry is not None:
            entry.doubt = entry.doubt or isinstance(work, ParkWork)
            entry.not_before = Millis(now + pause)

    def kept(self) -> frozenset[str | None]:
        """The lanes that the broker has, as far as is known here."""
        return frozenset(key for key, entry in self._shut.items() if entry.kept)

    def reconcile(self, kept: Mapping[str | None, bool], asked_about: Container[str | None]) -> None:
        """What the broker keeps (key to whether it is redriven), after people changed something.

        `asked_about` is what it was known to keep when it was asked: a lane that came later may be missing in its
        answer. A lane with a question under way is left alone, its answer will say; so is one whose message runs.
        """
        for key, entry in list(self._shut.items()):
            if entry.asked or key not in asked_about or entry.lane.redriven is not None:
                continue
            if key in kept:
                entry.redriving = kept[key] and entry.failure is None
                entry.not_before = _AT_ONCE  # what there was no room for waits no longer than its lane
                self._open[key] = None
            else:
                self._open_lane(entry)

    def forget(self) -> None:
        self._shut.clear()
        self._open.clear()

    def _look_at(self, key: str | None) -> None:
        self._open[key] = None
        self.news = True

    def _answered(self, work: Work[M]) -> _Shut[M] | None:
        entry = self._shut.get(work.key)
        if entry is not None:
            entry.asked = False
            self._open[work.key] = None
        return entry

    def _open_lane(self, entry: _Shut[M]) -> None:
        lane = entry.lane
        del self._shut[lane.key]
        self._open.pop(lane.key, None)
        self._home.forgive(lane)
        if lane.pending:
            self._home.ready.append(lane)
        else:
            self._home.close_lane(lane)


def _work_of(key: str | None, entry: _Shut[M]) -> Work[M] | None:
    lane = entry.lane
    if lane.redriven is not None or not (entry.at_broker or entry.kept):
        return None
    if entry.done != NOTHING_DONE:
        return NextWork(key, entry.done)
    if entry.failure is not None:
        return ParkWork(key, tuple(lane.pending[:MOST_AT_ONCE]), entry.failure, entry.failed_again)
    if entry.doubt and lane.pending:
        return ParkWork(key, tuple(lane.pending[:MOST_AT_ONCE]), None)
    if entry.wanted and entry.kept:
        return RedriveWork(key)
    if entry.redriving:
        return NextWork(key, NOTHING_DONE)
    if lane.pending and entry.kept:
        return ParkWork(key, tuple(lane.pending[:MOST_AT_ONCE]), None)
    return None
