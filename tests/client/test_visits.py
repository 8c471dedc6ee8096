"""Several turns in one visit: nothing waits for a handler that it would not have waited for in a visit of its own."""

import asyncio
import threading
from typing import Any

import pytest
from tests.client.consumer_fakes import message, queue
from tests.client.floor import WAIT, Floor
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.attempts import async_attempt_of
from lanemq.client.consumer.handler import handler_call
from lanemq.client.consumer.metrics import Tallies
from lanemq.client.consumer.scheduler import LaneBoard
from lanemq.client.consumer.turn_run import run_visit
from lanemq.client.consumer.visits import MOST_MESSAGES, PATIENCE_MS, QUICK_MESSAGES, VISIT_NS, Visit, Visits
from lanemq.client.consumer.workers import Aftermath, TaskWorkers
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.consuming.retry_policy import HoldKey, SendBack
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.turns import DONE, NO_LEASE_NEEDED, NOT_LEASED, LaneOptions, Order, Turn
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.history import NO_HISTORY
from lanemq.model.units import Millis, QueueOffset

KEYS = 8


def want(board: LaneBoard, messages: int) -> None:
    """As if handlers had been fast so far."""
    board._desk.visits.share = messages


def put(board: LaneBoard, number: int = 0, count: int = KEYS, first: int = 0) -> None:
    """One message for each of so many keys."""
    messages = [message(first + n, of=queue(number), key=f"{number}-{n}") for n in range(count)]
    board.put(queue(number), messages, QueueOffset(first + count), QueueOffset(first))


class Hands:
    """A board and one worker's visit, both in the test's hands."""

    def __init__(self, order: Order = Order.KEY, **options: Any) -> None:
        self.clock = ManualClock()
        self.board = LaneBoard(LaneScheduler(LaneOptions(**options)), order, self.clock)
        self.visit = Visit()
        want(self.board, MOST_MESSAGES)

    def fill(self, *queues: int) -> None:
        for number in queues or (0,):
            self.board.add(queue(number), QueueOffset(0), NO_LEASE_NEEDED)
            put(self.board, number)
        assert self.board.visit(self.visit)

    def run(self, attempt: Any, visit: Visit | None = None) -> Any:
        return run_visit(visit or self.visit, attempt, 1, self.clock)


# --- how many


def turns(count: int) -> list[Turn[Message]]:
    hands = Hands()
    hands.board.add(queue(0), QueueOffset(0), NO_LEASE_NEEDED)
    put(hands.board, count=count)
    assert hands.board.visit(hands.visit)
    return list(hands.visit.waiting)


def after(took_ns: int, share: int, count: int = KEYS) -> int:
    """What a worker takes next, when `count` messages took so long."""
    visits, visit = Visits(), Visit()
    visits.share = share
    visits.begin(visit, turns(count), 0)
    visits.end(visit, took_ns)
    return visits.share


def test_fast_handlers_get_more_at_once_step_by_step() -> None:
    assert after(1_000, share=8) == 16
    assert after(1_000, share=MOST_MESSAGES) == MOST_MESSAGES


def test_a_handler_of_a_millisecond_gets_one_message_at_a_time() -> None:
    assert after(8 * VISIT_NS, share=MOST_MESSAGES) == 1
    assert after(800 * VISIT_NS, share=1) == 1


def test_a_visit_is_as_long_as_fits_into_a_millisecond() -> None:
    assert after(2 * VISIT_NS, share=64) == KEYS // 2


def test_what_was_taken_back_does_not_make_a_slow_visit_look_fast() -> None:
    visits, visit = Visits(), Visit()
    visits.share = 64
    visits.begin(visit, turns(KEYS), 0)
    visit.turn = visit.waiting.popleft()
    assert len(list(visit.taken_back())) == KEYS - 1
    visits.end(visit, 2 * VISIT_NS)
    assert visits.share == 1


def test_a_visit_that_takes_single_messages_needs_a_worker_for_each() -> None:
    visits = Visits()
    assert visits.workers_for(7) == 7
    visits.share = 4
    assert visits.workers_for(7) == 2


@pytest.mark.row("A69")
def test_quick_handlers_are_one_workers_work_until_it_is_late() -> None:
    """Two would only take the interpreter from each other; but nobody counts on one that does not come back."""
    visits, visit = Visits(), Visit()
    visits.share = QUICK_MESSAGES
    assert not visits.keeps_up(0)
    assert visits.workers_for(1_000) == 1
    visits.begin(visit, turns(KEYS), 0)
    assert visits.workers_for(1_000) == 0
    assert visits.keeps_up(PATIENCE_MS * 1_000_000 - 1)
    assert not visits.keeps_up(PATIENCE_MS * 1_000_000)


def test_handlers_that_are_not_quick_are_everybodys_work() -> None:
    visits, visit = Visits(), Visit()
    visits.share = QUICK_MESSAGES - 1
    visits.begin(visit, turns(KEYS), 0)
    assert visits.workers_for(1_000) > 1
    assert not visits.keeps_up(0)


# --- what a visit does


@pytest.mark.row("A72")
def test_a_lost_lease_stops_a_visit_before_its_next_message() -> None:
    hands = Hands()
    hands.fill()
    seen: list[int] = []

    def attempt(batch: Any, _: Any) -> None:
        seen.append(batch[0].queue_offset)
        if len(seen) == 3:
            hands.board.set_usable_until(queue(0), NOT_LEASED)

    assert hands.run(attempt).end is not None
    assert seen == [0, 1, 2]


def test_what_went_well_is_committable_while_the_next_handler_runs() -> None:
    """A handler that hangs for an hour must not keep finished neighbours from being committed."""
    hands = Hands()
    hands.fill()
    committable: list[Any] = []
    hands.run(lambda batch, _: committable.append(hands.board.committable(queue(0))))
    assert committable == list(range(KEYS))


def test_a_draining_queue_waits_for_what_runs_and_for_nothing_that_waits() -> None:
    """Turns of it that lie behind another queue's handler go back at once."""
    hands = Hands()
    hands.fill(0, 1)
    seen: list[Message] = []

    def attempt(batch: Any, _: Any) -> None:
        seen.extend(batch)
        hands.board.drain(queue(1))
        assert asyncio.run(hands.board.drained(queue(1), 0))

    hands.run(attempt)
    assert [(each.queue.queue_id, each.queue_offset) for each in seen] == [(0, 0)]
    assert hands.board.progress(queue(1)) is not None


@pytest.mark.parametrize("gets_on", [False, True])
def test_what_a_late_worker_did_not_begin_goes_to_another(gets_on: bool) -> None:
    """Whether its handler hangs or is only slow: others have time."""
    hands, other = Hands(), Visit()
    hands.fill()
    hands.visit.turn = hands.visit.waiting.popleft()
    hands.clock.at += PATIENCE_MS
    if gets_on:
        hands.visit.ended.append(hands.visit.turn)
        hands.visit.turn = hands.visit.waiting.popleft()
    begun = 2 if gets_on else 1
    assert hands.board.visit(other)
    assert not hands.visit.waiting
    seen: list[int] = []
    hands.run(lambda batch, _: seen.append(batch[0].queue_offset), other)
    assert seen == list(range(begun, KEYS))
    hands.board.leave(other)
    assert hands.board.progress(queue(0)) == (begun - 1, FinishedRanges((begun, KEYS)))


def test_a_worker_in_time_keeps_what_it_took() -> None:
    hands, other = Hands(), Visit()
    hands.fill()
    hands.board.add(queue(1), QueueOffset(0), NO_LEASE_NEEDED)
    put(hands.board, 1)
    hands.clock.at += PATIENCE_MS - 1
    want(hands.board, QUICK_MESSAGES - 1)
    assert hands.board.visit(other)
    assert len(hands.visit.waiting) == len(other.waiting) == KEYS


def test_only_a_turn_that_began_can_be_overdue() -> None:
    hands = Hands()
    hands.fill()
    overdue: list[list[int]] = []

    def attempt(batch: Any, _: Any) -> None:
        hands.clock.at += 1_000
        late = hands.board.overdue(Millis(hands.clock.at))
        overdue.append([turn.messages[0].queue_offset for turn in late])

    hands.run(attempt)
    assert overdue == [[n] for n in range(KEYS)]


def test_a_turn_that_was_sent_back_meanwhile_is_not_reported_twice() -> None:
    hands = Hands(Order.NONE, policy=SendBack())
    hands.fill()

    def attempt(batch: Any, turn: Any) -> None:
        hands.board.finish(turn, DONE)

    hands.run(attempt)
    hands.board.leave(hands.visit)
    assert hands.board.committable(queue(0)) == KEYS


def test_a_worker_that_leaves_in_the_middle_loses_nothing() -> None:
    hands, other = Hands(), Visit()
    hands.fill()
    hands.visit.ended.append(hands.visit.waiting.popleft())
    hands.board.leave(hands.visit)
    assert hands.board.visit(other)
    assert [turn.messages[0].queue_offset for turn in other.waiting] == list(range(1, KEYS))


# --- threads and tasks


@pytest.mark.row("A69")
def test_a_hanging_handler_holds_its_own_lane_and_no_other() -> None:
    stuck, done = threading.Event(), set()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            stuck.wait(WAIT)
        done.add(message.queue_offset)

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board, count=50)
        floor.wait(lambda: len(done) == 49)
        stuck.set()
        floor.wait(lambda: floor.board.committable(queue(0)) == 50)

    Floor(handler, workers=2).run(scenario)


def test_a_message_that_arrives_while_the_only_busy_worker_hangs_is_run_by_another() -> None:
    """However fast handlers were: nobody counts on a worker that does not come back."""
    stuck, begun, done = threading.Event(), threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            begun.set()
            stuck.wait(WAIT)
        else:
            done.set()

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board, count=1)
        assert begun.wait(WAIT)
        floor.wait(lambda: floor.board._sleeping == 1)
        messages = [message(1, of=queue(0), key="another")]
        floor.board.put(queue(0), messages, QueueOffset(2), QueueOffset(1))
        assert done.wait(WAIT / 4)
        stuck.set()

    Floor(handler, workers=2).run(scenario)


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
def test_slow_handlers_are_spread_over_all_workers_whatever_they_were_before(order: Order) -> None:
    """Every handler waits until as many run as there are workers."""
    together, done = threading.Barrier(4), []

    def handler(message: Message) -> None:
        together.wait(WAIT)
        done.append(message)

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board, count=40)
        floor.wait(lambda: len(done) == 40)

    Floor(handler, workers=4, order=order).run(scenario)


def test_handlers_that_have_become_slow_do_not_queue_up_behind_one_worker() -> None:
    """None of them hangs: each takes less than the patience that a visit is given."""
    workers: set[str] = set()
    done: list[Message] = []

    def handler(message: Message) -> None:
        threading.Event().wait(0.003)
        workers.add(threading.current_thread().name)
        done.append(message)

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board, count=400)  # so many that a thread which the machine keeps waiting gets one, too
        floor.wait(lambda: len(done) == 400)

    Floor(handler, workers=4).run(scenario)
    assert len(workers) == 4


def test_a_failure_in_a_visit_stops_its_lane_and_no_other() -> None:
    broken, seen = threading.Event(), []

    def handler(message: Message) -> None:
        if message.key == "0-3" and not broken.is_set():
            raise ValueError("broken")
        seen.append((message.key, message.queue_offset))

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board)
        put(floor.board, first=KEYS)
        floor.wait(lambda: len(seen) == 2 * KEYS - 2)
        floor.wait(lambda: floor.board.committable(queue(0)) == 3)
        broken.set()
        floor.wait(lambda: floor.board.committable(queue(0)) == 2 * KEYS)

    floor = Floor(handler, policy=HoldKey())
    floor.run(scenario)
    assert [at for key, at in seen if key == "0-3"] == [3, 3 + KEYS]
    count = floor.tallies.total()["orders"]
    assert count.ok == 2 * KEYS
    assert count.failed >= 1


def test_what_a_broken_worker_did_not_begin_is_done_by_others() -> None:
    done: set[int] = set()

    def attempt(batch: Any, _: Any) -> None:
        if batch[0].queue_offset == 0:
            raise SystemExit(1)
        done.add(batch[0].queue_offset)

    def scenario(floor: Floor) -> None:
        want(floor.board, MOST_MESSAGES)
        floor.add(queue(0))
        put(floor.board)
        floor.wait(lambda: len(done) == KEYS - 1)

    Floor(attempt=attempt, workers=2).run(scenario)


@pytest.mark.row("A69")
def test_a_coroutine_that_waits_holds_its_own_lane_and_no_other() -> None:
    async def main() -> None:
        stuck, others, done = asyncio.Event(), asyncio.Event(), set()

        async def handler(message: Message) -> None:
            if message.queue_offset == 0:
                await stuck.wait()
            done.add(message.queue_offset)
            if len(done) >= KEYS - 1:
                others.set()

        floor = Floor(async_attempt=async_attempt_of(handler_call(handler), batched=False), workers=2)
        aftermath = Aftermath("g", floor.letters, NO_HISTORY)  # type: ignore[arg-type]
        workers = TaskWorkers(floor.station, aftermath, SystemClock(), Tallies())
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as tasks:
            workers.start(tasks)
            want(floor.board, MOST_MESSAGES)
            floor.add(queue(0))
            put(floor.board)
            await others.wait()
            assert 0 not in done
            stuck.set()
            await workers.stop(WAIT)
        assert floor.board.committable(queue(0)) == KEYS

    asyncio.run(main())
