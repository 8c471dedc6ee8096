"""The simulated network delays and loses connections as a real one does, and never reorders bytes."""

import asyncio

import pytest
from tests.sim.two_processes import TwoProcesses


def test_bytes_arrive_in_order_and_later() -> None:
    for seed in range(20):
        sim = TwoProcesses(seed)

        async def main(sim: TwoProcesses = sim) -> None:
            end, _ = await sim.connect()
            words = [f"<{number}>".encode() for number in range(200)]
            before = sim.loop.time()
            for word in words:
                end.write(word)
            assert sim.accepted[0].data == b""
            await asyncio.sleep(5)
            assert sim.accepted[0].data == b"".join(words)
            assert sim.loop.time() > before

        sim.run(main)


def test_a_blocked_path_holds_what_is_written_until_it_is_healed() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, _ = await sim.connect()
        sim.network.block("near", "far")
        end.write(b"late")
        await asyncio.sleep(60)
        assert sim.accepted[0].data == b""
        sim.network.heal("near", "far")
        end.write(b" and later")
        await asyncio.sleep(1)
        assert sim.accepted[0].data == b"late and later"

    sim.run(main)


def test_a_path_can_be_blocked_in_one_direction() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        sim.network.block("far", "near")
        end.write(b"question")
        end.other.write(b"answer")
        await asyncio.sleep(1)
        assert (sim.accepted[0].data, received.data) == (b"question", b"")

    sim.run(main)


def test_bytes_in_flight_are_lost_when_a_connection_is_cut() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        end.write(b"lost")
        sim.network.cut(end, "a test")
        await asyncio.sleep(1)
        assert sim.accepted[0].data == b""
        assert [len(each.ends) for each in (received, sim.accepted[0])] == [1, 1]

    sim.run(main)


def test_an_end_that_was_not_notified_gets_a_reset_when_it_writes() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        sim.network.cut(end, "a test", notify=False)
        await asyncio.sleep(60)
        assert received.ends == []
        end.write(b"hello?")
        await asyncio.sleep(1)
        assert isinstance(received.ends[0], ConnectionResetError)

    sim.run(main)


def test_an_end_whose_connection_was_swallowed_gets_no_reset_when_it_writes() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        sim.network.swallow(end.other, "a test")
        end.write(b"hello?")
        await asyncio.sleep(60)
        assert (len(sim.accepted[0].ends), received.ends) == (1, [])
        sim.network.answer_again(end.other)
        await asyncio.sleep(1)
        assert isinstance(received.ends[0], ConnectionResetError)

    sim.run(main)


def test_a_machine_that_vanished_sends_no_reset_until_it_is_back() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        sim.network.host_ended(sim.far, silently=True)
        end.write(b"hello?")
        await asyncio.sleep(60)
        assert received.ends == []
        sim.network.listen(sim.host("far"), ("10.0.0.1", 1), lambda _: asyncio.Protocol())
        end.write(b"hello?")
        await asyncio.sleep(1)
        assert len(received.ends) == 1

    sim.run(main)


def test_a_write_can_be_lost_with_its_connection() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        await asyncio.sleep(0.1)
        end.other.fuse = 2
        end.other.write(b"first")
        await asyncio.sleep(1)
        end.other.write(b"second")
        await asyncio.sleep(1)
        assert received.data == b"first"
        assert len(received.ends) == 1

    sim.run(main)


def test_a_connection_that_is_closed_delivers_everything_first() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, received = await sim.connect()
        end.write(b"all of it")
        end.close()
        await asyncio.sleep(1)
        assert (sim.accepted[0].data, sim.accepted[0].ends, received.ends) == (b"all of it", [None], [None])

    sim.run(main)


def test_connecting_to_a_killed_process_is_refused() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        sim.network.host_ended(sim.far)
        with pytest.raises(ConnectionRefusedError):
            await sim.connect()

    sim.run(main)


def test_connecting_hangs_while_the_path_is_blocked() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        sim.network.block("far", "near")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await sim.connect()
        sim.network.heal("far", "near")
        await sim.connect()

    sim.run(main)


def test_a_peer_that_does_not_read_gets_everything_later() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        end, _ = await sim.connect()
        await asyncio.sleep(0.1)
        end.other.pause_reading()
        end.write(b"one")
        end.write(b"two")
        await asyncio.sleep(1)
        assert sim.accepted[0].data == b""
        end.other.resume_reading()
        await asyncio.sleep(0)
        assert sim.accepted[0].data == b"onetwo"

    sim.run(main)
