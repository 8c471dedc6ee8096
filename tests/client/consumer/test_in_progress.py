"""Several turns in one visit: nothing waits for a handler that it would not have waited for in a visit of its own."""

import asyncio
import threading
from typing import Any

import pytest
from tests.client.consumer.fakes import message, queue
from tests.client.consumer.worker_fixture import WAIT, WorkerFixture
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.handler import async_batch_handler, handler_call
from lanemq.client.consumer.in_progress import LATE_MS, MAX_MESSAGES, QUICK_MESSAGES, TARGET_NS, BusyWorkers, Worker
from lanemq.client.consumer.metrics import ConsumerCounts
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.workers import RunReporter, TaskWorkers, run_worker
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.consuming.retry_policy import HoldKey, SendBack
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, NOT_LEASED, LaneOptions, LaneRun, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.history import NO_HISTORY
from lanemq.model.units import Millis, QueueOffset

KEYS = 8


def want(scheduler: Scheduler, messages: int) -> None:
    """As if handlers had been fast so far."""
    scheduler._in_progress.busy.share = messages


def put(scheduler: Scheduler, number: int = 0, count: int = KEYS, first: int = 0) -> None:
    """One message for each of so many keys."""
    messages = [message(first + n, of=queue(number), key=f"{number}-{n}") for n in range(count)]
    scheduler.put(queue(number), messages, QueueOffset(first + count), QueueOffset(first))


class OneWorker:
    """A board and one worker's visit, both in the test's one."""

    def __init__(self, order: Order = Order.KEY, **options: Any) -> None:
        self.clock = ManualClock()
        self.scheduler = Scheduler(LaneScheduler(LaneOptions(**options)), order, self.clock)
        self.worker = Worker()
        want(self.scheduler, MAX_MESSAGES)

    def fill(self, *queues: int) -> None:
        for number in queues or (0,):
            self.scheduler.add(queue(number), QueueOffset(0), NO_LEASE_NEEDED)
            put(self.scheduler, number)
        assert self.scheduler.take_runs(self.worker)

    def run(self, handler: Any, worker: Worker | None = None) -> Any:
        return run_worker(worker or self.worker, handler, 1, self.clock)


# --- how many


def runs(count: int) -> list[LaneRun[Message]]:
    one = OneWorker()
    one.scheduler.add(queue(0), QueueOffset(0), NO_LEASE_NEEDED)
    put(one.scheduler, count=count)
    assert one.scheduler.take_runs(one.worker)
    return list(one.worker.waiting)


def after(took_ns: int, share: int, count: int = KEYS) -> int:
    """What a worker takes next, when `count` messages took so long."""
    busy, worker = BusyWorkers(), Worker()
    busy.share = share
    busy.begin(worker, runs(count), 0)
    busy.end(worker, took_ns)
    return busy.share


def test_fast_handlers_get_more_at_once_step_by_step() -> None:
    assert after(1_000, share=8) == 16
    assert after(1_000, share=MAX_MESSAGES) == MAX_MESSAGES


def test_a_handler_of_a_millisecond_gets_one_message_at_a_time() -> None:
    assert after(8 * TARGET_NS, share=MAX_MESSAGES) == 1
    assert after(800 * TARGET_NS, share=1) == 1


def test_a_visit_is_as_long_as_fits_into_a_millisecond() -> None:
    assert after(2 * TARGET_NS, share=64) == KEYS // 2


def test_what_was_taken_back_does_not_make_a_slow_visit_look_fast() -> None:
    busy, worker = BusyWorkers(), Worker()
    busy.share = 64
    busy.begin(worker, runs(KEYS), 0)
    worker.run = worker.waiting.popleft()
    assert len(list(worker.take_back())) == KEYS - 1
    busy.end(worker, 2 * TARGET_NS)
    assert busy.share == 1


def test_a_visit_that_takes_single_messages_needs_a_worker_for_each() -> None:
    busy = BusyWorkers()
    assert busy.workers_for(7) == 7
    busy.share = 4
    assert busy.workers_for(7) == 2


@pytest.mark.row("A69")
def test_quick_handlers_are_one_workers_work_until_it_is_late() -> None:
    """Two would only take the interpreter from each other; but nobody counts on one that does not come back."""
    busy, worker = BusyWorkers(), Worker()
    busy.share = QUICK_MESSAGES
    assert not busy.one_is_enough(0)
    assert busy.workers_for(1_000) == 1
    busy.begin(worker, runs(KEYS), 0)
    assert busy.workers_for(1_000) == 0
    assert busy.one_is_enough(LATE_MS * 1_000_000 - 1)
    assert not busy.one_is_enough(LATE_MS * 1_000_000)


def test_handlers_that_are_not_quick_are_everybodys_work() -> None:
    busy, worker = BusyWorkers(), Worker()
    busy.share = QUICK_MESSAGES - 1
    busy.begin(worker, runs(KEYS), 0)
    assert busy.workers_for(1_000) > 1
    assert not busy.one_is_enough(0)


# --- what a visit does


@pytest.mark.row("A72")
def test_a_lost_lease_stops_a_visit_before_its_next_message() -> None:
    one = OneWorker()
    one.fill()
    seen: list[int] = []

    def handler(batch: Any, _: Any) -> None:
        seen.append(batch[0].queue_offset)
        if len(seen) == 3:
            one.scheduler.set_usable_until(queue(0), NOT_LEASED)

    assert one.run(handler).end is not None
    assert seen == [0, 1, 2]


def test_what_went_well_is_committable_while_the_next_handler_runs() -> None:
    """A handler that hangs for an hour must not keep finished neighbours from being committed."""
    one = OneWorker()
    one.fill()
    committable: list[Any] = []
    one.run(lambda batch, _: committable.append(one.scheduler.committable(queue(0))))
    assert committable == list(range(KEYS))


def test_a_draining_queue_waits_for_what_runs_and_for_nothing_that_waits() -> None:
    """Turns of it that lie behind another queue's handler go back at once."""
    one = OneWorker()
    one.fill(0, 1)
    seen: list[Message] = []

    def handler(batch: Any, _: Any) -> None:
        seen.extend(batch)
        one.scheduler.drain(queue(1))
        assert asyncio.run(one.scheduler.drained(queue(1), 0))

    one.run(handler)
    assert [(each.queue.queue_id, each.queue_offset) for each in seen] == [(0, 0)]
    assert one.scheduler.progress(queue(1)) is not None


@pytest.mark.parametrize("gets_on", [False, True])
def test_what_a_late_worker_did_not_begin_goes_to_another(gets_on: bool) -> None:
    """Whether its handler hangs or is only slow: others have time."""
    one, other = OneWorker(), Worker()
    one.fill()
    one.worker.run = one.worker.waiting.popleft()
    one.clock.at += LATE_MS
    if gets_on:
        one.worker.ended.append(one.worker.run)
        one.worker.run = one.worker.waiting.popleft()
    begun = 2 if gets_on else 1
    assert one.scheduler.take_runs(other)
    assert not one.worker.waiting
    seen: list[int] = []
    one.run(lambda batch, _: seen.append(batch[0].queue_offset), other)
    assert seen == list(range(begun, KEYS))
    one.scheduler.leave(other)
    assert one.scheduler.progress(queue(0)) == (begun - 1, FinishedRanges((begun, KEYS)))


def test_a_worker_in_time_keeps_what_it_took() -> None:
    one, other = OneWorker(), Worker()
    one.fill()
    one.scheduler.add(queue(1), QueueOffset(0), NO_LEASE_NEEDED)
    put(one.scheduler, 1)
    one.clock.at += LATE_MS - 1
    want(one.scheduler, QUICK_MESSAGES - 1)
    assert one.scheduler.take_runs(other)
    assert len(one.worker.waiting) == len(other.waiting) == KEYS


def test_only_a_turn_that_began_can_be_overdue() -> None:
    one = OneWorker()
    one.fill()
    overdue: list[list[int]] = []

    def handler(batch: Any, _: Any) -> None:
        one.clock.at += 1_000
        late = one.scheduler.overdue(Millis(one.clock.at))
        overdue.append([run.messages[0].queue_offset for run in late])

    one.run(handler)
    assert overdue == [[n] for n in range(KEYS)]


def test_a_turn_that_was_sent_back_meanwhile_is_not_reported_twice() -> None:
    one = OneWorker(Order.NONE, policy=SendBack())
    one.fill()

    def handler(batch: Any, run: Any) -> None:
        one.scheduler.finish(run, DONE)

    one.run(handler)
    one.scheduler.leave(one.worker)
    assert one.scheduler.committable(queue(0)) == KEYS


def test_a_worker_that_leaves_in_the_middle_loses_nothing() -> None:
    one, other = OneWorker(), Worker()
    one.fill()
    one.worker.ended.append(one.worker.waiting.popleft())
    one.scheduler.leave(one.worker)
    assert one.scheduler.take_runs(other)
    assert [run.messages[0].queue_offset for run in other.waiting] == list(range(1, KEYS))


# --- threads and tasks


@pytest.mark.row("A69")
def test_a_hanging_handler_holds_its_own_lane_and_no_other() -> None:
    stuck, done = threading.Event(), set()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            stuck.wait(WAIT)
        done.add(message.queue_offset)

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler, count=50)
        fixture.wait(lambda: len(done) == 49)
        stuck.set()
        fixture.wait(lambda: fixture.scheduler.committable(queue(0)) == 50)

    WorkerFixture(handler, workers=2).run(scenario)


def test_a_message_that_arrives_while_the_only_busy_worker_hangs_is_run_by_another() -> None:
    """However fast handlers were: nobody counts on a worker that does not come back."""
    stuck, begun, done = threading.Event(), threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            begun.set()
            stuck.wait(WAIT)
        else:
            done.set()

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler, count=1)
        assert begun.wait(WAIT)
        fixture.wait(lambda: fixture.scheduler._sleeping == 1)
        messages = [message(1, of=queue(0), key="another")]
        fixture.scheduler.put(queue(0), messages, QueueOffset(2), QueueOffset(1))
        assert done.wait(WAIT / 4)
        stuck.set()

    WorkerFixture(handler, workers=2).run(scenario)


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
def test_slow_handlers_are_spread_over_all_workers_whatever_they_were_before(order: Order) -> None:
    """Every handler waits until as many run as there are workers."""
    together, done = threading.Barrier(4), []

    def handler(message: Message) -> None:
        together.wait(WAIT)
        done.append(message)

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler, count=40)
        fixture.wait(lambda: len(done) == 40)

    WorkerFixture(handler, workers=4, order=order).run(scenario)


def test_handlers_that_have_become_slow_do_not_queue_up_behind_one_worker() -> None:
    """None of them hangs: each takes less than the patience that a visit is given."""
    workers: set[str] = set()
    done: list[Message] = []

    def handler(message: Message) -> None:
        threading.Event().wait(0.003)
        workers.add(threading.current_thread().name)
        done.append(message)

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler, count=400)  # so many that a thread which the machine keeps waiting gets one, too
        fixture.wait(lambda: len(done) == 400)

    WorkerFixture(handler, workers=4).run(scenario)
    assert len(workers) == 4


def test_a_failure_in_a_visit_stops_its_lane_and_no_other() -> None:
    broken, seen = threading.Event(), []

    def handler(message: Message) -> None:
        if message.key == "0-3" and not broken.is_set():
            raise ValueError("broken")
        seen.append((message.key, message.queue_offset))

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler)
        put(fixture.scheduler, first=KEYS)
        fixture.wait(lambda: len(seen) == 2 * KEYS - 2)
        fixture.wait(lambda: fixture.scheduler.committable(queue(0)) == 3)
        broken.set()
        fixture.wait(lambda: fixture.scheduler.committable(queue(0)) == 2 * KEYS)

    fixture = WorkerFixture(handler, policy=HoldKey())
    fixture.run(scenario)
    assert [at for key, at in seen if key == "0-3"] == [3, 3 + KEYS]
    count = fixture.counts.total()["orders"]
    assert count.ok == 2 * KEYS
    assert count.failed >= 1


def test_what_a_broken_worker_did_not_begin_is_done_by_others() -> None:
    done: set[int] = set()

    def handler(batch: Any, _: Any) -> None:
        if batch[0].queue_offset == 0:
            raise SystemExit(1)
        done.add(batch[0].queue_offset)

    def scenario(fixture: WorkerFixture) -> None:
        want(fixture.scheduler, MAX_MESSAGES)
        fixture.add(queue(0))
        put(fixture.scheduler)
        fixture.wait(lambda: len(done) == KEYS - 1)

    WorkerFixture(handler=handler, workers=2).run(scenario)


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

        fixture = WorkerFixture(async_handler=async_batch_handler(handler_call(handler), batched=False), workers=2)
        reporter = RunReporter("g", fixture.letters, NO_HISTORY)  # type: ignore[arg-type]
        workers = TaskWorkers(fixture.active, reporter, SystemClock(), ConsumerCounts())
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as tasks:
            workers.start(tasks)
            want(fixture.scheduler, MAX_MESSAGES)
            fixture.add(queue(0))
            put(fixture.scheduler)
            await others.wait()
            assert 0 not in done
            stuck.set()
            await workers.stop(WAIT)
        assert fixture.scheduler.committable(queue(0)) == KEYS

    asyncio.run(main())
