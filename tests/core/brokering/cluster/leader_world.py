"""A world for the leader's rule: coordinators with clocks of their own, and a store that may go back, on virtual time.

Every request reaches the store late, and its answer arrives late, or one of both is lost. Coordinators pause anywhere.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from lanemq.core.brokering.cluster.epoch_floor import EpochFloor
from lanemq.core.brokering.cluster.leadership import (
    LOOK_EVERY_MS,
    RENEW_EVERY_MS,
    TERM_MS,
    Contender,
    Sight,
    Term,
    TermRow,
    claim,
)
from lanemq.model.units import Millis

LOST = "no answer"


class Rules(NamedTuple):
    """The rule, or a mutant of it."""

    contender: type[Contender] = Contender
    term: type[Term] = Term
    ids: bool = True
    floor: bool = True


class Content(NamedTuple):
    """What is in the store."""

    row: TermRow = TermRow()
    epoch: int = 0
    written_at: float = 0
    """The server's time of the last transaction, which only a mutant reads."""


class Store:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.content = Content()
        self.history = [self.content]
        self.run = 0
        self.server_offset = 0.0

    @property
    def server_time(self) -> float:
        return self._world.now + self.server_offset

    def commit(self, row: TermRow, epoch: int) -> None:
        self.content = Content(row, epoch, self.server_time)
        self.history.append(self.content)

    def look(self) -> Any:
        return Sight(self.content.row, str(self.run)), self.content.epoch, self.server_time - self.content.written_at

    def claim(self, seen: Sight, row: TermRow) -> bool:
        if seen != Sight(self.content.row, str(self.run)):
            return False
        self.commit(row, self.content.epoch)
        return True

    def write(self, after: TermRow, epoch: int) -> bool:
        if self.content.row != after:
            return False
        self.commit(after._replace(serial=after.serial + 1), epoch)
        return True

    def go_back(self, lost: int) -> None:
        """A replica without the last transactions takes over, with a clock of its own, or a backup is restored."""
        del self.history[max(1, len(self.history) - lost) :]
        self.content = self.history[-1]
        self.run += 1
        self.server_offset = self._world.dice.uniform(-10_000, 10_000)


class Wait(NamedTuple):
    local_ms: float


class Ask(NamedTuple):
    job: Callable[[], Any]


class Node:
    """One coordinator: contends, leads, steps down, for ever."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self.name = name
        self._offset = world.dice.uniform(0, 1_000_000)
        self._rate = world.dice.uniform(0.95, 1.05)
        self.paused_until = 0.0
        self.term: Term | None = None
        self.steps = self._run()

    @property
    def clock(self) -> Millis:
        return Millis(int(self._offset + self._rate * self._world.now))

    def real(self, local_ms: float) -> float:
        return local_ms / self._rate

    @property
    def answers(self) -> bool:
        awake = self.paused_until <= self._world.now
        return awake and self.term is not None and self.term.answers(now=self.clock)

    def _run(self) -> Generator[Any, Any, None]:
        former: Sight | None = None
        while True:
            former = yield from self._contend(former)
            assert self.term is not None
            yield from self._lead(self.term)

    def _contend(self, former: Sight | None) -> Generator[Any, Any, Sight]:
        world, rules = self._world, self._world.rules
        contender = rules.contender(former)
        while True:
            answer = yield Ask(world.store.look)
            if answer != LOST:
                sight, self._epoch, age = answer
                contender.server_age = age  # type: ignore[attr-defined]
                contender.saw(sight, now=self.clock)
                if (seen := contender.replaceable(now=self.clock)) is not None:
                    leader = world.new_id() if rules.ids else "leader"
                    row, sent_at = claim(seen.row, leader, self.name if rules.ids else ""), self.clock
                    former = Sight(row, seen.run)
                    if (yield Ask(lambda seen=seen, row=row: world.store.claim(seen, row))) is True:
                        self.term = rules.term(row, sent_at=sent_at)
                        return former
                    contender = rules.contender(former if rules.ids else None)
            yield Wait(LOOK_EVERY_MS)

    def _lead(self, term: Term) -> Generator[Any, Any, None]:
        world, limit = self._world, EpochFloor()
        world.terms += 1
        answer = yield Ask(world.store.look)
        if answer == LOST or answer[0].row != term.row:
            term.end("not loaded")
        else:
            highest = max(answer[1], world.name_server if world.rules.floor else 0)
        while not term.ended:
            yield Wait(world.dice.uniform(0, RENEW_EVERY_MS))
            epoch, granted = highest, world.dice.random() < 0.7
            if granted and world.rules.floor and not limit.allows(highest, 1):
                wanted = limit.wanted(highest)
                if (yield Ask(lambda wanted=wanted: world.enter(wanted))) is True:
                    limit.entered(wanted)
                else:
                    granted = False
            epoch, sent_at, row = highest + granted, self.clock, term.row
            if not term.check(now=sent_at):
                return
            answer = yield Ask(lambda row=row, epoch=epoch: world.store.write(row, epoch))
            if answer is True:
                term.confirmed(sent_at=sent_at, now=self.clock)
                highest = epoch
                if granted and term.answers(now=self.clock):
                    world.issued.append(epoch)
            else:
                term.end("refused, or not known")


class World:
    def __init__(self, seed: int, rules: Rules = Rules()) -> None:  # noqa: B008
        self.dice = random.Random(seed)
        self.rules = rules
        self.now = 0.0
        self.store = Store(self)
        self.name_server = 0
        self.issued: list[int] = []
        self.terms = 0
        self.problems: list[str] = []
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.nodes = [Node(self, name) for name in "abc"[: self.dice.choice((2, 3))]]

    def new_id(self) -> str:
        return f"id{next(self._ids)}"

    def enter(self, limit: int) -> bool:
        self.name_server = max(self.name_server, limit)
        return True

    def run(self, seconds: float = 60) -> "World":
        for node in self.nodes:
            self._at(self.dice.uniform(0, 500), lambda node=node: self._resume(node, None))
        self._faults(seconds * 1000)
        while self._events and self._events[0][0] < seconds * 1000 and not self.problems:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._judge()
        if len(self.issued) != len(set(self.issued)):
            self.problems.append("an epoch was issued twice")
        return self

    def _judge(self) -> None:
        leaders = [node.name for node in self.nodes if node.answers]
        if len(leaders) > 1:
            self.problems.append(f"{leaders} answer at {self.now:.0f} ms")

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _faults(self, end: float) -> None:
        time = 0.0
        while (time := time + self.dice.expovariate(1 / 1500)) < end:
            node = self.dice.choice(self.nodes)
            match self.dice.choice(("pause", "pause", "cut", "back", "nothing lost")):
                case "pause":
                    self._at(time, lambda node=node: self._pause(node, self.dice.choice((300, 1500, 2500, 8000))))
                case "cut":
                    self._at(time, lambda: self._cut(self.dice.uniform(100, 4000)))
                case "back":
                    self._at(time, lambda: self.store.go_back(self.dice.randint(1, 6)))
                case _:
                    self._at(time, lambda: self.store.go_back(0))
        for _ in range(int(end / 40)):
            self._at(self.dice.uniform(0, end), lambda: None)  # somebody looks who answers

    _cut_until = 0.0

    def _cut(self, ms: float) -> None:
        self._cut_until = self.now + ms

    def _pause(self, node: Node, ms: float) -> None:
        node.paused_until = max(node.paused_until, self.now + self.dice.uniform(0, ms))

    def _resume(self, node: Node, answer: Any) -> None:
        if node.paused_until > self.now:
            self._at(node.paused_until, lambda: self._resume(node, answer))
            return
        step = node.steps.send(answer)
        if isinstance(step, Wait):
            self._at(self.now + node.real(step.local_ms), lambda: self._resume(node, None))
            return
        arrives = self.now + self._delay()
        run = self.store.run

        def at_store() -> None:
            connected = run == self.store.run or self.dice.random() < 0.5  # a pooler may hide a restart
            if self.now < self._cut_until or not connected or self.dice.random() < 0.01:
                self._at(self.now + self.dice.uniform(1, 1500), lambda: self._resume(node, LOST))
                return
            result = step.job()
            lost = self.dice.random() < 0.02
            self._at(self.now + self._delay(), lambda: self._resume(node, LOST if lost else result))

        self._at(arrives, at_store)

    def _delay(self) -> float:
        return self.dice.choice((self.dice.uniform(0, 5), self.dice.uniform(0, 50), self.dice.expovariate(1 / 300)))


class TrustsServerTime(Contender):
    """The mutant that reads the server's clock."""

    server_age = 0.0

    def replaceable(self, *, now: Millis) -> Sight | None:
        seen = super().replaceable(now=Millis(now + 10**9))
        return seen if seen is not None and (not seen.row.leader or self.server_age > TERM_MS) else None
