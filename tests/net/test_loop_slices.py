"""Long work is done in slices of the event loop: one request does not wait for the hundreds of another client."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

import pytest
from tests.net.test_server_reads import Wire, request

from lanemq.net.serving.loop_slices import COSTLY_BYTES, SLICE_NS, LoopSlices, RecentCost
from lanemq.net.serving.peer import Peer
from lanemq.net.serving.server import Server
from lanemq.wire.command import Frame, decode_command, encode_response


class Ticking:
    """A clock that stands still, unless it is moved."""

    def __init__(self) -> None:
        self.time = 0

    def __call__(self) -> int:
        return self.time


class Slow:
    """A dispatcher for which every request takes a part of a slice."""

    def __init__(self, share: float) -> None:
        self.clock = Ticking()
        self.server = Server(self, nanoseconds=self.clock)
        self.answer = b""
        self.handled: list[tuple[Peer, int]] = []
        self.share = share

    def connected(self, peer: Peer) -> None: ...

    def closed(self, peer: Peer) -> None: ...

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        command = decode_command(frames.popleft())
        self.handled.append((peer, command.opaque))
        self.clock.time += int(SLICE_NS * self.share)
        peer.send(encode_response(command.opaque, body=self.answer))

    def connect(self) -> tuple[Peer, Wire]:
        peer, wire = Peer(self.server), Wire()
        peer.connection_made(wire)
        return peer, wire


def requests(count: int) -> bytes:
    return b"".join(request(number) for number in range(count))


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(test())


@pytest.mark.parametrize("floods", [1, 5])
def test_a_single_request_waits_for_one_slice_of_floods(floods: int) -> None:
    async def test() -> None:
        slow = Slow(0.1)
        flooding = [slow.connect()[0] for _ in range(floods)]
        for _ in range(2):  # what they read next waits from the start
            for each in flooding:
                each.data_received(requests(50))
                await asyncio.sleep(0)
            await iterations(10 * floods)
            assert len(slow.handled) == 50 * floods
            slow.handled.clear()
        for each in flooding:
            each.data_received(requests(50))
        before = len(slow.handled)
        single, wire = slow.connect()
        single.data_received(request(7))
        assert wire.writes == [encode_response(7)]
        assert before == 0
        await asyncio.sleep(0)
        assert len(slow.handled) - 1 <= 10, "one slice of one of them"
        await iterations(10 * floods)
        assert len(slow.handled) == 50 * floods + 1

    on_loop(test)


def test_requests_are_handled_and_answered_in_order_over_many_slices() -> None:
    async def test() -> None:
        slow = Slow(0.4)
        peer, wire = slow.connect()
        peer.data_received(requests(20))
        assert len(slow.handled) == 3
        await asyncio.sleep(0)
        assert len(slow.handled) == 6
        assert len(wire.writes) == 2, "one write for each slice"
        peer.data_received(request(20))  # may arrive although reading is paused, over TLS
        await iterations(10)
        assert slow.handled == [(peer, number) for number in range(21)]
        assert b"".join(wire.writes) == b"".join(encode_response(number) for number in range(21))

    on_loop(test)


def test_newcomers_share_one_slice_and_a_known_client_does_not_wait_for_them() -> None:
    async def test() -> None:
        slow = Slow(0.6)
        known, wire = slow.connect()
        known.data_received(request(1))
        await asyncio.sleep(0)
        slow.handled.clear()
        new = [slow.connect()[0] for _ in range(10)]
        for each in new:
            each.data_received(requests(3))
        assert len(slow.handled) == 2, "a slice of the first of them"
        known.data_received(request(2))
        assert wire.writes[-1] == encode_response(2), "handled at once"
        await asyncio.sleep(0)
        assert len(slow.handled) <= 3 + 2
        await iterations(40)
        assert len(slow.handled) == 30 + 1
        assert [number for peer, number in slow.handled if peer is new[9]] == [0, 1, 2]

    on_loop(test)


def test_control_if_newcomers_did_not_share_a_slice_each_would_have_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopSlices, "may_begin", lambda *_, **__: True)

    async def test() -> None:
        slow = Slow(0.6)
        for each in [slow.connect()[0] for _ in range(10)]:
            each.data_received(requests(3))
        assert len(slow.handled) == 20

    on_loop(test)


async def greedy(slow: Slow, count: int) -> list[Peer]:
    """Connections that have made several requests with large answers, each of which took more than a slice."""
    slow.answer = bytes(2 * COSTLY_BYTES)
    peers = [slow.connect()[0] for _ in range(count)]
    for number in range(4):
        for peer in peers:
            peer.data_received(request(number))
            await iterations(2)
    slow.handled.clear()
    return peers


def test_costly_requests_of_many_clients_share_a_slice_and_a_client_with_short_ones_does_not_wait_for_them() -> None:
    async def test() -> None:
        slow = Slow(1.5)
        peers = await greedy(slow, 20)
        short, wire = slow.connect()
        slow.share, slow.answer = 0.1, b""
        short.data_received(request(1))
        await iterations(2)
        slow.handled.clear()
        slow.share = 1.5
        for peer in peers:
            peer.data_received(request(7))
        assert [peer for peer, _ in slow.handled] == peers[:1], "in one iteration"
        short.data_received(request(2))
        assert wire.writes[-1] == encode_response(2), "handled at once"
        for done in range(1, 21):
            await asyncio.sleep(0)
            assert len(slow.handled) - 1 == done + 1, "one slice in each iteration"
            if done == 1:
                peers[0].data_received(request(8))
        assert [peer for peer, _ in slow.handled if peer is not short] == [*peers, peers[0]], "in the order of asking"

    on_loop(test)


def test_control_if_costly_requests_did_not_share_a_slice_all_would_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecentCost, "add", lambda self, size: None)

    async def test() -> None:
        slow = Slow(1.5)
        for peer in await greedy(slow, 20):
            peer.data_received(request(7))
        assert len(slow.handled) == 20

    on_loop(test)


def test_a_client_with_costly_requests_begins_at_once_while_no_other_has_one() -> None:
    async def test() -> None:
        slow = Slow(1.5)
        (peer,) = await greedy(slow, 1)
        for number in range(3):
            peer.data_received(request(number))
            assert len(slow.handled) == number + 1
            await asyncio.sleep(0)

    on_loop(test)


def test_clients_with_small_answers_do_not_stand_in_line_however_long_their_requests_take() -> None:
    async def test() -> None:
        slow = Slow(1.5)
        peers = [slow.connect()[0] for _ in range(20)]
        for number in range(5):
            for peer in peers:
                peer.data_received(request(number))
            if number == 0:
                await iterations(25)
            assert len(slow.handled) == 20 * (number + 1)

    on_loop(test)


def test_many_small_answers_between_two_reads_are_not_a_large_one() -> None:
    async def test() -> None:
        slow = Slow(1.5)
        peers = [slow.connect()[0] for _ in range(5)]
        for number in range(5):
            for peer in peers:
                peer.data_received(request(number))
            await iterations(8)
            for peer in peers:
                peer.send(bytes(2 * COSTLY_BYTES))
            assert len(slow.handled) == 5 * (number + 1)
        for peer in peers:
            peer.data_received(request(9))
        assert len(slow.handled) == 30

    on_loop(test)


def test_readers_that_catch_up_at_the_same_time_share_a_slice_too() -> None:
    async def test() -> None:
        slow = Slow(1.5)
        peers = await greedy(slow, 5)
        for peer in peers:
            peer.pause_writing()
            peer.data_received(request(7))
            await iterations(2)
        assert slow.handled == []
        for peer in peers:
            peer.resume_writing()
        await asyncio.sleep(0)
        assert len(slow.handled) <= 2, "one at once, and one slice"
        await iterations(5)
        assert [peer for peer, _ in slow.handled] == peers

    on_loop(test)


def test_one_large_answer_among_small_ones_does_not_make_a_client_costly() -> None:
    cost = RecentCost()
    for _ in range(10):
        cost.add(COSTLY_BYTES // 3)
    cost.add(100 * COSTLY_BYTES)
    assert not cost.costly
    cost.add(100 * COSTLY_BYTES)
    assert cost.costly
    for _ in range(5):
        cost.add(COSTLY_BYTES // 3)
    assert not cost.costly


def test_a_client_that_mixes_large_and_small_answers_is_costly() -> None:
    cost, seen = RecentCost(), []
    for _ in range(10):
        for size in (100 * COSTLY_BYTES, COSTLY_BYTES // 2):
            cost.add(size)
            seen.append(cost.costly)
    assert all(seen[-4:])


def test_without_slices_all_requests_of_a_read_come_first() -> None:
    """Negative control of the tests before: on a clock that stands still, no slice ends."""

    async def test() -> None:
        slow = Slow(0.0)
        peer, wire = slow.connect()
        peer.data_received(requests(500))
        assert len(slow.handled) == 500
        assert len(wire.writes) == 1

    on_loop(test)


def test_reading_is_paused_while_requests_wait_for_a_slice() -> None:
    async def test() -> None:
        slow = Slow(0.5)
        peer, wire = slow.connect()
        paused: list[bool] = []
        wire.pause_reading = lambda: paused.append(True)  # type: ignore[method-assign]
        wire.resume_reading = lambda: paused.append(False)  # type: ignore[method-assign]
        peer.data_received(requests(6))
        assert paused == [True]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(slow.handled) == 6
        assert paused[-1] is False

    on_loop(test)


def test_a_closed_connection_has_no_more_slices() -> None:
    async def test() -> None:
        slow = Slow(1.0)
        peer, _ = slow.connect()
        other, _ = slow.connect()
        peer.data_received(requests(5))
        other.data_received(requests(2))
        peer.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert slow.handled == [(peer, 0), (other, 0), (other, 1)]

    on_loop(test)


def test_work_that_adds_work_leaves_one_slice_in_each_iteration() -> None:
    async def test() -> None:
        clock, done = Ticking(), []
        slices = LoopSlices(asyncio.get_running_loop(), clock)

        def work(_: int) -> bool:
            done.append(1)
            clock.time += SLICE_NS
            slices.add(lambda end: False)
            return True

        slices.add(work)
        for _ in range(9):
            await asyncio.sleep(0)
        assert len(done) <= 9

    on_loop(test)


def test_failing_work_does_not_take_the_slices_of_others() -> None:
    async def test() -> None:
        clock, done, failures = Ticking(), [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        slices = LoopSlices(asyncio.get_running_loop(), clock)

        def work(end: int) -> bool:
            done.append(end)
            return len(done) < 3

        def fails(_: int) -> bool:
            raise ValueError("as asked")

        slices.add(work)
        slices.add(fails)
        slices.add(work)
        for _ in range(6):
            await asyncio.sleep(0)
        assert len(done) == 4
        assert [str(each) for each in failures] == ["as asked"]

    on_loop(test)
