"""Random correct runs raise no alarm, and each random damage to one is found.

`World` is a small, correct ordered broker: pipelined producers, leases with epochs, crashes, paused owners, retries,
dead letters, resets, restarts of the broker, and a sink that stores each effect once.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest

from lanemq.checker import events as e
from lanemq.checker.checking import CheckOptions
from lanemq.checker.verdict import Report, Verdict

Judge = Callable[..., Report]
MS = 1_000_000
LEASE = 400 * MS
STEPS = 250
LONG_AGO = -3600 * 1000 * MS


@dataclass
class Assigned:
    """One queue of one group: what the broker knows, and what the owner has in memory."""

    group: str
    queue: int
    epoch: int = 0
    owner: e.Process | None = None
    until: int = 0
    committed: int = 0
    fetched: int = 0
    done: set[int] = field(default_factory=set)
    running: dict[str, int] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    commits: list[tuple[int, int]] = field(default_factory=lambda: [(LONG_AGO, 0)])
    """Time and offset of commits; the first one is on disk."""


class World:
    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.t = 0
        self.events: list[e.HistoryEvent] = []
        self.counters: dict[str, int] = {}
        self.broker = e.Process("broker", e.Role.BROKER)
        self.producers = [e.Process(f"p{i}", e.Role.PRODUCER) for i in range(2)]
        self.members = 0
        self.keys = [f"k{i}" for i in range(self.random.randint(1, 6))]
        queues = self.random.randint(1, 3)
        self.log: list[list[tuple[str, str]]] = [[] for _ in range(queues)]
        self.pending: dict[tuple[int, str], list[str]] = {}
        self.unanswered: list[tuple[e.Process, dict[str, Any]]] = []
        self.views = [Assigned(f"g{g}", q) for g in range(self.random.randint(1, 2)) for q in range(queues)]
        self.zombies: list[tuple[e.Process, dict[str, Any]]] = []
        self.sink: dict[tuple[str, str], int] = {}
        self.sent = 0

    def note(self, process: e.Process, kind: type[Any], **fields: Any) -> None:
        self.t += self.random.randint(2, 9) * MS
        n = self.counters[process.name] = self.counters.get(process.name, -1) + 1
        fields.setdefault("topic", "orders")
        self.events.append(kind(n=n, t=self.t, process=process, **fields))

    def run(self) -> list[e.HistoryEvent]:
        for view in self.views:
            self.note(self.broker, e.Reset, group=view.group, queue=view.queue, offset=0, reason="start")
            self.grant(view)
        steps = [self.send, self.store, self.answer, self.start, self.end, self.commit, self.rare]
        for _ in range(STEPS):
            self.random.choices(steps, weights=[4, 5, 4, 8, 8, 3, 1])[0]()
        return self.events

    def send(self) -> None:
        who, key = self.random.randrange(2), self.random.choice(self.keys)
        self.sent += 1
        self.note(self.producers[who], e.Send, key=key, id=f"m{self.sent}")
        self.pending.setdefault((who, key), []).append(f"m{self.sent}")

    def store(self) -> None:
        lanes = [lane for lane, waiting in self.pending.items() if waiting]
        if not lanes:
            return
        who, key = self.random.choice(lanes)
        waiting, producer = self.pending[(who, key)], self.producers[who]
        if self.random.random() < 0.05:
            for id in waiting:
                self.note(producer, e.SendFailed, key=key, id=id)
            waiting.clear()
            return
        id = waiting.pop(0)
        if self.random.random() < 0.1:
            self.note(producer, e.SendUnknown, key=key, id=id)
            if self.random.random() < 0.5:
                return
        queue = self.keys.index(key) % len(self.log)
        self.log[queue].append((id, key))
        offset = len(self.log[queue]) - 1
        self.unanswered.append((producer, {"queue": queue, "offset": offset, "id": id, "key": key}))

    def answer(self) -> None:
        if self.unanswered:
            producer, fields = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
            self.note(producer, e.Acked, **fields)

    def grant(self, view: Assigned) -> None:
        self.members += 1
        member = e.Process(f"c{self.members}", e.Role.CONSUMER)
        view.epoch += 1
        view.owner, view.fetched = member, view.committed
        view.done, view.running, view.tries = set(), {}, {}
        asked = self.t
        view.until = asked + LEASE
        lease = {"group": view.group, "queue": view.queue, "member": member.name, "epoch": view.epoch}
        self.note(self.broker, e.LeaseGranted, until=view.until, **lease)
        self.note(member, e.LeaseGranted, until=asked + LEASE // 2, asked=asked, **lease)

    def renew(self, view: Assigned) -> None:
        asked = self.t
        view.until = asked + LEASE
        assert view.owner is not None
        lease = {
            "group": view.group,
            "queue": view.queue,
            "member": view.owner.name,
            "epoch": view.epoch,
        }
        self.note(self.broker, e.LeaseRenewed, until=view.until, **lease)
        self.note(view.owner, e.LeaseRenewed, until=asked + LEASE // 2, asked=asked, **lease)

    def place(self, view: Assigned, offset: int) -> dict[str, Any]:
        return {"group": view.group, "queue": view.queue, "offset": offset, "epoch": view.epoch}

    def start(self) -> None:
        view = self.random.choice(self.views)
        heads: dict[str, int] = {}
        for offset in range(view.fetched, len(self.log[view.queue])):
            if offset not in view.done:
                heads.setdefault(self.log[view.queue][offset][1], offset)
        free = [key for key in heads if key not in view.running]
        if not free:
            return
        self.renew(view)
        key = self.random.choice(free)
        offset = view.running[key] = heads[key]
        self.note(view.owner, e.Turn, key=key, id=self.log[view.queue][offset][0], **self.place(view, offset))

    def end(self) -> None:
        view = self.random.choice(self.views)
        if view.running:
            key = self.random.choice(list(view.running))
            self.end_turn(view, key, ok=self.random.random() < 0.8)

    def end_turn(self, view: Assigned, key: str, *, ok: bool) -> None:
        offset = view.running.pop(key)
        place = self.place(view, offset)
        if ok:
            if self.sink.get((view.group, key), -1) < offset:
                self.sink[(view.group, key)] = offset
                self.note(view.owner, e.Effect, key=key, sink="table", **place)
            self.note(view.owner, e.TurnEnd, key=key, outcome=e.Outcome.OK, **place)
            view.done.add(offset)
            return
        self.note(view.owner, e.TurnEnd, key=key, outcome=e.Outcome.RETRY, **place)
        view.tries[offset] = view.tries.get(offset, 0) + 1
        if view.tries[offset] == 3:
            del place["epoch"]
            self.note(view.owner, e.DeadLettered, key=key, **place)
            view.done.add(offset)

    def commit(self) -> None:
        view = self.random.choice(self.views)
        first = view.committed
        while first in view.done or first < view.fetched:
            first += 1
        view.committed = first
        view.commits.append((self.t, first))
        asked = self.t
        self.note(view.owner, e.OffsetCommitted, asked=asked, **self.place(view, first))

    def rare(self) -> None:
        view = self.random.choice(self.views)
        self.random.choice([self.hand_over, self.crash, self.pause, self.reset, self.restart, self.wake])(view)

    def hand_over(self, view: Assigned) -> None:
        for key in list(view.running):
            self.end_turn(view, key, ok=True)
        lease = {
            "group": view.group,
            "queue": view.queue,
            "member": view.owner.name,
            "epoch": view.epoch,
        }
        self.note(view.owner, e.LeaseReleased, **lease)
        self.note(self.broker, e.LeaseReleased, **lease)
        self.grant(view)

    def crash(self, view: Assigned) -> None:
        self.t = max(self.t, view.until) + 2 * MS
        self.grant(view)

    def pause(self, view: Assigned) -> None:
        owner = view.owner
        for key, offset in view.running.items():
            self.zombies.append((owner, {"key": key, **self.place(view, offset)}))
        old = self.place(view, view.committed)
        self.crash(view)
        self.note(owner, e.CommitRefused, reason="stale", **old)

    def wake(self, _: Assigned) -> None:
        for owner, fields in self.zombies:
            outcome = self.random.choice([e.Outcome.ABANDONED, e.Outcome.LATE])
            self.note(owner, e.TurnEnd, outcome=outcome, **fields)
        self.zombies.clear()

    def reset(self, view: Assigned) -> None:
        for key in list(view.running):
            self.end_turn(view, key, ok=True)
        view.committed = self.random.randint(0, len(self.log[view.queue]))
        self.note(self.broker, e.Reset, group=view.group, queue=view.queue, offset=view.committed)
        view.fetched, view.done, view.tries = view.committed, set(), {}
        view.commits = [(LONG_AGO, view.committed)]

    def restart(self, _: Assigned) -> None:
        """Cleanly, or by a crash that undoes commits of the last 400 ms."""
        clean = self.random.random() < 0.5
        alive = self.t
        for view in self.views:
            if not clean:
                old = max(at for at, (t, _) in enumerate(view.commits) if t < alive - 400 * MS)
                view.committed = view.commits[self.random.randrange(old, len(view.commits))][1]
            view.commits = [(LONG_AGO, view.committed)]
            self.note(self.broker, e.Recovered, clean=int(clean), alive=alive, **self.place(view, view.committed))


@pytest.mark.slow
def test_thousand_random_correct_runs_raise_no_alarm(judge: Judge) -> None:
    seen: dict[str, int] = {}
    for number in range(1000):
        report = judge(World(number).run())
        assert not report.violations, (number, report.violations[0])
        for name, count in report.coverage.items():
            seen[name] = seen.get(name, 0) + count
    unseen = {name for name, count in seen.items() if not count}
    elsewhere = {"skipped", "faults", "log_duplicates", "parked", "redriven", "discarded", "unfenced_commits"}
    assert unseen <= elsewhere, f"no run contains {unseen - elsewhere}"


def _again(history: list[e.HistoryEvent], at: int, **changes: Any) -> e.HistoryEvent:
    return msgspec.structs.replace(history[at], **changes)


def swap_acknowledged_offsets(history: list[e.HistoryEvent], random: Random) -> bool:
    """Two messages of one producer and key are acknowledged in the wrong order."""
    acked: dict[tuple[Any, ...], int] = {}
    for at, event in enumerate(history):
        if isinstance(event, e.Acked):
            lane = (event.process, event.key)
            if lane in acked:
                first = acked[lane]
                one, other = history[first], event
                assert isinstance(one, e.Acked)
                history[first] = _again(history, first, offset=other.offset)
                history[at] = _again(history, at, offset=one.offset)
                return True
            acked[lane] = at
    return False


def drop_good_end(history: list[e.HistoryEvent], random: Random) -> bool:
    """A commit passes a message that never succeeded."""
    for at, event in enumerate(history):
        if not isinstance(event, e.TurnEnd) or event.outcome is not e.Outcome.OK:
            continue
        place = (event.group, event.queue, event.offset)
        ends = [x for x in history if isinstance(x, e.TurnEnd) and (x.group, x.queue, x.offset) == place]
        if len(ends) == 1 and _committed_past(history[at:], event):
            history[at] = _again(history, at, outcome=e.Outcome.RETRY)
            return True
    return False


def _committed_past(later: list[e.HistoryEvent], end: e.TurnEnd) -> bool:
    """Whether a commit passes the message before a reset."""
    for event in later:
        if isinstance(event, e.OffsetCommitted | e.Reset) and (event.group, event.queue) == (end.group, end.queue):
            if isinstance(event, e.Reset):
                return False
            if event.offset > end.offset:
                return True
    return False


def run_twice(history: list[e.HistoryEvent], random: Random) -> bool:
    """A message that succeeded runs again with the same owner, without a restart."""
    ends = [
        at
        for at, event in enumerate(history)
        if isinstance(event, e.TurnEnd) and event.outcome is e.Outcome.OK and not _restarted(history[:at], event)
    ]
    if not ends:
        return False
    at = random.choice(ends)
    end = history[at]
    assert isinstance(end, e.TurnEnd)
    history.insert(
        at + 1,
        e.Turn(
            n=end.n, t=end.t + 1, process=end.process, group=end.group, topic=end.topic, queue=end.queue,
            offset=end.offset, key=end.key, epoch=end.epoch,
        ),
    )  # fmt: skip
    history.insert(at + 2, _again(history, at, t=end.t + 2))
    return True


def _restarted(earlier: list[e.HistoryEvent], end: e.TurnEnd) -> bool:
    for event in reversed(earlier):
        if isinstance(event, e.Turn) and (event.process, event.offset) == (end.process, end.offset):
            return False
        if isinstance(event, e.Recovered):
            return True
    return True


def reuse_epoch(history: list[e.HistoryEvent], random: Random) -> bool:
    """A new owner gets the epoch of the one before."""
    for at, event in enumerate(history):
        if isinstance(event, e.LeaseGranted) and event.process.role is e.Role.BROKER and event.epoch > 1:
            history[at] = _again(history, at, epoch=event.epoch - 1)
            return True
    return False


def rewind_commit(history: list[e.HistoryEvent], random: Random) -> bool:
    """A commit goes back."""
    for at, event in enumerate(history):
        if isinstance(event, e.OffsetCommitted) and event.offset > 0:
            history.insert(at + 1, _again(history, at, offset=event.offset - 1, asked=0, t=event.t + 1))
            return True
    return False


def own_too_early(history: list[e.HistoryEvent], random: Random) -> bool:
    """The broker gives a queue away while its owner's lease runs."""
    for at, event in enumerate(history):
        if isinstance(event, e.LeaseGranted) and event.process.role is e.Role.BROKER:
            stolen = _again(history, at, member="thief", epoch=event.epoch + 1, t=event.t + 1)
            history.insert(at + 1, stolen)
            return True
    return False


def repeat_effect(history: list[e.HistoryEvent], random: Random) -> bool:
    """The sink stores an effect twice."""
    effects = [i for i, x in enumerate(history) if isinstance(x, e.Effect)]
    if not effects:
        return False
    at = random.choice(effects)
    history.insert(at + 1, _again(history, at, t=history[at].t + 1))
    return True


def forget_too_much(history: list[e.HistoryEvent], random: Random) -> bool:
    """A broker comes back without commits that were old, or after a clean stop."""
    kinds = (e.OffsetCommitted, e.Reset, e.Recovered)
    last_lines = {(x.group, x.queue): x for x in history if isinstance(x, kinds)}
    last = last_lines[random.choice(sorted(last_lines))]
    if not isinstance(last, e.OffsetCommitted) or not last.offset:
        return False
    alive = history[-1].t + 1_000 * MS
    history.append(
        e.Recovered(
            n=0, t=alive + 1, process=e.Process("broker", e.Role.BROKER), group=last.group, topic=last.topic,
            queue=last.queue, offset=last.offset - 1, clean=random.randint(0, 1), alive=alive,
        )
    )  # fmt: skip
    return True


Damage = Callable[[list[e.HistoryEvent], Random], bool]
DAMAGE: dict[Damage, set[str]] = {
    forget_too_much: {"D3"},
    swap_acknowledged_offsets: {"B1", "S3", "S4", "B6"},
    drop_good_end: {"B3", "D2", "B4"},
    run_twice: {"E3", "C5"},
    reuse_epoch: {"C2"},
    rewind_commit: {"D1"},
    own_too_early: {"C1"},
    repeat_effect: {"P1"},
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_random_damage_is_always_found_and_named(
    judge: Judge, damage: Callable[[list[e.HistoryEvent], Random], bool]
) -> None:
    """Eight kinds, 150 histories each: more than a thousand damaged runs. `make check` takes a fifth of them."""
    done = 0
    number = 0
    while done < 150 // int(os.environ.get("LANEMQ_FEWER_EXAMPLES", "1")):
        number += 1
        history = World(number).run()
        if not damage(history, Random(number)):
            continue
        done += 1
        report = judge(history, CheckOptions(slack_ns=0))
        assert report.verdict is Verdict.VIOLATION, number
        assert report.violations[0].invariant in DAMAGE[damage], (number, report.violations[0])
