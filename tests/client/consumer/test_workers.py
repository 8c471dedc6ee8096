"""Worker threads: which of them runs what, and what follows a run."""

import threading
from typing import Any

import pytest
from tests.client.consumer.fakes import committable, message, queue
from tests.client.consumer.worker_fixture import WAIT, WorkerFixture

from lanemq.client.consumer.turns import workers as workers_module
from lanemq.client.consumer.turns.handler import ToDeadLetter
from lanemq.client.consumer.turns.workers import RunReporter
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey, HoldQueue, SendBack
from lanemq.core.consuming.runs import (
    NO_LEASE_NEEDED,
    NOT_LEASED,
    Order,
)
from lanemq.model.units import QueueOffset


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

    fixture = WorkerFixture(handler, workers=8, order=Order.QUEUE, policy=HoldQueue(), run_limit=1)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 500)
        fixture.wait(lambda: len(seen) + len(overlaps) == 500)

    fixture.run(scenario)
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

    fixture = WorkerFixture(handler, workers=20, order=Order.QUEUE, policy=HoldQueue())

    def scenario(fixture: WorkerFixture) -> None:
        for number in range(40):
            fixture.add(queue(number))
            fixture.put(queue(number), 3)
        fixture.wait(lambda: len(done) == 39)
        stuck.set()
        fixture.wait(lambda: len(done) == 40)

    fixture.run(scenario)


@pytest.mark.row("A69")
def test_no_worker_waits_for_a_lane_while_another_lane_is_ready() -> None:
    """Four workers, one of them busy with a slow lane: the others finish a thousand lanes."""
    stuck, done = threading.Event(), []

    def handler(message: Message) -> None:
        if message.key == "slow":
            stuck.wait(WAIT)
        else:
            done.append(message)

    fixture = WorkerFixture(handler, workers=2)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        slow = [message(n, key="slow") for n in range(10)]
        others = [message(10 + n, key=f"k{n}") for n in range(1000)]
        with fixture.scheduler as lanes:
            lanes.put(queue(0), slow + others, QueueOffset(1010), pulled_from=QueueOffset(0))
        fixture.wait(lambda: len(done) == 1000)
        stuck.set()

    fixture.run(scenario)


@pytest.mark.row("A65")
@pytest.mark.row("A80")
def test_a_failed_message_runs_again_before_any_later_one() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1 and seen.count(1) < 3:
            raise ValueError("not yet")

    fixture = WorkerFixture(handler, order=Order.QUEUE, policy=HoldQueue(suspend=0.01))

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 4)
        fixture.wait(lambda: len(seen) == 6)

    fixture.run(scenario)
    assert seen == [0, 1, 1, 1, 2, 3]


@pytest.mark.row("A70")
def test_without_a_lease_nothing_runs_and_with_one_it_does() -> None:
    seen = threading.Event()
    fixture = WorkerFixture(lambda message: seen.set())

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0), until=NOT_LEASED)
        fixture.put(queue(0), 1)
        assert not seen.wait(0.1)
        with fixture.scheduler as lanes:
            lanes.set_usable_until(queue(0), NO_LEASE_NEEDED)
        assert seen.wait(WAIT)

    fixture.run(scenario)


@pytest.mark.row("A81")
def test_counters_match_what_happened() -> None:
    failed_once = []

    def handler(message: Message) -> None:
        if message.queue_offset == 3 and not failed_once:
            failed_once.append(True)
            raise ValueError("once")

    fixture = WorkerFixture(handler, order=Order.QUEUE, policy=HoldQueue(suspend=0.01))

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 10)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 10)

    fixture.run(scenario)
    count = fixture.counts.total()["orders"]
    assert (count.ok, count.failed) == (10, 1)


@pytest.mark.row("A103")
@pytest.mark.row("A105")
@pytest.mark.row("A109")
def test_after_its_retries_a_message_is_dead_lettered_once_and_the_queue_goes_on() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 0:
            raise ValueError("never")

    policy = DeadLetter(skip=True, hold=HoldQueue(retries=2, suspend=0.01))
    fixture = WorkerFixture(handler, order=Order.QUEUE, policy=policy)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 3)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 3)

    fixture.run(scenario)
    assert seen == [0, 0, 0, 1, 2]
    ((offset, why),) = fixture.letters.letters
    assert (offset, why.split(" at ")[0]) == (0, "ValueError('never')")


@pytest.mark.row("A103")
def test_a_dead_letter_that_the_broker_refuses_stays_at_the_head_of_its_lane() -> None:
    seen: list[int] = []
    policy = DeadLetter(skip=True, hold=HoldQueue(retries=0, suspend=0.01))

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        raise ValueError("never")

    fixture = WorkerFixture(handler, order=Order.QUEUE, policy=policy, stored=False)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 2)
        fixture.wait(lambda: len(fixture.letters.letters) >= 2)

    fixture.run(scenario)
    assert set(seen) == {0}


def test_to_dead_letter_moves_the_message_at_once_and_the_lane_goes_on() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            raise ToDeadLetter("no such account")

    fixture = WorkerFixture(handler)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 4)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 4)

    fixture.run(scenario)
    assert seen == [0, 1, 2, 3]
    assert fixture.letters.letters == [(1, "no such account")]


def test_concurrent_failures_go_back_to_the_broker_and_the_offset_moves_on() -> None:
    def handler(message: Message) -> None:
        if message.queue_offset % 2:
            raise ValueError("odd")

    fixture = WorkerFixture(handler, order=Order.NONE, policy=SendBack())

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 6)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 6)

    fixture.run(scenario)
    assert sorted(fixture.letters.sent_back) == [(1, 0), (3, 0), (5, 0)]


def refused_dead_letter() -> WorkerFixture:
    """A concurrent handler whose dead letter the broker refuses."""

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            raise ToDeadLetter("no such account")

    fixture = WorkerFixture(handler, order=Order.NONE, policy=SendBack())

    async def refused(message: Message, why: str) -> bool:
        fixture.letters.letters.append((message.queue_offset, why))
        return False

    fixture.letters.dead_letter = refused  # type: ignore[method-assign]
    return fixture


def test_a_dead_letter_that_the_broker_refuses_is_sent_back_by_a_concurrent_consumer() -> None:
    fixture = refused_dead_letter()

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 2)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 2)

    fixture.run(scenario)
    assert fixture.letters.letters == [(0, "no such account")]
    assert fixture.letters.sent_back == [(0, 0)]


def test_a_refused_dead_letter_that_is_not_sent_back_would_hold_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the scheduler waits for the message to be sent back, and no worker does it."""

    async def nothing_follows(self: Any, active: Any, run: Any, end: Any, finished: Any) -> Any:
        return finished

    monkeypatch.setattr(RunReporter, "follow", nothing_follows)
    fixture = refused_dead_letter()
    ended = threading.Event()
    monkeypatch.setattr(workers_module, "log_end", lambda run, end, finished: ended.set())

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 2)
        assert ended.wait(WAIT)

    fixture.run(scenario)
    assert committable(fixture.scheduler, queue(0)) == 0
    assert fixture.letters.letters == [(0, "no such account")]
    assert fixture.letters.sent_back == []


@pytest.mark.row("A21")
@pytest.mark.parametrize(("threads", "ordered"), [(1, True), (4, False)])
def test_a_concurrent_listener_keeps_order_only_with_one_thread(threads: int, ordered: bool) -> None:
    """Negative control: without order, more than one thread lets messages overtake each other."""
    seen: list[int] = []
    overtaken = threading.Event()

    def handler(message: Message) -> None:
        if message.queue_offset == 0:
            overtaken.wait(0.5 if ordered else WAIT)  # with one thread nothing can overtake it
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            overtaken.set()

    fixture = WorkerFixture(handler, workers=threads, order=Order.NONE, policy=SendBack())

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 4)
        fixture.wait(lambda: len(seen) == 4)

    fixture.run(scenario)
    assert (seen == [0, 1, 2, 3]) is ordered


def test_a_worker_that_ends_unexpectedly_ends_its_turn_and_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """One worker, so that its replacement must run the rest."""
    seen: list[int] = []

    def handler(batch: Any, run: Any) -> None:
        seen.append(batch[0].queue_offset)
        if seen == [0, 1]:
            raise SystemExit(1)

    fixture = WorkerFixture(handler=handler, workers=1)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 3)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 3)

    fixture.run(scenario)
    assert seen == [0, 1, 1, 2]
    assert "a worker of topic orders ended unexpectedly and is replaced: SystemExit(1)" in caplog.text


def test_a_worker_that_ends_while_the_broker_gets_its_message_leaves_no_lane_running() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.queue_offset)
        if len(seen) == 1:
            raise ValueError("broken")

    policy = DeadLetter(skip=True, hold=HoldKey(retries=0, backoff=Backoff(first=0.01)))
    fixture = WorkerFixture(handler, workers=1, policy=policy)

    async def interrupted(*_: Any) -> bool:
        raise RuntimeError("an unexpected error")

    fixture.letters.dead_letter = interrupted  # type: ignore[method-assign]

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 2)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 2)

    fixture.run(scenario)
    assert seen == [0, 0, 1]
