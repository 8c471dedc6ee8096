"""`lanemq parked`: parked lanes are listed, shown, redriven and discarded."""

import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import click
import pytest
from click.core import ParameterSource
from tests.chaos.members import until
from tests.cli.conftest import Run

from lanemq.cli.commands import key
from lanemq.cli.commands import parked as command
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.key_progress import KeyProgress
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import GroupQueue
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer import batches
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib

_NUMBERS = count(1)


class ParkedGroup:
    """An offline group whose keys `bad` (values 0, 1, 2) and `worse` (value 3) are parked."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        number = next(_NUMBERS)
        self.address = broker.address
        self.group, self.topic = f"workers-{number}", f"jobs-{number}"
        self.done: list[tuple[str, int]] = []
        self.failing = True
        with Admin(self.address) as admin:
            admin.create_topic(self.topic, queues=1, ordered=True)
        with Producer(self.address) as producer:
            for value, key in enumerate(("bad", "bad", "bad", "worse")):
                producer.send(self.topic, value, key=key, tag="job")
        with self.running():
            until("both are parked", lambda: [lane.messages for lane in self.lanes()] == [3, 1])
        self.failing = False

    def running(self) -> App:
        app = App(self.address, group=self.group)

        @app.ordered(self.topic, on_fail=HoldKey(retries=0))
        def on_job(message: Message) -> None:
            if self.failing:
                raise ValueError("out of \x1b[31mpaper")
            self.done.append((message.key or "", message.value(int)))

        return app

    def lanes(self) -> list[Any]:
        with ParkedAdmin(self.address) as admin:
            return admin.lanes(self.group)


@pytest.fixture
def parked_group(broker: EmbeddedBroker) -> ParkedGroup:
    return ParkedGroup(broker)


@pytest.fixture
def asked(run: Run, parked_group: ParkedGroup) -> Callable[..., Any]:
    """Runs a command for the group and returns its JSON."""

    def ask(what: str, *words: str) -> Any:
        result = run("parked", what, *words, "--group", parked_group.group, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return ask


def test_parked_lanes_are_listed(run: Run, parked_group: ParkedGroup, asked: Callable[..., Any]) -> None:
    first, second = asked("list")
    assert (first["key"], first["messages"], first["first_offset"], first["last_offset"]) == ("bad", 3, 0, 2)
    assert (first["status"], first["attempts"], first["topic"], first["queue"]) == ("parked", 1, parked_group.topic, 0)
    assert "paper" in first["reason"]
    assert second["key"] == "worse"
    assert asked("list", "--topic", "elsewhere") == []
    people = run("parked", "list", "--group", parked_group.group)
    assert "bad" in people.stdout
    assert "\x1b[31m" not in people.stdout
    nothing = run("parked", "list", "--group", parked_group.group, "--topic", "elsewhere")
    assert (nothing.exit_code, "in topic elsewhere is parked" in nothing.stdout) == (0, True)


def test_a_group_that_does_not_exist_is_not_one_without_parked_lanes(run: Run) -> None:
    result = run("parked", "list", "--group", "absent")
    assert result.exit_code == 1
    assert "group 'absent' is unknown: it has no offsets and no member is online" in result.stderr


def test_a_lane_is_shown_in_the_order_it_will_run(
    run: Run, parked_group: ParkedGroup, asked: Callable[..., Any]
) -> None:
    shown = asked("show", "bad")
    assert [(each["offset"], each["value"], each["tag"]) for each in shown["parked"]] == [
        (0, 0, "job"), (1, 1, "job"), (2, 2, "job"),
    ]  # fmt: skip
    people = run("parked", "show", "bad", "--group", parked_group.group, "--limit", "2").stdout
    assert f"lane of key bad, queue 0 of {parked_group.topic}, group {parked_group.group}: parked" in people
    assert "after 1 attempt: ValueError" in people
    assert "and 1 more" in people


def test_a_list_expands_only_what_it_shows_of_a_body(
    run: Run, parked_group: ParkedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes may hold gigabytes. A whole body above 64 MiB would be refused."""
    bomb = compress_zlib(b"x" * (64 * 1024 * 1024 + 1))
    monkeypatch.setattr(batches, "maybe_compressed", lambda _: (bomb, ZLIB_SYS_FLAG))
    with Producer(parked_group.address) as producer, parked_group.running():
        producer.send(parked_group.topic, b"1" * 10_000, key="worse")
        until("it is parked too", lambda: [lane.messages for lane in parked_group.lanes()] == [3, 2])
    result = run("parked", "show", "worse", "--group", parked_group.group)
    assert result.exit_code == 0, result.output
    assert "xxxxxxxx" in result.stdout


def test_a_redriven_lane_is_processed_when_a_member_joins(
    run: Run, parked_group: ParkedGroup, asked: Callable[..., Any]
) -> None:
    assert [each["key"] for each in asked("redrive", "bad")["redriven"]] == ["bad"]
    assert asked("redrive", "bad")["redriven"] == [], "it is already being redriven"
    assert [each["status"] for each in asked("list")] == ["redriving", "parked"]
    with parked_group.running():
        until("the lane is through", lambda: parked_group.done == [("bad", 0), ("bad", 1), ("bad", 2)])
        until("it is gone", lambda: [lane.key for lane in parked_group.lanes()] == ["worse"])


def test_a_dry_run_shows_the_messages_and_changes_nothing(
    run: Run, parked_group: ParkedGroup, asked: Callable[..., Any]
) -> None:
    redriven = asked("redrive", "--all", "--dry-run")
    assert [(each["key"], each["affected"]) for each in redriven["lanes"]] == [("bad", 3), ("worse", 1)]
    assert [each["value"] for each in redriven["lanes"][0]["first_messages"]] == [0, 1, 2]
    discarded = asked("discard", "bad", "--messages", "2", "--dry-run")
    assert [each["value"] for each in discarded["lanes"][0]["first_messages"]] == [0, 1]
    people = run("parked", "redrive", "bad", "--group", parked_group.group, "--dry-run").stdout
    assert "3 messages would be redriven" in people
    assert "nothing was changed (--dry-run)" in people
    assert [(lane.status.value, lane.messages) for lane in parked_group.lanes()] == [("parked", 3), ("parked", 1)]


def test_all_lanes_are_redriven_at_the_given_rate(asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(command.time, "sleep", pauses.append)
    assert len(asked("redrive", "--all", "--rate", "4")["redriven"]) == 2
    assert pauses == [0.25]


def test_messages_are_discarded_only_with_yes_and_from_the_front(
    run: Run, parked_group: ParkedGroup, asked: Callable[..., Any]
) -> None:
    refused = run("parked", "discard", "bad", "--group", parked_group.group, "--messages", "2")
    assert (refused.exit_code, "2 messages will be discarded" in refused.stderr) == (1, True)
    one = run("parked", "discard", "bad", "--group", parked_group.group, "--messages", "1")
    assert "1 message will be discarded: the group can never process it." in one.stderr
    assert [lane.messages for lane in parked_group.lanes()] == [3, 1]
    (gone,) = asked("discard", "bad", "--messages", "2", "--yes")["discarded"]
    assert gone["discarded"] == 2
    assert [each["value"] for each in asked("show", "bad")["parked"]] == [2]
    assert (
        "1 message of 1 lane discarded"
        in run("parked", "discard", "bad", "--group", parked_group.group, "--messages", "all", "--yes").stdout
    )
    assert [lane.key for lane in parked_group.lanes()] == ["worse"]


@pytest.mark.usefixtures("on_terminal")
def test_a_discard_shows_the_messages_and_asks(run: Run, parked_group: ParkedGroup) -> None:
    words = ("parked", "discard", "bad", "--group", parked_group.group, "--messages", "2")
    asked = run(*words, stdin="n\n")
    assert asked.exit_code == 1
    assert "2 messages will be discarded: the group can never process them" in asked.stderr
    assert "offset" in asked.stderr, "the messages themselves"
    assert [lane.messages for lane in parked_group.lanes()] == [3, 1]
    assert run(*words, stdin="y\n").exit_code == 0
    assert [lane.messages for lane in parked_group.lanes()] == [1, 1]


def test_after_a_discard_why_says_that_the_rest_was_not_tried(run: Run, parked_group: ParkedGroup) -> None:
    group = ("--group", parked_group.group)
    discarded = run("parked", "discard", "bad", *group, "--messages", "1", "--yes").stdout
    assert "the messages after them stay parked; lanemq parked redrive processes them" in discarded
    said = run("why", "bad", "--topic", parked_group.topic, *group).stdout
    assert "at offset 0 (discarded since): ValueError" in said
    assert "; 2 messages wait from offset" in said
    assert "attempt" not in said


def test_key_counts_parked_messages_apart(run: Run, parked_group: ParkedGroup) -> None:
    table = run("key", "bad", "--topic", parked_group.topic, "--group", parked_group.group).stdout
    header, _, row, waits, _ = table.splitlines()[-5:]
    shown = dict(zip(header.split()[:6], row.split()[:6], strict=True))
    assert (shown["done"], shown["pending"], shown["parked"]) == ("0", "0", "3")
    assert waits.startswith(f"group {parked_group.group} waits for an operator: parked since")


def test_a_message_that_joined_since_is_not_discarded(parked_group: ParkedGroup, broker: EmbeddedBroker) -> None:
    """A discard ends at the last offset that was read."""
    with ParkedAdmin(broker.address) as admin:
        (lane, _) = admin.lanes(parked_group.group)
        parked_group.failing = True
        with parked_group.running(), Producer(broker.address) as producer:
            producer.send(parked_group.topic, 4, key="bad")
            until("it joined", lambda: parked_group.lanes()[0].messages == 4)
        assert admin.discard(lane, lane.last) == 3
        assert [record.queue_offset for record in admin.messages(parked_group.lanes()[0])] == [4]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("show", "absent"), 1, "no lane of key 'absent'"),
        (("show",), 2, "give either KEY"),
        (("show", "--keyless"), 1, "no lane without a key"),
        (("redrive",), 2, "give either KEY"),
        (("redrive", "bad", "--all"), 2, "give either KEY"),
        (("redrive", "bad", "--rate", "0"), 2, "--rate"),
        (("discard", "bad"), 2, "--messages"),
        (("discard", "bad", "--messages", "some"), 2, "write a number >= 1, or all"),
        (("discard", "bad", "--messages", "0"), 2, "write a number >= 1, or all"),
    ],
)
def test_mistakes_are_reported_with_the_right_exit_code(
    run: Run, parked_group: ParkedGroup, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = run("parked", *words, "--group", parked_group.group)
    assert (result.exit_code, expected in result.stderr) == (code, True), result.stderr


def test_a_key_parked_in_two_topics_needs_a_topic(run: Run, parked_group: ParkedGroup, broker: EmbeddedBroker) -> None:
    other = f"{parked_group.topic}-more"
    with Admin(broker.address) as admin:
        admin.create_topic(other, queues=1, ordered=True)
    with Producer(broker.address) as producer:
        producer.send(other, 9, key="bad")
    app = App(broker.address, group=parked_group.group)

    @app.ordered(other, on_fail=HoldKey(retries=0))
    def on_other(message: Message) -> None:
        raise ValueError("here too")

    with app:
        until("it is parked there too", lambda: len(parked_group.lanes()) == 3)
    result = run("parked", "show", "bad", "--group", parked_group.group)
    assert (result.exit_code, f"--topic ({parked_group.topic}, {other})" in result.stderr) == (1, True)
    assert run("parked", "show", "bad", "--group", parked_group.group, "--topic", other).exit_code == 0


def test_key_says_that_a_lane_is_parked_and_why(run: Run, parked_group: ParkedGroup) -> None:
    def waits_for() -> str:
        result = run("key", "bad", "--topic", parked_group.topic, "--group", parked_group.group, "--json")
        assert result.exit_code == 0, result.stderr
        (group,) = json.loads(result.stdout)["groups"]
        assert (group["parked"]["messages"], group["done"], group["pending"]) == (3, 0, [])
        return str(group["waits_for"])

    assert "an operator: parked since" in waits_for()
    assert "after 1 attempt at offset 0: ValueError" in waits_for()
    assert waits_for().endswith("; 3 messages wait from offset 0")
    run("parked", "redrive", "bad", "--group", parked_group.group)
    assert waits_for() == "its redrive: 3 messages from offset 0 on run before newer messages"


def test_why_prints_the_command_that_redrives_a_parked_key(run: Run, parked_group: ParkedGroup) -> None:
    words = ("why", "bad", "--topic", parked_group.topic, "--group", parked_group.group)
    said = run(*words).stdout.splitlines()[-1]
    before, _, command = said.partition(": lanemq ")
    assert before == "  once the cause is fixed"
    assert run(*shlex.split(command)).exit_code == 0
    assert "once the cause is fixed" not in run(*words).stdout, "it is being redriven"


def printed_commands(reason: str, attempts: int = 1) -> list[list[str]]:
    queue, first, last = MessageQueue("t", "b", 0), QueueOffset(0), QueueOffset(2)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    lane = ParkedLaneView("g", queue, "-rf; 'x'", LaneStatus.PARKED, reason, attempts, since, 3, first, last)
    at = GroupQueue(queue, first, last)
    progress = KeyProgress("g", 1, QueueBacklog(at, None, None), 0, (), parked=lane)
    with click.Context(key.why, info_name="why") as context:
        context.params["server"] = "h:1"
        context.set_parameter_source("server", ParameterSource.COMMANDLINE)
        return [shlex.split(line.partition(": lanemq ")[2]) for line in key._redrive(progress)]


def test_the_printed_command_is_safe_for_a_shell_and_names_the_server_that_was_given() -> None:
    (words,) = printed_commands("E()")
    assert words == ["parked", "redrive", "--group", "g", "--topic", "t", "--server", "h:1", "--", "-rf; 'x'"]


def test_for_a_body_that_cannot_be_decoded_discard_is_named_too() -> None:
    redrive, discard = printed_commands("Undecodable('the body is not JSON')")
    assert redrive[:2] == ["parked", "redrive"]
    assert discard[:4] == ["parked", "discard", "--messages", "1"]


def test_when_that_body_is_discarded_the_good_message_after_it_is_not_named_for_a_discard() -> None:
    (redrive,) = printed_commands("offset 4 (discarded since): Undecodable('the body is not JSON')", attempts=0)
    assert redrive[:2] == ["parked", "redrive"]


def test_group_describe_counts_parked_messages(run: Run, parked_group: ParkedGroup) -> None:
    described = json.loads(run("group", "describe", parked_group.group, "--json").stdout)
    assert (described["lag"], described["parked"]) == (0, {"lanes": 2, "messages": 4})
    assert (
        "4 messages in 2 parked lanes; see lanemq parked list --group"
        in run("group", "describe", parked_group.group).stdout
    )
