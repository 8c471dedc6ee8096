"""The asyncio side: multiplexed requests, one connection per address, a server that bounds its peers."""

import asyncio
import re
import socket
from collections.abc import Iterator

import pytest
from tests.net.echo_server import EchoServer

from lanemq import App, Producer
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import Closed, ConnectFailed, ConnectionLost, InvalidOption, RequestTimedOut
from lanemq.net.address import Address, parse_address, parse_addresses
from lanemq.net.calling.connection import Connection, ConnectionPool, open_connection
from lanemq.net.serving.server import ConnectionLimits
from lanemq.wire.command import Command


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as echo:
        yield echo


async def _gone() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_answers_find_their_requests(server: EchoServer) -> None:
    async def main() -> list[bytes]:
        link = await open_connection(server.address)
        asked = [link.request(Command(EchoServer.ECHO, 0, body=b"%d" % n), 5) for n in range(100)]
        replies = await asyncio.gather(*asked)
        link.close()
        await _gone()
        return [reply.body for reply in replies]

    assert asyncio.run(main()) == [b"%d" % n for n in range(100)]


def test_requests_of_the_peer_go_to_their_handler(server: EchoServer) -> None:
    seen: list[int] = []

    async def main() -> None:
        link = await open_connection(server.address, on_request=lambda _, command: seen.append(command.code))
        await link.request(Command(EchoServer.NOISY, 0), 5)
        link.close()
        await _gone()

    asyncio.run(main())
    assert seen == [40]


def test_a_silent_peer_and_a_lost_connection_raise_different_errors(server: EchoServer) -> None:
    async def main() -> None:
        link = await open_connection(server.address)
        with pytest.raises(RequestTimedOut):
            await link.request(Command(EchoServer.SILENT, 0), 0.02)
        with pytest.raises(ConnectionLost):
            await link.request(Command(EchoServer.HANG_UP, 0), 5)
        with pytest.raises(ConnectionLost, match="is closed"):
            await link.request(Command(EchoServer.ECHO, 0), 5)
        await _gone()

    asyncio.run(main())


def test_nonsense_ends_the_connection(server: EchoServer) -> None:
    async def main() -> None:
        link = await open_connection(server.address)
        with pytest.raises(ConnectionLost):
            await link.request(Command(EchoServer.NONSENSE, 0), 5)
        await _gone()

    asyncio.run(main())


def test_cancelled_request_is_forgotten(server: EchoServer) -> None:
    async def main() -> int:
        link = await open_connection(server.address)
        task = asyncio.create_task(link.request(Command(EchoServer.SILENT, 0), 5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = len(link._link.forget_all())
        link.close()
        await _gone()
        return left

    assert asyncio.run(main()) == 0


def test_pool_shares_one_connection_and_replaces_a_lost_one(server: EchoServer) -> None:
    async def main() -> None:
        pool = ConnectionPool()
        first, second = await asyncio.gather(pool.get(server.address), pool.get(str(server.address)))
        assert first is second
        with pytest.raises(ConnectionLost):
            await first.request(Command(EchoServer.HANG_UP, 0), 5)
        third = await pool.get(server.address)
        assert third is not first
        assert pool.live() == [third]
        pool.close()
        await _gone()
        with pytest.raises(Closed):
            await pool.get(server.address)

    asyncio.run(main())


def test_a_refused_connection_names_the_address_and_the_remedy() -> None:
    async def main() -> None:
        await open_connection(Address("127.0.0.1", 1))

    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1: .* is a broker running there\?"):
        asyncio.run(main())


def test_server_turns_away_one_peer_too_many() -> None:
    async def main(server: EchoServer) -> None:
        first = await open_connection(server.address)
        await first.request(Command(EchoServer.ECHO, 0), 5)
        second = await open_connection(server.address)
        with pytest.raises(ConnectionLost):
            await second.request(Command(EchoServer.ECHO, 0), 5)
        await first.request(Command(EchoServer.ECHO, 0), 5)
        first.close()
        await _gone()

    with EchoServer(limits=ConnectionLimits(total=1)) as server:
        asyncio.run(main(server))
        assert server.server is not None
        assert server.server.refusals.counts[RefusalReason.CONNECTIONS] == 1


def test_frame_over_the_limit_closes_only_its_own_connection() -> None:
    async def main(server: EchoServer) -> None:
        good, bad = await open_connection(server.address), await open_connection(server.address)
        with pytest.raises(ConnectionLost):
            await bad.request(Command(EchoServer.ECHO, 0, body=b"x" * 5000), 5)
        assert (await good.request(Command(EchoServer.ECHO, 0, body=b"fine"), 5)).body == b"fine"
        good.close()
        await _gone()

    with EchoServer(max_frame_bytes=4096) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:10911", Address("localhost", 10911)),
        ("localhost", Address("localhost", 9876)),
        ("[::1]:7", Address("::1", 7)),
        ("[::1]", Address("::1", 9876)),
    ],
)
def test_address_is_read_as_people_write_it(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":9876", "host:port", "host:70000", ";"])
def test_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("http://localhost:19876", "write it without http://, as localhost:19876"),
        ("lanemq://host:1/topic", "write it without lanemq://, as host:1"),
        ("19877", "write HOST:PORT, such as 127.0.0.1:19877"),
        ("host/path", "write host:port"),
    ],
)
def test_a_url_and_a_bare_port_are_refused_with_what_to_write(text: str, remedy: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(remedy)):
        parse_address(text)
    with pytest.raises(InvalidOption, match=re.escape(remedy)):
        Producer(text)
    with pytest.raises(InvalidOption, match=re.escape(remedy)):
        App(text, group="g")


def test_several_addresses_keep_their_order() -> None:
    assert parse_addresses("a:1;b:2,c") == (Address("a", 1), Address("b", 2), Address("c", 9876))


def test_only_a_connection_on_which_nothing_arrives_is_closed_and_dialled_again() -> None:
    """Queued bytes do not delay it: the peer never reads them."""

    async def main() -> None:
        deaf = socket.create_server(("127.0.0.1", 0))
        address = Address(*deaf.getsockname())
        lost: list[Connection] = []
        pool = ConnectionPool(on_lost=lost.append)
        first = await pool.get(address)
        asked = asyncio.create_task(first.request(Command(1, 0, body=bytes(16 * 1024 * 1024)), 60))
        await asyncio.sleep(0)
        assert not pool.close_silent(address, 60)
        assert pool.close_silent(address, 0)
        with pytest.raises(ConnectionLost):
            await asked
        assert lost == [first]
        assert await pool.get(address) is not first
        pool.close()
        await _gone()
        deaf.close()

    asyncio.run(main())


def test_an_answer_shows_that_a_connection_is_alive(server: EchoServer) -> None:
    async def main() -> None:
        pool = ConnectionPool()
        link = await pool.get(server.address)
        before = link.last_received
        await asyncio.sleep(0.01)
        await link.request(Command(EchoServer.ECHO, 0), 5)
        assert link.last_received > before
        pool.close()
        await _gone()

    asyncio.run(main())
