"""A message that an Apache broker stored twice is delivered once, also if its copy comes late, to another owner."""

from collections.abc import Iterator

import pytest
from tests.broker.raw_client import BROKER, RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, owned
from tests.coordinator.test_coordinator import member, until

from lanemq import Message
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.coordinator.store import STATE_FILE
from lanemq.core.brokering.queue_seen import QueueSeen
from lanemq.log.state.database import State
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.log_marks import LastStamp, SeenLog
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.stock_broker import stores_repeats
from lanemq.wire.bodies import LaneProgress
from lanemq.wire.codes import RequestCode


@pytest.fixture(autouse=True)
def repeats() -> Iterator[None]:
    with stores_repeats():
        yield


@pytest.fixture(autouse=True)
def short_look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a copy that comes 1,000 messages later."""
    monkeypatch.setattr("lanemq.client.consumer.queues.pull.LOOK_BACK", 1)


@pytest.fixture
def sender(cluster: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(cluster.address) as client:
        yield client


def send(sender: RawClient, *numbers: int | None, body: bytes = b'"x"', key: str = "k") -> None:
    for number in numbers:
        stamp = None if number is None else f"p.1.{number}"
        assert sender.send(TOPIC, body, stamp=stamp, properties={"__SHARDINGKEY": key}).code == 0


def consumed(address: str, count: int, *, then_at: int) -> list[int]:
    """The offsets that a new member handles until the group is at an offset."""
    seen: list[Message] = []
    app = member(address, seen)
    app.start()
    with Admin(address) as admin:
        until(lambda: len(seen) >= count)
        until(lambda: admin.committed(GROUP, seen[0].queue) == then_at)
    app.stop()
    return [message.queue_offset for message in seen]


def test_a_late_copy_is_left_out_by_the_next_owner(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient
) -> None:
    send(sender, 0, 1, 2, None)
    assert consumed(cluster.address, 4, then_at=4) == [0, 1, 2, 3]
    send(sender, 1, None)
    assert consumed(cluster.address, 1, then_at=6) == [5]


def test_without_the_stamps_at_the_coordinator_it_is_delivered_again(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(QueueSeen, "stamps", ())
    send(sender, 0, 1, 2, None)
    consumed(cluster.address, 4, then_at=4)
    send(sender, 1, None)
    assert consumed(cluster.address, 2, then_at=6) == [4, 5]


def test_redriven_messages_are_not_tested_by_the_stamps(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient
) -> None:
    """The next owner knows newer messages of their producer."""
    send(sender, 0)
    send(sender, 1, body=b'{"fail": true}', key="bad")
    send(sender, 2, 0, 3)
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    with ParkedAdmin(cluster.address) as parked:
        until(lambda: len(seen) == 3 and parked.lanes(GROUP))
        app.stop()
        assert [message.queue_offset for message in seen] == [0, 2, 4]
        again: list[Message] = []
        app = member(cluster.address, again)
        app.handle.healed = True  # type: ignore[attr-defined]
        app.start()
        (lane,) = parked.lanes(GROUP)
        parked.redrive(lane)
        until(lambda: len(again) == 1)
        until(lambda: not parked.lanes(GROUP))
        app.stop()
    assert [message.queue_offset for message in again] == [1]


def reset_after_the_topic_was_created_anew(cluster: EmbeddedBroker, sender: RawClient) -> list[int]:
    """Its messages have the stamps of the former log, at higher offsets."""
    send(sender, 0, 1, 2)
    consumed(cluster.address, 3, then_at=3)
    with Admin(cluster.address) as admin:
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, 2, ordered=True)
        send(sender, None, None, None, 0, 1, 2)
        admin.reset_offsets(GROUP, TOPIC, to="first")
    return consumed(cluster.address, 3, then_at=6)


def test_a_reset_discards_the_stamps(cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient) -> None:
    assert reset_after_the_topic_was_created_anew(cluster, sender) == [0, 1, 2, 3, 4, 5]


def test_stamps_that_survive_a_reset_would_drop_messages(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(QueueSeen, "discard_stamps", lambda _: None)
    assert reset_after_the_topic_was_created_anew(cluster, sender) == [0, 1, 2]


def test_the_rest_of_many_producers_is_reported_although_no_message_follows(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("core.consuming.repeats", "client.consumer.queues.assigned_queue"):
        monkeypatch.setattr(f"lanemq.{module}.MAX_REPORTED", 1)
    for name in "abc":
        assert sender.send(TOPIC, b'"x"', stamp=f"{name}.1.0", properties={"__SHARDINGKEY": "k"}).code == 0
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == 3)
    table = moved.coordinator.running.context.progress
    until(lambda: (known := table.at(GROUP, seen[0].queue).seen) is not None and len(known.stamps) == 3)
    app.stop()


def test_stamps_survive_a_restart_of_the_coordinator(
    cluster: EmbeddedBroker, moved: RunningCoordinator, sender: RawClient, request: pytest.FixtureRequest
) -> None:
    send(sender, 0, 1, 2, None)
    consumed(cluster.address, 4, then_at=4)
    moved.stop()
    request.getfixturevalue("start")(port=moved.address.port)
    send(sender, 1, None)
    assert consumed(cluster.address, 1, then_at=6) == [5]


@pytest.mark.parametrize(
    "stamp",
    [
        LastStamp("p", 1, 2**63, 0),
        LastStamp("p", -1, 0, 0),
        LastStamp("p" * 300, 1, 0, 0),
    ],
)
def test_stamps_that_no_producer_makes_are_left_out(
    cluster: EmbeddedBroker, moved: RunningCoordinator, at_coordinator: RawClient, stamp: LastStamp
) -> None:
    """One that cannot be written would keep the offsets of all groups from the disk."""
    epoch = owned(at_coordinator, "one")
    body = LaneProgress(lane_seen=SeenLog(stamps=(stamp,))).encode()
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "5", "bname": BROKER}
    named = {"laneClient": "one", "laneEpoch": str(epoch)}
    assert at_coordinator.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext | named, body).code == 0
    moved.stop()
    state = State(moved.options.data / STATE_FILE)
    (saved,) = (row for row in ProgressRows(state).offsets() if row.queue.queue_id == 0 and row.queue.topic == TOPIC)
    assert saved.offset == 5
    assert saved.seen is not None
    assert not saved.seen.stamps
    state.close()
