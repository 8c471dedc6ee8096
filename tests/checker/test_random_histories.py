"""A checker that cries wolf is switched off: random correct runs pass, and each random damage is seen.

The world below is a correct ordered broker in miniature: pipelined producers, leases with epochs, crashes,
paused owners, retries, dead letters, resets, restarts of the broker and a sink that takes each effect once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest

from lanemq.checker import events as e
from lanemq.checker.checking import Options
from lanemq.checker.verdict import Report, Verdict

Judge = Callable[..., Report]
MS = 1_000_000
LEASE = 400 * MS
STEPS = 250
LONG_AGO = -3600 * 1000 * MS


@dataclass
class Held:
    """One queue of one group: what the broker knows, and what its present owner has in memory."""

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
    said: list[tuple[int, int]] = field(default_factory=lambda: [(LONG_AGO, 0)])
    """When which offset was committed; the first one is on disk."""


class World:
    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.t = 0
        self.events: list[e.Event] = []
        self.counters: dict[str, int] = {}
        self.broker = e.Process("broker", e.Role.BROKER)
        self.producers = [e.Process(f"p{i}", e.Role.PRODUCER) for i in range(2)]
        self.lives = 0
        self.keys = [f"k{i}" for i in range(self.random.randint(1, 6))]
        queues = self.random.randint(1, 3)
        self.log: list[list[tuple[str, str]]] = [[] for _ in range(queues)]
        self.pending: dict[tuple[int, str], list[str]] = {}
        self.unanswered: list[tuple[e.Process, dict[str, Any]]] = []
        self.held = [Held(f"g{g}", q) for g in range(self.random.randint(1, 2)) for q in range(queues)]
        self.zombies: list[tuple[e.Process, dict[str, Any]]] = []
        self.sink: dict[tuple[str, str], int] = {}
        self.sent = 0

    def note(self, process: e.Process, kind: type[Any], **fields: Any) -> None:
        self.t += self.random.randint(2, 9) * MS
        n = self.counters[process.name] = self.counters.get(process.name, -1) + 1
        fields.setdefault("topic", "orders")
        self.events.append(kind(n=n, t=self.t, process=process, **fields))

    def run(self) -> list[e.Event]:
        for held in self.held:
            self.note(self.broker, e.Reset, group=held.group, queue=held.queue, offset=0, reason="start")
            self.grant(held)
        steps = [self.send, self.store, self.answer, self.start, self.end, self.commit, self.rare]
        for _ in range(STEPS):
            self.random.choices(steps, weights=[4, 5, 4, 8, 8, 3, 1])[0]()
        return self.events

    # --- producers ---

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

    # --- consumers ---

    def grant(self, held: Held) -> None:
        self.lives += 1
        member = e.Process(f"c{self.lives}", e.Role.CONSUMER)
        held.epoch += 1
        held.owner, held.fetched = member, held.committed
        held.done, held.running, held.tries = set(), {}, {}
        asked = self.t
        held.until = asked + LEASE
        lease = {"group": held.group, "queue": held.queue, "member": member.name, "epoch": held.epoch}
        self.note(self.broker, e.LeaseGranted, until=held.until, **lease)
        self.note(member, e.LeaseGranted, until=asked + LEASE // 2, asked=asked, **lease)

    def renew(self, held: Held) -> None:
        asked = self.t
        held.until = asked + LEASE
        assert held.owner is not None
        lease = {"group": held.group, "queue": held.queue, "member": held.owner.name, "epoch": held.epoch}
        self.note(self.broker, e.LeaseRenewed, until=held.until, **lease)
        self.note(held.owner, e.LeaseRenewed, until=asked + LEASE // 2, asked=asked, **lease)

    def place(self, held: Held, offset: int) -> dict[str, Any]:
        return {"group": held.group, "queue": held.queue, "offset": offset, "epoch": held.epoch}

    def start(self) -> None:
        held = self.random.choice(self.held)
        heads: dict[str, int] = {}
        for offset in range(held.fetched, len(self.log[held.queue])):
            if offset not in held.done:
                heads.setdefault(self.log[held.queue][offset][1], offset)
        free = [key for key in heads if key not in held.running]
        if not free:
            return
        self.renew(held)
        key = self.random.choice(free)
        offset = held.running[key] = heads[key]
        self.note(held.owner, e.Turn, key=key, id=self.log[held.queue][offset][0], **self.place(held, offset))

    def end(self) -> None:
        held = self.random.choice(self.held)
        if held.running:
            key = self.random.choice(list(held.running))
            self.end_turn(held, key, ok=self.random.random() < 0.8)

    def end_turn(self, held: Held, key: str, *, ok: bool) -> None:
        offset = held.running.pop(key)
        place = self.place(held, offset)
        if ok:
            if self.sink.get((held.group, key), -1) < offset:
                self.sink[(held.group, key)] = offset
                self.note(held.owner, e.Effect, key=key, sink="table", **place)
            self.note(held.owner, e.TurnEnd, key=key, outcome=e.Outcome.OK, **place)
            held.done.add(offset)
            return
        self.note(held.owner, e.TurnEnd, key=key, outcome=e.Outcome.RETRY, **place)
        held.tries[offset] = held.tries.get(offset, 0) + 1
        if held.tries[offset] == 3:
            del place["epoch"]
            self.note(held.owner, e.DeadLettered, key=key, **place)
            held.done.add(offset)

    def commit(self) -> None:
        held = self.random.choice(self.held)
        first = held.committed
        while first in held.done or first < held.fetched:
            first += 1
        held.committed = first
        held.said.append((self.t, first))
        asked = self.t
        self.note(held.owner, e.Committed, asked=asked, **self.place(held, first))

    # --- what goes wrong ---

    def rare(self) -> None:
        held = self.random.choice(self.held)
        self.random.choice([self.hand_over, self.crash, self.pause, self.reset, self.restart, self.wake])(held)

    def hand_over(self, held: Held) -> None:
        for key in list(held.running):
            self.end_turn(held, key, ok=True)
        lease = {"group": held.group, "queue": held.queue, "member": held.owner.name, "epoch": held.epoch}
        self.note(held.owner, e.LeaseReleased, **lease)
        self.note(self.broker, e.LeaseReleased, **lease)
        self.grant(held)

    def crash(self, held: Held) -> None:
        self.t = max(self.t, held.until) + 2 * MS
        self.grant(held)

    def pause(self, held: Held) -> None:
        owner = held.owner
        for key, offset in held.running.items():
            self.zombies.append((owner, {"key": key, **self.place(held, offset)}))
        old = self.place(held, held.committed)
        self.crash(held)
        self.note(owner, e.CommitRefused, reason="stale", **old)

    def wake(self, _: Held) -> None:
        for owner, fields in self.zombies:
            outcome = self.random.choice([e.Outcome.ABANDONED, e.Outcome.LATE])
            self.note(owner, e.TurnEnd, outcome=outcome, **fields)
        self.zombies.clear()

    def reset(self, held: Held) -> None:
        for key in list(held.running):
            self.end_turn(held, key, ok=True)
        held.committed = self.random.randint(0, len(self.log[held.queue]))
        self.note(self.broker, e.Reset, group=held.group, queue=held.queue, offset=held.committed)
        held.fetched, held.done, held.tries = held.committed, set(), {}
        held.said = [(LONG_AGO, held.committed)]

    def restart(self, _: Held) -> None:
        """In order, or by a crash that takes commits of its last 400 ms."""
        clean = self.random.random() < 0.5
        alive = self.t
        for held in self.held:
            if not clean:
                old = max(at for at, (t, _) in enumerate(held.said) if t < alive - 400 * MS)
                held.committed = held.said[self.random.randrange(old, len(held.said))][1]
            held.said = [(LONG_AGO, held.committed)]
            self.note(self.broker, e.Recovered, clean=int(clean), alive=alive, **self.place(held, held.committed))


def test_thousand_random_correct_runs_raise_no_alarm(judge: Judge) -> None:
    seen: dict[str, int] = {}
    for number in range(1000):
        report = judge(World(number).run())
        assert not report.violations, (number, report.violations[0])
        for name, count in report.coverage.items():
            seen[name] = seen.get(name, 0) + count
    unseen = {name for name, count in seen.items() if not count}
    assert unseen <= {"skipped", "faults", "log_duplicates", "parked", "redriven", "discarded"}, (
        f"the world never shows {unseen}"
    )


def _again(history: list[e.Event], at: int, **changes: Any) -> e.Event:
    return msgspec.structs.replace(history[at], **changes)


def swap_acknowledged_places(history: list[e.Event], random: Random) -> bool:
    """Two messages one producer sent for one key change places in the log."""
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


def drop_good_end(history: list[e.Event], random: Random) -> bool:
    """A message is committed past although its only good end never happened."""
    for at, event in enumerate(history):
        if not isinstance(event, e.TurnEnd) or event.outcome is not e.Outcome.OK:
            continue
        place = (event.group, event.queue, event.offset)
        ends = [x for x in history if isinstance(x, e.TurnEnd) and (x.group, x.queue, x.offset) == place]
        if len(ends) == 1 and _committed_past(history[at:], event):
            history[at] = _again(history, at, outcome=e.Outcome.RETRY)
            return True
    return False


def _committed_past(later: list[e.Event], end: e.TurnEnd) -> bool:
    """Whether the next word on the queue's position that passes the message is a commit, not a reset."""
    for event in later:
        if isinstance(event, e.Committed | e.Reset) and (event.group, event.queue) == (end.group, end.queue):
            if isinstance(event, e.Reset):
                return False
            if event.offset > end.offset:
                return True
    return False


def run_twice(history: list[e.Event], random: Random) -> bool:
    """A message that ended well runs again with the same owner, and no restart is an excuse."""
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


def _restarted(earlier: list[e.Event], end: e.TurnEnd) -> bool:
    for event in reversed(earlier):
        if isinstance(event, e.Turn) and (event.process, event.offset) == (end.process, end.offset):
            return False
        if isinstance(event, e.Recovered):
            return True
    return True


def reuse_epoch(history: list[e.Event], random: Random) -> bool:
    """A new owner gets the epoch of the one before."""
    for at, event in enumerate(history):
        if isinstance(event, e.LeaseGranted) and event.process.role is e.Role.BROKER and event.epoch > 1:
            history[at] = _again(history, at, epoch=event.epoch - 1)
            return True
    return False


def rewind_commit(history: list[e.Event], random: Random) -> bool:
    """A commit goes back."""
    for at, event in enumerate(history):
        if isinstance(event, e.Committed) and event.offset > 0:
            history.insert(at + 1, _again(history, at, offset=event.offset - 1, asked=0, t=event.t + 1))
            return True
    return False


def own_too_early(history: list[e.Event], random: Random) -> bool:
    """The broker gives a queue away while its owner's lease runs."""
    for at, event in enumerate(history):
        if isinstance(event, e.LeaseGranted) and event.process.role is e.Role.BROKER:
            stolen = _again(history, at, member="thief", epoch=event.epoch + 1, t=event.t + 1)
            history.insert(at + 1, stolen)
            return True
    return False


def repeat_effect(history: list[e.Event], random: Random) -> bool:
    """The sink takes an effect twice."""
    effects = [i for i, x in enumerate(history) if isinstance(x, e.Effect)]
    if not effects:
        return False
    at = random.choice(effects)
    history.insert(at + 1, _again(history, at, t=history[at].t + 1))
    return True


def forget_too_much(history: list[e.Event], random: Random) -> bool:
    """A broker comes back without commits that were not of its last moments, or that it was given time to save."""
    kinds = (e.Committed, e.Reset, e.Recovered)
    said = {(x.group, x.queue): x for x in history if isinstance(x, kinds)}
    last = said[random.choice(sorted(said))]
    if not isinstance(last, e.Committed) or not last.offset:
        return False
    alive = history[-1].t + 1_000 * MS
    history.append(
        e.Recovered(
            n=0, t=alive + 1, process=e.Process("broker", e.Role.BROKER), group=last.group, topic=last.topic,
            queue=last.queue, offset=last.offset - 1, clean=random.randint(0, 1), alive=alive,
        )
    )  # fmt: skip
    return True


DAMAGE = {
    forget_too_much: {"D3"},
    swap_acknowledged_places: {"B1", "A3", "A4", "B6"},
    drop_good_end: {"B3", "D2", "B4"},
    run_twice: {"E3", "C5"},
    reuse_epoch: {"C2"},
    rewind_commit: {"D1"},
    own_too_early: {"C1"},
    repeat_effect: {"P1"},
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_random_damage_is_always_found_and_named(judge: Judge, damage: Callable[[list[e.Event], Random], bool]) -> None:
    """Eight kinds, 150 histories each: more than a thousand damaged runs."""
    done = 0
    number = 0
    while done < 150:
        number += 1
        history = World(number).run()
        if not damage(history, Random(number)):
            continue
        done += 1
        report = judge(history, Options(slack_ns=0))
        assert report.verdict is Verdict.VIOLATION, number
        assert report.violations[0].invariant in DAMAGE[damage], (number, report.violations[0])
