"""Verification, positions and the cut-over between two brokers."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.mirror.pair import Pair, assert_continues, by_key, send, stored

from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.app import App
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.effects import once
from lanemq.mirror import cut_over
from lanemq.mirror.copying import MirrorOptions
from lanemq.mirror.cut_over import CutOver
from lanemq.mirror.positions import NotMovable, translate
from lanemq.mirror.verifying import Comparison, compare
from lanemq.model.errors import BrokerBusy, NotAllowed


def consume(address: str, topic: str, group: str, count: int) -> list[tuple[str | None, int]]:
    """Lets a group finish about `count` messages; returns them."""
    got: list[tuple[str | None, int]] = []
    with PullConsumer(address, group=group, batch=7) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(got) < count and (messages := consumer.poll(timeout=0.2)):
            got += [(message.key, message.value()["n"]) for message in messages]
        consumer.commit()
    return got


def call(pair: Pair, *words: str) -> Result:
    return CliRunner().invoke(main, ["mirror", *words, "--from", pair.source, "--to", pair.target])


@pytest.mark.parametrize(("here", "there"), [(4, 4), (2, 5)])
def test_a_group_goes_on_at_the_target_without_skipping_a_message(pair: Pair, here: int, there: int) -> None:
    topic = f"group-{here}-{there}"
    pair.create(topic, here, there)
    send(pair.source, topic, 300)
    before = consume(pair.source, topic, f"billing-{topic}", 120)
    pair.drain(topic)
    moved = translate(pair.options(topic))
    assert {each.group for each in moved} == {f"billing-{topic}"}
    after = consume(pair.target, topic, f"billing-{topic}", 300)
    assert_continues(by_key(pair.source, topic), before, after, once_each=here == there)


def test_a_group_with_members_is_not_moved(pair: Pair) -> None:
    pair.create("members")
    send(pair.source, "members", 20)
    consume(pair.source, "members", "online", 20)
    pair.drain("members")
    app = App(pair.source, group="online")

    @app.ordered("members")
    def handle(value: object, message: Message) -> None: ...

    with app, Admin(pair.source) as admin:
        while not admin.describe_group("online").members:
            time.sleep(0.01)
        with pytest.raises(NotMovable, match="members at the source: stop them first"):
            translate(pair.options("members"), ["online"])


def test_a_group_with_a_parked_lane_is_not_moved_because_its_offset_has_passed_the_lane(pair: Pair) -> None:
    pair.create("parked-lane")
    send(pair.source, "parked-lane", 20)
    app, finished = App(pair.source, group="parks", commit_every=0.05), list[Message]()

    @app.ordered("parked-lane", on_fail=HoldKey(retries=0))
    def handle(value: object, message: Message) -> None:
        if message.key == "k3":
            raise ValueError("never works")
        finished.append(message)

    with app, ParkedAdmin(pair.source) as parked:
        while sum(lane.messages for lane in parked.lanes("parks")) != 2 or len(finished) != 18:
            time.sleep(0.01)
    pair.drain("parked-lane")
    with pytest.raises(NotMovable, match="1 parked or held lanes at the source, which its offsets have passed"):
        translate(pair.options("parked-lane"), ["parks"])
    with ParkedAdmin(pair.source) as parked:
        for lane in parked.lanes("parks"):
            parked.discard(lane, lane.last)
    assert sum(each.left for each in translate(pair.options("parked-lane"), ["parks"])) == 0


@pytest.mark.slow
def test_an_effect_happens_once_although_the_move_delivers_its_message_again(pair: Pair, tmp_path: Path) -> None:
    """From four queues to three, so that the group's offsets cannot be exact."""
    topic, count = "effects", 60
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("CREATE TABLE effects (key TEXT, n INTEGER)")
    pair.create(topic, 4, 3)
    send(pair.source, topic, count)
    apply_effects(pair.source, topic, path, lambda: rows(path) == count)
    with Admin(pair.source) as admin:
        for each in admin.describe_topic(topic).queues:
            admin.commit(topic, each.queue, max(0, each.end - 3))  # as if the last commits were lost
    pair.drain(topic)
    assert sum(each.left for each in translate(pair.options(topic))) > 0
    send(pair.target, topic, 20, first=count)
    apply_effects(pair.target, topic, path, lambda: lag(pair.target, topic) == 0)
    found = sqlite3.connect(path).execute("SELECT key, n FROM effects").fetchall()
    assert len(found) == len(set(found)) == count + 20


def apply_effects(address: str, topic: str, path: Path, ended: Callable[[], bool]) -> None:
    """Lets the group of the topic's name handle messages, until `ended`."""
    app = App(address, group=topic, commit_every=0.05)

    @app.ordered(topic)
    def handle(value: dict[str, int], message: Message) -> None:
        with once(message, lambda: sqlite3.connect(path, timeout=30)) as shop:
            shop.execute("INSERT INTO effects VALUES (?, ?)", (message.key, value["n"]))

    with app:
        deadline = time.monotonic() + 60
        while not ended():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def rows(path: Path) -> int:
    return int(sqlite3.connect(path).execute("SELECT count(*) FROM effects").fetchone()[0])


def lag(address: str, group: str) -> int:
    with Admin(address) as admin:
        return sum(each.lag for each in admin.describe_group(group).queues)


def test_an_unknown_group_is_an_error(pair: Pair) -> None:
    pair.create("unknown-group")
    with pytest.raises(NotMovable, match="'absent' has no offsets in topic 'unknown-group'"):
        translate(pair.options("unknown-group"), ["absent"])


def test_a_verification_names_a_message_that_was_not_copied_and_one_that_differs(pair: Pair) -> None:
    pair.create("checked")
    send(pair.source, "checked", 40)
    pair.drain("checked")
    send(pair.source, "checked", 10, first=40)
    found = compare(pair.options("checked"))
    assert (found.messages, found.not_copied, found.differences, found.equal) == (40, 10, (), False)
    assert found.keys == 10
    with Producer(pair.target) as producer:
        producer.send("checked", {"n": 1}, key="k1")
    assert compare(pair.options("checked")).not_copies == 1


def test_a_dry_run_copies_nothing_and_shows_what_would_be(pair: Pair) -> None:
    pair.create("dry", 4, 2)
    send(pair.source, "dry", 25)
    done = call(pair, "run", "dry", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (topic,) = json.loads(done.stdout)["topics"]
    assert (topic["messages"], topic["source_queues"], topic["target_queues"]) == (25, 4, 2)
    assert stored(pair.target, "dry") == []


def test_a_cut_over_reports_each_step_and_moves_the_group(pair: Pair) -> None:
    pair.create("move")
    send(pair.source, "move", 60)
    finished = consume(pair.source, "move", "billing", 30)
    assert call(pair, "run", "move", "--until-drained").exit_code == 0
    send(pair.source, "move", 20, first=60)
    done = call(pair, "cut-over", "move", "--seal", "--json")
    assert done.exit_code == 0, done.output
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(each["passed"] for each in steps)
    assert [each["step"] for each in steps] == ["ready", "producers", "delayed", "drained", "verified", "positions"]
    assert steps[3]["text"] == "20 messages copied, 0 left"
    assert len(consume(pair.target, "move", "billing", 80)) == 80 - len(finished)
    assert call(pair, "verify", "move").exit_code == 0


def test_a_cut_over_stops_at_the_step_that_fails(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.create("busy")
    send(pair.source, "busy", 10)
    here = threading.get_ident()

    def send_meanwhile(_: float) -> None:
        if threading.get_ident() == here:  # other threads sleep too
            send(pair.source, "busy", 5, first=10)

    monkeypatch.setattr("lanemq.mirror.cut_over.time.sleep", send_meanwhile)
    done = call(pair, "cut-over", "busy")
    assert done.exit_code == 1
    assert "failed  producers: 5 messages arrived within 5 s" in done.stdout
    assert "drained" not in done.stdout


@pytest.mark.parametrize(("refused", "passed"), [(3, True), (100, False)])
def test_a_cut_over_repeats_a_step_that_a_busy_broker_refuses(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, refused: int, passed: bool
) -> None:
    pair.create(f"refused-{refused}")
    send(pair.source, f"refused-{refused}", 10)
    monkeypatch.setattr(cut_over, "BUSY", Backoff(first=0.001))
    calls = 0

    def busy_at_first(options: MirrorOptions) -> Comparison:
        nonlocal calls
        calls += 1
        if calls <= refused:
            raise BrokerBusy(2, "system busy")
        return compare(options)

    monkeypatch.setattr(cut_over, "compare", busy_at_first)
    steps = list(CutOver(pair.options(f"refused-{refused}"), seal=True).steps())
    assert all(step.passed for step in steps) is passed, steps
    assert ("system busy" in steps[-1].text) is not passed
    assert calls == (refused + 1 if passed else cut_over.BUSY_TIMES + 1)


def test_a_sealed_source_can_take_messages_again(pair: Pair) -> None:
    pair.create("undone")
    send(pair.source, "undone", 10)
    assert call(pair, "cut-over", "undone", "--seal").exit_code == 0
    assert call(pair, "cut-over", "undone", "--undo").exit_code == 0
    send(pair.source, "undone", 10, first=10)
    assert call(pair, "verify", "undone").exit_code == 1


def test_a_move_is_not_undone_after_producers_were_switched(pair: Pair) -> None:
    pair.create("switched")
    send(pair.source, "switched", 10)
    assert call(pair, "cut-over", "switched", "--seal").exit_code == 0
    send(pair.target, "switched", 3, first=10)
    refused = call(pair, "cut-over", "switched", "--undo")
    assert refused.exit_code == 1
    assert "the target has 3 messages that are not from this mirror" in refused.output
    with pytest.raises(NotAllowed):
        send(pair.source, "switched", 1)
    assert call(pair, "cut-over", "switched", "--undo", "--force").exit_code == 0
    send(pair.source, "switched", 1)
