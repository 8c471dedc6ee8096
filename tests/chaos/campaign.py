"""Rounds of real crashes under load: in each, a process is killed or frozen at a time that a seed decides.

After every round all processes continue, and everything acknowledged is in the log, in order. At the end nothing is
left over, and the checker judges the whole run.
"""

import signal
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.chaos.audit import Audit
from tests.chaos.history_follower import HistoryFollower
from tests.chaos.system import FORGETS_MS, Child, SystemUnderTest

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report

QUEUES = 4
BROKER: dict[str, Any] = {"default_queues": QUEUES, "recorded": True}
TIMEOUT = 60.0
"""Seconds until all processes must continue after a fault, also on a busy machine."""
ACKS, TURNS = 20, 5
"""Acknowledged sends and finished turns since a fault that show that a process continues."""


class Campaign:
    """Two producers, two consumers and a broker; a killed process is replaced."""

    def __init__(self, system: SystemUnderTest, seed: int) -> None:
        self.system = system
        self.follower = HistoryFollower(system.history)
        self.audit = Audit(self.follower, QUEUES)
        self.random = Random(seed)
        self.rounds: Counter[str] = Counter()
        self._made = 0
        self._broker = system.broker(**BROKER)
        self._producers = [self._producer(), self._producer()]
        system.until("both producers send", lambda: len(self.follower.read().acked) == 2, TIMEOUT)
        self._consumers = [self._consumer(), self._consumer()]
        self._wait_until_all_continue()

    def _producer(self) -> Child:
        self._made += 1
        return self.system.producer(f"p{self._made}", keys=20, ahead=200, pause_ms=4)

    def _consumer(self) -> Child:
        self._made += 1
        return self.system.consumer(f"c{self._made}")

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            kind = self._draw(number)
            self._wait_for_some_sends()
            FAULTS[kind](self)
            self.rounds[kind] += 1
            self._wait_until_all_continue()
            self.audit.look(self.system.address)
            print(f"round {number + 1}/{rounds}: {kind}, {self.audit.stored} stored", flush=True)

    def _draw(self, number: int) -> str:
        """Every kind once before any kind is repeated."""
        if number % len(FAULTS) == 0:
            self._order = self.random.sample(list(FAULTS), len(FAULTS))
        return self._order[number % len(FAULTS)]

    def _wait_for_some_sends(self) -> None:
        enough = self.follower.read().acked.total() + self.random.randint(1, 150)
        self.system.until("producers send", lambda: self.follower.read().acked.total() >= enough, TIMEOUT)

    def _wait_until_all_continue(self) -> None:
        acked, finished, turns = (
            Counter(each) for each in (self.follower.acked, self.follower.finished, self.follower.turns)
        )

        def all_continue() -> bool:
            now = self.follower.read()
            return (
                all(now.acked[each.name] >= acked[each.name] + ACKS for each in self._producers)
                and all(now.finished[queue] >= finished[queue] + TURNS for queue in range(QUEUES))
                and all(now.turns[each.name] >= turns[each.name] + TURNS for each in self._consumers)
            )

        self.system.until("all continue", all_continue, TIMEOUT)

    # faults

    def kill_broker(self) -> None:
        self.system.kill(self._broker)
        self._broker = self.system.broker(**BROKER)

    def kill_broker_twice(self) -> None:
        """The second time at once, while clients reconnect and the first checkpoint is not written yet."""
        self.kill_broker()
        self.kill_broker()

    def kill_producer(self) -> None:
        self.system.kill(self._producers.pop(self.random.randrange(2)))
        self._producers.append(self._producer())

    def kill_consumer(self) -> None:
        self.system.kill(self._consumers.pop(self.random.randrange(2)))
        self._consumers.append(self._consumer())

    def kill_consumer_and_broker(self) -> None:
        """The broker is killed before it can notify others that the consumer is gone."""
        self._broker.signal(signal.SIGSTOP)
        self.kill_consumer()
        self.kill_broker()

    def kill_all(self) -> None:
        for child in [*self._producers, *self._consumers]:
            self.system.kill(child)
        self.kill_broker()
        self._producers = [self._producer(), self._producer()]
        self._consumers = [self._consumer(), self._consumer()]

    def freeze_consumer(self) -> None:
        """Freezes a consumer until the other one has all its queues."""
        frozen, other = self.random.sample(self._consumers, 2)
        lost = [queue for queue, owner in self.follower.read().owners.items() if owner == frozen.name]
        before = Counter(self.follower.granted)
        self.system.freeze(frozen)

        def taken_over() -> bool:
            now = self.follower.read().granted
            return all(now[other.name, queue] > before[other.name, queue] for queue in lost)

        self.system.until("the other has its queues", taken_over, TIMEOUT)
        self.system.thaw(frozen)

    def end(self) -> Report:
        """Waits until everything is finished, stops all processes, and returns the checker's report."""
        self.system.finish(*self._producers)
        self.system.until("everything is done", lambda: not self.follower.read().undone, TIMEOUT)
        self.system.finish(*self._consumers)
        self.audit.look(self.system.address)
        self.system.finish(self._broker)
        self.system.dump_log()
        least = (f"faults={self.rounds.total()}", "rebalance", "redelivery", "restarts", "acked=1000")
        return check(
            [self.system.history], CheckOptions(require=least, drained=True, forgets_ns=FORGETS_MS * 1_000_000)
        )


FAULTS: dict[str, Callable[[Campaign], None]] = {
    "kill broker": Campaign.kill_broker,
    "kill producer": Campaign.kill_producer,
    "kill consumer": Campaign.kill_consumer,
    "freeze consumer": Campaign.freeze_consumer,
    "kill broker twice": Campaign.kill_broker_twice,
    "kill consumer and broker": Campaign.kill_consumer_and_broker,
    "kill all": Campaign.kill_all,
}
