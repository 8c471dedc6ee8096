"""The simulated network does to connections what a real one does, and never reorders the bytes of one."""

import asyncio

import pytest
from tests.sim.stage import Stage


def test_bytes_arrive_in_order_and_later() -> None:
    for seed in range(20):
        stage = Stage(seed)

        async def scene(stage: Stage = stage) -> None:
            end, _ = await stage.connect()
            words = [f"<{number}>".encode() for number in range(200)]
            before = stage.loop.time()
            for word in words:
                end.write(word)
            assert stage.accepted[0].data == b""
            await asyncio.sleep(5)
            assert stage.accepted[0].data == b"".join(words)
            assert stage.loop.time() > before

        stage.run(scene)


def test_a_blocked_path_holds_what_is_written_until_it_is_healed() -> None:
    stage = Stage()

    async def scene() -> None:
        end, _ = await stage.connect()
        stage.network.block("near", "far")
        end.write(b"late")
        await asyncio.sleep(60)
        assert stage.accepted[0].data == b""
        stage.network.heal("near", "far")
        end.write(b" and later")
        await asyncio.sleep(1)
        assert stage.accepted[0].data == b"late and later"

    stage.run(scene)


def test_a_path_can_be_blocked_in_one_direction() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        stage.network.block("far", "near")
        end.write(b"question")
        end.other.write(b"answer")
        await asyncio.sleep(1)
        assert (stage.accepted[0].data, heard.data) == (b"question", b"")

    stage.run(scene)


def test_what_is_under_way_when_a_connection_is_cut_is_lost() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        end.write(b"lost")
        stage.network.cut(end, "a test")
        await asyncio.sleep(1)
        assert stage.accepted[0].data == b""
        assert [len(each.ends) for each in (heard, stage.accepted[0])] == [1, 1]

    stage.run(scene)


def test_an_end_that_is_not_told_finds_out_when_it_writes() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        stage.network.cut(end, "a test", tell=False)
        await asyncio.sleep(60)
        assert heard.ends == []
        end.write(b"hello?")
        await asyncio.sleep(1)
        assert isinstance(heard.ends[0], ConnectionResetError)

    stage.run(scene)


def test_an_end_whose_connection_was_swallowed_does_not_find_out_by_writing() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        stage.network.swallow(end.other, "a test")
        end.write(b"hello?")
        await asyncio.sleep(60)
        assert (len(stage.accepted[0].ends), heard.ends) == (1, [])
        stage.network.answer_again(end.other)
        await asyncio.sleep(1)
        assert isinstance(heard.ends[0], ConnectionResetError)

    stage.run(scene)


def test_a_machine_that_vanished_answers_nothing_until_it_is_back() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        stage.network.host_ended(stage.far, silently=True)
        end.write(b"hello?")
        await asyncio.sleep(60)
        assert heard.ends == []
        stage.network.listen(stage.host("far"), ("10.0.0.1", 1), lambda _: asyncio.Protocol())
        end.write(b"hello?")
        await asyncio.sleep(1)
        assert len(heard.ends) == 1

    stage.run(scene)


def test_an_answer_with_a_fuse_is_lost_with_its_connection() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        await asyncio.sleep(0.1)
        end.other.fuse = 2
        end.other.write(b"first")
        await asyncio.sleep(1)
        end.other.write(b"second")
        await asyncio.sleep(1)
        assert heard.data == b"first"
        assert len(heard.ends) == 1

    stage.run(scene)


def test_a_connection_closed_in_order_delivers_everything_first() -> None:
    stage = Stage()

    async def scene() -> None:
        end, heard = await stage.connect()
        end.write(b"all of it")
        end.close()
        await asyncio.sleep(1)
        assert (stage.accepted[0].data, stage.accepted[0].ends, heard.ends) == (b"all of it", [None], [None])

    stage.run(scene)


def test_nobody_listens_after_the_process_has_ended() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.network.host_ended(stage.far)
        with pytest.raises(ConnectionRefusedError):
            await stage.connect()

    stage.run(scene)


def test_connecting_hangs_while_the_path_is_blocked() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.network.block("far", "near")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await stage.connect()
        stage.network.heal("far", "near")
        await stage.connect()

    stage.run(scene)


def test_a_peer_that_does_not_read_gets_everything_later() -> None:
    stage = Stage()

    async def scene() -> None:
        end, _ = await stage.connect()
        await asyncio.sleep(0.1)
        end.other.pause_reading()
        end.write(b"one")
        end.write(b"two")
        await asyncio.sleep(1)
        assert stage.accepted[0].data == b""
        end.other.resume_reading()
        await asyncio.sleep(0)
        assert stage.accepted[0].data == b"onetwo"

    stage.run(scene)
