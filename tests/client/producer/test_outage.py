"""A broker that is away for a while is no incident: what was submitted is stored afterwards, in order, once.

Everything runs with default settings. The short tests take seconds, the long one a minute (`make extended`).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.client.fake_broker import FakeBroker, serving
from tests.client.producer.producers import Open

from lanemq.client.producer.producer import Producer
from lanemq.model.errors import LaneError, RequestTimedOut
from lanemq.testing.embedded import EmbeddedBroker

broker = serving()

KEYS = 200
PAUSE = threading.Event()


@contextmanager
def cut_off(broker: FakeBroker) -> Iterator[None]:
    """Requests and replies are lost, connections stay open."""
    usual = broker.received
    broker.received = lambda peer, command: None  # type: ignore[method-assign]
    yield
    broker.received = usual  # type: ignore[method-assign]


Outage = Callable[[FakeBroker], AbstractContextManager[None]]
outages = pytest.mark.parametrize(
    "away", [FakeBroker.stopped, FakeBroker.asleep, pytest.param(cut_off, marks=pytest.mark.slow)]
)


def stored_by_key(broker: FakeBroker) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in broker.everything("orders"):
        found.setdefault(message.properties["__SHARDINGKEY"], []).append(message.text)
    return found


@outages
def test_everything_submitted_during_an_outage_is_stored_once_and_in_order(
    broker: FakeBroker, kind: Open, away: Outage
) -> None:
    with kind(broker.address) as producer:
        futures = [producer.submit("orders", 0, key=f"k{key}") for key in range(KEYS)]
        with away(broker):
            for number in (1, 2):
                futures += [producer.submit("orders", number, key=f"k{key}") for key in range(KEYS)]
                PAUSE.wait(0.3)
            assert producer.frozen_keys() == []
        for future in futures:
            future.result(60)
        assert producer.frozen_keys() == []
    assert stored_by_key(broker) == {f"k{key}": ["0", "1", "2"] for key in range(KEYS)}


@outages
def test_a_plain_send_waits_for_its_broker(broker: FakeBroker, kind: Open, away: Outage) -> None:
    done: list[object] = []
    with kind(broker.address) as producer:
        producer.send("orders", 0, key="k")
        with away(broker):
            sender = threading.Thread(target=lambda: done.append(producer.send("orders", 1, key="k")), daemon=True)
            sender.start()
            sender.join(0.5)
            assert sender.is_alive()
        sender.join(60)
    assert len(done) == 1
    assert stored_by_key(broker) == {"k": ["0", "1"]}


def test_a_message_that_outlives_its_delivery_timeout_freezes_its_key(broker: FakeBroker, kind: Open) -> None:
    """The negative control: the same outage, with a broker that is waited for less long."""
    with kind(broker.address, delivery_timeout=0.3) as producer:
        producer.send("orders", 0, key="k")
        with broker.stopped():
            with pytest.raises(RequestTimedOut):
                producer.submit("orders", 1, key="k").result(30)
            assert [each.key for each in producer.frozen_keys()] == ["k"]
        producer.resume("orders", key="k")
        producer.send("orders", 2, key="k")
    assert stored_by_key(broker)["k"] == ["0", "2"]


def test_a_send_that_gives_up_early_keeps_its_place(broker: FakeBroker, kind: Open) -> None:
    """`timeout` ends the call, not the message: later messages of the key stay behind it."""
    with kind(broker.address, timeout=0.3) as producer:
        producer.submit("orders", 0, key="k").result(30)
        with broker.stopped():
            with pytest.raises(RequestTimedOut, match=r"within 0.3 s: it may be stored or not, and waits"):
                producer.send("orders", 1, key="k")
            later = producer.submit("orders", 2, key="k")
            assert producer.frozen_keys() == []
        later.result(60)
    assert stored_by_key(broker) == {"k": ["0", "1", "2"]}


def test_memory_is_bounded_while_the_broker_is_away(broker: FakeBroker, kind: Open) -> None:
    settings = {"buffer_bytes": 20_000, "max_body_bytes": 10_000, "timeout": 0.3}
    with kind(broker.address, **settings) as producer:
        accepted = [producer.submit("orders", b"0" * 1000, key="k")]
        accepted[0].result(30)
        with broker.stopped():
            more = (producer.submit("orders", b"0" * 1000, key="k") for _ in range(100))
            with pytest.raises(RequestTimedOut, match="the buffer of 20000 bytes stayed full"):
                accepted.extend(more)
            assert 10 < len(accepted) < 20
        assert [future.result(60).offset for future in accepted] == list(range(len(accepted)))


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_minute_without_a_broker_is_no_incident() -> None:
    """A real broker, default settings, senders that submit and senders that wait, all the time."""
    keys, errors, stop = 50, list[LaneError](), threading.Event()
    sent: dict[str, int] = {}
    with EmbeddedBroker() as broker, Producer(broker.address, create="orders") as producer:
        producer.send("orders", 0, key="warm")

        def submit() -> None:
            futures = []
            while not stop.wait(0.05):
                for number in range(keys):
                    key = f"s{number}"
                    futures.append(producer.submit("orders", sent.get(key, 0), key=key))
                    sent[key] = sent.get(key, 0) + 1
            errors.extend(error for future in futures if (error := future.exception(120)) is not None)  # type: ignore[misc]

        def send() -> None:
            while not stop.is_set():
                try:
                    producer.send("orders", sent.get("w", 0), key="w")
                    sent["w"] = sent.get("w", 0) + 1
                except LaneError as error:
                    errors.append(error)

        threads = [threading.Thread(target=submit), threading.Thread(target=send)]
        for thread in threads:
            thread.start()
        PAUSE.wait(1)
        broker.stop()
        time.sleep(60)
        broker.start()
        PAUSE.wait(2)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert producer.frozen_keys() == []
        with_key = read_all(broker)
    assert {key: values for key, values in with_key.items() if key != "warm"} == {
        key: list(range(count)) for key, count in sent.items()
    }


def read_all(broker: EmbeddedBroker) -> dict[str, list[int]]:
    from lanemq.client.admin.topic_reader import TopicReader

    found: dict[str, list[int]] = {}
    with TopicReader(broker.address, "orders") as reader:
        for queue in reader.queues:
            for message in reader.read(queue, *reader.bounds(queue)):
                found.setdefault(message.key or "", []).append(int(message.body))
    return found
