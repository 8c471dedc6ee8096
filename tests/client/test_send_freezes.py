"""A failed key freezes itself, and nothing else: any schedule of refusals, losses and late arrivals."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.test_send_engine import HandClock

from lanemq.client.producer_options import ProducerOptions
from lanemq.client.receipt import Receipt
from lanemq.client.send_engine import SendEngine
from lanemq.client.send_requests import Parcel, RequestBuilder
from lanemq.client.send_tickets import Crowd, Ticket
from lanemq.client.send_work import Mark, SendRequest, Work
from lanemq.core.dedup import Duplicate, Fenced, Fresh, Gap, ProducerTable
from lanemq.history import History
from lanemq.model.errors import (
    ConnectionLost,
    Dropped,
    LaneError,
    LaneFrozen,
    MessageRefused,
    ProducerFenced,
    RequestTimedOut,
)
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.batch import split_batch
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.stamp import find_stamp

QUEUE = MessageQueue("orders", "b", 0)


class Diary(History):
    """What the producer writes down for the checker."""

    def __init__(self) -> None:
        self.on = True
        self.sent: list[str] = []
        self.told: dict[str, str] = {}

    def send(self, topic: str, key: str, id: str) -> None:
        self.sent.append(id)

    def acked(self, topic: str, key: str, id: str, queue: int, offset: int) -> None:
        self._tell(id, "stored")

    def send_failed(self, topic: str, key: str, id: str) -> None:
        self._tell(id, "failed")

    def send_unknown(self, topic: str, key: str, id: str) -> None:
        self._tell(id, "unknown")

    def _tell(self, id: str, what: str) -> None:
        assert id not in self.told, "a message sent again is one message"
        self.told[id] = what


@dataclass
class Told:
    errors: dict[int, LaneError] = field(default_factory=dict)
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def stored(self, index: int, receipt: Receipt) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.receipts[index] = receipt

    def failed(self, index: int, error: LaneError) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.errors[index] = error


@dataclass
class Sent:
    """A message as the test remembers it."""

    key: str | None
    bad: bool
    round: int
    """How often its key had been opened by a person when it was offered."""


class Street:
    """An engine and a broker that calls some messages illegal; the wire is in the test's hands.

    Refusals are answered at once, "stored" only after the disk: so answers come in another order than requests.
    """

    def __init__(self, *, checks_stamps: bool = True, **options: float) -> None:
        self.clock, self.diary, self.told = HandClock(), Diary(), Told()
        self.checks_stamps = checks_stamps
        settings = ProducerOptions(codec="bytes", history=self.diary, **options)  # type: ignore[arg-type]
        self.engine = SendEngine(settings, RequestBuilder("g", "client", "p"), self.clock)
        self.wire: list[SendRequest] = []
        self.answers: list[tuple[SendRequest, Command]] = []
        self.strays: list[SendRequest] = []
        self.unheard: set[tuple[int, int]] = set()
        """Epoch and sequence of batches that are stored while their sender does not know it."""
        self.log: list[int] = []
        self.messages: list[Sent] = []
        self.rounds: Counter[str | None] = Counter()
        self.producers = ProducerTable()
        self.requests: list[list[int]] = []
        self.marks: list[tuple[Mark, int]] = []

    def offer(
        self, *keys: str | None, bad: Sequence[int] = (), told: bool = False, ticket: Ticket | None = None
    ) -> None:
        parcels = []
        for place, key in enumerate(keys):
            number = len(self.messages) + place
            parcels.append(
                Parcel(str(number).encode(), "", str(number), key, 0, False, told, ticket or self.told, number, 100)
            )
        lane = self.engine.offer(QUEUE, parcels, checks_stamps=self.checks_stamps)
        self.messages += [Sent(key, place in bad, self.rounds[key]) for place, key in enumerate(keys)]
        self.wire += self.engine.pump(lane)

    def connect(self) -> None:
        for broker, _ in self.engine.to_dial():
            self.wire += self.engine.connected(broker)

    def tick(self, millis: int) -> None:
        self.clock.millis += millis
        self._do(self.engine.tick())
        self.connect()

    def take(self) -> None:
        """The broker reads the next request; its answer waits to be read."""
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
            self.unheard.discard((request.batch.epoch, request.batch.first_sequence))
        self._do(self.engine.replied(request, reply, None))

    def cut(self) -> None:
        """The connection ends; what the broker has not read it may still read later."""
        lost = [*(request for request, _ in self.answers), *self.wire]
        self.strays += self.wire
        self.answers, self.wire = [], []
        if self.engine._brokers.get("b") and self.engine._brokers["b"].connected:
            self.engine.disconnected("b")
        for request in lost:
            self._do(self.engine.replied(request, None, ConnectionLost("gone")))

    def stray(self) -> None:
        """The broker reads what a connection that is gone had left in some buffer; nobody gets the answer."""
        if self.strays:
            self._broker_takes(self.strays.pop(0))

    def forget(self) -> None:
        """Not while the first batch of an epoch is stored unheard: its repetition cannot be told from a beginning."""
        if all(sequence for _, sequence in self.unheard):
            self.strays.clear()
            self.producers = ProducerTable()

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
            outcome.tell()

    def mark(self) -> None:
        """A flush begins."""
        self.marks.append((self.engine.mark(), len(self.messages)))

    def frozen(self) -> set[str | None]:
        return {each.key for each in self.engine.frozen()}

    def heal(self) -> None:
        for _ in range(400):
            self.tick(6000 if not self.wire and not self.answers and self.engine.buffered_bytes else 1)
            while self.wire or self.answers:
                self.take()
                self.answer()
            if self.engine.is_idle:
                return

    def _do(self, work: Work) -> None:
        self.wire += work.requests
        for outcome in work.outcomes:
            outcome.tell()

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
        self.unheard.add((request.batch.epoch, request.batch.first_sequence))
        return Command(0, 0, 1, {"queueOffset": str(len(self.log) - len(numbers))})

    # what must hold

    def check_flushes(self) -> None:
        for mark, count in self.marks:
            if mark.settled:
                assert all(number in self.told.errors or number in self.told.receipts for number in range(count))

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
            if number in self.told.errors:
                failed.add(place)
            elif number in self.told.receipts:
                assert place not in failed, f"{number} of {message.key} passed a failed message"

    def check_told(self) -> None:
        assert self.told.errors.keys() | self.told.receipts.keys() == set(range(len(self.messages)))
        assert self.engine.buffered_bytes == 0
        assert all(mark.settled for mark, _ in self.marks)
        for id, what in self.diary.told.items():
            assert what != "stored" or int(id) in self.log
            assert what != "failed" or int(id) not in self.log, f"{id} is called failed, and it is stored"
            assert (what == "stored") == (int(id) in self.told.receipts)
        assert len(self.diary.sent) == len(self.messages)


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


def play(street: Street, steps: Sequence[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("offer", keys, bad):
                try:
                    street.offer(*keys, bad=tuple(bad))  # type: ignore[misc,arg-type]
                except LaneFrozen:
                    assert street.frozen() & set(keys)  # type: ignore[call-overload]
            case ("resume", key):
                street.resume(str(key))
            case ("drop", key):
                street.drop(str(key))
            case ("refusal",):
                street.answer(refusals_first=True)
            case ("tick",):
                street.tick(70)
            case (name,):
                getattr(street, str(name))()
        street.check_order()
        street.check_flushes()
        assert street.engine.buffered_bytes >= 0


@settings(max_examples=250, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | WIRE | WIRE | WIRE, max_size=50), st.integers(1, 4), st.integers(1, 4))
def test_refused_messages_freeze_their_keys_and_no_other(
    steps: Sequence[tuple[object, ...]], window: int, batch: int
) -> None:
    street = Street(window=window, max_batch_messages=batch, timeout=3600.0, request_timeout=3600.0)
    play(street, steps)
    street.cut()
    street.heal()
    street.check_order()
    street.check_nothing_passed_a_failure()
    street.check_told()
    guilty = {message.key for message in street.messages if message.bad}
    for number, error in street.told.errors.items():
        message = street.messages[number]
        assert isinstance(error, Dropped) or message.key in guilty
        assert message.key is not None or message.bad, "without a key only the illegal one fails"
    assert not any(street.messages[number].bad for number in street.log)


@settings(max_examples=150, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | WIRE | WIRE | FORGET, max_size=50), st.integers(1, 4), st.integers(1, 4))
def test_a_broker_that_forgets_costs_at_most_the_keys_in_doubt(
    steps: Sequence[tuple[object, ...]], window: int, batch: int
) -> None:
    street = Street(window=window, max_batch_messages=batch, timeout=3600.0, request_timeout=3600.0)
    play(street, steps)
    street.cut()
    street.heal()
    street.check_order()
    street.check_nothing_passed_a_failure()
    street.check_told()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(GOOD | BAD | DECISIONS | WIRE | WIRE | st.just(("late",)), max_size=50),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_time_outs_freeze_what_is_in_doubt_and_the_rest_goes_on(
    steps: Sequence[tuple[object, ...]], window: int, batch: int
) -> None:
    street = Street(window=window, max_batch_messages=batch, timeout=10.0, request_timeout=3600.0)
    street.late = lambda: street.tick(4000)  # type: ignore[attr-defined]
    play(street, steps)
    street.cut()
    street.heal()
    street.check_order()
    street.check_nothing_passed_a_failure()
    street.check_told()


@settings(max_examples=100, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | st.tuples(st.sampled_from(["take", "answer", "tick", "busy"])), max_size=50))
def test_a_stock_broker_gets_one_request_at_a_time_and_loses_only_the_guilty_keys(
    steps: Sequence[tuple[object, ...]],
) -> None:
    street = Street(checks_stamps=False, window=4, max_batch_messages=3, timeout=3600.0)
    for step in steps:
        play(street, [step])
        assert len(street.wire) + len(street.answers) <= 1
    street.heal()
    street.check_order()
    street.check_nothing_passed_a_failure()
    street.check_told()
    assert not any(street.messages[number].bad for number in street.log)


# one case at a time


def served(**options: float) -> Street:
    """Connected, with nothing under way."""
    street = Street(**options)
    street.offer(None)
    street.heal()
    street.requests.clear()
    return street


def stored(street: Street) -> list[int]:
    """Without the message that `served` begins with."""
    return [number for number in street.log if number]


def test_a_refused_batch_is_tried_one_by_one_and_only_the_guilty_key_fails() -> None:
    street = served(max_batch_messages=10)
    street.offer(None, "a", "b", "a", "c", bad=[1])
    street.heal()
    assert street.requests[:3] == [[1, 2, 3, 4, 5], [1], [2]]
    assert stored(street) == [1, 3, 5]
    assert isinstance(street.told.errors[2], MessageRefused)
    with pytest.raises(LaneFrozen, match="earlier message of key 'a' to queue orders/b/0 failed: the broker refused"):
        raise street.told.errors[4]
    assert street.frozen() == {"a"}


def test_every_message_of_refused_batches_is_tried_alone_once() -> None:
    street = served(max_batch_messages=20, window=4)
    street.offer(*[f"k{number}" for number in range(60)], bad=[3, 7, 19, 20, 45])
    street.heal()
    assert len(stored(street)) == 55
    alone = Counter(numbers[0] for numbers in street.requests if len(numbers) == 1)
    again = [number for number, times in alone.items() if times > 4]
    assert again == [], "a gap refuses it once more for every guilty one in the window before it, no more"
    assert street.frozen() == {"k3", "k7", "k19", "k20", "k45"}


def test_what_was_sent_behind_a_refused_one_waits_for_the_brokers_no() -> None:
    """Sent again before that, under another number, it could be stored twice."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", "c", bad=[0])
    street.take()
    street.answer()
    assert street.wire[0].batch.epoch == street.wire[1].batch.epoch == 1, "still those of the old epoch"
    assert len(street.wire) == 2
    street.take()
    street.answer()
    assert len(street.wire) == 1
    street.take()
    street.answer()
    assert [request.batch.epoch for request in street.wire] == [2, 2]
    street.heal()
    assert stored(street) == [2, 3]


def test_what_was_stored_before_the_refused_one_is_stored_once() -> None:
    """Its answer waits for the disk, so the refusal is heard first."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", "c", bad=[1])
    for _ in range(3):
        street.take()
    street.answer(refusals_first=True)
    street.answer(refusals_first=True)
    assert street.wire == []
    street.heal()
    assert stored(street) == [1, 3]
    assert street.told.receipts.keys() == {0, 1, 3}


def test_a_straggler_of_the_old_epoch_is_refused() -> None:
    street = served(max_batch_messages=1, window=2, timeout=10.0)
    street.offer("a", "b")
    street.wire.pop()  # swallowed by the network, for now
    straggler = street.wire.pop()
    street.tick(10_000)
    street.resume("a")
    street.offer("a")
    street.heal()
    assert street._broker_takes(straggler).code == ResponseCode.PRODUCER_FENCED
    assert stored(street) == [3]


def test_a_time_out_freezes_the_keys_under_way_and_the_others_go_on() -> None:
    street = served(max_batch_messages=2, window=1, timeout=10.0)
    street.offer("a", "b")
    street.tick(5000)
    street.offer("c", "a", "d", "c")
    street.tick(5000)
    assert isinstance(street.told.errors[1], RequestTimedOut)
    assert isinstance(street.told.errors[2], RequestTimedOut)
    assert isinstance(street.told.errors[4], LaneFrozen)
    assert street.frozen() == {"a", "b"}
    street.wire.pop(0)
    street.heal()
    assert stored(street) == [3, 5, 6]


def test_a_message_that_was_never_sent_and_is_too_late_freezes_its_key() -> None:
    street = Street(timeout=10.0)
    street.offer("a", "b")
    street.clock.millis += 5000
    street.offer("c", "b")
    street.clock.millis += 5000
    street._do(street.engine.tick())
    with pytest.raises(RequestTimedOut, match="was not sent"):
        raise street.told.errors[0]
    assert isinstance(street.told.errors[3], LaneFrozen)
    assert street.frozen() == {"a", "b"}
    street.connect()
    street.take()
    street.answer()
    assert street.log == [2]


@pytest.mark.parametrize(
    ("code", "why"), [(ResponseCode.NO_PERMISSION, None), (ResponseCode.PRODUCER_FENCED, ProducerFenced)]
)
def test_what_is_not_the_messages_fault_freezes_the_queue(code: int, why: type[LaneError] | None) -> None:
    """Every other message would be refused as well: trying them all would only hide it."""
    street = served(max_batch_messages=2, window=1)
    street.offer("a", "b", "c", None)
    request = street.wire.pop()
    street._do(street.engine.replied(request, Command(code, 0, 1), None))
    assert street.told.errors.keys() == {1, 2, 3, 4}
    (frozen,) = street.engine.frozen("orders")
    assert (frozen.key, frozen.queue, frozen.since) == (None, QUEUE, street.clock.wall())
    assert why is None or isinstance(frozen.why, why)
    with pytest.raises(LaneFrozen, match=r"call resume\('orders'\)"):
        street.offer("d")
    assert street.engine.frozen("other") == []
    assert street.engine.resume("orders")
    street.offer("d")
    street.heal()
    assert len(stored(street)) == 1


def test_messages_without_a_key_freeze_nothing() -> None:
    street = served()
    street.offer(None, None, "a", bad=[1])
    street.heal()
    assert stored(street) == [1, 3]
    assert street.frozen() == set()


def test_a_sender_that_is_told_first_needs_no_resume() -> None:
    street = served()
    street.offer("a", bad=[0], told=True)
    street.heal()
    street.offer("a", told=True)
    street.heal()
    assert stored(street) == [2]


class Call(Crowd):
    """A call that sends many."""

    def _completed(self) -> None:
        pass


def test_keys_of_a_failed_call_open_when_it_ends() -> None:
    street, call = served(), Call()
    street.offer("a", "b", bad=[0], ticket=call)
    while street.wire or street.answers:
        street.take()
        street.answer()
    assert street.frozen() == {"a"}
    with pytest.raises(LaneFrozen):
        street.offer("b", "a", ticket=call)
    street.engine.call_ended(call)
    assert street.frozen() == set()
    assert call.errors.keys() == {1}


def test_nothing_of_a_run_is_taken_in_if_one_of_its_keys_is_frozen() -> None:
    street = served()
    street.offer("a", bad=[0])
    street.heal()
    before = len(street.diary.sent)
    with pytest.raises(LaneFrozen, match=r"decide what to do about it, then call resume\('orders', key='a'\)"):
        street.offer("b", "a", "c")
    assert len(street.diary.sent) == before
    assert street.engine.is_idle


def test_the_first_failure_is_shown_as_the_reason() -> None:
    street = served()
    street.offer("a", bad=[0])
    street.heal()
    since = street.clock.wall()
    street.clock.millis += 1000
    with pytest.raises(LaneFrozen):
        street.offer("a")
    (frozen,) = street.engine.frozen()
    assert (frozen.topic, frozen.key, frozen.queue) == ("orders", "a", QUEUE)
    assert frozen.since <= since
    assert isinstance(frozen.why, MessageRefused)


def test_drop_gives_up_what_waits_and_opens_the_key() -> None:
    street = Street()
    street.offer("a", "b", "a")
    street.drop("a")
    assert {number for number, error in street.told.errors.items() if isinstance(error, Dropped)} == {0, 2}
    street.offer("a")
    street.heal()
    assert street.log == [1, 3]
    street.check_told()


def test_drop_leaves_what_is_under_way_to_the_broker() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a", "a")
    street.drop("a")
    street.heal()
    assert stored(street) == [1]
    assert street.told.errors.keys() == {2}


def test_a_key_resumed_while_its_messages_are_still_refused_goes_on_behind_them() -> None:
    """What was under way behind the failed one is told at once and not sent again; new messages are."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "a", "b", bad=[0])
    street.take()
    street.answer()
    assert street.told.errors.keys() == {1, 2}
    assert street.diary.told["2"] == "unknown", "nobody has heard of it yet"
    street.resume("a")
    street.offer("a")
    street.heal()
    assert stored(street) == [3, 4]
    street.check_told()


def test_an_answer_to_a_batch_that_was_taken_apart_is_not_told_twice() -> None:
    """The broker's limits were changed by a restart: the first attempt is stored, the second one refused."""
    street = served(max_batch_messages=3, window=1)
    street.offer("a", "b", "c")
    late, stale = street.wire[0], street.engine
    street.take()
    street.cut()
    street.messages[2].bad = True
    street.tick(100)
    street.take()
    street.answer()
    street._do(stale.replied(late, Command(0, 0, 1, {"queueOffset": "0"}), None))
    street.heal()
    assert street.told.receipts.keys() == {0, 1, 3}
    assert stored(street) == [1, 2, 3], "each once: their numbers are the same, alone and together"


def test_flush_waits_for_what_was_accepted_though_others_left_the_line() -> None:
    """It may wait for everything that was in line when they left, and never for what came after that."""
    street = Street(max_batch_messages=1, window=1)
    street.offer("a", "b", "c")
    mark = street.engine.mark()
    street.offer("b", "b", "c")
    street.drop("b")
    street.offer("a")
    street.tick(1)
    for _ in range(3):
        assert not mark.settled
        street.take()
        street.answer()
    assert mark.settled


def test_a_message_given_up_under_way_is_not_told_again_when_its_batch_turns_out_stored() -> None:
    """As above: the broker has them all, but calls the first one illegal when it is sent again."""
    street = served(max_batch_messages=2, window=2)
    street.offer("a")
    street.offer("a", "c")
    street.take()
    street.take()
    street.cut()
    street.messages[1].bad = True
    street.tick(100)
    street.take()
    street.answer()
    assert street.told.errors.keys() == {1, 2}
    street.heal()
    assert street.told.receipts.keys() == {0, 3}
    assert street.engine.buffered_bytes == 0
    assert stored(street) == [1, 2, 3]


def test_flush_waits_for_an_older_message_though_one_behind_it_did_not_come_back() -> None:
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", bad=[0])
    mark = street.engine.mark()
    street.offer("a")
    for _ in range(3):
        street.take()
        street.answer()
    assert street.told.errors.keys() == {1, 3}
    assert not mark.settled
    street.take()
    street.answer()
    assert mark.settled


def test_flush_does_not_wait_longer_because_of_a_new_epoch() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a", "b", "c", bad=[0])
    mark = street.engine.mark()
    street.drop("b")
    street.offer(*["d"] * 20)
    for settled in (False, True):
        street.take()
        street.answer()
        assert mark.settled is settled
    assert stored(street) == [3]


def test_a_frozen_key_is_open_after_drop_and_after_resume() -> None:
    for decide in (Street.drop, Street.resume):
        street = served()
        street.offer("a", "b", bad=[0, 1])
        street.heal()
        decide(street, "a")
        assert street.frozen() == {"b"}
        street.offer("a")
        street.heal()
        assert stored(street) == [3]


def test_what_goes_out_again_fills_the_window_and_does_not_wait_for_company() -> None:
    street = served(max_batch_messages=10, window=4)
    street.offer(*[f"k{number}" for number in range(8)], bad=[0])
    for _ in range(5):  # the batch; its first message alone; three behind it, refused as gaps
        street.take()
        street.answer()
    assert [request.batch.epoch for request in street.wire] == [2, 2, 2, 2]
    assert [len(request.batch.messages) for request in street.wire] == [1, 1, 1, 1]


def test_a_request_whose_answer_is_lost_is_under_way_no_more() -> None:
    """Otherwise the next connection would be ended for being silent."""
    street = served(request_timeout=3.0)
    street.offer("a")
    street.cut()
    street.clock.millis += 5000
    assert street.engine.tick().hang_up == []
