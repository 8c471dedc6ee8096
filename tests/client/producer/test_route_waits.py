"""Waiting for a route counts into the caller's time-out, and callers that wait together share the answer."""

import threading
import time
from collections.abc import Callable

import pytest
from tests.client.fake_broker import FakeBroker, serving
from tests.client.producer.producers import Blocking, OnALoop, Open

from lanemq.client.routing import BlockingRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.model.errors import LaneError, RequestTimedOut
from lanemq.wire.codes import RequestCode

broker = serving()

PAUSE = threading.Event()
TIMEOUT = 1.0
ROOM = 2.0
"""Seconds that a call may take longer on a busy machine. A question to a name server alone takes 3 s to fail."""


def seconds_of(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with pytest.raises(LaneError):
        call()
    return time.monotonic() - began


def at_once(count: int, call: Callable[[int], float]) -> list[float]:
    took: list[float] = []
    threads = [threading.Thread(target=lambda number=number: took.append(call(number))) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


@pytest.mark.slow
def test_eleven_calls_to_a_hung_broker_take_as_long_as_their_time_out(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address, timeout=TIMEOUT) as producer, broker.asleep():
        took = at_once(11, lambda number: seconds_of(lambda: producer.send(f"topic-{number}", 1, key="k")))
        took += [seconds_of(lambda: producer.send("orders", 1, key="k")) for _ in range(2)]
    assert len(took) == 13
    assert max(took) < TIMEOUT + ROOM


def test_callers_of_one_topic_share_one_question(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        with broker.asleep():
            threads = [
                threading.Thread(target=lambda: producer.send("orders", 1, key="k"), daemon=True) for _ in range(11)
            ]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
    assert len(broker.everything("orders")) == 11
    assert broker.codes[RequestCode.GET_ROUTEINFO_BY_TOPIC] <= 2


@pytest.mark.slow
def test_a_look_up_without_a_limit_takes_longer_than_the_time_out(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the first test: a question to a name server that hangs takes 3 s."""
    limited = BlockingRoutes.get
    unlimited = {"provisional": True, "timeout": None}
    monkeypatch.setattr(BlockingRoutes, "get", lambda self, topic, **_: limited(self, topic, **unlimited))
    with Blocking(broker.address, timeout=0.1) as producer, broker.asleep():
        assert seconds_of(lambda: producer.send("orders", 1, key="k")) > 2


def test_callers_that_ask_for_themselves_ask_once_each(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the second test."""

    def ask_alone(self: BlockingRoutes, topic: str, *, provisional: bool = False, timeout: object = None) -> TopicRoute:
        with self._asking:
            return self._refreshed(topic, self._request(topic, provisional))

    monkeypatch.setattr(BlockingRoutes, "get", ask_alone)
    with Blocking(broker.address) as producer:
        with broker.asleep():
            threads = [threading.Thread(target=lambda: producer.send("orders", 1, key="k")) for _ in range(11)]
            for thread in threads:
                thread.start()
            PAUSE.wait(0.5)
        for thread in threads:
            thread.join()
    assert broker.codes[RequestCode.GET_ROUTEINFO_BY_TOPIC] >= 11


@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_an_old_route_is_used_while_no_name_server_answers(broker: FakeBroker, kind: Open) -> None:
    """A known route is refreshed in the background: no message waits for that."""
    with kind(broker.address, timeout=TIMEOUT) as producer:
        producer.send("orders", 0, key="k")
        with broker.asleep():
            producer.producer._routes.expire("orders")
            began = time.monotonic()
            waiting = [producer.submit("orders", number, key="k") for number in range(1, 4)]
            took = time.monotonic() - began
        assert [future.result(30).offset for future in waiting] == [1, 2, 3]
    assert took < ROOM


def test_a_call_that_gives_up_says_what_it_waited_for(broker: FakeBroker, kind: Open) -> None:
    why = r"no name server answered within 0.2 s: where topic 'orders'"
    with kind(broker.address, timeout=0.2) as producer, broker.asleep(), pytest.raises(RequestTimedOut, match=why):
        producer.send("orders", 1, key="k")
