"""Pulls: every row of the protocol's table, and long polls that are answered exactly once."""

import pytest
from tests.broker.conftest import Start
from tests.broker.running import HandClock, Running
from tests.broker.talk import Talk, bodies, heartbeat, records

from lanemq.wire.codes import RequestCode, ResponseCode


@pytest.fixture
def hand(start: Start) -> Running:
    running = start(clock=HandClock())
    running.talk().create("T", 4)
    return running


def situation(talk: Talk, offset: int, **more: object) -> tuple[int, int]:
    reply = talk.pull("T", offset, **more)
    assert reply.ext.keys() >= {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}
    return reply.code, int(reply.ext["nextBeginOffset"])


def test_empty_queue(hand: Running) -> None:
    talk = hand.talk()
    assert situation(talk, 0) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert situation(talk, 5) == (ResponseCode.PULL_OFFSET_MOVED, 0)


@pytest.mark.row("A17")
@pytest.mark.row("A61")
def test_filled_queue(hand: Running) -> None:
    talk = hand.talk()
    for tag in ("A", "B", "A"):
        talk.send("T", tag.encode(), properties={"TAGS": tag})
    assert situation(talk, 0) == (ResponseCode.SUCCESS, 3)
    assert situation(talk, 0, tags="B") == (ResponseCode.SUCCESS, 3)
    assert situation(talk, 0, tags="Z") == (ResponseCode.PULL_RETRY_IMMEDIATELY, 3), "filtered, not stalled"
    assert situation(talk, 3) == (ResponseCode.PULL_NOT_FOUND, 3)
    assert situation(talk, 4) == (ResponseCode.PULL_OFFSET_MOVED, 3), "never back to 0"
    assert situation(talk, -1) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert bodies(talk.read("T", tags="A || C")) == [b"A", b"A"]


def test_count_and_bytes_are_limited_but_one_message_always_fits(hand: Running) -> None:
    talk = hand.talk()
    for _ in range(3):
        talk.send("T", bytes(200_000))
    assert situation(talk, 0) == (0, 1)
    assert situation(talk, 0, laneMaxBytes="1") == (0, 1)
    assert situation(talk, 0, laneMaxBytes="4000000") == (0, 3)
    assert situation(talk, 0, laneMaxBytes="4000000", most=2) == (0, 2)


def test_refusals(hand: Running) -> None:
    talk = hand.talk()
    talk.create("WriteOnly", perm="2")
    assert talk.pull("Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    assert talk.pull("T", queue=4).code == ResponseCode.INVALID_PARAMETER
    assert talk.pull("T", queue=-1).code == ResponseCode.INVALID_PARAMETER
    assert talk.pull("WriteOnly").code == ResponseCode.NO_PERMISSION
    assert talk.pull("T", tags=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert talk.pull("T", expressionType="SQL92").code == ResponseCode.SYSTEM_ERROR


def test_subscription_of_the_heartbeat_filters(hand: Running) -> None:
    talk = hand.talk()
    for tag in ("A", "B"):
        talk.send("T", tag.encode(), properties={"TAGS": tag})
    talk.heartbeat("c", topics={"T": "B"})
    assert bodies(records(talk.pull("T", tags=None))) == [b"B"]
    assert talk.pull("T", tags=None, subVersion="2").code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_subscription_by_sql_is_refused_even_if_the_pull_does_not_say_so(hand: Running) -> None:
    talk = hand.talk()
    body = heartbeat("c", "g", {"T": "*"}).replace(b'"TAG"', b'"SQL92"')
    talk.ask(RequestCode.HEART_BEAT, body=body)
    assert talk.pull("T", tags=None).code == ResponseCode.SYSTEM_ERROR


def test_long_poll_wakes_on_a_matching_tag_only(hand: Running) -> None:
    talk, producer = hand.talk(), hand.talk()
    held = talk.post_pull("T", 0, hold=10_000, tags="B")
    talk.bounds("T")
    producer.send("T", b"a", properties={"TAGS": "A"})
    talk.bounds("T")
    assert held not in talk.answered()
    producer.send("T", b"b", properties={"TAGS": "B"})
    assert bodies(records(talk.answer(held))) == [b"b"]


def test_long_poll_times_out_with_not_found(hand: Running) -> None:
    talk = hand.talk()
    held = talk.post_pull("T", 0, hold=3_000)
    talk.bounds("T")
    hand.advance(2_999)
    talk.bounds("T")
    assert held not in talk.answered()
    hand.advance(1)
    assert talk.answer(held).code == ResponseCode.PULL_NOT_FOUND


def test_long_poll_is_answered_exactly_once(hand: Running) -> None:
    talk, producer = hand.talk(), hand.talk()
    held = [talk.post_pull("T", 0, hold=3_000) for _ in range(5)]
    talk.bounds("T")
    producer.send("T")
    producer.send("T")
    hand.advance(60_000)
    talk.bounds("T")
    assert sorted(opaque for opaque in talk.answered() if opaque in held) == held
    assert hand.broker._pull._held == {}


def test_long_poll_is_forgotten_with_its_connection(hand: Running) -> None:
    talk, producer = hand.talk(), hand.talk()
    talk.post_pull("T", 0, hold=3_000)
    talk.bounds("T")
    talk.close()
    while hand.call(lambda: len(hand.broker._server.peers)) > 2:
        pass
    assert hand.call(lambda: (len(hand.broker._parts.polls), hand.broker._pull._held, hand.broker._pull._by_peer)) == (
        0,
        {},
        {},
    )
    assert producer.send("T").code == 0


def test_too_many_long_polls_are_answered_empty_at_once(start: Start) -> None:
    talk = start(max_held_pulls=1).talk()
    talk.create("T")
    talk.post_pull("T", 0, hold=20_000)
    assert talk.pull("T", 0, hold=20_000).code == ResponseCode.PULL_NOT_FOUND


def test_one_failing_held_pull_keeps_no_other_from_its_answer(hand: Running) -> None:
    talk, producer = hand.talk(), hand.talk()
    held = [talk.post_pull("T", 0, hold=3_000), talk.post_pull("T", 0, hold=3_000)]
    talk.bounds("T")
    pull, once = hand.broker._pull, [1]
    works = pull._read

    def fail_once(asked: object) -> object:
        if once:
            once.pop()
            raise RuntimeError("planted")
        return works(asked)  # type: ignore[arg-type]

    pull._read = fail_once  # type: ignore[assignment, method-assign]
    producer.send("T")
    assert [talk.answer(opaque).code for opaque in held] == [ResponseCode.SYSTEM_ERROR, 0]
    assert producer.send("T").code == 0


def test_commit_that_comes_with_a_pull_counts(hand: Running) -> None:
    talk = hand.talk()
    talk.pull("T", 0, commit=3)
    assert talk.committed() == 3
    talk.pull("T", 0, commit=-1)
    assert talk.committed() == 3


def test_new_stock_group_starts_at_the_first_message_of_a_young_queue(hand: Running) -> None:
    talk = hand.talk()
    ext = {"consumerGroup": "new", "topic": "T", "queueId": "0"}
    assert talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).code == ResponseCode.QUERY_NOT_FOUND
    talk.send("T")
    assert talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext["offset"] == "0"
    lane = {**ext, "laneClient": "c"}
    assert talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, lane).code == ResponseCode.QUERY_NOT_FOUND
    assert talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**lane, "setZeroIfNotFound": "true"}).ext["offset"] == "0"
