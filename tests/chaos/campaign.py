"""Rounds of real crashes under load: in each, somebody is killed or frozen at a moment that a seed decides.

After every round everybody goes on, and everything acknowledged is in the log, in order. At the end nothing is left
over and the checker is asked about the whole run.
"""

import signal
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.chaos.audit import Audit
from tests.chaos.diary import Diary
from tests.chaos.stage import FORGETS_MS, Part, Stage

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report

QUEUES = 4
BROKER: dict[str, Any] = {"default_queues": QUEUES, "recorded": True}
PATIENCE = 60.0
"""Seconds that a round may take to get going again on a machine that is busy with other things."""
ACKS, TURNS = 20, 5
"""What everybody must have done since a fault to count as going on: acknowledged sends, finished turns of a queue."""


class Campaign:
    """Two producers, two consumers and a broker; whoever dies is replaced by another of the same role."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.diary = Diary(stage.history)
        self.audit = Audit(self.diary, QUEUES)
        self.random = Random(seed)
        self.rounds: Counter[str] = Counter()
        self._made = 0
        self._broker = stage.broker(**BROKER)
        self._producers = [self._producer(), self._producer()]
        stage.until("both producers are heard", lambda: len(self.diary.read().acked) == 2, PATIENCE)
        self._consumers = [self._consumer(), self._consumer()]
        self._wait_until_all_go_on()

    def _producer(self) -> Part:
        self._made += 1
        return self.stage.producer(f"p{self._made}", keys=20, ahead=200, pause_ms=4)

    def _consumer(self) -> Part:
        self._made += 1
        return self.stage.consumer(f"c{self._made}")

    def play(self, rounds: int) -> None:
        for number in range(rounds):
            kind = self._draw(number)
            self._let_some_work_pass()
            FAULTS[kind](self)
            self.rounds[kind] += 1
            self._wait_until_all_go_on()
            self.audit.look(self.stage.address)
            print(f"round {number + 1}/{rounds}: {kind}, {self.audit.stored} stored", flush=True)

    def _draw(self, number: int) -> str:
        """Every kind once before any of them comes again."""
        if number % len(FAULTS) == 0:
            self._deck = self.random.sample(list(FAULTS), len(FAULTS))
        return self._deck[number % len(FAULTS)]

    def _let_some_work_pass(self) -> None:
        enough = self.diary.read().acked.total() + self.random.randint(1, 150)
        self.stage.until("producers are heard", lambda: self.diary.read().acked.total() >= enough, PATIENCE)

    def _wait_until_all_go_on(self) -> None:
        acked, finished, turns = (Counter(each) for each in (self.diary.acked, self.diary.finished, self.diary.turns))

        def all_go_on() -> bool:
            now = self.diary.read()
            return (
                all(now.acked[each.name] >= acked[each.name] + ACKS for each in self._producers)
                and all(now.finished[queue] >= finished[queue] + TURNS for queue in range(QUEUES))
                and all(now.turns[each.name] >= turns[each.name] + TURNS for each in self._consumers)
            )

        self.stage.until("everybody goes on", all_go_on, PATIENCE)

    # what is done to them

    def kill_broker(self) -> None:
        self.stage.kill(self._broker)
        self._broker = self.stage.broker(**BROKER)

    def kill_broker_twice(self) -> None:
        """The second time at once, when clients come back and the first checkpoint is not yet written."""
        self.kill_broker()
        self.kill_broker()

    def kill_producer(self) -> None:
        self.stage.kill(self._producers.pop(self.random.randrange(2)))
        self._producers.append(self._producer())

    def kill_consumer(self) -> None:
        self.stage.kill(self._consumers.pop(self.random.randrange(2)))
        self._consumers.append(self._consumer())

    def kill_consumer_and_broker(self) -> None:
        """The broker dies before it can tell anybody that the consumer is gone."""
        self._broker.signal(signal.SIGSTOP)
        self.kill_consumer()
        self.kill_broker()

    def kill_everybody(self) -> None:
        for part in [*self._producers, *self._consumers]:
            self.stage.kill(part)
        self.kill_broker()
        self._producers = [self._producer(), self._producer()]
        self._consumers = [self._consumer(), self._consumer()]

    def freeze_consumer(self) -> None:
        """Until the other one has all its queues."""
        frozen, other = self.random.sample(self._consumers, 2)
        lost = [queue for queue, owner in self.diary.read().owners.items() if owner == frozen.name]
        before = Counter(self.diary.granted)
        self.stage.freeze(frozen)

        def taken_over() -> bool:
            now = self.diary.read().granted
            return all(now[other.name, queue] > before[other.name, queue] for queue in lost)

        self.stage.until("the other has its queues", taken_over, PATIENCE)
        self.stage.thaw(frozen)

    # how it ends

    def end(self) -> Report:
        """Everything is finished and everybody gone; what the checker says."""
        self.stage.finish(*self._producers)
        self.stage.until("everything is done", lambda: not self.diary.read().undone, PATIENCE)
        self.stage.finish(*self._consumers)
        self.audit.look(self.stage.address)
        self.stage.finish(self._broker)
        self.stage.dump_log()
        least = (f"faults={self.rounds.total()}", "rebalance", "redelivery", "restarts", "acked=1000")
        return check([self.stage.history], CheckOptions(require=least, drained=True, forgets_ns=FORGETS_MS * 1_000_000))


FAULTS: dict[str, Callable[[Campaign], None]] = {
    "kill broker": Campaign.kill_broker,
    "kill producer": Campaign.kill_producer,
    "kill consumer": Campaign.kill_consumer,
    "freeze consumer": Campaign.freeze_consumer,
    "kill broker twice": Campaign.kill_broker_twice,
    "kill consumer and broker": Campaign.kill_consumer_and_broker,
    "kill everybody": Campaign.kill_everybody,
}
