"""A coordinator: how its parts are connected, and how it starts and stops.

It serves the requests about groups that a LaneMQ broker serves, with the same handlers, and has no log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from lanemq.broker.charges import Charges
from lanemq.broker.connections import Connections
from lanemq.broker.context import Counters, GroupContext
from lanemq.broker.dispatch import Dispatch, Handler
from lanemq.broker.group_housekeeping import MAX_IDLE_SECONDS, GroupHousekeeping
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.handlers.locks import LockHandler
from lanemq.broker.handlers.offsets import OffsetHandler
from lanemq.broker.handlers.operator_parking import OperatorParkingHandler
from lanemq.broker.handlers.owner_parking import OwnerParkingHandler
from lanemq.broker.handlers.progress import ProgressHandler
from lanemq.broker.handlers.resets import ResetHandler
from lanemq.broker.long_answers import LongAnswers
from lanemq.broker.recording import Recording
from lanemq.broker.recovery import recovered_groups
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.client import identity as identities
from lanemq.client.coordination import EVERY_GROUP
from lanemq.clock import Clock, SystemClock, machine_of, nanoseconds_of
from lanemq.coordinator.cluster import CONSUME_ENABLE, ClusterLink, cluster_name, masters_in, settings_of
from lanemq.coordinator.comparison import ComparisonHandler
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.coordinator.moves import MoveHandler
from lanemq.coordinator.queues import ClusterQueues, RemoteLog
from lanemq.coordinator.watch import CONFIRMED_QUEUES, ClusterWatch, refuse_other
from lanemq.core.brokering.cluster.confirmed_queues import ConfirmedQueues
from lanemq.core.brokering.quotas import GroupUse
from lanemq.history import last_time, open_history
from lanemq.log.folder.lock import DataLock
from lanemq.log.state.database import EPOCH_FLOOR, State
from lanemq.model.errors import GroupNotFound, StorageError, TransportError, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.net.connection import ConnectionPool
from lanemq.net.loop_slices import LoopSlices
from lanemq.net.server import Listener, Server
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.route_bodies import ClusterInfo

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
STATE_FILE = "coordinator.db"
_NAME, _CLUSTER = "coordinator", "cluster"
"""Names of values in the state database."""
BROKER_STATE_FILE = "state.db"
NOT_HERE = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CHECK_CLIENT_CONFIG,
)
"""Requests about groups that go to the brokers, also for coordinated groups. These are created and ended by moves."""


class Identity(NamedTuple):
    """Who a coordinator is, in its data folder."""

    name: str
    cluster: str
    """The names of the clusters, as the name servers listed them when the folder was made."""


class Coordinator:
    """One coordinator process: `await start()`, serve, `await stop()`."""

    def __init__(self, options: CoordinatorOptions, clock: Clock | None = None, *, replace: bool = False) -> None:
        """`replace`: takes the place of a coordinator whose folder is lost."""
        self.options = options
        self.address = options.listen
        """Where members connect; after the start with the real port."""
        self._clock = clock or SystemClock()
        self._replace = replace
        self._running: CoordinatorParts | None = None
        self._opened = contextlib.ExitStack()

    @property
    def running(self) -> "CoordinatorParts":
        assert self._running is not None, "the coordinator is not started"
        return self._running

    async def start(self) -> None:
        """Restore what is on disk, find the cluster, then listen; returns when members can connect."""
        with contextlib.ExitStack() as undo:
            folder = self.options.data
            if (folder / BROKER_STATE_FILE).exists():
                raise UsageError(f"{folder} is the data folder of a broker: give the coordinator a folder of its own")
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = self._lock_folder()
            undo.callback(lock.close)
            pool = ConnectionPool(security=self.options.security, clock=self._clock)
            undo.callback(pool.close)
            link = ClusterLink(self.options.cluster, pool)
            info = await link.info()
            is_new = not (folder / STATE_FILE).exists()
            state = self._new_state(folder / STATE_FILE)
            undo.callback(state.close)
            identity = _identity(state, cluster_name(info), self._clock, is_new=is_new)
            await self._check_cluster(state, identity, info, link)
            thread = self._new_thread()
            undo.callback(thread.stop)
            recording = self._open_history(identity.name)
            undo.callback(recording.close)
            listener = self._new_listener()
            undo.callback(listener.close)
            self.address = self.options.advertised(listener.address.port)
            self._running = self._assemble(identity, state, thread, recording, link)
            self._running.server.accept_from(listener)
            if self._replace:
                await self._running.watch.take_over()
            await self._running.watch.register()
            self._opened = undo.pop_all()
        log.info("coordinates %s on %s, data in %s", identity.cluster, self.address, folder)

    async def stop(self) -> None:
        """Stop cleanly. Leases stay with their members, who continue when a coordinator is back."""
        running, self._running = self.running, None
        for task in (running.watching, running.ticking):
            task.cancel()
        await asyncio.gather(running.watching, running.ticking, return_exceptions=True)
        running.server.stop_accepting()
        await running.server.close()
        await running.parts.row_thread.call(_nothing)
        running.parts.progress_keeper.save_now()
        self._opened.close()

    async def failed(self) -> None:
        """Waits until the coordinator must end, and raises why."""
        await self.running.watching

    # the cluster

    async def _check_cluster(self, state: State, identity: Identity, info: ClusterInfo, link: ClusterLink) -> None:
        """Refuse the folder of another cluster, and a second coordinator of this one."""
        folder, here = self.options.data, cluster_name(info)
        if identity.cluster != here:
            raise UsageError(
                f"{folder} belongs to the cluster {identity.cluster}, and the name servers have {here}: start it with "
                f"the name servers of that cluster, or with another folder"
            )
        entries = await self._entries(link)
        if not self._replace:
            for entry in entries:
                refuse_other(identity.name, entry)
        if not any(entries):
            await self._check_groups(state, info, link)

    async def _entries(self, link: ClusterLink) -> list[str]:
        """The entry of a coordinator at each name server; empty if it has none. All of them must answer at a start."""
        entries = []
        for server in link.servers:
            try:
                entries.append((await link.settings(server)).get(EVERY_GROUP, ""))
            except TransportError as error:
                raise UsageError(
                    f"name server {server} does not answer ({error}), and may know another coordinator: start again "
                    f"when it does, or without it in --cluster if it is gone for good"
                ) from error
        return entries

    async def _check_groups(self, state: State, info: ClusterInfo, link: ClusterLink) -> None:
        """The name servers know no coordinator: they have lost their settings, or this is another cluster."""
        groups, tables = state.groups(), [await link.group_settings(each) for each in masters_in(info).values()]
        for group in groups:
            if all(settings_of(table, group).get(CONSUME_ENABLE, True) for table in tables):
                raise UsageError(
                    f"group {group} of {self.options.data} is not coordinated at this cluster: it is enabled at every "
                    f"broker. This is the folder of another cluster, or the group was enabled there by hand"
                )

    def _open_history(self, name: str) -> Recording:
        folder, process, now = self.options.history, f"coordinator-{name}", nanoseconds_of(self._clock)
        alive = last_time(folder, process, now())
        history = open_history(folder, process, now, role="broker", machine=machine_of(self._clock))
        return Recording(history, process, alive)

    # what a simulation replaces

    def _lock_folder(self) -> DataLock:
        return DataLock(self.options.data)

    def _new_state(self, path: Path) -> State:
        return State(path)

    def _new_thread(self) -> DiskThread:
        return DiskThread(asyncio.get_running_loop(), "rows")

    def _new_listener(self) -> Listener:
        return Listener(self.options.listen)

    def _new_server(self, connections: Connections, counters: Counters) -> Server:
        return Server(connections, refusals=counters.refusals)

    # wiring

    def _assemble(
        self, identity: Identity, state: State, thread: DiskThread, recording: Recording, link: ClusterLink
    ) -> "CoordinatorParts":
        clock, loop = self._clock, asyncio.get_running_loop()
        confirmed = ConfirmedQueues(msgspec.json.decode(state.get(CONFIRMED_QUEUES) or "[]", type=list[MessageQueue]))
        queues, slices, counters = ClusterQueues(clock, confirmed), LoopSlices(loop, nanoseconds_of(clock)), Counters()
        tables = recovered_groups(state, clock, thread, RemoteLog())
        queues.remember(MessageQueue(row.topic, row.broker, row.queue_id) for row in state.leases())
        if recording.on:
            recording.filters_restored((row.group, row.topic) for row in tables.filters)
            recording.restarted(tables.locks.snapshot(now=clock.now()), tables.offsets, clean=False)
        parts = GroupContext(
            clock=clock,
            state=state,
            row_thread=thread,
            slices=slices,
            queues=queues,
            members=tables.members,
            locks=tables.locks,
            progress_keeper=tables.progress,
            recording=recording,
            groups=tables.settings,
            counters=counters,
            charges=Charges(
                clock,
                counters.refusals,
                GroupUse(tables.settings, now=clock.now()),
                by_user=False,
                progress=tables.progress.table,
                locks=tables.locks,
            ),
        )
        parts.admit = _Admission(parts)
        watch = ClusterWatch(identity.name, self.address, link, parts, queues)
        groups = GroupHandler(parts, answers := LongAnswers(slices, clock))
        handlers = (
            groups,
            LockHandler(parts, answers),
            OffsetHandler(parts),
            OwnerParkingHandler(parts),
            OperatorParkingHandler(parts, answers),
            ProgressHandler(parts, answers),
            ResetHandler(parts, watch.copies.overwrite, answers),
            MoveHandler(parts, link, queues, watch),
            ComparisonHandler(parts, link, queues),
        )
        served: list[dict[int, Handler]] = [
            {code: handler for code, handler in each.table().items() if code not in NOT_HERE} for each in handlers
        ]
        dispatch = Dispatch(served, parts.notices.answered, counters.refusals, clock=clock)
        server = self._new_server(Connections(parts, dispatch, groups), counters)
        return CoordinatorParts(
            parts,
            queues,
            watch,
            server,
            asyncio.create_task(watch.run(), name="lanemq-cluster-watch"),
            asyncio.create_task(_tick(GroupHousekeeping(parts), server, clock), name="lanemq-housekeeping"),
        )


@dataclass(frozen=True, slots=True)
class CoordinatorParts:
    """Everything that works in a started coordinator."""

    parts: GroupContext
    queues: ClusterQueues
    watch: ClusterWatch
    server: Server
    watching: asyncio.Task[None]
    ticking: asyncio.Task[None]


class _Admission:
    """Refuses groups that were not moved here."""

    def __init__(self, parts: GroupContext) -> None:
        self._parts = parts

    def __call__(self, group: str) -> None:
        if group not in self._parts.groups:
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} is not coordinated: it is consumed at the brokers. "
                f"To move it here: lanemq group coordinate {group}",
            )


def _identity(state: State, cluster: str, clock: Clock, *, is_new: bool) -> Identity:
    """Who this coordinator is; a new folder gets an id of its own.

    Its epochs begin at the time in seconds: above those of a coordinator whose folder was lost.
    """
    if is_new or state.get(_NAME) is None:
        state.put(EPOCH_FLOOR, str(clock.wall() // 1000))
        state.put(_CLUSTER, cluster)
        state.put(_NAME, identities.origin.random(6).hex())
    name, known = state.get(_NAME), state.get(_CLUSTER)
    if name is None or known is None:
        raise StorageError("the coordinator's database does not say who it is; restore the data folder from a backup")
    return Identity(name, known)


async def _tick(groups: GroupHousekeeping, server: Server, clock: Clock) -> None:
    """Housekeeping, for ever. A step that fails must not prevent the others."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        steps: list[Callable[[], None]] = [*groups.steps(clock.now()), partial(server.close_idle, MAX_IDLE_SECONDS)]
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("housekeeping failed")


def _nothing() -> None:
    return None
