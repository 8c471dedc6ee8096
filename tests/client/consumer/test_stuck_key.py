"""A key that keeps failing does not stop other keys, however far they run ahead."""

from tests.chaos.members import until

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.flow_control import FlowLimits
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, HoldKey
from lanemq.testing.embedded import EmbeddedBroker

TOPIC, OTHERS, SPAN = "orders", 300, 20


def test_other_keys_run_ahead_of_a_stuck_key_further_than_the_span() -> None:
    """The span limits what a crash repeats; a broker that stores finished ranges repeats nothing."""
    done: list[int] = []
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, queues=1, ordered=True)
        with Producer(broker.address) as producer:
            producer.send(TOPIC, {}, key="stuck")
            producer.send_many(TOPIC, [(f"k{number}", {}) for number in range(OTHERS)])
        app = App(broker.address, group="g", flow=FlowLimits(messages=50, span=SPAN), pull_batch=10)

        @app.ordered(TOPIC, on_fail=HoldKey(retries=RETRY_FOREVER))
        def handle(message: Message) -> None:
            if message.key == "stuck":
                raise ValueError("always fails")
            done.append(message.queue_offset)

        with app:
            until("all others are done", lambda: len(done) == OTHERS)
    assert sorted(done) == list(range(1, OTHERS + 1))
