"""What operators see of a coordinated group: commands and console, as on a LaneMQ broker; and of a group beside it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, until

from lanemq import App, HoldKey, Message, Producer
from lanemq.cli.main import main
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.clock import SystemClock
from lanemq.console.snapshot import Snapshot, SnapshotReader
from lanemq.core.backoff import Backoff
from lanemq.testing.embedded import EmbeddedBroker

LONG = Backoff(first=3600.0, factor=1.0, max=3600.0)
BESIDE = "beside"
Run = Callable[..., str]


class Failing:
    """A group that parks `bad`, holds `later` for an hour, and handles the rest."""

    def __init__(self, address: str, group: str, topic: str, *, hold: bool) -> None:
        self.healed = False
        self.seen: list[Message] = []
        self.app = App(address, group=group, client_id=f"{group}@1")
        policy = HoldKey(retries=-1, backoff=LONG) if hold else HoldKey(retries=0)

        @self.app.ordered(topic, on_fail=policy)
        def handle(message: Message) -> None:
            if message.key == "bad" and not self.healed:
                raise ValueError("no carrier takes it")
            self.seen.append(message)


@pytest.fixture
def failing(cluster: EmbeddedBroker, moved: RunningCoordinator) -> Iterator[Failing]:
    """The coordinated group has parked `bad`."""
    with Producer(cluster.address) as producer:
        for number in range(3):
            producer.send(TOPIC, {"n": number}, key="bad")
            producer.send(TOPIC, {"n": number}, key="good")
    found = Failing(cluster.address, GROUP, TOPIC, hold=False)
    with found.app, ParkedAdmin(cluster.address) as parked:
        until(lambda: len(found.seen) == 3 and [lane.messages for lane in parked.lanes(GROUP)] == [3])
        yield found


@pytest.fixture
def held(cluster: EmbeddedBroker, moved: RunningCoordinator) -> Iterator[Failing]:
    """The coordinated group holds `bad` in its member's memory."""
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 0}, key="bad")
        producer.send(TOPIC, {"n": 1}, key="good")
    found = Failing(cluster.address, GROUP, TOPIC, hold=True)
    with found.app:
        until(lambda: len(found.seen) == 1)
        yield found


@pytest.fixture
def run(cluster: EmbeddedBroker) -> Run:
    def command(*words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--server", cluster.address])
        assert result.exit_code == 0, result.output
        return result.output

    return command


def document(run: Run, *words: str) -> Any:
    return json.loads(run(*words, "--json"))


def snapshot(cluster: EmbeddedBroker) -> Snapshot:
    reader = SnapshotReader(cluster.address, SystemClock())
    try:
        found = reader.take()
    finally:
        reader.close()
    assert not found.error
    return found


def test_why_names_the_parked_lane_and_the_command(failing: Failing, run: Run) -> None:
    text = run("why", "bad", "--topic", TOPIC, "--group", GROUP)
    assert "waits for an operator: parked since" in text
    assert "ValueError('no carrier takes it') at " in text
    assert "; 3 messages wait from offset" in text
    assert f"lanemq parked redrive bad --group {GROUP} --topic {TOPIC}" in text


def test_key_counts_what_is_parked(failing: Failing, run: Run) -> None:
    (group,) = document(run, "key", "bad", "--topic", TOPIC, "--group", GROUP)["groups"]
    assert (group["parked"]["messages"], group["pending"], group["done"]) == (3, [], 0)
    assert (group["owner"], group["epoch"] > 0) == (f"{GROUP}@1", True)


def test_a_parked_lane_is_listed_shown_and_redriven(failing: Failing, run: Run) -> None:
    (lane,) = document(run, "parked", "list")
    assert (lane["group"], lane["key"], lane["messages"]) == (GROUP, "bad", 3)
    shown = document(run, "parked", "show", "bad", "--group", GROUP)["parked"]
    assert [each["value"] for each in shown] == [{"n": 0}, {"n": 1}, {"n": 2}]
    failing.healed = True
    run("parked", "redrive", "bad", "--group", GROUP)
    until(lambda: len(failing.seen) == 6)
    assert [each.value() for each in failing.seen[3:]] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_parked_message_is_discarded(failing: Failing, run: Run) -> None:
    run("parked", "discard", "bad", "--group", GROUP, "--messages", "1", "--yes")
    assert [each["messages"] for each in document(run, "parked", "list")] == [2]


def test_group_describe_has_owners_epochs_and_lanes(failing: Failing, run: Run, moved: RunningCoordinator) -> None:
    found = document(run, "group", "describe", GROUP)
    assert found["coordinator"] == str(moved.address)
    assert found["parked"] == {"lanes": 1, "messages": 3}
    assert {each["owner"] for each in found["queues"]} == {f"{GROUP}@1"}
    assert all(each["epoch"] and each["lease_ms"] for each in found["queues"])
    assert f"coordinated by {moved.address}" in run("group", "describe", GROUP)


def test_the_console_shows_owners_and_lanes(failing: Failing, cluster: EmbeddedBroker) -> None:
    found = snapshot(cluster)
    group = found.group(GROUP)
    assert group is not None
    assert {each.at.owner for each in group.queues} == {f"{GROUP}@1"}
    assert [(lane.group, lane.key, lane.messages) for lane in found.parked] == [(GROUP, "bad", 3)]


def test_a_lane_held_in_a_members_memory_is_asked_for_through_the_coordinator(
    held: Failing, run: Run, cluster: EmbeddedBroker
) -> None:
    assert "waits for its next attempt, in" in run("why", "bad", "--topic", TOPIC, "--group", GROUP)
    until(lambda: [(lane.group, lane.key) for lane in snapshot(cluster).held] == [(GROUP, "bad")])
    (group,) = [each for each in document(run, "group", "list") if each["group"] == GROUP]
    assert group["held"] == 1


def test_a_group_of_the_brokers_beside_it_is_shown_as_before(failing: Failing, cluster: EmbeddedBroker) -> None:
    other = Failing(cluster.address, BESIDE, TOPIC, hold=False)
    with other.app:
        until(lambda: len(other.seen) == 3)

        def owners() -> set[str | None]:
            group = snapshot(cluster).group(BESIDE)
            return set() if group is None else {each.at.owner for each in group.queues}

        until(lambda: owners() == {f"{BESIDE}@1"})
        found = snapshot(cluster)
        assert [(lane.group, lane.key) for lane in found.held] == [(BESIDE, "bad")]
        assert not any(each.note for each in found.groups if each.name == GROUP)


# a coordinator at another address


def test_a_program_and_the_environment_may_name_the_coordinator(
    cluster: EmbeddedBroker, moved: RunningCoordinator, at_broker: Any, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    from lanemq.client.coordination import COORDINATOR_NAMESPACE, EVERY_GROUP
    from lanemq.wire.codes import RequestCode

    monkeypatch.setattr("lanemq.coordinator.watch.ENTRIES_EVERY_MS", 3_600_000)
    for key, wrong in ((GROUP, "127.0.0.1:1"), (EVERY_GROUP, "someone 127.0.0.1:1")):
        at_broker.ask(RequestCode.PUT_KV_CONFIG, {"namespace": COORDINATOR_NAMESPACE, "key": key, "value": wrong})
    seen: list[Message] = []
    app = App(cluster.address, group=GROUP, coordinator=str(moved.address))

    @app.ordered(TOPIC)
    def handle(message: Message) -> None:
        seen.append(message)

    with app, Producer(cluster.address) as producer:
        producer.send(TOPIC, {"n": 1}, key="k")
        until(lambda: len(seen) == 1)
        assert seen[0].epoch > 0
    monkeypatch.setenv("LANEMQ_COORDINATOR", str(moved.address))
    assert document(run, "group", "describe", GROUP)["coordinator"] == str(moved.address)
