"""Keys that wait, on their pages: several are redriven at once, and a discard does what its page showed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, Stage, until
from tests.console.test_changes import form_of, secret_of

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.console.routes import waiting
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.model.units import QueueOffset

if TYPE_CHECKING:
    from httpx import Response

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


def choose(client: TestClient, chosen: list[str], path: str = "/waiting/chosen", origin: str = BASE) -> "Response":
    form = {"secret": secret_of(client, "/waiting"), "lane": chosen}
    return client.post(path, data=form, headers={"origin": origin})


def test_chosen_keys_are_redriven_in_order_after_a_preview_with_counts(signed_in: TestClient, packers: Packers) -> None:
    until("the console to know them", lambda: "no box" in signed_in.get("/waiting").text)
    boxes = re.findall(r'name="lane" value="(group=packers[^"]*)"', signed_in.get("/waiting").text)
    assert len(boxes) == 4
    page = choose(signed_in, [packers.named("a"), packers.named("b"), packers.named("gone"), packers.named("a")]).text
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


def test_one_message_is_redriven_and_not_are(signed_in: TestClient, packers: Packers) -> None:
    packers.fails = True
    with Producer(packers.address) as producer:
        producer.send("parcels", 0, key="alone")
    until("it to be parked", lambda: "alone" in packers.lanes())
    packers.fails = False
    page = choose(signed_in, [packers.named("alone")]).text
    answer = signed_in.post("/waiting/redrive", data=form_of(page), headers=OURS)
    assert "1 message of key alone is redriven, in order" in answer.text
    until("it to be done", lambda: ("alone", 0) in packers.handled)


def test_a_preview_of_chosen_keys_and_their_redrive_need_a_session(client: TestClient, packers: Packers) -> None:
    page = client.get("/waiting").text
    assert "Sign in to choose and redrive" in page
    assert 'name="lane"' not in page
    for path in ("/waiting/chosen", "/waiting/redrive"):
        assert choose(client, [packers.named("c")], path).status_code == 403
    assert "c" in packers.lanes()


def test_a_form_of_another_site_gets_no_preview(signed_in: TestClient, packers: Packers) -> None:
    assert choose(signed_in, [packers.named("c")], origin="http://evil.example").status_code == 403


def test_the_address_of_the_preview_leads_to_the_list(signed_in: TestClient) -> None:
    """A person may reload the page, or keep its address, which does not name the keys."""
    answer = signed_in.get("/waiting/chosen", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/waiting")


def test_a_list_that_fits_into_no_address_is_previewed_and_a_longer_one_refused_with_a_sentence(
    signed_in: TestClient, packers: Packers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_find", lambda *_: None)
    many = [packers.named(f"order-{number}-{'x' * 200}") for number in range(3 * waiting.MAX_CHOSEN)]
    assert f'data-choosing="{waiting.MAX_CHOSEN}"' in signed_in.get("/waiting").text
    page = choose(signed_in, many[: waiting.MAX_CHOSEN])
    assert (page.status_code, "500 chosen keys do not wait any more" in page.text) == (200, True)
    for path in ("/waiting/chosen", "/waiting/redrive"):
        refused = choose(signed_in, many, path)
        assert refused.status_code == 400
        assert "1500 keys are chosen, and at most 500 are redriven at a time: choose fewer" in refused.text


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
