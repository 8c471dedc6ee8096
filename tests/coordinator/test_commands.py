"""The commands of an operator whose group is coordinated: previews change nothing, and say what would happen."""

import json

from click.testing import CliRunner
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator
from tests.coordinator.test_other_log import COUNT, consume, others, replace_log, send

from lanemq.cli.main import main
from lanemq.testing.embedded import EmbeddedBroker


def run(cluster: EmbeddedBroker, *words: str) -> str:
    result = CliRunner().invoke(main, ["group", *words, "--server", cluster.address])
    assert result.exit_code == 0, result.output
    return result.output


def test_compare_shows_and_drops(cluster: EmbeddedBroker, moved: RunningCoordinator) -> None:
    send(cluster.address)
    consume(cluster.address)
    assert "2 queues compared: the brokers have what the group has read" in run(cluster, "compare", GROUP)
    replace_log(cluster.address)
    found = json.loads(run(cluster, "compare", GROUP, "--json"))
    assert [(each["topic"], each["offset"], each["sameBelow"]) for each in found["others"]] == [(TOPIC, COUNT, 0)]
    assert not found["dropped"]
    assert others(cluster.address) == [(COUNT, 0)]
    assert json.loads(run(cluster, "compare", GROUP, "--drop", "--yes", "--json"))["dropped"]
    assert not others(cluster.address)


def test_confirm_queues_says_if_there_is_nothing_to_confirm(cluster: EmbeddedBroker, moved: RunningCoordinator) -> None:
    assert "no queue waits for a confirmation" in run(cluster, "coordinate", GROUP, "--confirm-queues")
