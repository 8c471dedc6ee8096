"""The fault switch of the embedded broker, through the plugin's fixtures."""

import time

import pytest
from tests.client.consumer.with_broker import WAIT, Inbox

from lanemq import App, Message, Producer, UsageError
from lanemq.testing import EmbeddedBroker, assert_in_order
from lanemq.testing.plugin import _wants_own_broker


def test_a_paused_broker_answers_when_it_is_resumed(lanemq_broker: EmbeddedBroker, lanemq_topic: str) -> None:
    with Producer(lanemq_broker.address) as producer:
        producer.send(lanemq_topic, 1, key="k")
        lanemq_broker.pause()
        sent = producer.submit(lanemq_topic, 2, key="k")
        with pytest.raises(TimeoutError):
            sent.result(0.1)
        lanemq_broker.resume()
        assert sent.result(WAIT).offset == 1


@pytest.mark.lanemq(own_broker=True)
def test_what_was_acknowledged_survives_a_kill(
    lanemq_broker: EmbeddedBroker, lanemq_topic: str, lanemq_group: str
) -> None:
    inbox = Inbox()
    app = App(lanemq_broker.address, group=lanemq_group)

    @app.ordered(lanemq_topic)
    def handle(message: Message) -> None:
        inbox.add(message)

    with Producer(lanemq_broker.address) as producer:
        first = producer.send_many(lanemq_topic, [("k", n) for n in range(10)])
        lanemq_broker.kill()
        lanemq_broker.restart()
        second = producer.send_many(lanemq_topic, [("k", n) for n in range(10, 20)])
    assert [receipt.offset for receipt in (*first, *second)] == list(range(20))
    with app:
        handled = inbox.wait(20)
    assert [message.value() for message in handled] == list(range(20))
    assert_in_order(handled)


def test_the_shared_broker_runs_again_after_a_test_that_stopped_it(lanemq_broker: EmbeddedBroker) -> None:
    address = lanemq_broker.address
    lanemq_broker.kill()
    lanemq_broker.heal()
    assert lanemq_broker.address == address


def test_a_broker_starts_within_200_ms() -> None:
    """Of elapsed time, and so of CPU time. Others may use the machine, so one of ten starts is enough."""
    started_in()  # loads modules
    times: list[tuple[float, float]] = []
    while len(times) < 10:
        times.append(started_in())
        if max(times[-1]) < 0.2:
            return
    raise AssertionError(f"elapsed and CPU seconds of each start: {times}")


def started_in() -> tuple[float, float]:
    """Elapsed seconds and CPU seconds until a broker answers."""
    elapsed, used = time.perf_counter(), time.process_time()
    with EmbeddedBroker():
        return time.perf_counter() - elapsed, time.process_time() - used


def test_a_broker_that_was_killed_cannot_be_paused() -> None:
    with EmbeddedBroker() as broker:
        broker.kill()
        with pytest.raises(UsageError, match=r"not running: call start\(\) first, or restart\(\) after kill"):
            broker.pause()


@pytest.mark.parametrize("mark", [pytest.mark.lanemq(own_brokr=True), pytest.mark.lanemq("own_broker")])
def test_a_misspelt_option_of_the_mark_is_refused(mark: pytest.MarkDecorator) -> None:
    with pytest.raises(pytest.UsageError, match="the only option is own_broker=True"):
        _wants_own_broker(mark.mark)
    assert _wants_own_broker(pytest.mark.lanemq(own_broker=True).mark)
    assert not _wants_own_broker(None)
