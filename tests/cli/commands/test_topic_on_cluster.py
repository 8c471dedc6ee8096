"""`lanemq topic` on an Apache cluster: the layout is set, shown and repaired."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from tests.cli.conftest import Run
from tests.client.fake_cluster import FakeCluster

from lanemq.cli.main import main
from lanemq.testing.embedded import EmbeddedBroker

FULL = "broker-a:4;broker-b:4"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(servers=2) as fake:
        yield fake


@pytest.fixture
def run(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LANEMQ_SERVER", cluster.address)
    runner = CliRunner()
    return lambda *words, stdin=None: runner.invoke(main, list(words), input=stdin)


def test_create_says_where_the_layout_is_and_whether_stock_producers_read_it(run: Run, cluster: FakeCluster) -> None:
    created = run("topic", "create", "two", "--queues", "4", "--ordered")
    assert created.exit_code == 0, created.output
    assert "topic two: 4 queues on each of 2 brokers, ordered by key" in created.stdout
    assert f"layout {FULL}, at 2 name servers" in created.stdout
    assert "orderMessageEnable=true" in created.stdout
    cluster.layouts_in_routes = True
    assert "orderMessageEnable" not in run("topic", "create", "two", "--queues", "4", "--ordered").stdout


def test_describe_shows_the_truth(run: Run, cluster: FakeCluster) -> None:
    cluster.create("plain")
    assert "8 queues, not ordered" in run("topic", "describe", "plain").stdout
    run("topic", "create", "two", "--queues", "4", "--ordered")
    assert "topic two: 8 queues, ordered by key" in run("topic", "describe", "two").stdout
    cluster.kill("broker-b")
    del cluster.layouts[1]["two"]
    described = run("topic", "describe", "two")
    assert f"name server {cluster.servers[1].address} has no layout; see lanemq topic order two" in described.stdout
    assert "broker broker-b is away" in described.stdout
    document = json.loads(run("topic", "describe", "two", "--json").stdout)
    assert document["ordered"] is True
    assert list(document["layouts"].values()) == [FULL, ""]
    assert [(each["broker"], each["up"]) for each in document["brokers"]] == [("broker-a", True), ("broker-b", False)]


def test_order_shows_what_it_would_do_and_does_it_when_told(run: Run, cluster: FakeCluster) -> None:
    cluster.create("plain")
    preview = run("topic", "order", "plain", "--dry-run")
    assert preview.exit_code == 0, preview.output
    assert "would be repaired" in preview.stdout
    assert FULL in preview.stdout
    assert cluster.layouts == [{}, {}]
    refused = run("topic", "order", "plain")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert cluster.layouts == [{}, {}]
    done = run("topic", "order", "plain", "--yes")
    assert done.exit_code == 0, done.output
    assert [table["plain"] for table in cluster.layouts] == [FULL, FULL]
    assert "nothing to repair" in run("topic", "order", "plain").stdout


@pytest.mark.usefixtures("on_terminal")
def test_order_warns_before_it_moves_keys(run: Run, cluster: FakeCluster) -> None:
    cluster.create("two", layout=FULL)
    asked = run("topic", "order", "two", "--layout", "broker-a:4", stdin="n\n")
    assert asked.exit_code == 1
    assert "Keys will move to other queues" in asked.stderr
    assert [table["two"] for table in cluster.layouts] == [FULL, FULL]


def test_order_leaves_no_broker_out_that_is_away(run: Run, cluster: FakeCluster) -> None:
    """Its replica is still in the route. A layout without it would move its keys."""
    cluster.add_replica("broker-b")
    cluster.create("plain")
    cluster.kill("broker-b")
    refused = run("topic", "order", "plain", "--yes")
    assert refused.exit_code == 2
    assert "broker broker-b is away" in refused.stderr
    assert cluster.layouts == [{}, {}]
    chosen = run("topic", "order", "plain", "--layout", FULL)
    assert "Keys will move to other queues: broker-a:4 is in use now" in chosen.stderr
    assert run("topic", "order", "plain", "--layout", FULL, "--yes").exit_code == 0
    assert [table["plain"] for table in cluster.layouts] == [FULL, FULL]


def test_order_warns_of_moving_keys_if_the_topic_had_no_layout(run: Run, cluster: FakeCluster) -> None:
    cluster.create("plain")
    warned = run("topic", "order", "plain", "--layout", "broker-a:4", "--dry-run")
    assert f"Keys will move to other queues: {FULL} is in use now" in warned.stdout
    assert "move" not in run("topic", "order", "plain", "--layout", FULL, "--dry-run").stdout.partition("\n")[0]


def test_order_of_a_topic_that_does_not_exist_says_so(run: Run) -> None:
    missing = run("topic", "order", "absent")
    assert missing.exit_code == 1
    assert "topic 'absent' does not exist" in missing.stderr


def test_on_a_lanemq_broker_there_is_nothing_to_repair(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("LANEMQ_SERVER", broker.address)
    assert run("topic", "create", "kept", "--queues", "2", "--ordered").stdout == (
        "topic kept: 2 queues, ordered by key\n"
    )
    assert "nothing to repair" in run("topic", "order", "kept").stdout
