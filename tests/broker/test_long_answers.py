"""Long answers are made in slices: right, fair to other connections, limited, and gone with their connection."""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import ManualClock, RunningBroker
from tests.net.test_loop_slices import iterations

from lanemq.broker.dispatch import WatchedRequest
from lanemq.broker.handlers import progress
from lanemq.broker.long_answers import MAX_PER_PEER, LongAnswers, Steps
from lanemq.clock import SystemClock
from lanemq.model.errors import BrokerBusy, BrokerRefused
from lanemq.net.serving import loop_slices
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, FrameDecoder, decode_command


@dataclass(eq=False)
class FakePeer:
    """Keeps the frames that are sent to it."""

    is_open: bool = True
    sent: list[Command] = field(default_factory=list)

    def send(self, frame: bytes) -> None:
        self.sent += map(decode_command, FrameDecoder().feed(frame))


class OneStep:
    """Slices of exactly one step."""

    def __init__(self) -> None:
        self.slices = LoopSlices(asyncio.get_running_loop(), self._tick)
        self.answers = LongAnswers(self.slices, SystemClock())
        self._time = 0

    def _tick(self) -> int:
        self._time += loop_slices.SLICE_NS
        return self._time

    def begin(self, peer: FakePeer, number: int, work: Steps) -> None:
        self.answers.begin(peer, Command(1, number), work)  # type: ignore[arg-type]

    async def made(self) -> None:
        await iterations(100)
        assert self.answers._unfinished == {}


def steps(name: str, count: int, done: list[str], error: Exception | None = None) -> Steps:
    for _ in range(count):
        done.append(name)
        yield
    if error is not None:
        raise error
    return name.encode()


def test_connections_take_turns_and_other_work_runs_in_between() -> None:
    done: list[str] = []
    one, two = FakePeer(), FakePeer()

    async def other() -> None:
        while len(done) < 9:
            done.append("-")
            await asyncio.sleep(0)

    async def main() -> None:
        answers = OneStep()
        answers.begin(one, 1, steps("a", 2, done))
        answers.begin(one, 2, steps("b", 2, done))
        answers.begin(two, 3, steps("c", 2, done))
        await other()
        await answers.made()

    asyncio.run(main())
    assert [each for each in done if each != "-"] == ["a", "c", "a", "c", "b", "b"], "b waits for a, not c for b"
    assert "-" in done[2:6]
    assert [each.body for each in one.sent] == [b"a", b"b"]


def test_an_answer_of_one_slice_is_sent_at_once_and_so_is_its_error() -> None:
    async def main() -> None:
        peer, answers, done = FakePeer(), OneStep(), list[str]()
        answers.begin(peer, 1, steps("a", 0, done))
        answers.begin(peer, 2, steps("b", 0, done, BrokerRefused(ResponseCode.NO_PERMISSION, "now")))
        assert [(each.body, each.remark) for each in peer.sent] == [(b"a", None), (b"", "now")]

    asyncio.run(main())


def test_later_errors_are_answered_and_a_closed_connection_is_forgotten() -> None:
    """Those who watch a request learn that it is not carried out."""
    done: list[str] = []
    outcomes: list[str] = []
    refused, broken, gone = FakePeer(), FakePeer(), FakePeer()

    async def main() -> None:
        answers = OneStep()
        answers.begin(refused, 1, steps("a", 2, done, BrokerRefused(ResponseCode.NO_PERMISSION, "no")))
        answers.begin(broken, 2, steps("b", 2, done, RuntimeError("a mistake")))
        watched = WatchedRequest.of(Command(1, 3), outcomes.append)
        answers.answers.begin(gone, watched, steps("c", 50, done))  # type: ignore[arg-type]
        gone.is_open = False
        await answers.made()

    asyncio.run(main())
    assert [each.code for each in refused.sent] == [ResponseCode.NO_PERMISSION]
    assert [each.code for each in broken.sent] == [ResponseCode.SYSTEM_ERROR]
    assert (gone.sent, done.count("c")) == ([], 1)
    assert outcomes == ["refused: the client closed its connection before its turn came"]


def test_one_connection_has_a_limited_number_of_unfinished_answers() -> None:
    async def main() -> None:
        answers, greedy = OneStep(), FakePeer()
        for number in range(MAX_PER_PEER):
            answers.begin(greedy, number, steps("a", 2, []))
        with pytest.raises(BrokerBusy, match="long answers are under way"):
            answers.begin(greedy, 99, steps("a", 2, []))
        answers.begin(FakePeer(), 1, steps("a", 2, []))
        await answers.made()
        answers.begin(greedy, 100, steps("a", 0, []))

    asyncio.run(main())


# the requests that use it

ASKED: dict[RequestCode, dict[str, str]] = {
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": "T"},
    RequestCode.GET_CONSUME_STATS: {"consumerGroup": "g"},
    RequestCode.GET_ALL_CONSUMER_OFFSET: {},
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": "T"},
    RequestCode.GET_ALL_TOPIC_CONFIG: {},
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {},
    RequestCode.GET_ALL_PRODUCER_INFO: {},
    RequestCode.LANE_LOCKS: {},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"},
}


@pytest.fixture
def used(start: Start) -> RunningBroker:
    """A broker with something to list for each request, at a time that does not move."""
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T", 4)
    raw.heartbeat("c", topics={"T": "*"})
    for queue in range(4):
        raw.send("T", queue=queue)
        raw.commit(1, queue=queue)
    raw.lane_lock("c")
    return running


def answers_of(raw: RawClient) -> dict[RequestCode, tuple[int, bytes]]:
    found = {code: raw.ask(code, dict(ext)) for code, ext in ASKED.items()}
    return {code: (reply.code, reply.body) for code, reply in found.items()}


def test_answers_in_slices_are_those_of_one_piece(used: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = used.connect()
    answers_of(raw)  # the reset is one of them
    whole = answers_of(raw)
    assert {code for code, _ in whole.values()} == {0}
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    assert answers_of(raw) == whole


def test_a_reset_changes_nothing_if_the_topic_changes_while_it_looks(
    used: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = used.connect()
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    (asked, first), (created, second) = (
        raw.frame(code, ext)
        for code, ext in (
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ASKED[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET]),
            (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": "T", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"},
            ),
        )
    )
    raw.socket.sendall(first + second)  # handled in one read, before the second slice
    assert raw.answer(created).code == 0
    reply = raw.answer(asked)
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "ask again" in (reply.remark or "")
    assert raw.committed("T") == 1


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUME_STATS, RequestCode.GET_ALL_CONSUMER_OFFSET])
def test_an_answer_that_no_client_could_read_is_refused(
    used: RunningBroker, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    monkeypatch.setattr(progress, "MAX_ANSWER_BYTES", 20)
    reply = used.connect().ask(code, ASKED[code])
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "for one answer" in (reply.remark or "")
