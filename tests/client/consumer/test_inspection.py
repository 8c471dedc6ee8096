"""A consumer's answers to its broker's requests; whole members on virtual time."""

import asyncio
from typing import Any

import pytest
from tests.client.consumer.fakes import FakeBroker, member, queue, record, until
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.inspection import answer_broker, held_lanes
from lanemq.client.consumer.turns.workers import OverdueRuns
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import SendBack
from lanemq.core.consuming.runs import Order
from lanemq.wire.bodies import ConsumeDirectlyResult
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import HeldLanesBody, LaneStateAnswer, LaneStateBody
from lanemq.wire.stats_bodies import ConsumerRunningInfo, ConsumerStatusBody, ResetOffsetBody


class Line:
    """A connection that records the answers."""

    address = "the fake broker"

    def __init__(self) -> None:
        self.replies: list[Command] = []

    def reply(self, command: Command) -> None:
        self.replies.append(command)


def ask(engine: Any, code: int, *, body: bytes = b"", flag: int = 0, **ext: str) -> Line:
    line = Line()
    answer_broker(engine, line, Command(code, 7, flag=flag, ext=ext, body=body))  # type: ignore[arg-type]
    return line


@pytest.mark.row("A45")
def test_a_notified_change_of_members_starts_a_rebalance_at_once() -> None:
    async def main() -> tuple[int, list[Command]]:
        broker = FakeBroker([queue(0), queue(1)])

        async def nothing(_: Message) -> None: ...

        async with member(broker, "a", nothing) as engine:
            await asyncio.sleep(5)
            broker.members.append("b")
            began = broker.clock.now()
            line = ask(engine, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2)
            await until(lambda: len(engine.assignment) == 1)
            return broker.clock.now() - began, line.replies

    took, replies = run_virtual(main)
    assert took <= 50
    assert replies == []


def test_a_reset_moves_the_queue_after_its_handler_ended_and_commits_the_new_offset() -> None:
    async def main() -> tuple[list[int], int]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(5)))
        seen: list[int] = []

        async def note(message: Message) -> None:
            seen.append(message.queue_offset)

        async with member(broker, "me", note) as engine:
            await until(lambda: len(seen) == 5)
            body = ResetOffsetBody(offset_table={queue(0): 3, queue(9): 1}).encode()
            ask(engine, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body=body)
            await until(lambda: len(seen) == 7)
        return seen, broker.offsets[queue(0)]

    assert run_virtual(main) == ([0, 1, 2, 3, 4, 3, 4], 5)


def test_status_and_running_info_report_the_members_progress() -> None:
    async def main() -> tuple[Any, Any]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), *(record(n) for n in range(5)))
        seen: list[int] = []

        async def note(message: Message) -> None:
            seen.append(message.queue_offset)

        async with member(broker, "me", note) as engine:
            await until(lambda: len(seen) == 5)
            status = ask(engine, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="orders")
            info = ask(engine, RequestCode.GET_CONSUMER_RUNNING_INFO)
            return status.replies[0], info.replies[0]

    status, info = run_virtual(main)
    assert (status.opaque, status.is_response) == (7, True)
    assert ConsumerStatusBody.decode(status.body).message_queue_table == {queue(0): 5}
    running = ConsumerRunningInfo.decode(info.body)
    assert running.mq_table[queue(0)].commit_offset == 5
    assert running.mq_table[queue(0)].locked
    assert running.properties["PROP_CONSUMEORDERLY"] == "true"


def test_a_member_says_with_its_running_info_which_keys_it_holds_and_what_a_key_waits_for() -> None:
    """An Apache broker passes on no other question. Without the fields, the answer is RocketMQ's."""

    async def main() -> list[ConsumerRunningInfo]:
        broker = FakeBroker([queue(0)])
        broker.store(queue(0), record(0, key="k"))

        async def fail(_: Message) -> None:
            raise ValueError("no carrier")

        body = LaneStateBody(topic="orders", broker=queue(0).broker, queue_id=0, key="k").encode()
        async with member(broker, "me", fail) as engine:
            await until(lambda: bool(held_lanes(engine).lanes))
            asked: list[dict[str, str]] = [{}, {"laneHeld": "true"}, {"laneState": "true"}]
            lines = [ask(engine, RequestCode.GET_CONSUMER_RUNNING_INFO, body=body, **fields) for fields in asked]
        return [ConsumerRunningInfo.decode(line.replies[0].body) for line in lines]

    plain, held, state = run_virtual(main)
    assert not {"laneHeld", "laneState"} & {*plain.properties}
    (lane,) = HeldLanesBody.decode(held.properties["laneHeld"].encode()).lanes
    assert (lane.topic, lane.key, lane.state.state) == ("orders", "k", "held")
    assert "no carrier" in LaneStateAnswer.decode(state.properties["laneState"].encode()).reason


def test_a_queue_that_needs_no_lease_is_not_said_to_be_locked() -> None:
    """RocketMQ's tools would show a concurrent member as the owner of the queue."""

    async def main() -> ConsumerRunningInfo:
        broker = FakeBroker([queue(0)])

        async def nothing(_: Message) -> None: ...

        async with member(broker, "me", nothing, plan={"order": Order.NONE}) as engine:
            await until(lambda: len(engine.assignment) == 1)
            return ConsumerRunningInfo.decode(ask(engine, RequestCode.GET_CONSUMER_RUNNING_INFO).replies[0].body)

    assert not run_virtual(main).mq_table[queue(0)].locked


def test_a_directly_consumed_message_reaches_the_handler_and_leaves_the_lanes_alone() -> None:
    async def main() -> tuple[list[int], list[ConsumeDirectlyResult]]:
        broker = FakeBroker([queue(0)])
        seen: list[int] = []

        async def picky(message: Message) -> None:
            seen.append(message.queue_offset)
            if message.queue_offset == 2:
                raise ValueError("no")

        async with member(broker, "me", picky) as engine:
            lines = [ask(engine, RequestCode.CONSUME_MESSAGE_DIRECTLY, body=record(n)) for n in (1, 2)]
            await until(lambda: all(line.replies for line in lines))
        return seen, [ConsumeDirectlyResult.decode(line.replies[0].body) for line in lines]

    seen, (good, bad) = run_virtual(main)
    assert seen == [1, 2]
    assert (good.consume_result, good.order) == ("CR_SUCCESS", True)
    assert bad.consume_result == "CR_THROW_EXCEPTION"
    assert "ValueError" in bad.remark


@pytest.mark.parametrize("code", [9999, RequestCode.CHECK_TRANSACTION_STATE])
def test_an_unknown_request_gets_an_error_answer(code: int) -> None:
    line = ask(None, code)
    assert line.replies[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_malformed_request_gets_an_error_answer() -> None:
    line = ask(None, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body=b"nonsense")
    assert line.replies[0].code == ResponseCode.SYSTEM_ERROR


def test_a_concurrent_handler_that_hangs_for_fifteen_minutes_has_its_message_sent_back() -> None:
    """A stuck handler must not hold the group's offset indefinitely; in ordered mode nothing may pass it."""

    class Letters:
        sent: list[tuple[int, int]] = []  # noqa: RUF012

        async def send_back(self, message: Message, level: int, most: int) -> bool:
            self.sent.append((message.queue_offset, level))
            return True

    async def main() -> tuple[list[tuple[int, int]], int]:
        broker, letters, stuck = FakeBroker([queue(0)]), Letters(), asyncio.Event()
        broker.store(queue(0), record(0), record(1))

        async def hang(message: Message) -> None:
            if message.queue_offset == 0:
                await stuck.wait()

        plan = {"order": Order.NONE, "policy": SendBack()}
        async with member(broker, "me", hang, plan=plan) as engine:
            watch = OverdueRuns(engine.options, engine.subscriptions, letters)  # type: ignore[arg-type]
            await asyncio.sleep(60)
            await watch.check()
            early = list(letters.sent)
            await asyncio.sleep(15 * 60)
            await watch.check()
            await until(lambda: broker.offsets.get(queue(0)) == 2)
            stuck.set()
            await asyncio.sleep(1)
        return early, len(letters.sent)

    assert run_virtual(main) == ([], 1)
