"""The console and the command line against an Apache cluster of two brokers: figures of both, and changes on both."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.console.window import serving

from interop.console.test_console import Visitor, concurrent, holder, parker, quitter, text_of
from lanemq import Admin, Producer
from lanemq.console.settings import ConsoleSettings


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[str]:
    with Admin(address) as admin:
        if len(admin.figures()) < 2:
            pytest.skip("needs --backend cluster")
        for topic in ("orders", "returns", "mails"):
            admin.create_topic(topic, 2)
    with Producer(address) as producer:
        for status in ("created", "paid", "shipped"):
            for number in range(8):
                producer.send("orders", {"status": status}, key=f"order-{number}", tag=status)
        for number in range(4):
            producer.send("returns", {"return": number}, key=f"return-{number}")
            producer.send("mails", "hello", key=f"mail-{number}")
    with contextlib.ExitStack() as running:
        for member in (parker(address), holder(address), quitter(address), concurrent(address)):
            running.enter_context(member)
        yield address


@pytest.fixture(scope="module")
def visitor(cluster: str) -> Iterator[Visitor]:
    with serving(ConsoleSettings(cluster, every=0.5)) as base:
        found = Visitor(base)
        found.until("/waiting", "order-7", "return-2", "mail-1", "mailing")
        yield found
        found.client.close()


def lanemq(cluster: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lanemq", *arguments, "--server", cluster], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", ("2 brokers, 3 topics", "1 key")),
        ("/topics/orders", ("Queues 4 Messages kept 24", "0 broker-a", "1 broker-b", "shipper@1 for shipping")),
        ("/messages?topic=orders", ("read 24 of 24",)),
        ("/key?topic=orders&key=order-7", ("on broker-a, 3 messages", "parked in its owner's memory")),
        ("/groups/shipping", ("broker-a, broker-b are not LaneMQ brokers", "Parked keys 1")),
        ("/dead?group=mailing", ("return-1 open returns",)),
        ("/settings", ("broker-a", "broker-b")),
    ],
)
def test_a_page_shows_what_both_brokers_have(visitor: Visitor, path: str, words: tuple[str, ...]) -> None:
    page, _, query = path.partition("?")
    visitor.until(page, *words, **dict(part.split("=") for part in query.split("&") if part))


def test_commands_ask_both_brokers(visitor: Visitor, cluster: str) -> None:
    groups = {each["group"]: each for each in json.loads(lanemq(cluster, "group", "list", "--json"))}
    assert groups["shipping"]["lag"] == 3
    described = lanemq(cluster, "group", "describe", "shipping")
    assert ("broker-a" in described, "broker-b" in described) == (True, True)
    assert "on broker-a, 3 messages" in lanemq(cluster, "key", "order-7", "--topic", "orders")
    assert "group shipping" in lanemq(cluster, "why", "order-7", "--topic", "orders")
    assert "broker broker-b at" in lanemq(cluster, "status")


def test_changes_reach_both_brokers(visitor: Visitor, cluster: str) -> None:
    done = text_of(visitor.submit("/dead/redrive", {"group": "mailing"}).text)
    assert "1 dead letter sent to returns again" in done
    gone = text_of(visitor.submit("/topics/mails/delete", name="mails").text)
    assert "Topic mails and its messages were deleted." in gone
    lanemq(cluster, "topic", "create", "made", "--queues", "3")
    with Admin(cluster) as admin:
        assert len(admin.describe_topic("made").queues) == 6
    lanemq(cluster, "topic", "delete", "made", "--yes")
    assert "made" not in lanemq(cluster, "topic", "list")
