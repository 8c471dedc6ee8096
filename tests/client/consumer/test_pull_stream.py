"""A stream of pulls: the next one leaves where an answer is read, and the stream ends with its caller or connection."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.client.virtual_time import run_virtual

from lanemq.client.consumer.pull_stream import Following, Pulled, PullStream, one_pull
from lanemq.model.errors import BrokerRefused, ConnectionLost, RequestTimedOut
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.calling.connection import Connection, ConnectionPool
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command, FrameDecoder, decode_command, encode_response
from lanemq.wire.headers import PullHeader, PullResponse

HERE = Address("h", 1)
Outcome = list[tuple[int, int]]


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Command] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += [decode_command(frame) for frame in FrameDecoder().feed(bytes(data))]

    @property
    def pulls(self) -> Outcome:
        return [(each.opaque, int(each.ext["queueOffset"])) for each in self.written]


class OneConnection(ConnectionPool):
    """A pool whose connection is connected to nothing; `answer` is what its broker says."""

    def __init__(self) -> None:
        super().__init__()
        self.link, self.wire = Connection(HERE, None, None), Wire()
        self.link.connection_made(self.wire)

    async def get(self, address: Address | str) -> Connection:
        return self.link

    def answer(self, opaque: int, offset: int, *, more: bool = False, code: int = 0) -> None:
        """Answers a pull; the next one begins at the offset."""
        ext = PullResponse(next_begin_offset=offset, min_offset=0, max_offset=100, lane_more=more or None).to_ext()
        self.link.data_received(encode_response(opaque, code, ext=ext))

    def stream(self, following: Following, is_master: Callable[[], bool] = lambda: True) -> "asyncio.Task[Pulled]":
        header = PullHeader(
            consumer_group="g",
            topic="t",
            queue_id=0,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=0,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        return asyncio.create_task(PullStream(self, HERE, header, following, is_master).run())


def run(main: Callable[[OneConnection], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        pool = OneConnection()
        result = await main(pool)
        assert not pool.link._link.forget_all(), "a stream that has ended waits for nothing"
        return result

    return asyncio.run(whole())


def test_the_next_pull_leaves_while_the_answer_is_read() -> None:
    async def main(pool: OneConnection) -> tuple[Outcome, Outcome, int]:
        began: Outcome = []

        def following(pulled: Pulled, pulled_from: QueueOffset) -> QueueOffset | None:
            began.append((pulled_from, pulled.next_offset))
            return pulled.next_offset if pulled.next_offset < 9 else None

        task = pool.stream(following)
        await asyncio.sleep(0)
        for number, offset in ((1, 3), (2, 6)):
            pool.answer(number, offset)
            assert len(pool.wire.written) == number + 1  # without an iteration of the event loop
        pool.answer(3, 9)
        last = await task
        return pool.wire.pulls, began, last.next_offset

    assert run(main) == ([(1, 0), (2, 3), (3, 6)], [(0, 3), (3, 6), (6, 9)], 9)


def test_an_answer_in_parts_is_followed_by_the_next_pull_after_its_last_part() -> None:
    async def main(pool: OneConnection) -> tuple[Outcome, Outcome]:
        began: Outcome = []

        def following(pulled: Pulled, pulled_from: QueueOffset) -> QueueOffset | None:
            began.append((pulled_from, pulled.next_offset))
            return pulled.next_offset if pulled.next_offset < 8 else None

        task = pool.stream(following)
        await asyncio.sleep(0)
        for offset in (2, 4):
            pool.answer(1, offset, more=True)
        assert len(pool.wire.written) == 1
        pool.answer(1, 6)
        assert len(pool.wire.written) == 2
        pool.answer(2, 8, more=True)  # its caller wants no more of it
        assert not pool.link._link.forget_all()
        pool.answer(2, 9)
        await task
        return pool.wire.pulls, began

    assert run(main) == ([(1, 0), (2, 6)], [(0, 2), (2, 4), (4, 6), (6, 8)])


@pytest.mark.parametrize("more", [False, True])
def test_a_stream_ends_by_what_its_caller_raises(more: bool) -> None:
    def refuse(pulled: Pulled, _: QueueOffset) -> QueueOffset | None:
        raise KeyError(pulled.next_offset)

    async def main(pool: OneConnection) -> None:
        task = pool.stream(refuse)
        await asyncio.sleep(0)
        pool.answer(1, 3, more=more)
        with pytest.raises(KeyError, match="3"):
            await task

    run(main)


def test_a_stream_ends_by_an_answer_of_another_kind_and_by_a_lost_connection() -> None:
    def on(pulled: Pulled, _: QueueOffset) -> QueueOffset | None:
        return pulled.next_offset

    async def main(pool: OneConnection) -> None:
        task = pool.stream(on)
        await asyncio.sleep(0)
        pool.answer(1, 0, code=ResponseCode.SYSTEM_ERROR)
        with pytest.raises(BrokerRefused):
            await task
        task = pool.stream(on)
        await asyncio.sleep(0)
        pool.answer(2, 3)
        pool.link.connection_lost(None)
        with pytest.raises(ConnectionLost):
            await task
        with pytest.raises(ConnectionLost, match="is closed"):
            await pool.stream(on)

    run(main)


def test_no_pull_follows_an_answer_whose_caller_cancels_the_stream() -> None:
    async def main(pool: OneConnection) -> Outcome:
        def cancel(pulled: Pulled, _: QueueOffset) -> QueueOffset:
            task.cancel()
            return pulled.next_offset

        task = pool.stream(cancel)
        await asyncio.sleep(0)
        pool.answer(1, 3)
        await asyncio.gather(task, return_exceptions=True)
        return pool.wire.pulls

    assert run(main) == [(1, 0)]


def test_a_pull_without_an_answer_is_an_outage() -> None:
    async def main() -> bool:
        pool = OneConnection()
        with pytest.raises(RequestTimedOut):
            await pool.stream(one_pull)
        return bool(pool.outages.away)

    assert run_virtual(main)


def test_the_first_answer_ends_an_outage_although_the_stream_continues() -> None:
    async def main(pool: OneConnection) -> bool:
        pool.outages.failed(HERE, RequestTimedOut("no answer"))
        task = pool.stream(lambda pulled, _: pulled.next_offset)
        await asyncio.sleep(0)
        pool.answer(1, 3)
        away = bool(pool.outages.away)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return away

    assert run(main) is False


def test_a_stream_ends_when_the_master_is_elsewhere() -> None:
    async def main(pool: OneConnection) -> Outcome:
        task = pool.stream(lambda pulled, _: pulled.next_offset, is_master=lambda: False)
        await asyncio.sleep(0)
        pool.answer(1, 3)
        await task
        return pool.wire.pulls

    assert run(main) == [(1, 0)]


def test_a_cancelled_stream_is_forgotten_and_its_answer_is_ignored() -> None:
    async def main(pool: OneConnection) -> int:
        answers = 0

        def following(pulled: Pulled, _: QueueOffset) -> QueueOffset:
            nonlocal answers
            answers += 1
            return pulled.next_offset

        task = pool.stream(following)
        await asyncio.sleep(0)
        pool.answer(1, 3)
        task.cancel()
        pool.answer(2, 6)  # before the task has noticed
        with pytest.raises(asyncio.CancelledError):
            await task
        task = pool.stream(following)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answers

    assert run(main) == 1
