"""`lanemq group` and `lanemq locks`: progress, owners, and resets."""

import json
import threading
from typing import Any

import pytest
from tests.cli.conftest import Run

from lanemq.cli.commands import group
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import GroupDescription, GroupQueue
from lanemq.client.consumer.app import App
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.producer.producer import Producer
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module", autouse=True)
def _history(broker: EmbeddedBroker) -> None:
    """Group `readers` has finished 4 of 10 messages in the only queue of `lines`, and is offline."""
    with Admin(broker.address) as admin:
        admin.create_topic("lines", queues=1, ordered=True)
    with Producer(broker.address) as producer:
        for number in range(10):
            producer.send("lines", number, key="k")
    with Consumer(broker.address, group="readers", topics="lines") as consumer:
        for _ in range(4):
            message = consumer.poll(60)
            assert message is not None
            consumer.done(message)


def queue_of(run: Run, group: str, topic: str = "lines") -> dict[str, Any]:
    described = json.loads(run("group", "describe", group, "--json").stdout)
    (queue,) = [each for each in described["queues"] if each["topic"] == topic]
    return dict(queue)


def test_groups_are_listed_with_their_lag(run: Run) -> None:
    listed = json.loads(run("group", "list", "--json").stdout)
    assert {
        name: each[name] for each in listed if each["group"] == "readers" for name in ("group", "members", "lag")
    } == {"group": "readers", "members": 0, "lag": 6}
    assert "readers" in run("group", "list").stdout


def test_the_retry_topic_of_a_group_is_listed_only_while_messages_wait_in_it() -> None:
    def at(topic: str, offset: int) -> GroupQueue:
        return GroupQueue(MessageQueue(topic, "b", 0), QueueOffset(offset), QueueOffset(3))

    idle = GroupDescription("g", (), {}, (at("orders", 1), at("%RETRY%g", 3)))
    busy = GroupDescription("g", (), {}, (at("orders", 1), at("%RETRY%g", 2)))
    assert group._shown_topics(idle) == ["orders"]
    assert group._shown_topics(busy) == ["%RETRY%g", "orders"]


def test_offline_group_is_described_by_its_offsets(run: Run) -> None:
    queue = queue_of(run, "readers")
    assert (queue["offset"], queue["end"], queue["lag"]) == (4, 10, 6)
    assert queue["owner"] is None
    assert queue["lag_ms"] >= 0, "the oldest unfinished message has an age"
    people = run("group", "describe", "readers").stdout
    assert "group readers: 0 members, lag 6 messages, the oldest " in people
    assert json.loads(run("group", "describe", "readers", "--json").stdout)["lag_ms"] >= 0
    assert "no member is online" in people


def test_a_group_that_finished_nothing_is_shown_with_its_topic_and_lag_after_its_members_stopped(
    run: Run, broker: EmbeddedBroker
) -> None:
    app, failed = App(broker.address, group="broken"), threading.Event()

    @app.ordered("lines")
    def on_line(number: int) -> None:
        failed.set()
        raise ValueError("broken")

    with app:
        assert failed.wait(60)
    queue = queue_of(run, "broken")
    assert (queue["offset"], queue["lag"], queue["owner"]) == (0, 10, None)
    (listed,) = [each for each in json.loads(run("group", "list", "--json").stdout) if each["group"] == "broken"]
    assert (listed["lag"], listed["topics"]) == (10, ["%RETRY%broken", "lines"])


def test_members_with_fewer_tags_than_others_are_counted(run: Run, broker: EmbeddedBroker) -> None:
    tags = {"group": "deployed", "topics": "lines"}
    with Consumer(broker.address, tags="a", **tags), Consumer(broker.address, tags="a || b", **tags):
        note = json.loads(run("group", "describe", "deployed", "--json").stdout)["note"]
        assert note.startswith("topic lines: 1 member with fewer tags than others: a LaneMQ member gets no queue")
        assert note in run("group", "describe", "deployed").stdout


def test_online_group_shows_owner_epoch_and_lease(run: Run, broker: EmbeddedBroker) -> None:
    with Consumer(broker.address, group="online", topics="lines") as consumer:
        assert consumer.poll(60) is not None
        queue = queue_of(run, "online")
        described = json.loads(run("group", "describe", "online", "--json").stdout)
        held = json.loads(run("locks", "--group", "online", "--topic", "lines", "--json").stdout)
    (member,) = described["members"]
    assert queue["owner"] == member["client_id"]
    assert queue["epoch"] >= 1
    assert queue["lease_ms"] > 0
    (lease,) = held
    assert (lease["group"], lease["queue"], lease["owner"]) == ("online", 0, member["client_id"])


def test_locks_of_an_offline_group_are_an_empty_list(run: Run) -> None:
    assert json.loads(run("locks", "--group", "readers", "--json").stdout) == []
    assert "no queue is owned" in run("locks", "--group", "readers").stdout


def test_an_empty_list_of_locks_mentions_only_the_given_group(run: Run, broker: EmbeddedBroker) -> None:
    """Another group is online, about which nothing must be said."""
    with Consumer(broker.address, group="elsewhere", topics="lines") as consumer:
        assert consumer.poll(60) is not None
        of_group = run("locks", "--group", "nope").stdout
        of_topic = run("locks", "--topic", "other").stdout
        of_both = run("locks", "--group", "elsewhere", "--topic", "other").stdout
    assert of_group.startswith("no queue is owned by group nope: none of its members is online")
    assert of_topic == "no queue of topic other is owned: no member of an ordered group that reads it is online\n"
    assert of_both.startswith("no queue of topic other is owned by group elsewhere: none of its members reads it")


def test_unknown_group_is_an_error_and_not_an_empty_table(run: Run) -> None:
    result = run("group", "describe", "absent")
    assert result.exit_code == 1
    assert "see lanemq group list" in result.stderr


def test_reset_of_an_unknown_group_is_refused_and_creates_none(run: Run) -> None:
    result = run("group", "reset", "raeders", "--topic", "lines", "--to", "first")
    assert result.exit_code == 1
    assert "see lanemq group list" in result.stderr
    assert "raeders" not in run("group", "list").stdout


def test_dry_run_shows_the_change_without_making_it(run: Run) -> None:
    result = run("group", "reset", "readers", "--topic", "lines", "--to", "first", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "repeats 4 messages" in result.stdout
    assert "nothing was changed" in result.stdout
    assert queue_of(run, "readers")["offset"] == 4


def test_dry_run_of_one_queue_makes_no_change_either(run: Run) -> None:
    result = run(
        "group", "reset", "readers", "--topic", "lines", "--to", "first", "--queue", "0", "--dry-run", "--json"
    )
    assert json.loads(result.stdout)["dry_run"] is True
    assert queue_of(run, "readers")["offset"] == 4


def test_queues_of_several_brokers_are_shown_with_their_brokers() -> None:
    """Each broker of a cluster has a queue 0."""
    queues = [MessageQueue("orders", broker, 0) for broker in ("broker-a", "broker-b")]
    shown = group._grid_of_queues(("topic", "queue", "lag"), [("orders", 0, 7), ("orders", 0, 8)], queues, "")
    assert shown.columns == ("topic", "broker", "queue", "lag")
    assert shown.rows == [("orders", "broker-a", 0, 7), ("orders", "broker-b", 0, 8)]
    assert group._grid_of_queues(("topic", "queue", "lag"), [("orders", 0, 7)], queues[:1], "").columns[1] == "queue"


def test_unused_retry_topic_is_not_shown() -> None:
    def shown(topic: str, end: int) -> bool:
        at = GroupQueue(MessageQueue(topic, "lanemq", 0), QueueOffset(0), QueueOffset(end))
        return QueueBacklog(at, None, None).worth_showing

    assert not shown("%RETRY%readers", 0)
    assert shown("%RETRY%readers", 1)
    assert shown("lines", 0)


@pytest.mark.parametrize(
    ("to", "offset"),
    [("last", 10), ("first", 0), ("7", 7), ("2999-01-01T00:00Z", 10), ("1h", 0), ("1h ago", 0)],
)
def test_an_offline_group_is_reset(run: Run, broker: EmbeddedBroker, to: str, offset: int) -> None:
    with Admin(broker.address) as admin:
        admin.reset_offsets("movers", "lines", to="first")
    result = run("group", "reset", "movers", "--topic", "lines", "--to", to, "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["changes"][0]["after"] == offset
    assert queue_of(run, "movers")["offset"] == offset


def test_one_queue_can_be_reset(run: Run, producer: Producer, broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("pair", queues=2)
        admin.reset_offsets("halves", "pair", to="first")
    for queue in (0, 1):
        producer.send("pair", "x", queue=queue)
    words = ("group", "reset", "halves", "--topic", "pair", "--to", "last", "--queue")
    moved = json.loads(run(*words, "1", "--yes", "--json").stdout)
    assert [each["queue"] for each in moved["changes"]] == [1]
    described = json.loads(run("group", "describe", "halves", "--json").stdout)
    assert [each["offset"] for each in described["queues"]] == [0, 1]
    assert run(*words, "9").exit_code == 2


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize(("answer", "offset"), [("n", 0), ("y", 10)])
def test_a_reset_shows_its_effect_and_asks(run: Run, broker: EmbeddedBroker, answer: str, offset: int) -> None:
    with Admin(broker.address) as admin:
        admin.reset_offsets("movers", "lines", to="first")
    asked = run("group", "reset", "movers", "--topic", "lines", "--to", "last", stdin=f"{answer}\n")
    assert "skips 10 messages" in asked.stderr
    assert queue_of(run, "movers")["offset"] == offset


def test_without_a_terminal_a_reset_needs_yes_and_names_members_online(run: Run, broker: EmbeddedBroker) -> None:
    """Members that are online would finish messages that are delivered again after the reset."""
    with Consumer(broker.address, group="busy", topics="lines") as consumer:
        assert consumer.poll(60) is not None
        refused = run("group", "reset", "busy", "--topic", "lines", "--to", "last")
        assert refused.exit_code == 1
        assert "1 member online may process messages twice" in refused.stderr
        assert "--yes" in refused.stderr
        assert run("group", "reset", "busy", "--topic", "lines", "--to", "last", "--yes").exit_code == 0


def test_an_invalid_position_is_a_usage_error(run: Run) -> None:
    result = run("group", "reset", "readers", "--topic", "lines", "--to", "somewhere")
    assert result.exit_code == 2
    assert "--to 'somewhere' is not a time" in result.stderr


def test_a_group_without_members_is_deleted_with_its_offsets_and_its_parked_keys(
    run: Run, broker: EmbeddedBroker, producer: Producer
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("leaving", queues=1, ordered=True)
    producer.send("leaving", 1, key="k")
    with Consumer(broker.address, group="leavers", topics="leaving") as consumer:
        message = consumer.poll(60)
        assert message is not None
        consumer.done(message)
        refused = run("group", "delete", "leavers", "--yes")
        assert (refused.exit_code, "1 member online: stop them first" in refused.output) == (1, True)
    assert run("group", "delete", "leavers").exit_code != 0, "asked, and there is no terminal"
    assert "leavers" in run("group", "list").stdout
    deleted = run("group", "delete", "leavers", "--yes")
    assert (deleted.exit_code, deleted.stdout) == (0, "group leavers was deleted\n"), deleted.output
    with Admin(broker.address) as admin:
        assert "leavers" not in admin.groups()
    assert "is unknown" in run("group", "delete", "leavers", "--yes").output
