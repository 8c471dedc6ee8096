"""Promise 2: stored as sent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.chaos.mutants import stamp_check
from tests.chaos.proxy import ProxiedBroker
from tests.chaos.roles import FOUR_QUEUES
from tests.chaos.system import TOPIC, stored_records

from lanemq.client.producer.producer import Producer
from lanemq.log.store import Store

ROUNDS = 10
PER_ROUND = 60


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[[], ProxiedBroker]]:
    started: list[ProxiedBroker] = []

    def start() -> ProxiedBroker:
        started.append(ProxiedBroker(tmp_path / "data"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def stored_steps(proxied: ProxiedBroker) -> dict[str, list[str]]:
    """The bodies of each key as the log holds them."""
    proxied.close()
    store = Store(proxied.data)
    store.recover()
    steps: dict[str, list[str]] = {}
    for number in range(4):
        for view in stored_records(store, number):
            steps.setdefault(view.properties["__SHARDINGKEY"], []).append(view.body.decode())
    store.close()
    return steps


def send_over_a_bad_wire(proxied: ProxiedBroker) -> None:
    """Pipelined sends; in every round the broker's answers are lost and the connection is cut."""
    with Producer(proxied.address, create=FOUR_QUEUES) as producer:
        producer.send(TOPIC, 0, key="k0")
        lost = 0
        for start in range(1, ROUNDS * PER_ROUND, PER_ROUND):
            futures = [
                producer.submit(TOPIC, number // 5, key=f"k{number % 5}") for number in range(start, start + PER_ROUND)
            ]
            lost += proxied.lose_answers_and_cut(10)
            for future in futures:
                future.result(30)
        assert lost, "no answer was lost: the run shows nothing"


@pytest.mark.slow
def test_lost_answers_and_cut_connections_change_nothing(proxied: Callable[[], ProxiedBroker]) -> None:
    """ "… in the order of its send calls, … pipelined …, through retries, … reconnects …, without duplicates.\""""
    broker = proxied()
    send_over_a_bad_wire(broker)
    expected: dict[str, list[str]] = {}
    for number in range(ROUNDS * PER_ROUND + 1):
        expected.setdefault(f"k{number % 5}", []).append(str(number // 5))
    assert stored_steps(broker) == expected


@pytest.mark.slow
def test_without_the_stamps_repeats_are_stored_twice(
    proxied: Callable[[], ProxiedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the same connection, and a broker that stores everything."""
    stamp_check(monkeypatch.setattr)
    broker = proxied()
    send_over_a_bad_wire(broker)
    steps = stored_steps(broker)
    assert any(len(each) > len(set(each)) for each in steps.values())


def send_two_while_the_first_wire_is_slow(broker: ProxiedBroker, first: Producer, second: Producer) -> None:
    first.send(TOPIC, "warm", key="k")
    if second is not first:
        second.send(TOPIC, "warm", key="k")
        held = broker.wires[first_wire(broker)]
    else:
        held = broker.wires[-1]
    held.open.clear()
    one = first.submit(TOPIC, 1, key="k")
    two = second.submit(TOPIC, 2, key="k")
    if second is not first:
        two.result(30)
    held.open.set()
    one.result(30)
    two.result(30)


def first_wire(broker: ProxiedBroker) -> int:
    """The sending connection of the first of two producers: each asks for routes on one and sends on another."""
    return len(broker.wires) // 2 - 1


@pytest.mark.row("A10")
def test_one_producer_keeps_order_over_a_slow_connection(proxied: Callable[[], ProxiedBroker]) -> None:
    """ "For one producer, the messages of a key are stored in the order of its send calls.\""""
    broker = proxied()
    with Producer(broker.address, create=FOUR_QUEUES) as producer:
        send_two_while_the_first_wire_is_slow(broker, producer, producer)
    assert stored_steps(broker)["k"] == ['"warm"', "1", "2"]


@pytest.mark.row("A10")
def test_a_naive_send_over_two_connections_inverts(proxied: Callable[[], ProxiedBroker]) -> None:
    """Negative control: two connections without common numbers, and the first one is slow."""
    broker = proxied()
    with Producer(broker.address, create=FOUR_QUEUES) as first, Producer(broker.address) as second:
        send_two_while_the_first_wire_is_slow(broker, first, second)
    assert stored_steps(broker)["k"][2:] == ["2", "1"]
