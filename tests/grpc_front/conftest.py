"""A broker, a front, and clients that do what a test says."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc")

from tests.grpc_front.client import FakeClient

from lanemq.client.admin.admin import Admin
from lanemq.grpc_front.app import Front
from lanemq.grpc_front.options import FrontOptions
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

_NAMES = itertools.count(1)


class RunningFront:
    """A front on a thread of its own."""

    def __init__(self, server: str, **options: object) -> None:
        given = {"servers": server, "listen": Address("127.0.0.1", 0), "retries": 2, **options}
        self._options = FrontOptions(**given)  # type: ignore[arg-type]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self.front = Front(self._options)
        await self.front.start()
        self._ready.set()
        await self._ending.wait()
        await self.front.stop()

    @property
    def address(self) -> str:
        return str(self.front.address)

    def begin_stop(self) -> threading.Thread:
        """Asks for the end; returns the thread that has ended then."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._ending.set)
        return self._thread

    def stop(self) -> None:
        self.begin_stop().join(30)
        assert not self._thread.is_alive()


class Scene:
    """What a test works with: a topic and a group of its own."""

    def __init__(self, broker: EmbeddedBroker, front: RunningFront) -> None:
        self.broker, self.front = broker, front
        number = next(_NAMES)
        self.topic, self.group = f"grpc-orders-{number}", f"grpc-group-{number}"
        self._clients: list[FakeClient] = []
        with Admin(broker.address) as admin:
            admin.create_topic(self.topic, 4, ordered=True)

    def client(self, **options: str) -> FakeClient:
        given = {"group": self.group, "topic": self.topic, **options}
        client = FakeClient(self.front.address, **given)
        self.opened(client)
        return client

    def opened(self, client: FakeClient) -> None:
        """The client is closed after the test."""
        self._clients.append(client)

    def close(self) -> None:
        for client in self._clients:
            client.channel.close()


@pytest.fixture(scope="package")
def running_front(lanemq_session_broker: EmbeddedBroker) -> Iterator[RunningFront]:
    front = RunningFront(lanemq_session_broker.address)
    yield front
    front.stop()


@pytest.fixture
def scene(lanemq_session_broker: EmbeddedBroker, running_front: RunningFront) -> Iterator[Scene]:
    made = Scene(lanemq_session_broker, running_front)
    yield made
    made.close()
