"""`lanemq key`: the messages of a key, and what it waits for."""

import json
from typing import Any

import pytest
from tests.chaos.members import until
from tests.cli.conftest import Run

from lanemq.cli.commands import key as key_command
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.group_offsets import Position
from lanemq.client.admin.key_progress import KeyProgress
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import AtOffset, GroupQueue, LaneStateView, NoAnswer
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.producer import batches
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib

QUEUES = [MessageQueue("orders", "lanemq", number) for number in range(4)]
KEY = "order-4711"
HOME = pick_queue(KEY, QUEUES)
NEIGHBOUR = next(name for name in map(str, range(100)) if pick_queue(name, QUEUES) == HOME)


@pytest.fixture(scope="module", autouse=True)
def _orders(broker: EmbeddedBroker) -> None:
    """Two messages of another key, then three of the key, all in one queue."""
    with Admin(broker.address) as admin:
        admin.create_topic("orders", queues=4, ordered=True)
    with Producer(broker.address) as producer:
        for number in range(2):
            producer.send("orders", {"other": number}, key=NEIGHBOUR)
        for state in ("created", "paid", "shipped"):
            producer.send("orders", {"state": state}, key=KEY)


def ask(run: Run, *more: str, key: str = KEY) -> dict[str, Any]:
    result = run("key", key, "--topic", "orders", "--json", *more)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_queue_of_a_key_is_known_before_its_first_message(run: Run) -> None:
    answer = ask(run, key="never-sent")
    assert answer["queue"] == pick_queue("never-sent", QUEUES).queue_id
    assert answer["messages"] == []


def test_messages_of_the_key_and_of_no_other_are_listed(run: Run) -> None:
    answer = ask(run)
    assert answer["queue"] == HOME.queue_id
    assert [(each["offset"], each["value"]["state"]) for each in answer["messages"]] == [
        (2, "created"),
        (3, "paid"),
        (4, "shipped"),
    ]


def test_a_list_expands_only_what_it_shows_of_a_body(
    run: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes may hold gigabytes. A whole body above 64 MiB would be refused."""
    bomb = compress_zlib(b"x" * (64 * 1024 * 1024 + 1))
    monkeypatch.setattr(batches, "maybe_compressed", lambda _: (bomb, ZLIB_SYS_FLAG))
    with Producer(broker.address, create=["bombs"]) as producer:
        producer.send("bombs", b"1" * 10_000, key="k")
    result = run("key", "k", "--topic", "bombs")
    assert result.exit_code == 0, result.output
    assert "xxxxxxxx" in result.stdout


def put(broker: EmbeddedBroker, group: str, to: Position, queues: list[int] | None = None) -> None:
    """Creates an offline group at this position."""
    with Admin(broker.address) as admin:
        admin.reset_offsets(group, "orders", to=to, queues=queues)


def test_without_a_member_online_the_key_waits_for_one(run: Run, broker: EmbeddedBroker) -> None:
    put(broker, "settled", AtOffset(QueueOffset(3)), [HOME.queue_id])
    (group,) = ask(run, "--group", "settled")["groups"]
    assert (group["done"], group["pending"]) == (1, [3, 4])
    assert group["waits_for"].startswith("a member: no member of the group is online")


def test_a_search_key_is_not_taken_for_the_sharding_key(run: Run, producer: Producer) -> None:
    """Brokers index both; a message with the search key only is in another lane."""
    producer.send("orders", {}, key="mentions", keys=["mentioned"])
    assert ask(run, key="mentioned")["messages"] == []


def test_without_an_owner_the_key_waits_for_one() -> None:
    at = GroupQueue(HOME, QueueOffset(0), QueueOffset(5))
    waiting = KeyProgress("g", members=2, progress=QueueBacklog(at, None, None), done=0, pending=(3,))
    assert waiting.waits_for.startswith("an owner: no member owns the queue")


def test_a_finished_key_waits_for_nothing(run: Run, broker: EmbeddedBroker) -> None:
    put(broker, "finished", "last")
    (group,) = ask(run, "--group", "finished")["groups"]
    assert group["waits_for"] == "nothing: all messages are finished"


def waiting(ahead: int, lane: LaneStateView | NoAnswer | None, pending: int = 5) -> KeyProgress:
    at = GroupQueue(HOME, QueueOffset(pending - ahead), QueueOffset(9), owner="m")
    return KeyProgress("g", 1, QueueBacklog(at, None, 900), done=0, pending=(pending,), lane=lane)


def test_messages_ahead_in_the_queue_are_counted_if_the_owner_does_not_answer() -> None:
    """With key order they delay only the commit; the key's own turn may be the one that fails."""
    sentence = waiting(2, NoAnswer("its owner is a stock client")).waits_for
    assert sentence.startswith(
        "its own turn, or at most 2 messages ahead of it in the queue: with queue order all of them run"
    )
    assert "with key order only those of the same key do" in sentence
    assert sentence.endswith("its owner is a stock client. Its lease ends in 900 ms unless it is renewed")


def test_message_at_the_groups_offset_waits_for_its_own_turn() -> None:
    assert waiting(0, None).waits_for.startswith("its own turn: it is running")


def test_a_key_that_was_fetched_and_not_started_is_reported_as_such(run: Run, broker: EmbeddedBroker) -> None:
    expected = ("a free worker: 3 messages from offset 2 on", "its handler: running", "its fetch")
    seen: list[dict[str, Any]] = []

    def answered() -> bool:
        """Asks again: a busy owner may miss the 50 ms."""
        seen[:] = ask(run, "--group", "behind")["groups"]
        return str(seen[0]["waits_for"]).startswith(expected)

    with Consumer(broker.address, group="behind", topics="orders") as consumer:
        assert consumer.poll(60) is not None
        until("its owner says so", answered)
    (group,) = seen
    assert group["owner"] is not None
    assert group["lease_ms"] > 0


def test_a_message_outside_the_hashed_queue_is_noted(run: Run, producer: Producer) -> None:
    """A producer with another selector breaks the order of the key."""
    other = (pick_queue("stray", QUEUES).queue_id + 1) % 4
    producer.send("orders", {}, key="stray", queue=other)
    assert ask(run, key="stray")["queue"] == other
    assert "note: the key's hash selects queue" in run("key", "stray", "--topic", "orders").stdout


def test_text_output_has_both_tables(run: Run, broker: EmbeddedBroker) -> None:
    put(broker, "shown", "first")
    output = run("key", KEY, "--topic", "orders", "--group", "shown").stdout
    assert f"key {KEY}: queue {HOME.queue_id} of orders on lanemq, 3 messages" in output
    assert '{"state":"paid"}' in output
    assert "waits for" in output


def test_unknown_group_names_the_fix(run: Run) -> None:
    result = run("key", KEY, "--topic", "orders", "--group", "absent")
    assert result.exit_code == 1
    assert "group 'absent' is unknown" in result.stderr
    assert "lanemq group list" in result.stderr


def test_a_group_that_reads_other_topics_is_not_called_unknown(run: Run, broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("elsewhere", queues=1, ordered=True)
        admin.reset_offsets("reads-elsewhere", "elsewhere", to="first")
    result = run("why", KEY, "--topic", "orders", "--group", "reads-elsewhere")
    assert result.exit_code == 1
    assert f"group 'reads-elsewhere' has no offset in queue {HOME.queue_id} of orders" in result.stderr


def test_why_names_the_command_for_pipelines_if_no_group_reads_the_topic(run: Run, broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("unread", queues=1, ordered=True)
    said = run("why", "k", "--topic", "unread").stdout.splitlines()
    assert said == ["key k, queue 0 of unread: no group reads this topic", key_command.ONLY_GROUPS]
    assert "lanemq pipeline parked list" in said[1]


def test_why_does_not_call_a_key_finished_that_a_pipeline_may_hold(run: Run, broker: EmbeddedBroker) -> None:
    """A pipeline with a group reports how far it has read. The keys that it holds are in its checkpoint."""
    with Admin(broker.address) as admin:
        admin.report("of-pipeline", HOME, QueueOffset(3))
    words = ("why", KEY, "--topic", "orders", "--group", "of-pipeline")
    assert (
        "waits for the program that reports the group's offsets, such as a pipeline: it has read the queue up to "
        "offset 3" in run(*words).stdout
    )
    with Admin(broker.address) as admin:
        admin.report("of-pipeline", HOME, QueueOffset(5))
    assert "lanemq pipeline parked list --held CHECKPOINT lists the keys that it holds" in run(*words).stdout


def test_the_topic_is_found_when_only_one_has_the_key(run: Run) -> None:
    result = run("key", KEY, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["topic"] == "orders"


def test_a_key_without_messages_needs_a_topic(run: Run) -> None:
    result = run("key", "never-sent-anywhere")
    assert result.exit_code == 1
    assert "--topic" in result.stderr


def test_a_key_in_two_topics_asks_which(run: Run, producer: Producer) -> None:
    for topic in ("one-of-two", "two-of-two"):
        producer.send(topic, b"x", key="twice")
    result = run("key", "twice")
    assert result.exit_code == 1
    assert "one-of-two, two-of-two" in result.stderr


def test_dead_letters_of_a_key_do_not_make_its_topic_ambiguous(run: Run, broker: EmbeddedBroker) -> None:
    with Producer(broker.address, create=[NewTopic("ordered-once", 1), NewTopic("%DLQ%gave-up", 1)]) as producer:
        for topic in ("ordered-once", "%DLQ%gave-up"):
            producer.send(topic, {}, key="key-with-dead-letter")
    for command in ("why", "key"):
        result = run(command, "key-with-dead-letter")
        assert result.exit_code == 0, result.output
        assert "of ordered-once" in result.stdout
