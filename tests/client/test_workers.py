"""Workers and the board: who runs what, and what the user's answers lead to."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.consumer_fakes import message, queue
from tests.client.virtual_time import ManualClock

from lanemq.client.attempts import ConcurrentAttempt, OrderlyAttempt, Stop, attempt_of, stop_after
from lanemq.client.consumer_metrics import Tallies
from lanemq.client.handler_call import handler_call
from lanemq.client.lane_board import LaneBoard
from lanemq.client.listener import (
    ConcurrentlyStatus,
    OrderlyStatus,
    Retry,
    Skip,
    ToDeadLetter,
)
from lanemq.client.message import Message
from lanemq.client.station import Station, StationPlan
from lanemq.client.turn_run import run_batches
from lanemq.client.workers import Aftermath, ThreadWorkers
from lanemq.clock import SystemClock
from lanemq.core.retry_policy import DeadLetter, HoldKey, HoldQueue, SendBack
from lanemq.core.turns import (
    COMMIT,
    DONE,
    FAILED,
    NO_LEASE_NEEDED,
    NOT_LEASED,
    ROLL_BACK,
    STOPPED,
    Gate,
    Order,
    Suspend,
    Turn,
)
from lanemq.history import NO_HISTORY
from lanemq.model.errors import CodecError, InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

WAIT = 10.0


def turn_of(*messages: Message, until: int = NO_LEASE_NEEDED, attempt: int = 1) -> Turn[Message]:
    return Turn(queue(0), "k", messages, attempt, 1, Gate(Millis(until)), NO_LEASE_NEEDED)


class Buried:
    """Dead letters that are only written down."""

    def __init__(self, *, stored: bool = True) -> None:
        self.stored = stored
        self.letters: list[tuple[int, str]] = []
        self.sent_back: list[tuple[int, int]] = []

    async def bury(self, message: Message, why: str) -> bool:
        self.letters.append((message.queue_offset, why))
        return self.stored

    async def send_back(self, message: Message, level: int = 0, most: int = 16) -> bool:
        self.sent_back.append((message.queue_offset, level))
        return self.stored


class Floor:
    """A station with running threads; queues and messages are put in by the test."""

    def __init__(self, handler: Callable[[Message], Any] | None = None, **plan: Any) -> None:
        self.letters = Buried(stored=plan.pop("stored", True))
        if handler is not None:
            plan["attempt"] = attempt_of(handler_call(handler), batched=False)
        self.plan = StationPlan(**{"topic": "orders", "workers": 4} | plan)
        self.station = Station(self.plan, SystemClock())
        self.tallies = Tallies()
        self.broken: list[BaseException] = []

    @property
    def board(self) -> LaneBoard:
        return self.station.board

    def run(self, scenario: Callable[["Floor"], None]) -> None:
        async def main() -> None:
            aftermath = Aftermath("g", self.letters, NO_HISTORY)  # type: ignore[arg-type]
            workers = ThreadWorkers(self.station, aftermath, SystemClock(), self.tallies, self.broken.append)
            workers.start()
            try:
                await asyncio.to_thread(scenario, self)
            finally:
                await workers.stop(WAIT)

        asyncio.run(main())

    def add(self, which: MessageQueue, until: int = NO_LEASE_NEEDED) -> None:
        self.board.add(which, QueueOffset(0), Millis(until))

    def put(self, which: MessageQueue, count: int, **fields: Any) -> None:
        messages = [message(n, of=which, **fields) for n in range(count)]
        self.board.put(which, messages, QueueOffset(count), QueueOffset(0))

    def wait(self, condition: Callable[[], object]) -> None:
        done = threading.Event()
        for _ in range(int(WAIT * 200)):
            if condition():
                return
            done.wait(0.005)
        raise AssertionError("it did not come true in time")


# --- what an answer means


@pytest.mark.row("A80")
def test_an_exception_means_again_and_never_skips() -> None:
    error = ValueError("broken")
    assert stop_after(error, (message(0),)) == Stop(FAILED, error=error)


def test_control_flow_exceptions_mean_what_they_say() -> None:
    batch = (message(0),)
    assert stop_after(Skip(), batch) is None
    later, whenever, dead = Retry(after=2.5), Retry(), ToDeadLetter("bad")
    assert stop_after(later, batch) == Stop(Suspend(Millis(2500)), error=later)
    assert stop_after(whenever, batch) == Stop(Suspend(None), error=whenever)
    assert stop_after(dead, batch) == Stop(Suspend(None), error=dead, bury="bad")


def test_a_body_that_cannot_be_decoded_is_a_failure_that_names_its_place() -> None:
    def handler(event: dict[str, int]) -> None: ...

    attempt = attempt_of(handler_call(handler), batched=False)
    stop = attempt((message(7, body=b"not json"),), turn_of(message(7)))
    assert stop is not None
    assert isinstance(stop.error, CodecError)
    assert "orders/a/0@7" in str(stop.error)


@pytest.mark.row("A92")
@pytest.mark.row("A93")
@pytest.mark.row("A94")
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (OrderlyStatus.SUCCESS, None),
        (OrderlyStatus.COMMIT, COMMIT),
        (OrderlyStatus.ROLLBACK, COMMIT),
        (OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, Suspend(None)),
        (None, Suspend(None)),
    ],
)
def test_orderly_statuses_with_automatic_commit(status: OrderlyStatus | None, wanted: Any) -> None:
    """COMMIT and ROLLBACK are illegal then and count as success; the scheduler says so in its answer."""
    stop = OrderlyAttempt(lambda messages, context: status)((message(0),), turn_of(message(0)))
    assert (stop and stop.outcome) == wanted


@pytest.mark.row("A95")
@pytest.mark.row("A96")
@pytest.mark.row("A97")
@pytest.mark.row("A98")
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (OrderlyStatus.SUCCESS, None),
        (OrderlyStatus.COMMIT, COMMIT),
        (OrderlyStatus.ROLLBACK, ROLL_BACK),
        (OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, Suspend(None)),
    ],
)
def test_orderly_statuses_with_manual_commit(status: OrderlyStatus, wanted: Any) -> None:
    stop = OrderlyAttempt(lambda messages, context: status, manual=True)((message(0),), turn_of(message(0)))
    assert (stop and stop.outcome) == wanted


@pytest.mark.row("A100")
@pytest.mark.parametrize(("asked", "waits"), [(5, 10), (60_000, 30_000), (700, 700)])
def test_a_listeners_suspend_time_is_kept_between_ten_milliseconds_and_thirty_seconds(asked: int, waits: int) -> None:
    def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.suspend_current_queue_time_millis = asked
        return OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    stop = OrderlyAttempt(listener)((message(0),), turn_of(message(0)))
    assert stop is not None
    assert stop.outcome == Suspend(Millis(waits))


def test_manual_commit_that_was_not_announced_is_refused_loudly() -> None:
    def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.auto_commit = False
        return OrderlyStatus.SUCCESS

    stop = OrderlyAttempt(listener)((message(0),), turn_of(message(0)))
    assert stop is not None
    assert isinstance(stop.error, InvalidOption)


@pytest.mark.row("A79")
def test_a_listener_gets_a_sequence_it_cannot_change() -> None:
    given = []
    OrderlyAttempt(lambda messages, context: given.append(messages))((message(0),), turn_of(message(0)))
    with pytest.raises(TypeError):
        given[0][0] = None


def test_a_concurrent_listener_fails_only_what_lies_behind_its_ack_index() -> None:
    def listener(messages: Any, context: Any) -> ConcurrentlyStatus:
        context.ack_index = 0
        context.delay_level_when_next_consume = 4
        return ConcurrentlyStatus.CONSUME_SUCCESS

    batch = (message(0), message(1), message(2))
    assert ConcurrentAttempt(listener)(batch, turn_of(*batch)) == Stop(FAILED, succeeded=1, delay_level=4)


# --- one run


@pytest.mark.row("A72")
@pytest.mark.row("A60")
def test_a_run_stops_before_the_next_message_when_the_lease_has_ended() -> None:
    clock = ManualClock()
    seen: list[int] = []

    def handler(batch: Any, _: Any) -> None:
        seen.append(batch[0].queue_offset)
        clock.at += 400

    end = run_batches(turn_of(message(0), message(1), message(2), message(3), until=1_000), handler, 1, clock.now)
    assert end is not None
    assert (seen, end.stop.outcome, end.done) == ([0, 1, 2], STOPPED, 3)


@pytest.mark.row("A67")
@pytest.mark.row("A78")
def test_a_turn_of_a_dropped_queue_calls_no_handler() -> None:
    turn = turn_of(message(0))
    turn.gate.closed = True
    end = run_batches(turn, lambda *_: pytest.fail("called"), 1, ManualClock().now)
    assert end is not None
    assert (end.stop.outcome, end.done) == (STOPPED, 0)


def test_a_run_reports_what_went_well_before_a_failure() -> None:
    def attempt(batch: Any, _: Any) -> Stop | None:
        return Stop(FAILED) if batch[0].queue_offset == 2 else None

    end = run_batches(turn_of(message(0), message(1), message(2), message(3)), attempt, 1, ManualClock().now)
    assert end is not None
    assert (end.stop.outcome, end.done) == (FAILED, 2)


def test_a_repeated_message_knows_its_attempt() -> None:
    first = message(0)
    assert run_batches(turn_of(first, attempt=3), lambda *_: None, 1, ManualClock().now) is None
    assert first.attempt == 3


# --- threads


@pytest.mark.row("A64")
@pytest.mark.row("A68")
@pytest.mark.row("A83")
def test_many_threads_never_run_two_messages_of_one_queue_at_once() -> None:
    running = threading.Semaphore(1)
    overlaps, seen = [], []

    def handler(message: Message) -> None:
        if not running.acquire(blocking=False):
            overlaps.append(message)
            return
        seen.append(message.queue_offset)
        running.release()

    floor = Floor(handler, workers=8, order=Order.QUEUE, policy=HoldQueue(), run_limit=1)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 500)
        floor.wait(lambda: len(seen) + len(overlaps) == 500)

    floor.run(scenario)
    assert overlaps == []
    assert seen == list(range(500))


@pytest.mark.row("A63")
@pytest.mark.row("A66")
@pytest.mark.row("A3")
def test_one_slow_queue_does_not_stop_thirty_nine_others() -> None:
    stuck, done = threading.Event(), set()

    def handler(message: Message) -> None:
        if message.queue == queue(0):
            stuck.wait(WAIT)
        done.add(message.queue)

    floor = Floor(handler, workers=20, order=Order.QUEUE, policy=HoldQueue())

    def scenario(floor: Floor) -> None:
        for number in range(40):
            floor.add(queue(number))
            floor.put(queue(number), 3)
        floor.wait(lambda: len(done) == 39)
        stuck.set()
        floor.wait(lambda: len(done) == 40)

    floor.run(scenario)


@pytest.mark.row("A69")
def test_no_worker_waits_for_a_lane_while_another_lane_is_ready() -> None:
    """Four workers, one of them held by a slow lane: a thousand other lanes are done by the rest."""
    stuck, done = threading.Event(), []

    def handler(message: Message) -> None:
        if message.key == "slow":
            stuck.wait(WAIT)
        else:
            done.append(message)

    floor = Floor(handler, workers=2)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        slow = [message(n, key="slow") for n in range(10)]
        others = [message(10 + n, key=f"k{n}") for n in range(1000)]
        floor.board.put(queue(0), slow + others, QueueOffset(1010), QueueOffset(0))
        floor.wait(lambda: len(done) == 1000)
        stuck.set()

    floor.run(scenario)


@pytest.mark.row("A65")
@pytest.mark.row("A80")
def test_a_failed_message_runs_again_before_any_later_one() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1 and seen.count(1) < 3:
            raise ValueError("not yet")

    floor = Floor(handler, order=Order.QUEUE, policy=HoldQueue(suspend=Millis(10)))

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 4)
        floor.wait(lambda: len(seen) == 6)

    floor.run(scenario)
    assert seen == [0, 1, 1, 1, 2, 3]


@pytest.mark.row("A70")
def test_without_a_lease_nothing_runs_and_with_one_it_does() -> None:
    seen = threading.Event()
    floor = Floor(lambda message: seen.set())

    def scenario(floor: Floor) -> None:
        floor.add(queue(0), until=NOT_LEASED)
        floor.put(queue(0), 1)
        assert not seen.wait(0.1)
        floor.board.set_usable_until(queue(0), NO_LEASE_NEEDED)
        assert seen.wait(WAIT)

    floor.run(scenario)


@pytest.mark.row("A81")
def test_counters_match_what_happened() -> None:
    failed_once = []

    def handler(message: Message) -> None:
        if message.queue_offset == 3 and not failed_once:
            failed_once.append(True)
            raise ValueError("once")

    floor = Floor(handler, order=Order.QUEUE, policy=HoldQueue(suspend=Millis(10)))

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 10)
        floor.wait(lambda: floor.board.committable(queue(0)) == 10)

    floor.run(scenario)
    count = floor.tallies.total()["orders"]
    assert (count.ok, count.failed) == (10, 1)


@pytest.mark.row("A103")
@pytest.mark.row("A105")
@pytest.mark.row("A109")
def test_used_up_retries_bury_the_message_once_and_the_queue_goes_on() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 0:
            raise ValueError("never")

    policy = DeadLetter(skip=True, hold=HoldQueue(retries=2, suspend=Millis(10)))
    floor = Floor(handler, order=Order.QUEUE, policy=policy)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 3)
        floor.wait(lambda: floor.board.committable(queue(0)) == 3)

    floor.run(scenario)
    assert seen == [0, 0, 0, 1, 2]
    assert floor.letters.letters == [(0, "ValueError('never')")]


@pytest.mark.row("A103")
def test_a_dead_letter_the_broker_did_not_take_stays_at_the_head_of_its_lane() -> None:
    seen: list[int] = []
    policy = DeadLetter(skip=True, hold=HoldQueue(retries=0, suspend=Millis(10)))

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        raise ValueError("never")

    floor = Floor(handler, order=Order.QUEUE, policy=policy, stored=False)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 2)
        floor.wait(lambda: len(floor.letters.letters) >= 2)

    floor.run(scenario)
    assert set(seen) == {0}


def test_to_dead_letter_buries_at_once_and_the_lane_goes_on() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            raise ToDeadLetter("no such account")

    floor = Floor(handler)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 4)
        floor.wait(lambda: floor.board.committable(queue(0)) == 4)

    floor.run(scenario)
    assert seen == [0, 1, 2, 3]
    assert floor.letters.letters == [(1, "no such account")]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    """Level, text and whether a traceback came with it, of every line about handlers."""
    return [
        (each.levelname, each.getMessage(), each.exc_info is not None)
        for each in caplog.records
        if each.getMessage().startswith("handler")
    ]


PLACE = "topic=orders queue=orders/a/0 offset=0 key='k'"


def run_to_the_end(handler: Callable[..., Any], caplog: pytest.LogCaptureFixture, **plan: Any) -> None:
    caplog.set_level("INFO")
    fields = {"body": plan.pop("body", b"{}")}
    floor = Floor(handler, **{"policy": HoldQueue(suspend=Millis(10))} | plan)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 1, **fields)
        floor.wait(lambda: floor.board.committable(queue(0)) == 1 or floor.board.snapshot()[queue(0)].parked)

    floor.run(scenario)


def test_retry_is_the_handlers_word_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def handler(message: Message) -> None:
        calls.append(message.attempt)
        if len(calls) < 3:
            raise Retry(after=0.01)

    run_to_the_end(handler, caplog)
    assert said(caplog) == [
        ("INFO", f"handler decided, attempt 1: {PLACE}: Retry('try again after 0.01 s')", False),
        ("INFO", f"handler decided, attempt 2: {PLACE}: Retry('try again after 0.01 s')", False),
    ]


def test_a_lane_that_retry_has_parked_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: Message) -> None:
        raise Retry

    run_to_the_end(handler, caplog, policy=HoldKey(retries=0))
    assert [(level, trace) for level, _, trace in said(caplog)] == [("ERROR", False)]


def test_an_exception_is_told_once_per_attempt_with_its_place_and_one_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def handler(message: Message) -> None:
        calls.append(message.attempt)
        if len(calls) < 3:
            raise ValueError("not yet")

    run_to_the_end(handler, caplog)
    assert said(caplog) == [
        ("WARNING", f"handler failed, attempt 1, trying again: {PLACE}: ValueError('not yet')", True),
        ("WARNING", f"handler failed, attempt 2, trying again: {PLACE}: ValueError('not yet')", False),
    ]


def test_a_body_that_cannot_be_read_is_told_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    def handler(event: dict[str, int]) -> None: ...

    run_to_the_end(handler, caplog, policy=HoldKey(retries=0), body=b"not json")
    ((level, text, trace),) = said(caplog)
    assert (level, trace) == ("ERROR", True)
    assert text.startswith(f"handler failed, lane parked until resumed: {PLACE}: CodecError(")


def test_concurrent_failures_go_back_to_the_broker_and_the_offset_moves_on() -> None:
    def handler(message: Message) -> None:
        if message.queue_offset % 2:
            raise ValueError("odd")

    floor = Floor(handler, order=Order.NONE, policy=SendBack())

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 6)
        floor.wait(lambda: floor.board.committable(queue(0)) == 6)

    floor.run(scenario)
    assert sorted(floor.letters.sent_back) == [(1, 0), (3, 0), (5, 0)]


@pytest.mark.row("A21")
@pytest.mark.parametrize(("threads", "ordered"), [(1, True), (4, False)])
def test_a_concurrent_listener_keeps_order_only_with_one_thread(threads: int, ordered: bool) -> None:
    """The negative control: what ordered handlers are for."""
    seen: list[int] = []
    overtaken = threading.Event()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            overtaken.wait(0.5)
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            overtaken.set()

    floor = Floor(handler, workers=threads, order=Order.NONE, policy=SendBack())

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 4)
        floor.wait(lambda: len(seen) == 4)

    floor.run(scenario)
    assert (seen == [0, 1, 2, 3]) is ordered


def test_a_worker_that_breaks_down_is_reported_not_silently_gone() -> None:
    def handler(batch: Any, turn: Any) -> None:
        raise SystemExit(1)

    floor = Floor(attempt=handler)

    def scenario(floor: Floor) -> None:
        floor.add(queue(0))
        floor.put(queue(0), 1)
        floor.wait(lambda: floor.broken)

    floor.run(scenario)
    assert isinstance(floor.broken[0], SystemExit)


def test_a_message_that_is_taken_over_by_a_timeout_is_not_reported_twice() -> None:
    """A hanging concurrent handler: its message was sent back; when it returns at last, that counts for nothing."""
    board = Station(StationPlan(topic="orders", order=Order.NONE, policy=SendBack()), SystemClock()).board
    board.add(queue(0), QueueOffset(0), NO_LEASE_NEEDED)
    board.put(queue(0), [message(0)], QueueOffset(1), QueueOffset(0))
    turn = board.take(1.0)
    assert turn is not None
    board.finish(turn, DONE)
    assert board.finish(turn, FAILED).send_back == ()
