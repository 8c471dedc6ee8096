"""Where a message is: finished behind a held key, given up, or waiting; and that all places give the same figures."""

import json
import re
import threading
from collections.abc import Iterator
from typing import cast

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.broker.running import ManualClock
from tests.console.conftest import Stage, until

from lanemq.cli.main import main
from lanemq.client.admin.admin import OWNER_TIMEOUT, Admin
from lanemq.client.admin.dead_letters import read_dead_letters
from lanemq.client.admin.views import GroupQueue, LaneStateView
from lanemq.client.admin.watching import ASKED_AT_ONCE, HeldLaneView, MemberHeldLanes, UnknownMember, WatchAdmin
from lanemq.client.consumer.app import App
from lanemq.client.consumer.options import Sharing
from lanemq.client.consumer.turns.handler import ToDeadLetter
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import HoldKey, HoldQueue, Park
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

KEYS = ("first", "stuck", "fine", "bad", "fine")
"""The keys at offsets 0 to 4; `stuck` is held for an hour and `bad` is given up."""


@pytest.fixture(scope="module")
def keeper(stage: Stage) -> Iterator[None]:
    """The group `keepers` stands at offset 1, and has finished 2, 3 and 4."""
    app = App(stage.address, group="keepers", commit_every=0.05)

    @app.ordered("kept", on_fail=HoldKey(retries=-1, backoff=Backoff(first=3600.0, factor=1.0, max=3600.0)))
    def keep(message: Message) -> None:
        if message.key == "stuck":
            raise ValueError("no room")
        if message.key == "bad":
            raise ToDeadLetter("it is broken")

    with Admin(stage.address) as admin:
        admin.create_topic("kept", 1, ordered=True)
        with Producer(stage.address) as producer:
            for key in KEYS:
                producer.send("kept", {"key": key}, key=key)
        (queue,) = [each.queue for each in admin.describe_topic("kept").queues]
        with app:
            until("the others to be finished", lambda: admin.progress("keepers", queue)[1].count == 3)
            until("the dead letter", lambda: len(list(read_dead_letters(stage.address, "keepers"))) == 1)
            yield


def place(client: TestClient, offset: int) -> str:
    """What the page of a message says about the group."""
    page = client.get(f"/message?topic=kept&broker=lanemq&queue=0&offset={offset}").text
    found = re.search(r'<a href="/groups/keepers">keepers</a> <span class="chip [a-z]+">([^<]+)</span>', page)
    assert found is not None, page
    return found[1]


@pytest.mark.usefixtures("keeper")
def test_a_message_that_is_finished_behind_a_held_key_is_done(client: TestClient) -> None:
    assert [place(client, offset) for offset in range(5)] == ["done", "held", "done", "dead letter", "done"]


@pytest.mark.usefixtures("keeper")
def test_the_page_of_a_key_says_that_its_message_is_a_dead_letter(client: TestClient) -> None:
    page = client.get("/key?topic=kept&key=bad").text
    assert '<span class="chip bad">dead letter</span>' in page
    assert "it is broken" in page
    assert "1 message is given up as dead letter" in page
    assert '<span class="chip good">done</span>' not in page
    assert '<span class="chip good">done</span>' in client.get("/key?topic=kept&key=fine").text


@pytest.mark.usefixtures("keeper")
def test_the_preview_of_a_reset_counts_what_is_finished_above_the_offset(client: TestClient) -> None:
    until("the group to be known", lambda: client.get("/groups/keepers").status_code == 200)

    def preview(to: str) -> str:
        return client.get(f"/groups/keepers/reset?topic=kept&to={to}").text

    assert "4 messages will be processed again, 0 messages will be skipped." in preview("first")
    assert "0 messages will be processed again, 1 message will be skipped." in preview("last")
    assert "1 message will be processed again, 1 message will be skipped." in preview("4")
    assert "3 messages will be processed again, 0 messages will be skipped." in preview("1")
    assert "3 of those that are repeated are finished already" in preview("1")


@pytest.mark.usefixtures("keeper")
def test_console_and_command_line_give_the_same_lag_and_the_same_keys(client: TestClient, stage: Stage) -> None:
    def shown() -> list[str]:
        row = re.search(r'<a href="/groups/keepers">keepers</a>.*?</tr>', client.get("/groups").text, re.DOTALL)
        cells = re.findall(r'data-label="(\w+)">(.*?)</td>', row[0] if row else "", re.DOTALL)
        texts = {name: re.sub(r"<[^>]+>", "", text).strip() for name, text in cells}
        return [texts.get(name, "").split(" ")[0] for name in ("Behind", "Held", "Parked")]

    until("the console to have the figures", lambda: shown() == ["1", "1", "0"])
    listed = json.loads(CliRunner().invoke(main, ["group", "list", "--json", "--server", stage.address]).stdout)
    (group,) = [each for each in listed if each["group"] == "keepers"]
    assert (group["lag"], group["held"], group["parked"], group["dead"]) == (1, 1, 0, 1)
    with Admin(stage.address) as admin:
        (broker,) = admin.figures()
    assert broker.number("lanemq_lag_messages", group="keepers", topic="kept") == 1


@pytest.mark.usefixtures("keeper")
def test_the_command_line_says_what_a_reset_does_to_finished_messages(stage: Stage) -> None:
    words = ["group", "reset", "keepers", "--topic", "kept", "--to", "4", "--dry-run", "--server", stage.address]
    assert "skips 1 message, repeats 1 message" in CliRunner().invoke(main, words).stdout
    (change,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["changes"]
    assert (change["repeats"], change["skips"]) == (1, 1)


class AskedMembers(WatchAdmin):
    """Answers for members: each holds one key, `owner-7` is silent. Waits until as many as allowed are asked."""

    lock, together = threading.Lock(), threading.Barrier(ASKED_AT_ONCE)
    running = most = 0

    def _held_lanes(self, group: str, owner: str, *_: object) -> MemberHeldLanes:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.together.wait(30)
        with self.lock:
            self.running -= 1
        if owner == "owner-7":
            return MemberHeldLanes(unknown=(UnknownMember(group, owner, "no answer"),))
        return MemberHeldLanes(
            (HeldLaneView(group, owner, MessageQueue("t", "lanemq", 0), owner, LaneStateView("held", "key")),)
        )


def test_every_owner_is_asked_for_its_held_keys_a_few_at_a_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("t", "lanemq", 0)
    owners = [GroupQueue(queue, QueueOffset(0), QueueOffset(1), f"owner-{number}") for number in range(120)]
    idle = GroupQueue(queue, QueueOffset(0), QueueOffset(3), "idle", finished=3)
    with AskedMembers(stage.address) as admin:
        found = admin.all_held_lanes(("g", each) for each in (*owners, idle))
        assert len(found.lanes) == 119
        assert [each.owner for each in found.unknown] == ["owner-7"]
        assert admin.most == ASKED_AT_ONCE
        monkeypatch.setattr("lanemq.client.admin.watching.MAX_ASKED_MEMBERS", 100)
        found = admin.all_held_lanes(("g", each) for each in owners)
    assert len(found.unknown) == 21, "those that were not asked are named"


class SilentMembers(WatchAdmin):
    """None answers; the clock continues while they are waited for, four at a time."""

    lock = threading.Lock()

    def __init__(self, server: str, clock: ManualClock) -> None:
        super().__init__(server, clock=clock)
        self.time, self.waited = clock, list[float]()

    def _held_lanes(self, group: str, owner: str, *more: object) -> MemberHeldLanes:
        timeout = cast(float, more[-1])
        with self.lock:
            self.waited.append(timeout)
            self.time.passed += round(timeout * 1000 / ASKED_AT_ONCE)
        return MemberHeldLanes(unknown=(UnknownMember(group, owner, "no answer"),))


def test_a_busy_member_is_waited_for_and_a_hundred_frozen_ones_are_not(stage: Stage) -> None:
    queue = MessageQueue("t", "lanemq", 0)
    owners = [GroupQueue(queue, QueueOffset(0), QueueOffset(1), f"owner-{number}") for number in range(100)]
    with SilentMembers(stage.address, ManualClock()) as admin:
        assert len(admin.all_held_lanes(("g", each) for each in owners).unknown) == 100
    assert admin.waited[0] == OWNER_TIMEOUT
    assert sum(admin.waited) / ASKED_AT_ONCE < 4


@pytest.fixture(scope="module")
def rememberer(stage: Stage) -> Iterator[None]:
    """`in-order` has parked the queue of `remembered` in its member's memory, `by-key` the key `k`."""
    in_order, by_key = App(stage.address, group="in-order"), App(stage.address, group="by-key")

    @in_order.ordered("remembered", on_fail=HoldQueue(retries=0))
    def first(message: Message) -> None:
        raise ValueError("the queue stops")

    @by_key.ordered("remembered", on_fail=HoldKey(retries=0, then=Park(at_broker=False)))
    def second(message: Message) -> None:
        raise ValueError("the key stops")

    with Admin(stage.address) as admin:
        admin.create_topic("remembered", 1, ordered=True)
    with Producer(stage.address) as producer:
        producer.send_many("remembered", [("k", 0), ("k", 1)])
    with in_order, by_key:
        until(
            "both to be parked", lambda: _groups(stage)["in-order"]["parked"] == _groups(stage)["by-key"]["parked"] == 1
        )
        yield


def _groups(stage: Stage) -> dict[str, dict[str, object]]:
    listed = json.loads(CliRunner().invoke(main, ["group", "list", "--json", "--server", stage.address]).stdout)
    return {each["group"]: each for each in listed}


@pytest.mark.usefixtures("rememberer")
def test_what_is_parked_in_the_memory_of_a_member_is_listed_everywhere(client: TestClient, stage: Stage) -> None:
    assert (_groups(stage)["by-key"]["held"], _groups(stage)["in-order"]["held"]) == (0, 0)
    until("the console to know both", lambda: {"the queue stops", "the key stops"} <= _reasons(client))
    page = client.get("/waiting").text
    assert page.count("in the memory of") == 2
    assert ">whole queue</a>" in page
    assert "parked in members&#39; memory" in client.get("/").text
    shown = json.loads(
        CliRunner().invoke(main, ["key", "k", "--topic", "remembered", "--json", "--server", stage.address]).stdout
    )
    assert {each["group"]: each["lane"]["state"] for each in shown["groups"]} == {
        "in-order": "parked",
        "by-key": "parked",
    }
    table = (
        CliRunner()
        .invoke(main, ["key", "k", "--topic", "remembered", "--group", "by-key", "--server", stage.address])
        .stdout
    )
    assert re.search(r"by-key +0 +0 +2 +0 +2 +0 ", table), table


def _reasons(client: TestClient) -> set[str]:
    return set(re.findall(r"ValueError\(&#39;(.*?)&#39;\)", client.get("/waiting").text))


@pytest.fixture(scope="module")
def retrier(stage: Stage) -> Iterator[None]:
    """The concurrent group `retriers` has failed at the message of `bad`, which comes again after ten seconds."""
    app = App(stage.address, group="retriers", commit_every=0.05)

    @app.concurrent("tried")
    def work(message: Message) -> None:
        if message.key == "bad":
            raise ValueError("no service")

    with Admin(stage.address) as admin:
        admin.create_topic("tried", 1)
        with Producer(stage.address) as producer:
            producer.send_many("tried", [("fine", 0), ("bad", 1)])
        with app:
            until("both to be committed", lambda: admin.committed("retriers", MessageQueue("tried", "lanemq", 0)) == 2)
            yield


@pytest.mark.usefixtures("retrier")
def test_a_message_in_retry_is_not_done(client: TestClient, stage: Stage) -> None:
    said = {
        key: CliRunner().invoke(main, ["why", key, "--topic", "tried", "--server", stage.address]).stdout
        for key in ("bad", "fine")
    }
    assert re.search(
        r"waits for its next attempt, at about [-0-9 :.+]+: offset 1 failed 1 time and the broker delays it",
        said["bad"],
    )
    assert "waits for nothing: all messages are finished" in said["fine"]
    page = client.get("/key?topic=tried&key=bad").text
    assert '<span class="chip warn">in retry</span>' in page
    assert '<span class="chip good">done</span>' not in page
    page = client.get("/message?topic=tried&broker=lanemq&queue=0&offset=1").text
    assert '<span class="chip warn">in retry</span>' in page
    assert _groups(stage)["retriers"]["held"] == 1
    until("the console to list it", lambda: ">in retry</span>" in client.get("/waiting").text)


def test_a_broadcasting_group_has_no_lag_and_no_owner(client: TestClient, stage: Stage) -> None:
    app = App(stage.address, group="everyone", sharing=Sharing.BROADCASTING)

    @app.ordered("told")
    def hear(message: Message) -> None: ...

    with Admin(stage.address) as admin:
        admin.create_topic("told", 1, ordered=True)
    with Producer(stage.address) as producer:
        producer.send("told", 0, key="k")
    with app:
        until("the member to be known", lambda: "everyone" in _groups(stage))
        assert _groups(stage)["everyone"]["lag"] is None
        said = CliRunner().invoke(main, ["why", "k", "--topic", "told", "--server", stage.address]).stdout
        assert "each member keeps its own offsets" in said
        page = client.get("/key?topic=told&key=k").text
        assert '<span class="chip none">unknown</span>' in page
        assert "each member keeps its own offsets" in page
        until("the console to know it", lambda: client.get("/groups/everyone").status_code == 200)
        page = client.get("/groups/everyone").text
        assert "The group is broadcasting" in page
        assert "no owner</span>" not in page
