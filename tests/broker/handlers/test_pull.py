"""Pulls, and long polls that are answered exactly once."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, heartbeat, records
from tests.broker.running import ManualClock, RunningBroker

from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.stats_bodies import TopicStatsTable


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


def situation(raw: RawClient, offset: int, **more: object) -> tuple[int, int]:
    reply = raw.pull("T", offset, **more)
    assert reply.ext.keys() >= {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}
    return reply.code, int(reply.ext["nextBeginOffset"])


def test_status_of_pulls_from_an_empty_queue(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    assert situation(raw, 0) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert situation(raw, 5) == (ResponseCode.PULL_OFFSET_MOVED, 0)


@pytest.mark.row("A17")
@pytest.mark.row("A61")
def test_status_of_pulls_from_a_queue_with_messages(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for tag in ("A", "B", "A"):
        raw.send("T", tag.encode(), properties={"TAGS": tag})
    assert situation(raw, 0) == (ResponseCode.SUCCESS, 3)
    assert situation(raw, 0, tags="B") == (ResponseCode.SUCCESS, 3)
    assert situation(raw, 0, tags="Z") == (ResponseCode.PULL_RETRY_IMMEDIATELY, 3), "filtered, not stalled"
    assert situation(raw, 3) == (ResponseCode.PULL_NOT_FOUND, 3)
    assert situation(raw, 4) == (ResponseCode.PULL_OFFSET_MOVED, 3), "never back to 0"
    assert situation(raw, -1) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert bodies(raw.read("T", tags="A || C")) == [b"A", b"A"]


def test_count_and_bytes_are_limited_but_one_message_always_fits(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for _ in range(3):
        raw.send("T", bytes(200_000))
    assert situation(raw, 0) == (0, 1)
    assert situation(raw, 0, laneMaxBytes="1") == (0, 1)
    assert situation(raw, 0, laneMaxBytes="4000000") == (0, 3)
    assert situation(raw, 0, laneMaxBytes="4000000", most=2) == (0, 2)


def test_a_pull_for_a_topic_that_was_created_again_gets_nothing_of_the_new_one(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("T", 1)
    raw.send("T", b"old")
    created = TopicStatsTable.decode(raw.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body).lane_created
    assert situation(raw, 0, laneCreated=str(created)) == (ResponseCode.SUCCESS, 1)
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.create("T", 1)
    raw.send("T", b"new")
    assert raw.pull("T", laneCreated=str(created)).code == ResponseCode.TOPIC_NOT_EXIST
    assert bodies(raw.read("T")) == [b"new"]


def test_invalid_pulls_are_refused(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("WriteOnly", perm="2")
    assert raw.pull("Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    assert raw.pull("T", queue=4).code == ResponseCode.INVALID_PARAMETER
    assert raw.pull("T", queue=-1).code == ResponseCode.INVALID_PARAMETER
    assert raw.pull("WriteOnly").code == ResponseCode.NO_PERMISSION
    assert raw.pull("T", tags=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert raw.pull("T", expressionType="SQL92").code == ResponseCode.SYSTEM_ERROR


def test_subscription_of_the_heartbeat_filters(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for tag in ("A", "B"):
        raw.send("T", tag.encode(), properties={"TAGS": tag})
    raw.heartbeat("c", topics={"T": "B"})
    assert bodies(records(raw.pull("T", tags=None))) == [b"B"]
    assert raw.pull("T", tags=None, subVersion="2").code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_pull_of_an_sql_subscription_is_refused(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    body = heartbeat("c", "g", {"T": "*"}).replace(b'"TAG"', b'"SQL92"')
    raw.ask(RequestCode.HEART_BEAT, body=body)
    assert raw.pull("T", tags=None).code == ResponseCode.SYSTEM_ERROR


def test_long_poll_wakes_on_a_matching_tag_only(clocked: RunningBroker) -> None:
    raw, producer = clocked.connect(), clocked.connect()
    held = raw.post_pull("T", 0, hold=10_000, tags="B")
    raw.bounds("T")
    producer.send("T", b"a", properties={"TAGS": "A"})
    raw.bounds("T")
    assert held not in raw.answered()
    producer.send("T", b"b", properties={"TAGS": "B"})
    assert bodies(records(raw.answer(held))) == [b"b"]


def test_long_poll_times_out_with_not_found(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    held = raw.post_pull("T", 0, hold=3_000)
    raw.bounds("T")
    clocked.advance(2_999)
    raw.bounds("T")
    assert held not in raw.answered()
    clocked.advance(1)
    assert raw.answer(held).code == ResponseCode.PULL_NOT_FOUND


def test_long_poll_is_answered_exactly_once(clocked: RunningBroker) -> None:
    raw, producer = clocked.connect(), clocked.connect()
    held = [raw.post_pull("T", 0, hold=3_000) for _ in range(5)]
    raw.bounds("T")
    producer.send("T")
    producer.send("T")
    clocked.advance(60_000)
    raw.bounds("T")
    assert sorted(opaque for opaque in raw.answered() if opaque in held) == held
    assert clocked.broker.running.pull._held == {}


def test_long_polls_end_with_their_connection(clocked: RunningBroker) -> None:
    raw, producer = clocked.connect(), clocked.connect()
    raw.post_pull("T", 0, hold=3_000)
    raw.bounds("T")
    raw.close()
    while clocked.call(lambda: len(clocked.broker.running.server.peers)) > 2:
        pass
    polls, pull = clocked.broker.running.context.polls, clocked.broker.running.pull
    assert clocked.call(lambda: (len(polls), pull._held, pull._by_peer)) == (0, {}, {})
    assert producer.send("T").code == 0


def test_too_many_long_polls_are_answered_empty_at_once(start: Start) -> None:
    running = start()
    running.broker.running.context.polls._capacity = 1
    raw = running.connect()
    raw.create("T")
    raw.post_pull("T", 0, hold=20_000)
    assert raw.pull("T", 0, hold=20_000).code == ResponseCode.PULL_NOT_FOUND


def test_a_failing_held_pull_does_not_prevent_other_answers(clocked: RunningBroker) -> None:
    raw, producer = clocked.connect(), clocked.connect()
    held = [raw.post_pull("T", 0, hold=3_000), raw.post_pull("T", 0, hold=3_000)]
    raw.bounds("T")
    pull, once = clocked.broker.running.pull, [1]
    works = pull._read

    def fail_once(asked: object) -> object:
        if once:
            once.pop()
            raise RuntimeError("planted")
        return works(asked)  # type: ignore[arg-type]

    pull._read = fail_once  # type: ignore[assignment, method-assign]
    producer.send("T")
    assert [raw.answer(opaque).code for opaque in held] == [ResponseCode.SYSTEM_ERROR, 0]
    assert producer.send("T").code == 0


def test_commit_that_comes_with_a_pull_counts(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.pull("T", 0, commit=3)
    assert raw.committed() == 3
    raw.pull("T", 0, commit=-1)
    assert raw.committed() == 3
