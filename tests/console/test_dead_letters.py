"""Dead letters in the console: listed over all groups, inspected, redriven in order, discarded; who may do it."""

import re
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import BASE, Stage, until

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.dead_letters import GroupDeadLetter, read_dead_letters
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.consumer.app import App
from lanemq.client.consumer.turns.handler import ToDeadLetter
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.console import protection

OURS = {"origin": BASE}


class Office:
    """A group of its own that gives up all messages of a topic of its own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.address, self.group, self.topic = stage.address, name, f"parcels-{name}"
        with Admin(stage.address) as admin:
            admin.create_topic(self.topic, 1, ordered=True)

    def give_up(self, *sent: tuple[str, str]) -> list[GroupDeadLetter]:
        """Sends messages, as key and body, and returns all dead letters once there are so many more."""
        wanted = len(self.letters()) + len(sent)
        app = App(self.address, group=self.group)

        @app.ordered(self.topic)
        def handle(message: Message) -> None:
            raise ToDeadLetter(f"no address of {message.key}")

        with Producer(self.address, codec="bytes") as producer:
            for key, body in sent:
                producer.send(self.topic, body.encode(), key=key, tag="parcel", properties={"depot": "7"})
        with app:
            until("the dead letters", lambda: len(self.letters()) >= wanted)
        return self.letters()

    def letters(self) -> list[GroupDeadLetter]:
        return list(read_dead_letters(self.address, self.group))

    def sent(self) -> list[Message]:
        with TopicReader(self.address, self.topic) as reader:
            return [each for queue in reader.queues for each in reader.read(queue, *reader.bounds(queue))]


@pytest.fixture
def office(stage: Stage, client: TestClient, request: pytest.FixtureRequest) -> Office:
    found = Office(stage, re.sub(r"\W+", "-", request.node.name)[-60:])
    found.give_up(("a", "a1"), ("b", "b1"), ("a", "a2"))
    until("the console to know them", lambda: found.group in client.get("/waiting").text)
    return found


def link(what: str, office: Office, **named: str) -> str:
    return f"/dead{what}?{urlencode({'group': office.group, **named})}"


def form_of(client: TestClient, path: str) -> list[tuple[str, str]]:
    """What the form of a preview sends."""
    return re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)"', client.get(path).text)


def send(client: TestClient, path: str, form: list[tuple[str, str]], headers: dict[str, str] | None = None) -> str:
    named: dict[str, list[str]] = {}
    for name, value in form:
        named.setdefault(name, []).append(value)
    answer = client.post(path.partition("?")[0], data=named, headers=OURS if headers is None else headers)
    return f"{answer.status_code} {answer.text}"


def test_all_groups_are_listed_together_and_each_dead_letter_can_be_inspected(
    client: TestClient, office: Office
) -> None:
    text = client.get("/dead").text
    assert "no mail address" in text  # of the group `mail`
    assert text.count("no address of a") == 2
    assert client.get(link("", office, key="b")).text.count("no address of") == 1
    shown = client.get(link("/letter", office, id=office.letters()[0].id)).text
    assert "no address of a" in shown
    assert "depot" in shown
    for path in (
        link("/letter", office, id="lanemq/0/999"),
        link("/letter", office, id="x"),
        "/dead/letter?group=none",
    ):
        assert client.get(path).status_code == 404, path


def test_a_redrive_sends_what_the_page_showed_in_order_and_only_once(signed_in: TestClient, office: Office) -> None:
    path = link("/redrive", office)
    page = signed_in.get(path).text
    assert "Redrive 3 dead letters</button>" in page
    form = form_of(signed_in, path)
    office.give_up(("b", "b2"))  # arrives after the page was made
    assert "3 dead letters sent to" in send(signed_in, path, form)
    copies = office.sent()[4:]
    assert [message.body for message in copies] == [b"a1", b"b1", b"a2"]
    assert {(message.tag, message.properties["depot"]) for message in copies} == {("parcel", "7")}
    assert "Nothing to do" in send(signed_in, path, form)
    assert len(office.sent()) == 7
    assert "Redrive 1 dead letter</button>" in signed_in.get(path).text


def test_a_redrive_of_a_key_leaves_other_keys_and_needs_the_topic(signed_in: TestClient, office: Office) -> None:
    path = link("/redrive", office, key="a")
    assert "2 dead letters sent to" in send(signed_in, path, form_of(signed_in, path))
    assert [message.body for message in office.sent()[3:]] == [b"a1", b"a2"]
    again = signed_in.get(link("/redrive", office, id=office.letters()[0].id)).text
    assert "redriven before" in again
    assert "not exist any more" not in again
    with Admin(office.address) as admin:
        admin.delete_topic(office.topic)
    gone = f"Topic {office.topic} does not exist any more"
    until("the page to say that the topic is gone", lambda: gone in signed_in.get(link("/redrive", office)).text)


def test_a_discard_takes_what_the_page_showed_and_nothing_newer(signed_in: TestClient, office: Office) -> None:
    second = office.letters()[1].id
    path = link("/discard", office, id=second)
    assert "2 of 2 were never redriven" in signed_in.get(path).text
    assert "2 dead letters of group" in send(signed_in, path, form_of(signed_in, path))
    assert [letter.message.body for letter in office.letters()] == [b"a2"]
    every = link("/discard", office)
    form = form_of(signed_in, every)
    office.give_up(("b", "b2"))
    assert "1 dead letter of group" in send(signed_in, every, form)
    assert [letter.message.body for letter in office.letters()] == [b"b2"]
    groups = signed_in.get("/groups").text
    assert office.group in groups
    assert "DLQ" not in groups  # the mark of the discard is not shown as a group


@pytest.mark.parametrize("what", ["/redrive", "/discard"])
def test_without_the_token_or_from_another_site_nothing_changes(
    signed_in: TestClient, office: Office, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = link(what, office)
    form = form_of(signed_in, path)
    assert [value for name, value in form if name == "secret"]
    assert send(signed_in, path, form, {"origin": "http://evil.example"}).startswith("403")
    assert send(signed_in, path, [each for each in form if each[0] != "secret"]).startswith("403")
    cookies = dict(signed_in.cookies)
    signed_in.cookies.clear()
    assert "Sign in to" in signed_in.get(path).text
    assert send(signed_in, path, form).startswith("403")
    assert (len(office.letters()), len(office.sent())) == (3, 3)
    # Control: without the guard the foreign form works.
    signed_in.cookies.update(cookies)
    monkeypatch.setattr(protection.Sessions, "refusal", lambda *_: None)
    assert send(signed_in, path, form, {"origin": "http://evil.example"}).startswith("200")
    assert (len(office.letters()), len(office.sent())) != (3, 3)


def test_a_form_that_names_no_dead_letter_is_refused(signed_in: TestClient, office: Office) -> None:
    path = link("/discard", office)
    form = [each for each in form_of(signed_in, path) if each[0] != "through"]
    assert send(signed_in, path, form).startswith("400")
    assert len(office.letters()) == 3
