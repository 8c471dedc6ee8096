"""`lanemq status`: one screen for people, all figures for programs, an exit code for scripts."""

import json
import re

import pytest
from click.testing import CliRunner
from tests.cli.conftest import Run
from tests.client.fake_cluster import FakeCluster

from lanemq.cli import output
from lanemq.cli.commands import status
from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import AtOffset, BrokerFigures
from lanemq.client.producer.producer import Producer
from lanemq.model.units import QueueOffset
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode
from lanemq.wire.route_bodies import KVTable


def test_one_screen_shows_health_and_lag(run: Run, broker: EmbeddedBroker, producer: Producer) -> None:
    for number in range(6):
        producer.send("long", number, key="k")
    with Admin(broker.address) as admin:
        admin.reset_offsets("billing", "long", to=AtOffset(QueueOffset(0)))
    shown = run("status")
    assert shown.exit_code == 0, shown.output
    assert "ready, durable" in shown.stdout
    first, health, *_ = shown.stdout.splitlines()
    assert re.search(r", up \d+ (minute|second)s?", first), first
    assert health.startswith("health "), "the table has no line of headings"
    row = next(line.split() for line in shown.stdout.splitlines() if line.startswith("billing"))
    assert row[:3] == ["billing", "long", "6"]
    document = json.loads(run("status", "--json").stdout)
    assert document[0]["figures"]['lanemq_lag_messages{group="billing",topic="long"}'] == "6"


def test_a_broker_that_takes_no_messages_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = BrokerFigures("b", "h:1", True, {"lanemq_ready": "0", "laneReadOnly": "the disk is full"})
    monkeypatch.setattr(Admin, "figures", lambda self: (figures,))
    shown = run("status")
    assert shown.exit_code == 1
    assert "READ-ONLY: the disk is full" in shown.stdout


def test_a_lag_without_a_time_is_unknown_and_not_zero() -> None:
    figures = BrokerFigures(
        "b",
        "h:1",
        True,
        {
            'lanemq_lag_messages{group="g",topic="T"}': "5",
            'lanemq_lag_messages{group="h",topic="T"}': "0",
            'lanemq_lag_seconds{group="h",topic="T"}': "0",
            "lanemq_ready": "1",
            "lanemq_index_rebuild_bytes": "1048576",
        },
    )
    assert [row[:4] for row in status._groups(figures)] == [("g", "T", 5, "unknown"), ("h", "T", 0, output.NONE)]
    assert "lost indexes are rebuilt: 1.0 MiB to read; retention deletes nothing until then" in status._health(figures)


def test_messages_that_retention_deleted_too_early_are_named_and_no_loss_is_not() -> None:
    table = {f'lanemq_unread_deleted_total{{group="g{n}",topic="T"}}': str(n) for n in range(6)}
    (lost,) = [text for name, text in status._lines(BrokerFigures("b", "h:1", True, table)) if name == "LOST"]
    assert lost == (
        "retention deleted messages before groups had read them, since the broker's start: g5 5 of T, g4 4 of T, "
        "g3 3 of T and 2 more groups"
    )
    assert ("LOST", "") in status._lines(BrokerFigures("b", "h:1", True, dict(list(table.items())[:1])))


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"lanemq_certificate_seconds": "0"}, "expired: clients refuse it"),
        ({"lanemq_certificate_seconds": "86400.5"}, "expires in 24 h"),
        ({"lanemq_certificate_seconds": "2000000"}, ""),
        ({}, ""),
    ],
)
def test_a_certificate_that_expires_soon_has_a_line(left: dict[str, str], said: str) -> None:
    (line,) = [text for name, text in status._lines(BrokerFigures("b", "h:1", True, left)) if name == "CERTIFICATE"]
    assert line.startswith(said)
    assert bool(line) == bool(said)


def test_an_apache_broker_shows_what_it_reports() -> None:
    apache = BrokerFigures("b", "h:1", False, {"putTps": "1.0 2.0 3.0", "getTransferredTps": "4.0 5.0 6.0"})
    assert next(iter(status._lines(apache))) == ("messages", "2.0/s in, 5.0/s out in the last minute")


def test_an_apache_broker_in_its_first_minute_has_no_line_without_a_figure() -> None:
    table = {"putTps": "0.0", "commitLogDirCapacity": "Free : 2 GiB."}
    shown = list(status.screen(BrokerFigures("b", "h:1", False, table)))
    assert isinstance(shown[1], output.Grid)
    assert [name for name, _ in shown[1].rows] == ["copies", "disk"]
    assert shown[-1] == "b does not report how far groups are behind: see lanemq group list"


@pytest.mark.parametrize(
    ("replicas", "text"),
    [(0, "1: the name servers know no replica, so this disk is the only copy"), (1, "2: the master and 1 replica")],
)
def test_an_apache_broker_with_one_copy_left_says_so(monkeypatch: pytest.MonkeyPatch, replicas: int, text: str) -> None:
    with FakeCluster(["broker-a"]) as cluster:
        if replicas:
            cluster.add_replica("broker-a")
        cluster.brokers["broker-a"].answers[RequestCode.GET_BROKER_RUNTIME_INFO] = lambda _: (0, {}, KVTable().encode())
        monkeypatch.setenv("LANEMQ_SERVER", cluster.address)
        shown = CliRunner().invoke(main, ["status"])
        assert shown.exit_code == 0, shown.output
        assert f"copies {text}" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("runtime", "text"),
    [
        ("[ 0 days, 0 hours, 0 minutes, 7 seconds ]", "7 seconds"),
        ("[ 0 days, 0 hours, 1 minutes, 0 seconds ]", "1 minute"),
        ("[ 0 days, 2 hours, 5 minutes, 7 seconds ]", "2 hours, 5 minutes"),
        ("[ 40 days, 1 hours, 5 minutes, 7 seconds ]", "40 days, 1 hour"),
        ("[ 0 days, 0 hours, 0 minutes, 0 seconds ]", "0 seconds"),
        ("", output.NONE),
    ],
)
def test_the_time_since_the_start_has_two_units_at_most(runtime: str, text: str) -> None:
    assert status.uptime_text(runtime) == text


def test_a_retry_topic_is_shown_only_while_messages_wait_in_it() -> None:
    lags = {("billing", "orders"): "0", ("billing", "%RETRY%billing"): "0", ("mail", "%RETRY%mail"): "2"}
    table = {f'lanemq_lag_messages{{group="{group}",topic="{topic}"}}': lag for (group, topic), lag in lags.items()}
    rows = status._groups(BrokerFigures("b", "h:1", True, table))
    assert [row[:3] for row in rows] == [("mail", "%RETRY%mail", 2), ("billing", "orders", 0)]


def test_sizes() -> None:
    assert [output.size_text(size) for size in (0, 1023, 1536, 5 * 2**40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
