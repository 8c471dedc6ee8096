"""Administration for programs with an event loop: the calls of `Admin` and `ParkedAdmin`, with `await`.

Administration is a handful of requests, so the blocking client does them, on one thread of its own. Calls of one object
run one after the other; make several objects for several at once.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.calls import AdminClient
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.security import SecuritySettings
from lanemq.clock import Clock
from lanemq.model.units import Seconds
from lanemq.net.address import Servers

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=AdminClient)
A = TypeVar("A", bound=AdminClient)


class AsyncAdminClient(Generic[C]):
    """What both classes share: a blocking client and its thread. It connects with the first request."""

    _kind: type[C]

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: Seconds = 5.0,
        clock: Clock | None = None,
        **protection: Unpack[SecuritySettings],
    ) -> None:
        self._blocking = self._kind(servers, timeout=timeout, clock=clock, **protection)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lanemq-admin")

    async def close(self) -> None:
        """Ends the connections, after the call that runs."""
        await self.call_blocking(self._blocking.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def blocking(self) -> C:
        """The client that does the work. Use it only through `call_blocking`."""
        return self._blocking

    async def call_blocking(self, call: Callable[[], R]) -> R:
        """Calls a function on the thread of the blocking client."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def on_thread(
    method: Callable[Concatenate[A, P], R],
) -> Callable[Concatenate[AsyncAdminClient[A], P], Coroutine[Any, Any, R]]:
    """The method of a blocking client as a coroutine function with the same parameters."""

    @functools.wraps(method)
    async def call(self: AsyncAdminClient[A], /, *args: P.args, **named: P.kwargs) -> R:
        return await self.call_blocking(functools.partial(method, self.blocking, *args, **named))

    return call


class AsyncAdmin(AsyncAdminClient[Admin]):
    """Inspects and changes topics, groups and offsets. For one event loop; `timeout` is in seconds."""

    _kind = Admin
    create_topic = on_thread(Admin.create_topic)
    ensure_topic = on_thread(Admin.ensure_topic)
    delete_topic = on_thread(Admin.delete_topic)
    topic_order = on_thread(Admin.topic_order)
    repair_order = on_thread(Admin.repair_order)
    set_writable = on_thread(Admin.set_writable)
    topics = on_thread(Admin.topics)
    describe_topic = on_thread(Admin.describe_topic)
    min_offset = on_thread(Admin.min_offset)
    max_offset = on_thread(Admin.max_offset)
    offset_at = on_thread(Admin.offset_at)
    committed = on_thread(Admin.committed)
    progress = on_thread(Admin.progress)
    commit = on_thread(Admin.commit)
    report = on_thread(Admin.report)
    reset_offsets = on_thread(Admin.reset_offsets)
    groups = on_thread(Admin.groups)
    known_groups = on_thread(Admin.known_groups)
    describe_group = on_thread(Admin.describe_group)
    group_progress = on_thread(Admin.group_progress)
    delete_group = on_thread(Admin.delete_group)
    with_owners = on_thread(Admin.with_owners)
    member_reports = on_thread(Admin.member_reports)
    front_clients = on_thread(Admin.front_clients)
    figures = on_thread(Admin.figures)
    locks = on_thread(Admin.locks)
    leases = on_thread(Admin.leases)
    lane_state = on_thread(Admin.lane_state)
    find_key = on_thread(Admin.find_key)
    find_id = on_thread(Admin.find_id)
    find_copies = on_thread(Admin.find_copies)
    view = on_thread(Admin.view)


class AsyncParkedAdmin(AsyncAdminClient[ParkedAdmin]):
    """Lists, redrives and discards parked lanes. For one event loop; `timeout` is in seconds."""

    _kind = ParkedAdmin
    lanes = on_thread(ParkedAdmin.lanes)
    messages = on_thread(ParkedAdmin.messages)
    redrive = on_thread(ParkedAdmin.redrive)
    discard = on_thread(ParkedAdmin.discard)
