"""`lanemq dead`: the dead letters of a group, and `lanemq group list`, which counts them."""

import json

import pytest
from tests.cli.conftest import Run
from tests.client.consumer.with_broker import wait_for

from lanemq import Admin, App, Outgoing, Producer, ToDeadLetter
from lanemq.client.admin.dead_letters import count_dead_letters, discard_dead_letters, parse_id, read_dead_letters
from lanemq.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def letters(broker: EmbeddedBroker) -> str:
    """A group with two dead letters of two keys."""
    with Admin(broker.address) as admin:
        admin.create_topic("bills", 2, ordered=True)
    app = App(broker.address, group="billing")

    @app.ordered("bills")
    def handle(event: int) -> None:
        if event < 0:
            raise ToDeadLetter("no address")

    sent = Outgoing(-1, "order-1", tag="new", keys=["invoice-1"], properties={"region": "eu"})
    with Producer(broker.address) as producer:
        producer.send_many("bills", [sent, ("order-1", 2), ("order-2", -3)])
    with app, Admin(broker.address) as admin:
        wait_for(lambda: not (found := admin.describe_group("billing")).lag and found.queues)
    return "billing"


def listed(run: Run, group: str) -> dict[str, dict[str, str]]:
    found = json.loads(run("dead", "list", "--group", group, "--json").stdout)
    return {each["key"]: each for each in found}


def test_groups_and_their_dead_letters_are_counted(run: Run, letters: str) -> None:
    assert {"group": letters, "dead_letters": 2} in json.loads(run("dead", "list", "--json").stdout)
    (group,) = [each for each in json.loads(run("group", "list", "--json").stdout) if each["group"] == letters]
    assert (group["held"], group["parked"], group["dead"]) == (0, 0, 2)
    assert run("group", "list").stdout.split()[:7] == ["group", "members", "lag", "held", "parked", "dead", "topics"]


def test_a_dead_letter_is_shown_with_its_reason_and_properties(run: Run, letters: str) -> None:
    assert listed(run, letters)["order-2"]["state"] == "open"
    found = listed(run, letters)["order-1"]
    assert (found["topic"], found["reason"]) == ("bills", "no address")
    shown = json.loads(run("dead", "show", found["id"], "--group", letters, "--json").stdout)
    assert shown["properties"]["region"] == "eu"
    assert shown["value"] == -1
    assert "given up" in run("dead", "show", found["id"], "--group", letters).stdout


def test_a_redrive_sends_a_copy_once_with_everything_that_the_sender_set(run: Run, letters: str) -> None:
    assert "would be sent" in run("dead", "redrive", "--group", letters, "--key", "order-1", "--dry-run").stdout
    refused = run("dead", "redrive", "--group", letters, "--key", "order-1")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert listed(run, letters)["order-1"]["state"] == "open"

    assert run("dead", "redrive", "--group", letters, "--key", "order-1", "--yes").exit_code == 0
    states = {key: each["state"] for key, each in listed(run, letters).items()}
    assert states == {"order-1": "redriven", "order-2": "open"}
    copy = json.loads(run("tail", "bills", "--key", "order-1", "-n", "1", "--json").stdout)
    assert (copy["value"], copy["tag"], copy["properties"]["region"]) == (-1, "new", "eu")
    assert copy["keys"][0] == "invoice-1"
    assert "LANE_WHY" not in copy["properties"]

    again = run("dead", "redrive", "--group", letters, "--key", "order-1", "--yes")
    assert "nothing to do" in again.stdout


@pytest.fixture(scope="module")
def given_up(broker: EmbeddedBroker) -> list[str]:
    """The ids of the three dead letters of another group."""
    app = App(broker.address, group="mailing")

    @app.ordered("letters")
    def handle(event: int) -> None:
        raise ToDeadLetter("no address")

    with Admin(broker.address) as admin:
        admin.create_topic("letters", 1, ordered=True)
    with Producer(broker.address) as producer:
        producer.send_many("letters", [("k", 1), ("k", 2), ("k", 3)])
    with app:
        wait_for(lambda: len(list(read_dead_letters(broker.address, "mailing"))) == 3)
    return [each.id for each in read_dead_letters(broker.address, "mailing")]


def test_a_discard_takes_the_dead_letter_and_the_older_ones(
    run: Run, given_up: list[str], broker: EmbeddedBroker
) -> None:
    def ids() -> list[str]:
        return [each["id"] for each in json.loads(run("dead", "list", "--group", "mailing", "--json").stdout)]

    assert "2 dead letters" in run("dead", "discard", given_up[1], "--group", "mailing", "--dry-run").stdout
    refused = run("dead", "discard", given_up[1], "--group", "mailing")
    assert refused.exit_code == 1
    assert "2 of them without having been redriven" in refused.stderr
    assert ids() == given_up
    assert run("dead", "discard", given_up[1], "--group", "mailing", "--yes").exit_code == 0
    assert ids() == given_up[2:]
    with Admin(broker.address) as admin:
        assert count_dead_letters(admin)["mailing"] == 1
        assert [name for name in admin.groups() if "%" in name] == []
        (figures,) = admin.figures()
        assert figures.table['lanemq_dead_letters{group="mailing"}'] == "1"
        assert not [name for name in figures.table if "lag" in name and "DLQ" in name]
        # one that arrived after the list was read stays
        assert discard_dead_letters(admin, "mailing", {}) == 0
        assert discard_dead_letters(admin, "mailing", {parse_id("mailing", given_up[0])[0]: 99}) == 1
    assert "nothing to do" in run("dead", "discard", "--all", "--group", "mailing", "--yes").stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("show", "nonsense", "--group", "billing"), "BROKER/QUEUE/OFFSET"),
        (("show", "lanemq/0/99", "--group", "billing"), "has no dead letter lanemq/0/99"),
        (("show", "lanemq/0/0", "--group", "unknown"), "group unknown has no dead letter"),
        (("redrive", "--group", "billing"), "exactly one of ID"),
        (("list", "--key", "k"), "--key needs --group"),
        (("discard", "--group", "billing"), "either ID or --all"),
    ],
)
def test_mistakes_are_explained(run: Run, letters: str, words: tuple[str, ...], why: str) -> None:
    result = run("dead", *words)
    assert result.exit_code == 2
    assert why in result.stderr


def test_top_shows_the_screen_of_status(run: Run, letters: str) -> None:
    result = run("top", "--count", "2", "--every", "0.01s")
    assert result.exit_code == 0
    assert result.stdout.count("ready, durable") == 2
