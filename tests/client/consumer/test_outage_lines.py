"""What a consumer writes to the log while its broker is away: that it is away, and that it is back."""

import threading
from collections.abc import Callable

import pytest
from tests.client.logged_lines import warnings_of_clients

from lanemq import Admin, App, Message, Producer
from lanemq.testing.embedded import EmbeddedBroker

PAUSE = threading.Event()


@pytest.mark.lanemq(own_broker=True)
@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_an_outage_is_two_lines_of_a_consumer(
    lanemq_broker: EmbeddedBroker, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    with Admin(lanemq_broker.address) as admin:
        admin.create_topic("orders", 8, ordered=True)
    address = lanemq_broker.address
    app = App(address, group="readers")

    def take(message: Message) -> None:
        seen.append(message.body.decode())

    (app.ordered if ordered else app.concurrent)("orders")(take)

    def handled(texts: set[str]) -> bool:
        return texts <= set(seen)

    with app:
        send_all(lanemq_broker, first := {f'"first {number}"' for number in range(20)})
        wait_for(lambda: handled(first))
        lanemq_broker.stop()
        PAUSE.wait(6)  # longer than its leases last
        lanemq_broker.start()
        send_all(lanemq_broker, second := {f'"second {number}"' for number in range(20)})
        wait_for(lambda: handled(second))
        wait_for(lambda: len(warnings_of_clients(caplog)) >= 2)
        app_lines = warnings_of_clients(caplog)
    away, back = app_lines
    assert away.startswith(f"{address} does not answer")
    assert back.startswith(f"{address} answers again")


def send_all(broker: EmbeddedBroker, texts: set[str]) -> None:
    with Producer(broker.address) as producer:
        producer.send_many("orders", [(text, text.strip('"')) for text in texts])


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        PAUSE.wait(0.1)
    raise AssertionError("waited for a minute")
