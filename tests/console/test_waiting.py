"""Keys that wait, on their pages: several are redriven at once, and a discard does what its page showed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, Stage, until
from tests.console.test_changes import form_of

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.console.routes import waiting
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.model.units import QueueOffset

OURS = {"origin": BASE}
LONG = waiting.MAX_SHOWN + 30
"""Messages of the key `long`: more than its page shows."""


@dataclass
class Packers:
    """The group `packers` has parked the keys `long`, `a`, `b` and `c`, the last three with two messages each."""

    address: str
    handled: list[tuple[str | None, int]] = field(default_factory=list)
    """Key and value of each message, in the order in which they were handled."""
    fails: bool = True

    def lanes(self) -> dict[str | None, ParkedLaneView]:
        with ParkedAdmin(self.address) as admin:
            return {lane.key: lane for lane in admin.lanes("packers")}

    def named(self, key: str, **more: str) -> str:
        return urlencode({"group": "packers", "topic": "parcels", "broker": "lanemq", "queue": "0", "key": key, **more})


@pytest.fixture(scope="module")
def packers(stage: Stage) -> Iterator[Packers]:
    made = Packers(stage.address)
    with Admin(stage.address) as admin:
        admin.create_topic("parcels", 1, ordered=True)
    with Producer(stage.address) as producer:
        producer.send_many("parcels", [(key, number) for number in range(2) for key in ("a", "b", "c")])
        producer.send_many("parcels", [("long", number) for number in range(LONG)])
    app = App(stage.address, group="packers")

    @app.ordered("parcels", on_fail=HoldKey(retries=0))
    def pack(message: Message) -> None:
        if made.fails:
            raise ValueError("no box")
        made.handled.append((message.key, message.value()))

    with app:
        until("the keys to be parked", lambda: sum(lane.messages for lane in made.lanes().values()) == LONG + 6)
        made.fails = False
        yield made


def test_chosen_keys_are_redriven_in_order_after_a_preview_with_counts(signed_in: TestClient, packers: Packers) -> None:
    until("the console to know them", lambda: "no box" in signed_in.get("/waiting").text)
    boxes = re.findall(r'name="lane" value="(group=packers[^"]*)"', signed_in.get("/waiting").text)
    assert len(boxes) == 4
    chosen = [packers.named("a"), packers.named("b"), packers.named("gone")]
    page = signed_in.get(f"/waiting/redrive?{urlencode({'lane': chosen}, doseq=True)}").text
    assert "Redrive 4 messages of 2 keys" in page
    assert "1 chosen key does not wait any more" in page
    assert "0 to 3" in page
    assert packers.handled == [], "a preview redrives nothing"
    answer = signed_in.post("/waiting/redrive", data=form_of(page), headers=OURS)
    assert "4 messages of 2 keys are redriven, in order" in answer.text
    until("the keys to be done", lambda: len(packers.handled) == 4)
    assert [value for key, value in packers.handled if key == "a"] == [0, 1]
    assert [value for key, value in packers.handled if key == "b"] == [0, 1]
    assert set(packers.lanes()) == {"c", "long"}


def test_a_redrive_of_chosen_keys_needs_a_session(client: TestClient, packers: Packers) -> None:
    page = client.get(f"/waiting/redrive?{urlencode({'lane': packers.named('c')})}").text
    assert "Sign in to redrive" in page
    assert client.post("/waiting/redrive", data={"lane": packers.named("c")}, headers=OURS).status_code == 403
    assert "c" in packers.lanes()


def test_a_discard_of_more_than_the_page_shows_says_how_many_and_which_and_does_that(
    signed_in: TestClient, packers: Packers
) -> None:
    lane = packers.lanes()["long"]
    assert f"Discard all {LONG}" in signed_in.get(f"/waiting/lane?{packers.named('long')}").text
    page = signed_in.get(f"/waiting/discard?{packers.named('long', all='1')}").text
    assert f"Discard {LONG} messages of" in page
    assert f"All {LONG} messages of the key from offset {lane.first} to offset {lane.last}" in page
    assert "and 30 more messages of the key" in page
    form = form_of(page)
    with ParkedAdmin(packers.address) as admin:
        admin.discard(lane, QueueOffset(lane.first))
    refused = signed_in.post("/waiting/discard", data=form, headers=OURS)
    assert refused.status_code == 409
    assert f"The page showed {LONG} messages from offset {lane.first} to {lane.last}" in refused.text
    assert packers.lanes()["long"].messages == LONG - 1, "the lane begins elsewhere now, so nothing was discarded"
    again = signed_in.post("/waiting/discard", data=form_of(refused.text), headers=OURS)
    assert f"{LONG - 1} messages of key long discarded" in again.text
    assert "long" not in packers.lanes()


def test_the_first_message_is_discarded_alone(signed_in: TestClient, packers: Packers) -> None:
    page = signed_in.get(f"/waiting/discard?{packers.named('c', all='')}").text
    assert "The message at offset 2 of queue 0 of parcels" in page
    assert "1 later message of the key stays parked" in page
    assert "1 message of key c discarded" in signed_in.post("/waiting/discard", data=form_of(page), headers=OURS).text
    assert packers.lanes()["c"].messages == 1
