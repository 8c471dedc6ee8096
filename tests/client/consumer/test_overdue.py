"""Messages of handlers that hang go back to the broker, and every run still ends once."""

import asyncio
from collections.abc import Callable

from tests.client.consumer.fakes import committable, message, options, queue
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.turns.scheduler import MessageRun, Scheduler
from lanemq.client.consumer.turns.subscription import ActiveSubscription, Subscription, make_scheduler
from lanemq.client.consumer.turns.workers import OverdueRuns
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import HoldKey, SendBack
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, Order, Why
from lanemq.model.units import QueueOffset

HOUR_MS = 3_600_000


def nothing(_: int) -> None: ...


class FakeDeadLetters:
    """A broker that takes messages back; the test may do something in between."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.while_sending: Callable[[int], object] = nothing
        self.stored = True

    async def send_back(self, message: Message, level: int, most: int) -> bool:
        self.sent.append(message.queue_offset)
        self.while_sending(message.queue_offset)
        return self.stored


class OverdueFixture:
    """Runs of one message each, whose handlers began an hour ago."""

    def __init__(self, count: int = 1, plan: Subscription | None = None) -> None:
        self.clock, self.dead_letters = ManualClock(), FakeDeadLetters()
        plan = plan or Subscription(topic="orders", order=Order.NONE, policy=SendBack())
        active = ActiveSubscription(plan, make_scheduler(plan, self.clock))
        self.scheduler: Scheduler = active.scheduler
        with self.scheduler as lanes:
            lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
        messages = [message(n, key=f"k{n}") for n in range(count)]
        with self.scheduler as lanes:
            lanes.put(queue(0), messages, QueueOffset(count), pulled_from=QueueOffset(0))
        self.runs = [self._taken() for _ in range(count)]
        self.clock.at += HOUR_MS
        self._watch = OverdueRuns(options(clock=self.clock), {"orders": active}, self.dead_letters)  # type: ignore[arg-type]

    def _taken(self) -> MessageRun:
        run = self.scheduler.take_run(0)
        assert run is not None
        return run

    def check(self) -> list[int]:
        asyncio.run(self._watch.check())
        return self.dead_letters.sent


def test_a_message_whose_handler_hangs_is_sent_back_once() -> None:
    fixture = OverdueFixture()
    assert fixture.check() == [0]
    assert fixture.check() == [0]
    assert committable(fixture.scheduler, queue(0)) == 1


def test_a_message_that_the_broker_did_not_take_stays_and_is_tried_again() -> None:
    fixture = OverdueFixture()
    fixture.dead_letters.stored = False
    assert fixture.check() == [0]
    assert committable(fixture.scheduler, queue(0)) == 0
    assert fixture.check() == [0, 0]


def test_a_message_on_its_way_to_the_broker_is_not_sent_a_second_time() -> None:
    """Its handler failed in the end, and the worker waits for a slow broker."""
    fixture = OverdueFixture()
    assert fixture.scheduler.finish(fixture.runs[0], FAILED).why is Why.SEND_BACK
    assert fixture.check() == []
    assert fixture.scheduler.sent_back(fixture.runs[0], [True]).why is Why.SENT_BACK


def test_a_handler_that_fails_while_its_message_is_sent_back_ends_its_own_run() -> None:
    fixture = OverdueFixture()
    fixture.dead_letters.while_sending = lambda _: fixture.scheduler.finish(fixture.runs[0], FAILED)
    assert fixture.check() == [0]
    assert committable(fixture.scheduler, queue(0)) == 0
    assert fixture.scheduler.sent_back(fixture.runs[0], [True]).why is Why.SENT_BACK
    assert committable(fixture.scheduler, queue(0)) == 1


def test_a_handler_that_returns_while_another_message_is_sent_back_keeps_its_own() -> None:
    fixture = OverdueFixture(count=2)
    fixture.dead_letters.while_sending = lambda _: fixture.scheduler.finish(fixture.runs[1], DONE)
    assert fixture.check() == [0]
    assert committable(fixture.scheduler, queue(0)) == 2


def test_a_message_of_a_lost_queue_is_not_sent_back() -> None:
    fixture = OverdueFixture()
    with fixture.scheduler as lanes:
        lanes.drop(queue(0))
    assert fixture.check() == []
    assert fixture.scheduler.finish(fixture.runs[0], DONE).why is Why.QUEUE_GONE


def test_a_message_of_an_ordered_lane_is_never_overtaken() -> None:
    fixture = OverdueFixture(plan=Subscription(topic="orders", order=Order.KEY, policy=HoldKey()))
    assert fixture.check() == []
    assert not fixture.dead_letters.sent


def test_a_report_after_the_message_was_sent_back_is_ignored() -> None:
    fixture = OverdueFixture()
    fixture.check()
    assert fixture.scheduler.finish(fixture.runs[0], FAILED).send_back == ()
