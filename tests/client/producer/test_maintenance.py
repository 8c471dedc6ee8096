"""The maintenance thread survives any error: retries, deadlines and connections depend on it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Blocking, OnALoop, Open

broker = serving(queues=1)


def breaking(function: Callable[..., object], times: int = 1) -> Callable[..., object]:
    """The function, raising an unexpected error the first few times."""
    left = iter(range(times))

    def broken(*arguments: object, **named: object) -> object:
        if next(left, None) is not None:
            raise RuntimeError("unexpected")
        return function(*arguments, **named)

    return broken


def tracebacks(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in each.getMessage() and each.exc_info is not None for each in caplog.records)


def test_a_busy_broker_is_asked_again_after_unexpected_errors_in_maintenance(
    broker: FakeBroker, kind: Open, caplog: pytest.LogCaptureFixture
) -> None:
    broker.faults = lambda header, number: Fault.BUSY if number == 2 else None
    with kind(broker.address) as producer:
        producer.send("orders", 1, key="k")
        engine = producer.producer._engine
        engine.tick = breaking(engine.tick, times=2)
        producer.send("orders", 2, key="k")
    assert broker.stored("orders", 0) == ["1", "2"]
    assert tracebacks(caplog, "unexpected error in the producer's maintenance") == 2


def test_a_broker_is_dialled_again_after_an_unexpected_error(
    broker: FakeBroker, kind: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with kind(broker.address) as producer:
        routes = producer.producer._routes
        original = routes.get
        broken = iter([True])

        def get(topic: str, *, provisional: bool = False, **how: Any) -> object:
            if provisional and engine_dials(producer) and next(broken, False):
                raise RuntimeError("unexpected")
            return original(topic, provisional=provisional, **how)

        routes.get = get
        producer.send("orders", 1, key="k")
    assert broker.stored("orders", 0) == ["1"]
    assert tracebacks(caplog, "unexpected error while connecting to broker fake") == 1


def engine_dials(producer: Blocking | OnALoop) -> bool:
    """Whether an attempt to connect asks for the route, and not the send itself."""
    return any(state.dialing for state in producer.producer._engine._brokers.values())
