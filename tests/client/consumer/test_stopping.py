"""How a consumer stops: finished work is committed, and a failure to do so is logged or raised."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.consumer.fakes import (
    FakeBroker,
    SimEngine,
    message,
    no_answer,
    queue,
    record,
    sim_subscription,
    until,
)
from tests.client.virtual_time import run_virtual

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.consumer.consumer import Consumer, Undecided
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import Finished, Why
from lanemq.history import NO_HISTORY
from lanemq.model.errors import LaneError
from lanemq.testing.embedded import EmbeddedBroker


async def stopped(broker: FakeBroker, handler: Any, away_ms: int, **changes: Any) -> int:
    """Stops a member that consumed everything while commits get no answer; returns how long the stop took."""
    engine = SimEngine(broker, "a", [sim_subscription(handler)], commit_every=60, **changes)
    running = asyncio.create_task(engine.run())
    await engine.started.wait()
    await asyncio.sleep(1)
    begin = broker.clock.now()

    def away(member: str, name: str, about: Any) -> None:
        if name == "commit" and broker.clock.now() < begin + away_ms:
            no_answer()

    broker.faults.append(away)
    engine.stop()
    await running
    return broker.clock.now() - begin


async def nothing(_: Message) -> None: ...


def filled() -> FakeBroker:
    broker = FakeBroker([queue(0)])
    broker.store(queue(0), *[record(n) for n in range(5)])
    return broker


def test_a_stop_reports_its_last_offset_to_a_broker_that_was_briefly_away() -> None:
    async def main() -> None:
        broker = filled()
        took = await stopped(broker, nothing, away_ms=2_000)
        assert broker.offsets[queue(0)] == 5
        assert 2_000 <= took <= 4_000
        assert [each[2] for each in broker.noted if each[2] in ("commit", "unlock", "leave")][-3:] == [
            "commit", "unlock", "leave",
        ]  # fmt: skip

    run_virtual(main)


def test_a_stop_whose_offset_cannot_be_reported_ends_in_its_timeout_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log must not blame a running handler: there is none."""

    async def main() -> None:
        broker = filled()
        took = await stopped(broker, nothing, away_ms=60_000, stop_timeout=5)
        assert took <= 5_000
        assert len(broker.what("commit")) >= 5
        assert broker.what("unlock") == []

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert "its last offset could not be reported" in caplog.text
    assert "handler running" not in caplog.text


def test_a_stop_that_leaves_a_handler_behind_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = filled()
        began = asyncio.Event()

        async def forever(_: Message) -> None:
            began.set()
            await asyncio.Event().wait()

        took = await stopped(broker, forever, away_ms=0, stop_timeout=3)
        await until(began.is_set)
        assert 3_000 <= took < 6_000

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert "left behind with its handler running" in caplog.text
    assert "could not be reported" not in caplog.text


# --- SIGTERM


@pytest.fixture(scope="module")
def real() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Producer(running.address, create=["iterated", "awaited", "pushed"]) as producer:
            for topic in ("iterated", "awaited", "pushed"):
                producer.send_many(topic, [("k", n) for n in range(3)])
        yield running


def committed(broker: EmbeddedBroker, topic: str) -> int:
    with PullConsumer(broker.address, group=f"g-{topic}") as reader:
        return sum(reader.committed(queue) or 0 for queue in reader.queues(topic))


def owners(broker: EmbeddedBroker, topic: str) -> list[str | None]:
    with Admin(broker.address) as admin:
        return [each.owner for each in admin.locks(f"g-{topic}") if each.queue.topic == topic]


def test_sigterm_ends_an_iteration_after_the_present_message_and_commits_it(real: EmbeddedBroker) -> None:
    got = []
    with Consumer(real.address, group="g-iterated", topics="iterated") as consumer:
        for message in consumer:
            if not got:
                os.kill(os.getpid(), signal.SIGTERM)
            got.append(message.value())
            assert consumer.done(message)
            if len(got) == 3:
                break
    assert got == [0]
    assert committed(real, "iterated") == 1
    assert owners(real, "iterated") == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_ends_a_waiting_iteration(real: EmbeddedBroker) -> None:
    with Consumer(real.address, group="g-waiting", topics="iterated") as consumer:
        for number, message in enumerate(consumer):
            consumer.done(message)
            if number == 2:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()


def test_sigterm_ends_an_async_iteration_after_the_present_message(real: EmbeddedBroker) -> None:
    async def main() -> list[object]:
        got = []
        async with AsyncConsumer(real.address, group="g-awaited", topics="awaited") as consumer:
            async for message in consumer:
                if not got:
                    os.kill(os.getpid(), signal.SIGTERM)
                got.append(message.value())
                assert await consumer.done(message)
                if len(got) == 3:
                    break
        return got

    assert asyncio.run(main()) == [0]
    assert committed(real, "awaited") == 1


def test_a_program_with_its_own_signal_handler_is_left_alone(real: EmbeddedBroker) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Consumer(real.address, group="g-own", topics="iterated") as consumer:
            for number, message in enumerate(consumer):
                os.kill(os.getpid(), signal.SIGTERM)
                consumer.done(message)
                if number == 2:
                    break
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(heard) == 3


PUSH = """
import sys, threading
from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.turns.handler import OrderlyStatus
from lanemq.client.consumer.push_consumer import PushConsumer

def listener(messages, context):
    print("begun", flush=True)
    sys.stdin.readline()
    print("ended", flush=True)
    return OrderlyStatus.SUCCESS

consumer = PushConsumer(sys.argv[1], group="g-pushed", start=StartFrom.FIRST)
consumer.subscribe("pushed")
consumer.register_orderly(listener)
consumer.start()
threading.Event().wait()
"""


@pytest.mark.slow
def test_sigterm_lets_a_push_consumer_finish_before_it_ends_the_process(real: EmbeddedBroker) -> None:
    command = [sys.executable, "-c", PUSH, real.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        process.stdin.close()
        assert process.wait(60) == -signal.SIGTERM
    assert committed(real, "pushed") >= 1
    assert owners(real, "pushed") == []


# --- messages that the user has taken


class DecidingScheduler:
    """A scheduler: while the last message is given back, another thread decides about the first one."""

    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.in_between: list[Callable[[], object]] = []

    def finish(self, run: Any, outcome: Any) -> Any:
        self.ended.append(run)
        while self.in_between:
            self.in_between.pop()()
        return Finished(Why.DONE)


def test_a_close_while_others_decide_ends_every_turn_once() -> None:
    scheduler = DecidingScheduler()
    undecided = Undecided(scheduler, "g", NO_HISTORY, SystemClock())  # type: ignore[arg-type]
    given = [undecided.add(SimpleNamespace(messages=(message(n),), attempt=1)) for n in range(4)]  # type: ignore[arg-type]
    scheduler.in_between.append(lambda: undecided.done(given[1]))
    undecided.give_back()
    assert sorted(run.messages[0].offset for run in scheduler.ended) == [0, 1, 2, 3]
    assert not undecided.done(given[0])


# --- a consumer that ends by an error


def broken() -> None:
    raise RuntimeError("an unexpected error")


def test_a_consumer_that_dies_in_the_background_is_logged_and_raised(
    real: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(real.address, group="g-dying", topics="empty", commit_every=0.01)
    consumer.start()
    consumer._thread.engine.progress.commit_all = broken  # type: ignore[assignment]
    with pytest.raises(LaneError, match="an unexpected error"):
        consumer.poll(60)
    with pytest.raises(LaneError, match="an unexpected error"):
        next(iter(consumer))
    with pytest.raises(LaneError, match="an unexpected error"):
        consumer.snapshot()
    with pytest.raises(ExceptionGroup):
        consumer.close()
    (critical,) = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert critical.exc_info is not None
    assert "g-dying" in critical.getMessage()


def test_an_async_consumer_that_dies_raises_where_it_is_asked(real: EmbeddedBroker) -> None:
    async def main() -> None:
        consumer = AsyncConsumer(real.address, group="g-dying-too", topics="empty", commit_every=0.01)
        await consumer.start()
        assert consumer._engine is not None
        consumer._engine.progress.commit_all = broken  # type: ignore[assignment]
        with pytest.raises(LaneError, match="an unexpected error"):
            await consumer.poll(60)
        with pytest.raises(LaneError, match="an unexpected error"):
            consumer.snapshot()
        with pytest.raises(ExceptionGroup):
            await consumer.close()

    asyncio.run(main())
