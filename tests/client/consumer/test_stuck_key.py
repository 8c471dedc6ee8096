"""A key that fails does not stop other keys, however far they run ahead, and waits as long as its handler asks."""

import asyncio

import pytest
from tests.chaos.members import until
from tests.client.consumer.fakes import FakeBroker, member, message, queue, record
from tests.client.consumer.fakes import until as virtually
from tests.client.virtual_time import ManualClock, run_virtual

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.consumer.turns.handler import Retry
from lanemq.client.consumer.turns.scheduler import MAX_SLEEP_MS, Scheduler
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, HoldKey
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, LaneOptions, Suspend
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import Millis, QueueOffset
from lanemq.testing.embedded import EmbeddedBroker

TOPIC, OTHERS, SPAN = "orders", 300, 20


@pytest.mark.lanemq(own_broker=True)
def test_other_keys_run_ahead_of_a_stuck_key_further_than_the_span(lanemq_broker: EmbeddedBroker) -> None:
    """The span limits what a crash repeats; a broker that stores finished ranges repeats nothing."""
    done: list[int] = []
    with Admin(lanemq_broker.address) as admin:
        admin.create_topic(TOPIC, queues=1, ordered=True)
    with Producer(lanemq_broker.address) as producer:
        producer.send(TOPIC, {}, key="stuck")
        producer.send_many(TOPIC, [(f"k{number}", {}) for number in range(OTHERS)])
    app = App(lanemq_broker.address, group="g", flow=FlowLimits(messages=50, span=SPAN))

    @app.ordered(TOPIC, on_fail=HoldKey(retries=RETRY_FOREVER))
    def handle(message: Message) -> None:
        if message.key == "stuck":
            raise ValueError("always fails")
        done.append(message.queue_offset)

    with app:
        until("all others are done", lambda: len(done) == OTHERS)
    assert sorted(done) == list(range(1, OTHERS + 1))


def test_a_key_waits_as_long_as_its_handler_asks() -> None:
    """The member keeps its lease all the time, and other keys do not wait."""
    minutes, waiting, behind = 3, queue(0), 3

    async def main() -> tuple[list[float], list[int]]:
        broker, tries, others = FakeBroker([waiting]), list[float](), list[int]()
        broker.offsets[waiting] = 0
        keys = ["asks", *["asks"] * behind, "other"]
        broker.store(waiting, *(record(offset, key=key) for offset, key in enumerate(keys)))

        async def handler(message: Message) -> None:
            if message.queue_offset:
                others.append(message.queue_offset)
                return
            tries.append(asyncio.get_running_loop().time())
            if len(tries) == 1:
                raise Retry(after=60 * minutes)

        async with member(broker, "a", handler) as engine:
            (before,) = engine.assignment
            await virtually(lambda: len(others) == behind + 1, 60 * minutes + 60)
            assert tuple(engine.assignment) == (before,)
        return tries, others

    (first, second), others = run_virtual(main)
    assert 60 * minutes - 0.1 < second - first < 60 * minutes + 5
    assert others[0] == behind + 1, "the other key did not wait"


@pytest.mark.parametrize("until", [10**9, 2**70])
def test_a_wait_of_any_length_is_one_that_a_thread_can_sleep(until: int) -> None:
    scheduler = Scheduler(LaneScheduler(LaneOptions()), ManualClock())
    with scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
        lanes.put(queue(0), [message(0, key="k")], QueueOffset(1), pulled_from=QueueOffset(0))
    run = scheduler.take_run(0)
    assert run is not None
    scheduler.finish(run, Suspend(Millis(until)))
    assert scheduler._pause(None) == MAX_SLEEP_MS / 1000
