"""A coordinated group: who is refused, what survives, and how it moves in and out."""

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from tests.broker.raw_client import BROKER, RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, Start, owned, until

from lanemq import App, HoldKey, Message, Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.coordination import COORDINATOR_NAMESPACE, EVERY_GROUP
from lanemq.coordinator.cluster import ClusterLink
from lanemq.coordinator.entries import OtherCoordinator
from lanemq.coordinator.queues import ClusterQueues
from lanemq.coordinator.store import STATE_FILE
from lanemq.coordinator.watch import CONFIRMED_QUEUES
from lanemq.log.state.database import VERSION, State
from lanemq.model.errors import BrokerBusy, StorageError, UsageError
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode


def commit(client: RawClient, offset: int, name: str, epoch: int) -> int:
    named = {"bname": BROKER, "laneClient": name, "laneEpoch": str(epoch)}
    return client.commit(offset, TOPIC, group=GROUP, **named).code


def offset_of(client: RawClient) -> int | None:
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "bname": BROKER, "laneClient": "reader"}
    reply = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(reply.ext["offset"]) if reply.code == 0 else None


# fencing


def test_a_stale_owner_commits_nothing(at_coordinator: RawClient, moved: RunningCoordinator) -> None:
    first = owned(at_coordinator, "one")
    assert commit(at_coordinator, 5, "one", first) == 0
    at_coordinator.unlock("one", TOPIC, group=GROUP)
    with RawClient(str(moved.address)) as other:
        second = owned(other, "two")
        assert second > first
        assert commit(other, 9, "two", second) == 0
    assert commit(at_coordinator, 7, "one", first) == ResponseCode.LEASE_REFUSED
    assert offset_of(at_coordinator) == 9


def test_without_the_epoch_the_broker_takes_the_same_commit(at_broker: RawClient) -> None:
    """The control: an Apache broker has no epochs."""
    at_broker.commit(9, TOPIC, group="other")
    assert at_broker.commit(7, TOPIC, group="other").code == 0
    assert at_broker.committed(TOPIC, group="other") == 7


def test_a_group_that_was_not_moved_is_refused(coordinator: RunningCoordinator) -> None:
    with RawClient(str(coordinator.address)) as client:
        refused = client.heartbeat("one", "stranger", {TOPIC: "*"})
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "lanemq group coordinate stranger" in (refused.remark or "")


# stock members


def test_a_stock_member_gets_neither_a_lock_nor_a_message(at_broker: RawClient, at_coordinator: RawClient) -> None:
    at_broker.send(TOPIC)
    assert owned(at_coordinator, "one")
    at_broker.heartbeat("stock", GROUP, {TOPIC: "*"})
    assert not at_broker.lock("stock", TOPIC, group=GROUP).lock_ok_mq_set
    assert at_broker.pull(TOPIC, group=GROUP).code == ResponseCode.NO_PERMISSION


def test_another_group_gets_both(at_broker: RawClient, at_coordinator: RawClient) -> None:
    """The control."""
    at_broker.send(TOPIC)
    at_broker.heartbeat("stock", "other", {TOPIC: "*"})
    assert at_broker.lock("stock", TOPIC, group="other").lock_ok_mq_set
    assert at_broker.pull(TOPIC, group="other").code == 0


def test_without_apaches_lock_no_lease_is_granted(at_coordinator: RawClient, at_broker: RawClient) -> None:
    at_broker.heartbeat("stock", GROUP, {TOPIC: "*"})
    assert at_broker.lock("stock", TOPIC, group=GROUP).lock_ok_mq_set
    assert not owned(at_coordinator, "one", seconds=1.5)
    at_broker.unlock("stock", TOPIC, group=GROUP)
    assert owned(at_coordinator, "one")


def test_a_coordinator_that_does_not_look_at_the_lock_grants_the_queue(
    at_coordinator: RawClient, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    at_broker.heartbeat("stock", GROUP, {TOPIC: "*"})
    assert at_broker.lock("stock", TOPIC, group=GROUP).lock_ok_mq_set
    monkeypatch.setattr(ClusterQueues, "grantable", lambda *_: True)
    assert owned(at_coordinator, "one")


def test_a_group_that_was_enabled_by_hand_is_disabled_again(
    at_broker: RawClient, moved: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.coordinator.watch.GROUPS_EVERY_MS", 100)
    at_broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "billing"}')
    until(lambda: at_broker.pull(TOPIC, group=GROUP).code == ResponseCode.NO_PERMISSION)


# members


def member(address: str, seen: list[Message], **more: object) -> App:
    app = App(address, group=GROUP, **more)  # type: ignore[arg-type]

    @app.ordered(TOPIC, on_fail=HoldKey(retries=0))
    def handle(message: Message) -> None:
        if message.value() == {"fail": True} and not getattr(handle, "healed", False):
            raise ValueError("not today")
        seen.append(message)

    app.handle = handle  # type: ignore[attr-defined]
    return app


def test_members_find_the_coordinator_and_keep_order_under_its_epochs(
    cluster: EmbeddedBroker, moved: RunningCoordinator
) -> None:
    seen: list[Message] = []
    with Producer(cluster.address) as producer:
        for number in range(40):
            producer.send(TOPIC, {"n": number}, key=str(number % 4))
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == 40)
    app.stop()
    for key in "0123":
        numbers = [message.value()["n"] for message in seen if message.key == key]
        assert numbers == sorted(numbers)
    assert all(message.epoch > 0 for message in seen)


def test_a_member_without_the_entry_starts_nothing_and_says_why(
    cluster: EmbeddedBroker, coordinator: RunningCoordinator, at_broker: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with CoordinatedAdmin(cluster.address) as admin:
        admin.move(GROUP, apply=True)
    coordinator.stop()
    at_broker.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": COORDINATOR_NAMESPACE, "key": GROUP})
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 1}, key="k")
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: "no name server knows a coordinator for it" in caplog.text)
    app.stop()
    assert not seen


def test_without_the_disabled_group_that_member_takes_the_queues_at_the_brokers_offsets(
    cluster: EmbeddedBroker, coordinator: RunningCoordinator, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nothing else says that the group is coordinated when the name servers have lost the entry."""

    async def leave_enabled(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(ClusterLink, "set_consumption", leave_enabled)
    with CoordinatedAdmin(cluster.address) as admin:
        admin.move(GROUP, apply=True)
    coordinator.stop()
    at_broker.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": COORDINATOR_NAMESPACE, "key": GROUP})
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 1}, key="k")
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: seen)
    app.stop()


def test_a_parked_lane_is_kept_listed_and_redriven(cluster: EmbeddedBroker, moved: RunningCoordinator) -> None:
    seen: list[Message] = []
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"fail": True}, key="bad")
        producer.send(TOPIC, {"n": 1}, key="bad")
        producer.send(TOPIC, {"n": 2}, key="good")
    app = member(cluster.address, seen)
    app.start()
    with ParkedAdmin(cluster.address) as parked:
        until(lambda: [lane.messages for lane in parked.lanes(GROUP)] == [2])
        (lane,) = parked.lanes(GROUP)
        assert [message.value() for message in parked.messages(lane)] == [{"fail": True}, {"n": 1}]
        assert [message.value() for message in seen] == [{"n": 2}]
        app.handle.healed = True  # type: ignore[attr-defined]
        parked.redrive(lane)
        until(lambda: len(seen) == 3)
        until(lambda: not parked.lanes(GROUP))
    app.stop()
    assert [message.value() for message in seen[1:]] == [{"fail": True}, {"n": 1}]


def test_a_reset_reaches_the_owner_with_its_renewal(cluster: EmbeddedBroker, moved: RunningCoordinator) -> None:
    seen: list[Message] = []
    with Producer(cluster.address) as producer:
        for number in range(10):
            producer.send(TOPIC, {"n": number}, key="k")
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == 10)
    with Admin(cluster.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to="first")
    until(lambda: len(seen) == 20)
    app.stop()
    assert [message.value()["n"] for message in seen] == [*range(10), *range(10)]


def test_a_new_owner_obeys_a_reset_by_starting_there(
    cluster: EmbeddedBroker, moved: RunningCoordinator, at_coordinator: RawClient
) -> None:
    seen: list[Message] = []
    with Producer(cluster.address) as producer:
        for number in range(10):
            queue = producer.send(TOPIC, {"n": number}, key="k").queue
    epoch = owned(at_coordinator, "one")
    commit(at_coordinator, 10, "one", epoch)
    with Admin(cluster.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to="first")
    at_coordinator.unlock("one", TOPIC, group=GROUP)
    at_coordinator.close()
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == 10)
    with Admin(cluster.address) as admin:
        until(lambda: admin.committed(GROUP, queue) == 10)
    app.stop()
    assert len(seen) == 10


def test_members_continue_under_the_same_epoch_when_the_coordinator_is_back(
    cluster: EmbeddedBroker, start: Start
) -> None:
    first, seen = start(), list[Message]()
    with CoordinatedAdmin(cluster.address) as admin:
        admin.move(GROUP, apply=True)
    app = member(cluster.address, seen)
    app.start()
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 1}, key="k")
        until(lambda: len(seen) == 1)
        port = first.address.port
        first.stop()
        producer.send(TOPIC, {"n": 2}, key="k")
        start(port=port)
        until(lambda: len(seen) == 2, 30)
    app.stop()
    assert seen[0].epoch == seen[1].epoch


# moving


def test_a_group_moves_with_its_offsets_and_back(cluster: EmbeddedBroker, at_broker: RawClient, start: Start) -> None:
    at_broker.commit(3, TOPIC, group=GROUP)
    with CoordinatedAdmin(cluster.address) as admin:
        coordinator = start()
        plan = admin.move(GROUP)
        assert [(each.queue_id, each.offset) for each in plan.queues if each.offset] == [(0, 3)]
        assert at_broker.pull(TOPIC, group=GROUP).code != ResponseCode.NO_PERMISSION  # a preview changes nothing
        assert admin.move(GROUP, apply=True).moved
        with RawClient(str(coordinator.address)) as client:
            epoch = owned(client, "one")
            commit(client, 8, "one", epoch)
            problems = admin.move(GROUP, out=True, apply=True).problems
            assert "one; stop them first" in problems[0]
        until(lambda: not admin.move(GROUP, out=True).problems)
        assert admin.move(GROUP, out=True, apply=True).moved
    assert at_broker.committed(TOPIC, group=GROUP) == 8
    assert at_broker.pull(TOPIC, group=GROUP).code != ResponseCode.NO_PERMISSION


def test_a_move_back_that_a_broker_did_not_answer_is_finished_by_the_next_one(
    cluster: EmbeddedBroker, at_broker: RawClient, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the coordinator was started again in between: it must not serve the group from its old offsets."""
    at_broker.commit(3, TOPIC, group=GROUP)
    first = start()

    async def unanswered(*_: object, **__: object) -> None:
        raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "not now")

    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
        with monkeypatch.context() as patch:
            patch.setattr(ClusterLink, "set_consumption", unanswered)
            with pytest.raises(BrokerBusy, match="not now"):
                admin.move(GROUP, out=True, apply=True)
        first.stop()
        again = start(port=first.address.port)
        assert GROUP not in again.coordinator.running.context.groups
        assert not admin.move(GROUP, out=True).problems
        assert admin.move(GROUP, out=True, apply=True).moved
        assert admin.move(GROUP, out=True, apply=True).problems == [f"group {GROUP} is not coordinated"]
    assert at_broker.pull(TOPIC, group=GROUP).code != ResponseCode.NO_PERMISSION


def test_a_group_that_leaves_is_not_entered_again_by_the_watch(
    cluster: EmbeddedBroker, start: Start, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch has read the entries just before they are deleted, and finds that of the group missing."""
    coordinator = start()
    watch, link = coordinator.coordinator.running.watch, coordinator.coordinator.running.watch._link
    delete = link.delete

    async def delete_and_look(key: str) -> object:
        missed = await delete(key)
        await watch.register()
        return missed

    monkeypatch.setattr(link, "delete", delete_and_look)
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
        assert admin.move(GROUP, out=True, apply=True).moved
    asked = {"namespace": COORDINATOR_NAMESPACE, "key": GROUP}
    assert at_broker.ask(RequestCode.GET_KV_CONFIG, asked).code == ResponseCode.QUERY_NOT_FOUND


def test_a_group_with_members_at_the_brokers_is_not_moved(
    cluster: EmbeddedBroker, coordinator: RunningCoordinator, at_broker: RawClient
) -> None:
    at_broker.heartbeat("stock", GROUP, {TOPIC: "*"})
    with CoordinatedAdmin(cluster.address) as admin:
        assert "stop them first" in admin.move(GROUP, apply=True).problems[0]
    assert at_broker.pull(TOPIC, group=GROUP).code != ResponseCode.NO_PERMISSION


# one coordinator for one cluster


def test_a_second_coordinator_is_refused(coordinator: RunningCoordinator, start: Start) -> None:
    time.sleep(0.3)
    with pytest.raises(OtherCoordinator, match=f"at {coordinator.address}, and a cluster has one state"):
        start("second")


def test_the_folder_of_a_broker_or_of_another_cluster_is_refused(
    cluster: EmbeddedBroker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "state.db").touch()
    with pytest.raises(UsageError, match="not the data folder of a coordinator"):
        start("broker")
    start().stop()
    monkeypatch.setattr("lanemq.coordinator.loading.cluster_name", lambda _: "elsewhere")
    with pytest.raises(UsageError, match="belongs to the cluster LaneMQ, and the name servers have elsewhere"):
        start()


def test_the_folder_of_another_version_is_refused_and_stays_as_it_is(start: Start) -> None:
    running = start()
    running.stop()
    file = running.options.data / STATE_FILE
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = file.read_bytes()
    with pytest.raises(
        StorageError, match=r"written by a newer version. Start that version again; nothing was changed"
    ):
        start()
    assert file.read_bytes() == before


def test_an_entry_that_a_name_server_lost_is_entered_again(
    moved: RunningCoordinator, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.coordinator.watch.ENTRIES_EVERY_MS", 100)
    for key in (GROUP, EVERY_GROUP):
        at_broker.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": COORDINATOR_NAMESPACE, "key": key})
    asked = {"namespace": COORDINATOR_NAMESPACE, "key": GROUP}
    until(
        lambda: (
            at_broker.ask(RequestCode.GET_KV_CONFIG, asked).ext.get("value")
            == str(moved.coordinator.running.watch.leader)
        )
    )


# new queues


def locked(client: RawClient, queue: int) -> bool:
    client.heartbeat("one", GROUP, {TOPIC: "*"}, laneExpiryMillis="5000")
    return bool(client.lane_lock("one", TOPIC, queues=(queue,), group=GROUP).lane_leases)


def test_new_queues_get_no_owner_until_they_are_confirmed(
    cluster: EmbeddedBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder knows the topic with one queue, and it has two: as after a broker joined, or the topic grew."""
    first = start()
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
        with RawClient(str(first.address)) as client:
            until(lambda: locked(client, 1))
        first.stop()
        state = State(first.options.data / STATE_FILE)
        state.put(CONFIRMED_QUEUES, f'[["{TOPIC}", "{BROKER}", 0]]')
        state.close()
        with RawClient(str(start(port=first.address.port).address)) as client:
            client.unlock("one", TOPIC, (0, 1), group=GROUP)
            until(lambda: locked(client, 0))
            assert not locked(client, 1)
            until(lambda: f"topic {TOPIC} has 1 new queue" in caplog.text)
            assert [each.queue_id for each in admin.confirm_queues(GROUP).queues] == [1]
            assert not locked(client, 1)  # that was a preview
            admin.confirm_queues(GROUP, apply=True)
            until(lambda: locked(client, 1))
        assert not admin.confirm_queues(GROUP).queues
