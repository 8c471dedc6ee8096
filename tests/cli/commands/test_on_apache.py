"""Commands that say what an Apache broker does not report, instead of that there is nothing."""

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from tests.chaos.members import until
from tests.client.fake_cluster import FakeCluster

from lanemq.cli.main import main
from lanemq.client.admin import key_progress
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.members import MemberQuestions
from lanemq.client.admin.views import NoAnswer
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.testing.stock_broker import stock_broker
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.route_bodies import KVTable, TopicList


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(["broker-a"]) as found:
        found.create("orders")
        found.servers[0].answers |= {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _: (
                0,
                {},
                TopicList(topic_list=["orders"]).encode(),
            ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _: (0, {}, TopicList().encode()),
        }
        found.brokers["broker-a"].answers |= {
            RequestCode.QUERY_MESSAGE: lambda _: (ResponseCode.QUERY_NOT_FOUND, {}, b""),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda _: (0, {}, KVTable().encode()),
        }
        yield found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["locks"], "reports no leases: lanemq group describe NAME shows the owners that members report"),
        (["why", "order-7"], "an Apache broker does not index keys: name the topic of 'order-7' with --topic TOPIC"),
    ],
)
def test_what_the_broker_does_not_report_is_not_said_to_be_absent(
    cluster: FakeCluster, words: list[str], said: str
) -> None:
    done = CliRunner().invoke(main, [*words, "--server", cluster.address])
    assert said in done.output


# A real member at a broker without an index of keys or parked lanes.


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[App, Callable[..., Result]]]:
    """A member that has parked the first message of the queue in its memory; the search does not reach that message."""
    monkeypatch.setattr(key_progress, "MAX_SEARCHED", 3)
    with stock_broker() as broker:
        monkeypatch.setenv("LANEMQ_SERVER", broker.address)
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 1, ordered=True)
        with Producer(broker.address) as producer:
            for key in ("failing", *(f"key-{number}" for number in range(5))):
                producer.send("orders", {}, key=key)
        app = App(broker.address, group="billing", client_id="member-1")

        @app.ordered("orders", on_fail=HoldKey(retries=0))
        def handle(message: Message) -> None:
            if message.key == "failing":
                raise ValueError("broken")

        with app:
            until("it is parked", lambda: any(each.lanes.parked_here for each in app.snapshot().queues.values()))
            yield app, lambda *words: CliRunner().invoke(main, list(words))


def test_why_asks_the_owner_about_messages_that_were_not_searched(
    parked: tuple[App, Callable[..., Result]],
) -> None:
    _, run = parked
    done = run("why", "failing", "--topic", "orders")
    assert "waits for an operator: parked in its owner's memory at offset 0" in done.output
    row = next(line for line in run("key", "failing", "--topic", "orders").output.splitlines() if "member-1" in line)
    assert row.split()[:7] == ["billing", "0", "0", "1", "0", "1", "0"], "offset, done, pending, held, parked, dead"
    other = run("why", "unused", "--topic", "orders").output
    assert "waits for nothing: the key has no unfinished message" in other


def test_why_does_not_say_nothing_if_nobody_can_tell(parked: tuple[App, Callable[..., Result]]) -> None:
    app, run = parked
    app.stop(now=True)
    done = run("why", "failing", "--topic", "orders")
    assert (
        "may wait for something that is not known: offsets 0 to 2 of the queue may be of this key, and the group has "
        "not finished them: they were not searched, and no member of the group is online"
    ) in done.output
    assert "nothing" not in done.output


def test_lanes_in_the_memory_of_a_member_are_listed_and_a_redrive_says_where_they_are(
    parked: tuple[App, Callable[..., Result]],
) -> None:
    _, run = parked
    listed = run("parked", "list").output
    assert "failing" in listed
    assert "in member member-1" in listed
    (found,) = json.loads(run("parked", "list", "--json").output)
    assert (found["key"], found["owner"], found["first_offset"], found["messages"]) == ("failing", "member-1", 0, 1)
    redriven = run("parked", "redrive", "failing", "--group", "billing")
    assert redriven.exit_code == 1
    assert "failing of group billing is parked in the memory of member-1, not at a broker" in redriven.output
    missing = run("parked", "redrive", "unused", "--group", "billing").output
    assert "no lane of key 'unused' of group billing is parked; see lanemq parked list" in missing


def test_a_member_that_does_not_answer_may_have_parked_lanes(
    parked: tuple[App, Callable[..., Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = parked

    def no_answer(*_: object) -> NoAnswer:
        return NoAnswer("did not answer within 500 ms", silent=True)

    monkeypatch.setattr(MemberQuestions, "_ask", no_answer)
    listed = run("parked", "list").output
    assert "no lane is parked at a broker; not known: the lanes in the memory of member-1" in listed
    assert "did not answer within 500 ms" in listed
    assert "may wait for something that is not known" in run("why", "failing", "--topic", "orders").output
