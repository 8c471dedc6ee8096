"""A simulation of an engine and a broker. The test moves every request and reply by hand."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from tests.client.virtual_time import ManualClock
from tests.wire.encoding import split_batch

from lanemq.client.producer.batches import PendingMessage, RequestBuilder
from lanemq.client.producer.engine import SENDING, Actions, FlushMark, SendEngine, SendRequest
from lanemq.client.producer.inbox import Intake, KeySenders
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import notify_all
from lanemq.client.producer.waiters import BatchWaiter, Waiter
from lanemq.client.receipt import Receipt
from lanemq.client.topic_route import BrokerRoute, TopicRoute
from lanemq.core.brokering.dedup import Duplicate, Fenced, Fresh, Gap, ProducerTable
from lanemq.history import History
from lanemq.model.errors import ConnectionLost, LaneError, LaneFrozen
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.properties import find_stamp

QUEUE = MessageQueue("orders", "b", 0)


def route_of(queue: MessageQueue, *, checks_stamps: bool) -> TopicRoute:
    return TopicRoute(
        queue.topic, (queue,), (queue,), {queue.broker: BrokerRoute(queue.broker, {}, lane=checks_stamps)}
    )


def new_engine() -> SendEngine:
    return SendEngine(ProducerOptions(), RequestBuilder("g", "client", "p"), ManualClock())


def open_intake(new_future: Callable[[], Any]) -> Intake:
    """The line of an inbox that takes messages of the topic orders."""
    intake = Intake(bytes, lambda: "id", new_future, 100, True)
    intake.topics["orders"] = KeySenders(route_of(QUEUE, checks_stamps=True), new_engine())
    intake.open = True
    return intake


@dataclass
class RecordingWaiter:
    """A waiter that records outcomes."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    errors: dict[int, LaneError] = field(default_factory=dict)

    def stored(self, index: int, receipt: Receipt) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.receipts[index] = receipt

    def failed(self, index: int, error: LaneError) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.errors[index] = error


class RecordingHistory(History):
    """Records what the producer writes to its history."""

    def __init__(self) -> None:
        self.on = True
        self.sent: list[str] = []
        self.outcomes: dict[str, str] = {}

    def send(self, topic: str, key: str, id: str, *, delay: int = 0, tag: str = "") -> None:
        self.sent.append(id)

    def acked(self, topic: str, key: str, id: str, queue: int, offset: int, *, broker: str = "") -> None:
        self._tell(id, "stored")

    def send_failed(self, topic: str, key: str, id: str) -> None:
        self._tell(id, "failed")

    def send_unknown(self, topic: str, key: str, id: str) -> None:
        self._tell(id, "unknown")

    def _tell(self, id: str, what: str) -> None:
        assert id not in self.outcomes, "a message sent again is one message"
        self.outcomes[id] = what


@dataclass
class Sent:
    """A message that was offered."""

    key: str | None
    bad: bool
    round: int
    """How often its key had been resumed or dropped when it was offered."""


class EngineSim:
    """An engine and a broker that refuses some messages as illegal.

    The broker refuses at once and acknowledges only after the disk, so replies come in another order than requests.
    """

    def __init__(self, *, checks_stamps: bool = True, delivery_timeout: float = 120.0, **sending: int) -> None:
        self.clock, self.history, self.results = ManualClock(), RecordingHistory(), RecordingWaiter()
        self.checks_stamps = checks_stamps
        settings = ProducerOptions(codec="bytes", history=self.history, delivery_timeout=delivery_timeout)
        builder = RequestBuilder("g", "client", "p")
        self.engine = SendEngine(settings, builder, self.clock, replace(SENDING, **sending))
        self.wire: list[SendRequest] = []
        self.answers: list[tuple[SendRequest, Command]] = []
        self.strays: list[SendRequest] = []
        self.unacknowledged: set[tuple[int, int]] = set()
        """Epoch and sequence of batches that are stored while their sender does not know it."""
        self.log: list[int] = []
        self.messages: list[Sent] = []
        self.rounds: Counter[str | None] = Counter()
        self.producers = ProducerTable()
        self.requests: list[list[int]] = []
        self.marks: list[tuple[FlushMark, int]] = []

    def offer(
        self, *keys: str | None, bad: Sequence[int] = (), sender_waits: bool = False, waiter: Waiter | None = None
    ) -> None:
        messages, waiter = [], waiter or self.results
        for number, key in enumerate(keys, len(self.messages)):
            text = str(number)
            messages.append(PendingMessage(text.encode(), "", text, key, 0, False, sender_waits, waiter, number, 100))
        sender = self.engine.sender_for(QUEUE, route_of(QUEUE, checks_stamps=self.checks_stamps))
        self.engine.check({QUEUE: messages})
        actions = self.engine.accept({sender: messages})
        self.messages += [Sent(key, place in bad, self.rounds[key]) for place, key in enumerate(keys)]
        self._do(actions)

    def connect(self) -> None:
        for broker, _ in self.engine.to_dial():
            self.wire += self.engine.connected(broker)

    def tick(self, millis: int) -> None:
        self.clock.at += millis
        self._do(self.engine.tick())
        self.connect()

    def take(self) -> None:
        """The broker reads the next request; its reply waits to be read."""
        if self.wire:
            request = self.wire.pop(0)
            self.answers.append((request, self._broker_takes(request)))

    def answer(self, *, refusals_first: bool = False) -> None:
        refused = [pair for pair in self.answers if pair[1].code]
        pair = refused[0] if refusals_first and refused else next(iter(self.answers), None)
        if pair is None:
            return
        self.answers.remove(pair)
        request, reply = pair
        if not reply.code:
            self.unacknowledged.discard((request.batch.epoch, request.batch.first_sequence))
        self._do(self.engine.replied(request, reply, None))

    def cut(self) -> None:
        """The connection is lost; the broker may still read later what it has not read."""
        lost = [*(request for request, _ in self.answers), *self.wire]
        self.strays += self.wire
        self.answers, self.wire = [], []
        if self.engine._brokers.get("b") and self.engine._brokers["b"].connected:
            self.engine.disconnected("b")
        for request in lost:
            self._do(self.engine.replied(request, None, ConnectionLost("gone")))

    def stray(self) -> None:
        """The broker reads a request of a lost connection from some buffer; its reply is lost."""
        if self.strays:
            self._broker_takes(self.strays.pop(0))

    def forget(self) -> None:
        """The broker forgets the producer, unless the first batch of an epoch is stored without its sender knowing: the
        broker could not tell its repetition from a beginning."""
        if all(sequence for _, sequence in self.unacknowledged):
            self.strays.clear()
            self.producers = ProducerTable()

    def ban(self, number: int) -> None:
        """The broker's limits have changed: it now refuses a message that it may have stored before."""
        if number < len(self.messages):
            self.messages[number].bad = True

    def busy(self) -> None:
        if self.wire:
            request = self.wire.pop(0)
            self.answers.append((request, Command(ResponseCode.SYSTEM_BUSY, 0, 1)))

    def resume(self, key: str) -> None:
        if self.engine.resume("orders", key):
            self.rounds[key] += 1

    def drop(self, key: str) -> None:
        self.rounds[key] += 1
        for outcome in self.engine.drop("orders", key):
            notify_all([outcome])

    def mark(self) -> None:
        """Starts a flush."""
        self.marks.append((self.engine.mark(), len(self.messages)))

    def frozen(self) -> set[str | None]:
        return {each.key for each in self.engine.frozen()}

    def heal(self) -> None:
        for _ in range(400):
            self.tick(6000 if not self.wire and not self.answers and self.engine.unsettled.bytes else 1)
            while self.wire or self.answers:
                self.take()
                self.answer()
            if self.engine.mark().settled:
                return

    def _do(self, work: Actions) -> None:
        self.wire += work.requests
        for outcome in work.outcomes:
            notify_all([outcome])

    def _broker_takes(self, request: SendRequest) -> Command:
        numbers, stamp = _content(request.command)
        self.requests.append(numbers)
        if any(self.messages[number].bad for number in numbers):
            return Command(ResponseCode.MESSAGE_ILLEGAL, 0, 1)
        if not self.checks_stamps:
            return self._store(request, numbers)
        match self.producers.judge("orders", 0, stamp, len(numbers)):
            case Fresh(skip, _):
                first = stamp._replace(sequence=stamp.sequence + skip)
                offset = QueueOffset(len(self.log))
                self.producers.record("orders", 0, first, len(numbers) - skip, offset, stored_at=Millis(1))
                return self._store(request, numbers[skip:])
            case Duplicate(offset):
                return Command(0, 0, 1, {"queueOffset": str(offset or 0), "laneDuplicate": "true"})
            case Gap(expected):
                return Command(ResponseCode.SEQUENCE_GAP, 0, 1, {"laneExpected": str(expected)})
            case Fenced():
                return Command(ResponseCode.PRODUCER_FENCED, 0, 1)

    def _store(self, request: SendRequest, numbers: list[int]) -> Command:
        self.log += numbers
        self.unacknowledged.add((request.batch.epoch, request.batch.first_sequence))
        return Command(0, 0, 1, {"queueOffset": str(len(self.log) - len(numbers))})

    # what must hold

    def check_flushes(self) -> None:
        for mark, count in self.marks:
            if mark.settled:
                assert all(number in self.results.errors or number in self.results.receipts for number in range(count))

    def check(self) -> None:
        """What must hold after every schedule."""
        self.check_order()
        self.check_nothing_passed_a_failure()
        self.check_outcomes()

    def check_order(self) -> None:
        by_key: dict[str | None, list[int]] = defaultdict(list)
        for number in self.log:
            by_key[self.messages[number].key].append(number)
        for key, numbers in by_key.items():
            if key is not None:
                assert numbers == sorted(set(numbers)), f"{key}: {numbers}"

    def check_nothing_passed_a_failure(self) -> None:
        failed: set[tuple[str | None, int]] = set()
        for number, message in enumerate(self.messages):
            if message.key is None:
                continue
            place = message.key, message.round
            if number in self.results.errors:
                failed.add(place)
            elif number in self.results.receipts:
                assert place not in failed, f"{number} of {message.key} passed a failed message"

    def check_outcomes(self) -> None:
        assert self.results.errors.keys() | self.results.receipts.keys() == set(range(len(self.messages)))
        assert self.engine.unsettled.bytes == 0
        assert all(sender.idle for sender in self.engine._senders.values())
        assert all(mark.settled for mark, _ in self.marks)
        for id, what in self.history.outcomes.items():
            assert what != "stored" or int(id) in self.log
            assert what != "failed" or int(id) not in self.log, f"{id} is called failed, and it is stored"
            assert (what == "stored") == (int(id) in self.results.receipts)
        assert len(self.history.sent) == len(self.messages)


def _content(command: Command) -> tuple[list[int], Stamp]:
    if command.ext.get("m") == "true":
        items = split_batch(command.body)
        stamp = find_stamp(items[0].properties_text)
        numbers = [int(item.body) for item in items]
    else:
        stamp, numbers = find_stamp(command.ext["i"]), [int(command.body)]
    assert stamp is not None
    return numbers, stamp


KEYS = st.sampled_from(["a", "b", "c", "d", None])
GOOD = st.tuples(st.just("offer"), st.lists(KEYS, min_size=1, max_size=5), st.just(()))
BAD = st.tuples(st.just("offer"), st.lists(KEYS, min_size=1, max_size=5), st.sets(st.integers(0, 4), max_size=2))
DECISIONS = st.tuples(st.sampled_from(["resume", "drop"]), st.sampled_from("abcd"))
WIRE = st.tuples(st.sampled_from(["take", "take", "answer", "refusal", "tick", "tick", "cut", "stray", "busy", "mark"]))
FORGET = st.tuples(st.just("forget"))
BAN = st.tuples(st.just("ban"), st.integers(0, 20))


def play(sim: EngineSim, steps: Sequence[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("offer", keys, bad):
                try:
                    sim.offer(*keys, bad=tuple(bad))  # type: ignore[misc,arg-type]
                except LaneFrozen:
                    assert sim.frozen() & set(keys)  # type: ignore[call-overload]
            case ("resume", key):
                sim.resume(str(key))
            case ("ban", int(number)):
                sim.ban(number)
            case ("drop", key):
                sim.drop(str(key))
            case ("refusal",):
                sim.answer(refusals_first=True)
            case ("tick",):
                sim.tick(70)
            case (name,):
                getattr(sim, str(name))()
        sim.check_order()
        sim.check_flushes()
        assert sim.engine.unsettled.bytes >= 0


def served(**options: Any) -> EngineSim:
    """A connected simulation with nothing in flight."""
    sim = EngineSim(**options)
    sim.offer(None)
    sim.heal()
    sim.requests.clear()
    return sim


def stored(sim: EngineSim) -> list[int]:
    """The stored messages, without the one that `served` starts with."""
    return [number for number in sim.log if number]


class Call(BatchWaiter):
    """The waiter of a `send_many` call."""

    def _wake(self) -> None:
        pass
