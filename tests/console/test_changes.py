"""Changes: who may make them, from where, and that they do what the page before them said."""

import html
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.datastructures import FormData
from starlette.testclient import TestClient
from tests.console.conftest import BASE, TOKEN, Stage, until

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.admin.views import AtOffset
from lanemq.client.producer.producer import Producer
from lanemq.console import protection
from lanemq.console.app import console_app
from lanemq.console.routes import waiting
from lanemq.console.screens import environment
from lanemq.console.settings import ConsoleSettings
from lanemq.model.units import QueueOffset

OURS = {"origin": BASE}


def secret_of(client: TestClient, path: str = "/topics/orders/delete") -> str:
    found = re.search(r'name="secret" value="([^"]+)"', client.get(path).text)
    return found[1] if found else ""


def create(client: TestClient, name: str, headers: Mapping[str, str], **fields: str) -> int:
    form = {"name": name, "queues": "1", "order": "key", "broker": "lanemq", **fields}
    return client.post("/topic/new", data=form, headers=dict(headers), follow_redirects=False).status_code


def form_of(page: str) -> dict[str, list[str]]:
    """What the form of a page with hidden fields sends."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page):
        found.setdefault(name, []).append(html.unescape(value))
    return found


def topics(stage: Stage) -> list[str]:
    with Admin(stage.address) as admin:
        return admin.topics()


def test_a_change_needs_a_session(client: TestClient, stage: Stage) -> None:
    assert create(client, "without-session", OURS, secret="x") == 403
    assert "without-session" not in topics(stage)


def test_a_wrong_token_begins_no_session(client: TestClient) -> None:
    answer = client.post("/sign-in", data={"token": "wrong"}, headers=OURS, follow_redirects=False)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_broker_without_users_lets_nobody_sign_in_as_one(client: TestClient) -> None:
    """It accepts every signature, so any name would do."""
    form = {"user": "anyone", "token": "anything"}
    assert client.post("/sign-in", data=form, headers=OURS, follow_redirects=False).status_code == 403


def test_the_cookie_is_hidden_from_scripts_and_other_sites(client: TestClient) -> None:
    answer = client.post("/sign-in", data={"token": TOKEN}, headers=OURS, follow_redirects=False)
    client.cookies.clear()
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": BASE},
        {"sec-fetch-site": "same-site"},
        {},
    ],
)
def test_a_form_of_another_site_changes_nothing(signed_in: TestClient, stage: Stage, headers: dict[str, str]) -> None:
    assert create(signed_in, "foreign-form", headers, secret=secret_of(signed_in)) == 403
    assert "foreign-form" not in topics(stage)


def test_a_form_without_the_sessions_secret_changes_nothing(signed_in: TestClient, stage: Stage) -> None:
    assert create(signed_in, "no-secret", OURS) == 403
    assert create(signed_in, "no-secret", OURS, secret="guessed") == 403
    assert "no-secret" not in topics(stage)


def test_control_without_the_guard_the_foreign_form_would_work(
    signed_in: TestClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protection.Sessions, "refusal", lambda *_: None)
    monkeypatch.setattr(protection.ConsoleSession, "wrote", lambda *_: True)
    assert create(signed_in, "control", {"origin": "http://evil.example"}) == 303
    assert "control" in topics(stage)


def test_another_machine_may_look_and_not_change(stage: Stage) -> None:
    app = console_app(ConsoleSettings(stage.address, every=0.2), TOKEN)
    with TestClient(app, base_url=BASE, client=("192.0.2.7", 50000)) as remote:
        assert "read-only" in remote.get("/topics").text
        signing_in = remote.post("/sign-in", data={"token": TOKEN}, headers=OURS)
        assert (signing_in.status_code, "--remote-writes" in signing_in.text) == (403, True)
        assert create(remote, "remote", OURS, secret="x") == 403
    assert "remote" not in topics(stage)


def test_another_machine_may_change_something_if_the_console_was_started_so(stage: Stage) -> None:
    app = console_app(ConsoleSettings(stage.address, every=0.2, remote_writes=True), TOKEN)
    with TestClient(app, base_url=BASE, client=("192.0.2.7", 50000)) as remote:
        remote.post("/sign-in", data={"token": TOKEN}, headers=OURS)
        assert create(remote, "remote-allowed", OURS, secret=secret_of(remote)) == 303
    assert "remote-allowed" in topics(stage)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:9870", True), ("[::1]:9870", True), ("localhost", True), ("10.0.0.4:80", True),
        ("evil.example:9870", False), ("", False), ("ops.example", True), ("127.0.0.1.evil.example", False),
    ],
)  # fmt: skip
def test_only_addresses_and_known_names_are_hosts_of_the_console(host: str, allowed: bool) -> None:
    assert protection.host_allowed(host, frozenset({"ops.example"})) is allowed


def test_a_page_for_another_host_is_refused(client: TestClient) -> None:
    """A name that an attacker lets point to this machine would otherwise read every message."""
    assert client.get("/messages?topic=orders", headers={"host": "evil.example"}).status_code == 421


def test_signing_in_leads_only_to_pages_of_the_console(client: TestClient) -> None:
    for target in ("http://evil.example/", "//evil.example", "/\\evil.example"):
        form = {"token": TOKEN, "then": target}
        answer = client.post("/sign-in", data=form, headers=OURS, follow_redirects=False)
        assert "evil" not in answer.headers["location"], target
    client.cookies.clear()


def test_a_topic_is_created_and_deleted_by_its_name(signed_in: TestClient, stage: Stage) -> None:
    assert create(signed_in, "short-lived", OURS, secret=secret_of(signed_in), queues="3") == 303
    assert "short-lived" in signed_in.get("/topics").text
    form = {"secret": secret_of(signed_in), "name": "wrong"}
    assert signed_in.post("/topics/short-lived/delete", data=form, headers=OURS).status_code == 400
    assert "short-lived" in topics(stage)
    signed_in.post("/topics/short-lived/delete", data={**form, "name": "short-lived"}, headers=OURS)
    assert "short-lived" not in topics(stage)


def test_a_new_topic_is_previewed_and_then_created(signed_in: TestClient, stage: Stage) -> None:
    asked = {"name": "previewed", "queues": "3", "order": "key"}
    page = signed_in.get(f"/topic/new?{urlencode(asked)}").text
    assert "will be created with 3 queues on 1 broker, order: by key" in page
    assert stage.address in page
    assert "the number of queues: another one would move keys away from their messages" in page
    assert "previewed" not in topics(stage)
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    answer = signed_in.post("/topic/new", data=form, headers=OURS)
    assert "Topic previewed was created." in answer.text
    with Admin(stage.address) as admin:
        found = admin.describe_topic("previewed")
        assert (found.ordered, len(found.queues)) == (True, 3)
    assert "exists already, as you ask for it" in signed_in.get(f"/topic/new?{urlencode(asked)}").text
    other = signed_in.get(f"/topic/new?{urlencode({**asked, 'queues': '4'})}").text
    assert "exists with 3 queues per broker and is ordered" in other
    assert "Create topic" not in other


def test_a_new_topic_is_not_created_on_other_brokers_than_the_preview_showed(
    signed_in: TestClient, stage: Stage
) -> None:
    assert create(signed_in, "elsewhere", OURS, secret=secret_of(signed_in), broker="gone") == 409
    assert "elsewhere" not in topics(stage)


def test_control_without_the_comparison_it_is_created_on_other_brokers(
    signed_in: TestClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.console.routes.topics._are_as_shown", lambda *_, **__: True)
    assert create(signed_in, "control", OURS, secret=secret_of(signed_in), broker="gone") == 303
    assert "control" in topics(stage)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"name": "a b", "queues": "1", "order": "key"}, "a b"),
        ({"name": "t", "queues": "0", "order": "key"}, "is not a number of queues"),
        ({"name": "t", "queues": "1", "order": "other"}, "is not an order"),
    ],
)
def test_a_new_topic_that_cannot_be_is_refused_before_the_preview(
    signed_in: TestClient, asked: dict[str, str], why: str
) -> None:
    page = signed_in.get(f"/topic/new?{urlencode(asked)}").text
    assert 'role="alert"' in page
    assert why in page
    assert "What will happen" not in page
    assert create(signed_in, secret=secret_of(signed_in), headers=OURS, **asked) == 400


def test_a_reset_is_previewed_and_then_done(signed_in: TestClient, stage: Stage) -> None:
    with Admin(stage.address) as admin:
        admin.create_topic("replayed", 1, ordered=True)
        with Producer(stage.address) as producer:
            producer.send_many("replayed", [("k", number) for number in range(5)])
        (queue,) = [each.queue for each in admin.describe_topic("replayed").queues]
        admin.commit("replayers", queue, 5)
        until("the group to be known", lambda: signed_in.get("/groups/replayers").status_code == 200)
        page = signed_in.get("/groups/replayers/reset?topic=replayed&to=first").text
        assert "5 messages will be processed again, 0 messages will be skipped." in page
        assert "Reset 1 queue, repeat 5 messages" in page
        assert admin.committed("replayers", queue) == 5
        answer = signed_in.post("/groups/replayers/reset", data=form_of(page), headers=OURS)
        assert "5 messages are repeated, 0 are skipped" in answer.text
        assert admin.committed("replayers", queue) == 0
    assert "is not a position" in signed_in.get("/groups/replayers/reset?topic=replayed&to=soon").text


class Rewound:
    """A group at offset 3 of 5 messages."""

    def __init__(self, stage: Stage, client: TestClient, name: str) -> None:
        self.client, self.group, self.stage = client, name, stage
        self.path = f"/groups/{name}/reset"
        with Admin(stage.address) as admin:
            admin.create_topic(name, 1, ordered=True)
            self.send(5)
            (self.queue,) = [each.queue for each in admin.describe_topic(name).queues]
            admin.commit(name, self.queue, 3)
        until("the group to be known", lambda: client.get(f"/groups/{name}").status_code == 200)

    def send(self, count: int) -> None:
        with Producer(self.stage.address) as producer:
            producer.send_many(self.group, [("k", number) for number in range(count)])

    def move(self, offset: int) -> None:
        with Admin(self.stage.address) as admin:
            admin.reset_offsets(self.group, self.group, to=AtOffset(QueueOffset(offset)))

    def preview(self, to: str) -> dict[str, list[str]]:
        return form_of(self.client.get(f"{self.path}?topic={self.group}&to={to}").text)

    def confirm(self, form: dict[str, list[str]]) -> Any:
        return self.client.post(self.path, data=form, headers=OURS, follow_redirects=False)

    @property
    def offset(self) -> int | None:
        with Admin(self.stage.address) as admin:
            return admin.committed(self.group, self.queue)


def test_a_reset_to_the_end_moves_to_the_end_that_was_shown(signed_in: TestClient, stage: Stage) -> None:
    group = Rewound(stage, signed_in, "to-the-end")
    form = group.preview("last")
    group.send(2)
    assert group.confirm(form).status_code == 303
    assert group.offset == 5, "the two messages that arrived after the preview are not skipped"


def test_a_reset_that_would_skip_more_than_was_shown_is_refused_with_a_new_preview(
    signed_in: TestClient, stage: Stage
) -> None:
    group = Rewound(stage, signed_in, "moved-back")
    form = group.preview("last")
    group.move(1)
    answer = group.confirm(form)
    assert answer.status_code == 409
    assert "would skip 4 messages now, and the preview showed 2" in answer.text
    assert "4 messages will be skipped" in answer.text
    assert group.offset == 1
    assert group.confirm(form_of(answer.text)).status_code == 303
    assert group.offset == 5


def test_a_reset_forward_that_the_group_has_passed_is_refused(signed_in: TestClient, stage: Stage) -> None:
    group = Rewound(stage, signed_in, "went-on")
    form = group.preview("4")
    group.move(5)
    assert "would repeat 1 message now" in group.confirm(form).text
    assert group.offset == 5
    back = group.preview("first")
    group.move(4)
    assert group.confirm(back).status_code == 303, "a reset that goes back repeats what was finished since then too"


def test_a_reset_form_that_does_not_say_what_was_shown_is_refused(signed_in: TestClient, stage: Stage) -> None:
    group = Rewound(stage, signed_in, "unseen")
    form = group.preview("first")
    assert group.confirm({**form, "shown": []}).status_code == 400
    assert group.confirm({**form, "shown": ["0 x"]}).status_code == 400
    assert group.offset == 3


def test_control_without_the_comparison_the_reset_skips_what_was_not_shown(
    signed_in: TestClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.client.admin.resets.difference", lambda *_: "")
    group = Rewound(stage, signed_in, "unguarded")
    form = group.preview("last")
    group.move(1)
    assert group.confirm(form).status_code == 303
    assert group.offset == 5


def lane_form(signed_in: TestClient, key: str) -> tuple[str, dict[str, str]]:
    """The page of a lane of `shipping`, and what its forms send."""
    secret = secret_of(signed_in)
    for queue in ("0", "1"):
        named = {"group": "shipping", "topic": "orders", "broker": "lanemq", "queue": queue, "key": key}
        page = signed_in.get(f"/waiting/lane?{urlencode(named)}")
        if page.status_code == 200:
            return page.text, {**named, "secret": secret}
    raise AssertionError(f"{key} is not parked")


def discard_form(signed_in: TestClient, form: dict[str, str], *, everything: bool) -> dict[str, list[str]]:
    """The form of the page before a discard."""
    named = {name: value for name, value in form.items() if name != "secret"}
    return form_of(signed_in.get(f"/waiting/discard?{urlencode({**named, 'all': '1' * everything})}").text)


def test_a_discard_stops_at_the_last_message_that_the_page_showed(signed_in: TestClient, stage: Stage) -> None:
    page, form = lane_form(signed_in, "order-8")
    assert "Discard all 2" in page
    discard = discard_form(signed_in, form, everything=True)
    assert discard["count"] == ["2"]
    with Producer(stage.address) as producer, ParkedAdmin(stage.address) as parked:
        producer.send("orders", {"order": "order-8", "status": "late"}, key="order-8", tag="late")
        until("the new message to join the lane", lambda: parked.lanes("shipping", key="order-8")[0].messages == 3)
        assert (
            "2 messages of key order-8 discarded" in signed_in.post("/waiting/discard", data=discard, headers=OURS).text
        )
        (lane,) = parked.lanes("shipping", key="order-8")
        assert lane.messages == 1
        answer = signed_in.post("/waiting/redrive", data=form, headers=OURS)
        assert "redriven" in answer.text
        until("the lane to be finished", lambda: not parked.lanes("shipping", key="order-8"))


def test_a_discard_of_a_form_that_does_not_say_what_was_shown_is_refused(signed_in: TestClient) -> None:
    _, form = lane_form(signed_in, "order-7")
    assert signed_in.post("/waiting/discard", data=form, headers=OURS).status_code == 400


def test_a_key_with_line_breaks_survives_its_form() -> None:
    """A browser sends the line breaks of a field's value as CR and LF."""
    lane = SimpleNamespace(group="g", topic="t", broker="b", queue=0, key="x\ny%2F\u202e")
    macros = environment().get_template("macros.html").make_module()
    sent = form_of(str(macros.lane_fields(lane)))  # type: ignore[attr-defined]
    as_browsers_do = {name: values[0].replace("\n", "\r\n") for name, values in sent.items()}
    assert waiting._fields(FormData(as_browsers_do))["key"] == lane.key
    assert "\\u202e" in macros.keyname(lane.key)  # type: ignore[attr-defined]


def test_a_reset_of_a_queue_that_does_not_exist_is_refused(signed_in: TestClient) -> None:
    page = signed_in.get("/groups/shipping/reset?topic=orders&to=first&queue=77")
    assert "topic &#39;orders&#39; has no queue 77" in page.text


def test_redrive_of_a_lane_that_is_gone_does_nothing(signed_in: TestClient) -> None:
    form = {"group": "shipping", "topic": "orders", "broker": "lanemq", "queue": "0", "key": "gone"}
    answer = signed_in.post("/waiting/redrive", data={**form, "secret": secret_of(signed_in)}, headers=OURS)
    assert "Nothing to do" in answer.text


def publish(client: TestClient, path: str, **fields: str) -> Any:
    form = {"secret": secret_of(client), **fields}
    return client.post(path, data=form, headers=OURS, follow_redirects=False)


def test_a_message_is_published_as_its_preview_shows_it(signed_in: TestClient, stage: Stage) -> None:
    with Admin(stage.address) as admin:
        admin.create_topic("published", queues=2, ordered=True)
    signed_in.portal.call(signed_in.app.state.console.watch.changed)
    asked = {"key": "order-1", "tag": "paid", "value": '{"n": "<b>é</b>"}'}
    page = signed_in.get(f"/topics/published/publish?{urlencode(asked)}").text
    assert "after all messages of key <strong>order-1</strong>" in page
    fields = {name: values[0] for name, values in form_of(page).items() if name != "secret"}
    assert fields == asked
    answer = publish(signed_in, "/topics/published/publish", **fields)
    assert (answer.status_code, answer.headers["location"].startswith("/key?")) == (303, True)
    with Admin(stage.address) as admin:
        (message,) = admin.find_key("published", "order-1")
        assert (message.body.decode(), message.tag) == (asked["value"], "paid")


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"value": "x"}, "a message needs a key"), ({"key": "a", "value": "x" * 4_001}, "use lanemq send")],
)
def test_what_cannot_be_published_is_refused_by_the_form_and_by_the_preview(
    signed_in: TestClient, fields: dict[str, str], why: str
) -> None:
    page = signed_in.get(f"/topics/orders/publish?{urlencode(fields)}").text
    assert why in page
    assert ">Publish</button>" not in page
    assert publish(signed_in, "/topics/orders/publish", **fields).status_code == 400


def test_publishing_needs_a_session(client: TestClient) -> None:
    assert publish(client, "/topics/orders/publish", key="a", value="x").status_code == 403
    page = client.get("/topics/orders/publish?key=a&value={wrong").text
    assert "Sign in to publish it" in page
    assert "looks like JSON and is none" in page


def change(client: TestClient, topic: str, **fields: str) -> Any:
    path = f"/topics/{topic}/settings"
    form = {"secret": secret_of(client), **fields}
    return client.post(path, data=form, headers=OURS, follow_redirects=False)


def unordered_topic(client: TestClient, stage: Stage, name: str) -> None:
    with Admin(stage.address) as admin:
        admin.create_topic(name, queues=2)
    client.portal.call(client.app.state.console.watch.changed)  # type: ignore[attr-defined, union-attr]


def test_more_queues_are_added_as_the_preview_shows_it(signed_in: TestClient, stage: Stage) -> None:
    unordered_topic(signed_in, stage, "growing")
    page = signed_in.get("/topics/growing/settings?queues=5&order=none").text
    assert "will have 5 queues per broker, without an order" in page
    fields = {name: values[0] for name, values in form_of(page).items() if name != "secret"}
    assert change(signed_in, "growing", **fields).status_code == 303
    with Admin(stage.address) as admin:
        assert len(admin.describe_topic("growing").queues) == 5
    assert change(signed_in, "growing", **fields).status_code == 409, "it has changed since the preview"


def test_an_empty_topic_becomes_ordered(signed_in: TestClient, stage: Stage) -> None:
    unordered_topic(signed_in, stage, "unordered-yet")
    page = signed_in.get("/topics/unordered-yet/settings?queues=2&order=key").text
    fields = {name: values[0] for name, values in form_of(page).items() if name != "secret"}
    assert change(signed_in, "unordered-yet", **fields).status_code == 303
    with Admin(stage.address) as admin:
        assert admin.describe_topic("unordered-yet").ordered


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"queues": "1", "order": "none"}, "Fewer queues would hide the messages"),
        ({"queues": "3", "order": "key"}, "Change one of the two"),
        ({"queues": "2", "order": "key"}, "holds 1 message without an order"),
        ({"queues": "2", "order": "none"}, "the settings that the topic has"),
        ({"queues": "many", "order": "none"}, "not a number of queues"),
    ],
)
def test_settings_that_would_lose_or_reorder_messages_are_refused(
    signed_in: TestClient, stage: Stage, fields: dict[str, str], why: str
) -> None:
    with Admin(stage.address) as admin, Producer(stage.address) as producer:
        if "refusing" not in admin.topics():
            admin.create_topic("refusing", queues=2)
            producer.send("refusing", "x")
    signed_in.portal.call(signed_in.app.state.console.watch.changed)
    page = signed_in.get(f"/topics/refusing/settings?{urlencode(fields)}").text
    assert why in page
    assert "Change the topic</button>" not in page
    now = "2 queues per broker, without an order"
    assert change(signed_in, "refusing", now=now, **fields).status_code == 400


def test_the_settings_of_an_ordered_topic_cannot_be_changed_and_its_retention_is_shown(
    signed_in: TestClient, stage: Stage
) -> None:
    page = signed_in.get("/topics/orders/settings").text
    assert "Neither can be changed" in page
    assert "<code>retention</code>" in page
    with Admin(stage.address) as admin:
        queues = str(len(admin.describe_topic("orders").queues))
    now = f"{queues} queues per broker, ordered by key"
    for wanted in ({"queues": "64", "order": "key"}, {"queues": queues, "order": "none"}):
        assert change(signed_in, "orders", now=now, **wanted).status_code == 400
