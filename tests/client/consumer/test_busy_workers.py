"""A worker that takes several runs at once delays no lane behind a handler that hangs."""

import asyncio
import threading
from typing import Any

import pytest
from tests.client.consumer.fakes import committable, message, queue
from tests.client.consumer.worker_fixture import WAIT, WorkerFixture, handler_call
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.turns.counting import ConsumerCounts, TurnTimes
from lanemq.client.consumer.turns.handler import async_batch_handler
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.consumer.turns.workers import RunReporter, TaskWorkers, run_worker
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.consuming.busy_workers import (
    LATE_MS,
    MAX_MESSAGES,
    QUICK_MESSAGES,
    TARGET_NS,
    BusyWorkers,
    Worker,
)
from lanemq.core.consuming.retry_policy import HoldKey, SendBack
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, NOT_LEASED, LaneOptions, LaneRun, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.history import NO_HISTORY
from lanemq.model.units import Millis, QueueOffset

KEYS = 8


def want(scheduler: Scheduler, messages: int) -> None:
    """Lets workers take this many messages at once, as if handlers had been fast so far."""
    scheduler._lanes.busy.share = messages


def put(scheduler: Scheduler, number: int = 0, count: int = KEYS, first: int = 0) -> None:
    """Puts one message for each of `count` keys."""
    messages = [message(first + n, of=queue(number), key=f"{number}-{n}") for n in range(count)]
    with scheduler as lanes:
        lanes.put(queue(number), messages, QueueOffset(first + count), pulled_from=QueueOffset(first))


class OneWorker:
    """A scheduler and one worker that the test plays."""

    def __init__(self, order: Order = Order.KEY, **options: Any) -> None:
        self.clock = ManualClock()
        self.scheduler = Scheduler(LaneScheduler(LaneOptions(order=order, **options)), self.clock)
        self.worker = Worker()
        want(self.scheduler, MAX_MESSAGES)

    def fill(self, *queues: int) -> None:
        for number in queues or (0,):
            with self.scheduler as lanes:
                lanes.add(queue(number), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
            put(self.scheduler, number)
        assert self.scheduler.take_runs(self.worker)

    def run(self, handler: Any, worker: Worker | None = None) -> Any:
        return run_worker(worker or self.worker, handler, 1, self.clock, TurnTimes())


# --- how many


def runs(count: int) -> list[LaneRun[Message]]:
    one = OneWorker()
    with one.scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    put(one.scheduler, count=count)
    assert one.scheduler.take_runs(one.worker)
    return list(one.worker.waiting)


def after(took_ns: int, share: int, count: int = KEYS) -> int:
    """How many messages a worker takes next, after `count` messages took that long."""
    busy, worker = BusyWorkers(), Worker()
    busy.share = share
    busy.begin(worker, runs(count), 0)
    busy.end(worker, took_ns)
    return busy.share


def test_a_fast_handler_doubles_what_a_worker_takes_at_once() -> None:
    assert after(1_000, share=8) == 16
    assert after(1_000, share=MAX_MESSAGES) == MAX_MESSAGES


def test_with_a_handler_of_one_millisecond_a_worker_takes_one_message() -> None:
    assert after(8 * TARGET_NS, share=2) == 1
    assert after(800 * TARGET_NS, share=1) == 1


def test_one_slow_take_halves_what_a_worker_takes_at_once() -> None:
    """The worker may only have lost the interpreter to another thread for a moment."""
    assert after(800 * TARGET_NS, share=MAX_MESSAGES) == MAX_MESSAGES // 2


def test_a_worker_takes_as_much_as_fits_into_a_millisecond() -> None:
    assert after(2 * TARGET_NS, share=KEYS) == KEYS // 2


def test_runs_taken_back_do_not_make_a_slow_handler_look_fast() -> None:
    busy, worker = BusyWorkers(), Worker()
    busy.share = 2
    busy.begin(worker, runs(KEYS), 0)
    worker.run = worker.waiting.popleft()
    assert len(list(worker.take_back())) == KEYS - 1
    busy.end(worker, 2 * TARGET_NS)
    assert busy.share == 1


@pytest.mark.parametrize("counted", [False, True])
def test_waiting_for_the_mutex_does_not_make_a_handler_look_slow(counted: bool) -> None:
    """Negative control: if the wait counted, every worker more would make the handler look slower."""
    one = OneWorker()
    want(one.scheduler, KEYS)
    one.fill()
    one.run(lambda batch, _: None)
    one.scheduler.close()
    lanes, mutex = one.scheduler._lanes, one.scheduler._mutex

    class Contended:
        def acquire(self) -> bool:
            one.clock.at += 50
            return mutex.acquire()

        def release(self) -> None:
            mutex.release()

    one.scheduler._mutex = Contended()  # type: ignore[assignment]
    if counted:
        end = lanes.worker_returned
        lanes.worker_returned = lambda worker, now, **_: end(worker, now=now, returned_ns=now * 1_000_000)  # type: ignore[method-assign]
    assert not one.scheduler.take_runs(one.worker)
    assert lanes.busy.share == (KEYS // 2 if counted else 2 * KEYS)


def test_slow_handlers_need_a_worker_per_message() -> None:
    busy = BusyWorkers()
    assert busy.workers_for(7) == 7
    busy.share = 4
    assert busy.workers_for(7) == 2


@pytest.mark.row("A69")
def test_one_worker_does_quick_work_alone_until_it_is_late() -> None:
    """Two would only compete for the interpreter; but a worker that is late is not relied on."""
    busy, worker = BusyWorkers(), Worker()
    busy.share = QUICK_MESSAGES
    assert not busy.one_is_enough(0)
    assert busy.workers_for(1_000) == 1
    busy.begin(worker, runs(KEYS), 0)
    assert busy.workers_for(1_000) == 0
    assert busy.one_is_enough(LATE_MS * 1_000_000 - 1)
    assert not busy.one_is_enough(LATE_MS * 1_000_000)


def test_all_workers_share_work_that_is_not_quick() -> None:
    busy, worker = BusyWorkers(), Worker()
    busy.share = QUICK_MESSAGES - 1
    busy.begin(worker, runs(KEYS), 0)
    assert busy.workers_for(1_000) > 1
    assert not busy.one_is_enough(0)


# --- one worker, step by step


@pytest.mark.row("A72")
def test_a_lost_lease_stops_a_worker_before_its_next_message() -> None:
    one = OneWorker()
    one.fill()
    seen: list[int] = []

    def handler(batch: Any, _: Any) -> None:
        seen.append(batch[0].queue_offset)
        if len(seen) == 3:
            with one.scheduler as lanes:
                lanes.set_usable_until(queue(0), NOT_LEASED)

    assert one.run(handler).end is not None
    assert seen == [0, 1, 2]


def test_finished_messages_are_committable_while_the_next_handler_runs() -> None:
    """A handler that hangs for an hour must not delay the commit of runs that finished before it."""
    one = OneWorker()
    one.fill()
    seen: list[Any] = []
    one.run(lambda batch, _: seen.append(committable(one.scheduler, queue(0))))
    assert seen == list(range(KEYS))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("order", [Order.KEY, Order.QUEUE])
def test_finished_messages_of_one_run_are_committable_while_the_next_handler_runs(
    order: Order, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: if only whole runs counted, a crash would repeat all of the run."""
    if not counted:
        monkeypatch.setattr(LaneScheduler, "note_progress", lambda self, run: False)
    one = OneWorker(order)
    with one.scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    with one.scheduler as lanes:
        lanes.put(queue(0), [message(n, key="k") for n in range(32)], QueueOffset(32), pulled_from=QueueOffset(0))
    assert one.scheduler.take_runs(one.worker)
    seen: list[Any] = []
    one.run(lambda batch, _: seen.append(committable(one.scheduler, queue(0))))
    assert seen == (list(range(32)) if counted else [0] * 32)
    one.scheduler.leave(one.worker)
    assert one.scheduler.progress(queue(0)) == (32, FinishedRanges())


def test_a_draining_queue_waits_for_running_handlers_only() -> None:
    """Its runs that wait behind a handler of another queue return at once."""
    one = OneWorker()
    one.fill(0, 1)
    seen: list[Message] = []

    def handler(batch: Any, _: Any) -> None:
        seen.extend(batch)
        with one.scheduler as lanes:
            lanes.drain(queue(1), now=Millis(0))
        assert asyncio.run(one.scheduler.drained(queue(1), 0))

    one.run(handler)
    assert [(each.queue.queue_id, each.queue_offset) for each in seen] == [(0, 0)]
    assert one.scheduler.progress(queue(1)) is not None


@pytest.mark.parametrize("gets_on", [False, True])
def test_runs_that_a_late_worker_has_not_begun_go_to_another(gets_on: bool) -> None:
    """Whether its handler hangs or is only slow, other workers are free."""
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


def test_a_worker_that_is_not_late_keeps_its_runs() -> None:
    one, other = OneWorker(), Worker()
    one.fill()
    with one.scheduler as lanes:
        lanes.add(queue(1), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    put(one.scheduler, 1)
    one.clock.at += LATE_MS - 1
    want(one.scheduler, QUICK_MESSAGES - 1)
    assert one.scheduler.take_runs(other)
    assert len(one.worker.waiting) == len(other.waiting) == KEYS


def test_only_a_run_that_has_begun_can_be_overdue() -> None:
    one = OneWorker()
    one.fill()
    overdue: list[list[int]] = []

    def handler(batch: Any, _: Any) -> None:
        one.clock.at += 1_000
        with one.scheduler as lanes:
            late = lanes.overdue(Millis(one.clock.at))
        overdue.append([run.messages[0].queue_offset for run in late])

    one.run(handler)
    assert overdue == [[n] for n in range(KEYS)]


def test_a_run_that_was_taken_over_is_not_reported_twice() -> None:
    one = OneWorker(Order.NONE, policy=SendBack())
    one.fill()

    def handler(batch: Any, run: Any) -> None:
        one.scheduler.finish(run, DONE)

    one.run(handler)
    one.scheduler.leave(one.worker)
    assert committable(one.scheduler, queue(0)) == KEYS


def test_a_worker_that_leaves_early_gives_its_runs_back() -> None:
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
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 50)

    WorkerFixture(handler, workers=2).run(scenario)


def test_a_message_that_arrives_while_the_only_busy_worker_hangs_is_run_by_another() -> None:
    """However fast handlers were before, a worker that hangs is not relied on."""
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
        fixture.wait(lambda: len(fixture.scheduler._changed) == 1)
        messages = [message(1, of=queue(0), key="another")]
        with fixture.scheduler as lanes:
            lanes.put(queue(0), messages, QueueOffset(2), pulled_from=QueueOffset(1))
        assert done.wait(WAIT / 4)
        stuck.set()

    WorkerFixture(handler, workers=2).run(scenario)


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
def test_slow_handlers_are_spread_over_all_workers_even_if_they_were_fast_before(order: Order) -> None:
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


def test_handlers_that_become_slow_do_not_queue_up_behind_one_worker() -> None:
    """None of them hangs: each takes less time than makes a worker late."""
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


def test_a_failure_holds_its_lane_and_no_other_of_the_same_worker() -> None:
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
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 3)
        broken.set()
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 2 * KEYS)

    fixture = WorkerFixture(handler, policy=HoldKey())
    fixture.run(scenario)
    assert [at for key, at in seen if key == "0-3"] == [3, 3 + KEYS]
    count = fixture.counts.total()["orders"]
    assert count.ok == 2 * KEYS
    assert count.failed >= 1


def test_other_workers_run_what_a_broken_worker_has_not_begun() -> None:
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
        assert committable(fixture.scheduler, queue(0)) == KEYS

    asyncio.run(main())
