"""Queues assigned by the broker, for stock clients that do not choose them themselves."""

import itertools
import logging

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import RunningBroker

from lanemq.wire.bodies import AssignmentAnswer, encode_json
from lanemq.wire.codes import RequestCode, ResponseCode

MEMBERS = ("a", "b", "c")


@pytest.fixture
def running(start: Start) -> RunningBroker:
    broker = start()
    broker.connect().create("T", 7)
    for name in MEMBERS:
        broker.connect().heartbeat(name, topics={"T": "*"})
    return broker


def assigned(raw: RawClient, member: str, strategy: str = "AVG", **more: object) -> list[int] | None:
    body = {"topic": "T", "consumerGroup": "g", "clientId": member, "strategyName": strategy, **more}
    reply = raw.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_json({"messageModel": "CLUSTERING", **body}))
    assert reply.code == 0
    found = AssignmentAnswer.decode(reply.body).message_queue_assignments
    assert all(each.mode == "PULL" and each.message_queue.topic == "T" for each in found or ())
    return None if found is None else sorted(each.message_queue.queue_id for each in found)


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_the_members_share_all_queues(running: RunningBroker, strategy: str) -> None:
    raw = running.connect()
    shares = [assigned(raw, member, strategy) or [] for member in MEMBERS]
    assert sorted(itertools.chain.from_iterable(shares)) == list(range(7))


def test_shares_are_those_of_clients_that_choose_themselves(running: RunningBroker) -> None:
    raw = running.connect()
    assert [assigned(raw, member) for member in MEMBERS] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [assigned(raw, member, "AVG_BY_CIRCLE") for member in MEMBERS] == [[0, 3, 6], [1, 4], [2, 5]]
    assert assigned(raw, "stranger") == [], "it gives up what it had"


def test_broadcasting_members_get_all_queues(running: RunningBroker) -> None:
    raw = running.connect()
    assert assigned(raw, "a", messageModel="BROADCASTING") == list(range(7))
    assert assigned(raw, "a", messageModel=0) == list(range(7))


def test_an_unknown_topic_or_strategy_changes_nothing(running: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    raw = running.connect()
    assert assigned(raw, "a", topic="Missing") is None
    with caplog.at_level(logging.WARNING):
        assert assigned(raw, "a", "MACHINE_ROOM") is None
    assert "'MACHINE_ROOM', which the broker does not know" in caplog.text


def test_a_group_that_asks_for_pop_pulls(running: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    raw = running.connect()

    def mode(topic: str, mode: str) -> int:
        body = {"topic": topic, "consumerGroup": "g", "mode": mode, "popShareQueueNum": 8}
        return raw.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_json(body)).code

    assert mode("T", "PULL") == 0
    assert "asks for mode" not in caplog.text
    assert mode("T", "POP") == 0
    assert "asks for mode POP in topic T; its members pull" in caplog.text
    assert assigned(raw, "a") == [0, 1, 2]
    assert mode("Missing", "PULL") == ResponseCode.TOPIC_NOT_EXIST
    assert mode("%RETRY%g", "PULL") == ResponseCode.NO_PERMISSION
