"""Operators see where a handler failed: file, line and function, without values."""

import re
from pathlib import Path
from typing import Any

from tests.client.consumer.with_broker import wait_for

from lanemq import App, DeadLetter, HoldKey, Producer, ToDeadLetter
from lanemq.client.admin.dead_letters import read_dead_letters
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.turns.handler import describe_with_place
from lanemq.core.consuming.lane_queue import REASON_CHARS
from lanemq.model.where_raised import MAX_FRAMES, where_raised
from lanemq.testing import EmbeddedBroker

HERE = f"consumer/{Path(__file__).name}"


def price_of(order: Any) -> int:
    prices = {42: 10}
    return prices[order["secret"]]


def deeper(depth: int) -> None:
    if depth:
        deeper(depth - 1)
    raise KeyError(depth)


def failing(call: Any, *arguments: Any) -> BaseException:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - what is looked at
        return error
    raise AssertionError


def test_the_innermost_frames_are_named_and_no_value() -> None:
    error = failing(price_of, {"secret": 43, "card": "4111"})
    assert re.fullmatch(rf"{HERE}:\d+ in price_of, called from {HERE}:\d+ in failing", where_raised(error))
    assert "4111" not in describe_with_place(error)


def test_the_number_of_frames_and_the_length_have_limits() -> None:
    assert where_raised(failing(deeper, 50)).count("called from") == MAX_FRAMES - 1
    text = describe_with_place(failing(int, "x" * 5_000))
    assert len(text) <= REASON_CHARS
    assert text.endswith(" in failing"), "the place is kept, the text is cut"


def test_a_decision_of_the_handler_has_no_place() -> None:
    def decide() -> None:
        raise ToDeadLetter("no address")

    assert describe_with_place(failing(decide)) == "ToDeadLetter('no address')"


def test_a_parked_lane_and_a_dead_letter_say_where_the_handler_failed(
    lanemq_broker: EmbeddedBroker, lanemq_topic: str, lanemq_group: str
) -> None:
    server = lanemq_broker.address
    app = App(server, group=lanemq_group)
    given_up = App(server, group=f"{lanemq_group}-given-up")

    @app.ordered(lanemq_topic, on_fail=HoldKey(retries=0))
    def bill(order: dict[str, int]) -> None:
        price_of(order)

    @given_up.ordered(lanemq_topic, on_fail=DeadLetter(skip=True, hold=HoldKey(retries=0)))
    def give_up(order: dict[str, int]) -> None:
        price_of(order)

    place = rf"KeyError\(43\) at {HERE}:\d+ in price_of, called from {HERE}:\d+ in "
    with Producer(server) as producer, app, given_up, ParkedAdmin(server) as parked:
        producer.send(lanemq_topic, {"secret": 43}, key="a")
        wait_for(lambda: parked.lanes(lanemq_group))
        assert re.fullmatch(f"{place}bill", parked.lanes(lanemq_group)[0].reason)
        wait_for(lambda: [*read_dead_letters(server, f"{lanemq_group}-given-up")])
        (letter,) = read_dead_letters(server, f"{lanemq_group}-given-up")
        assert re.fullmatch(f"{place}give_up", letter.why)
