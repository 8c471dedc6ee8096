"""A coordinator: how its parts are connected, and how it starts and stops.

It serves the requests about groups that a LaneMQ broker serves, with the same handlers, and has no log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lanemq.broker.access.audit import ADMINISTRATIVE, Audit
from lanemq.broker.access.guard import Guard
from lanemq.broker.charges import Charges
from lanemq.broker.connections import Connections
from lanemq.broker.context import Counters, GroupContext
from lanemq.broker.dispatch import Dispatch, Handler
from lanemq.broker.group_housekeeping import GroupHousekeeping
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.handlers.locks import LockHandler
from lanemq.broker.handlers.offsets import OffsetHandler
from lanemq.broker.handlers.operator_parking import OperatorParkingHandler
from lanemq.broker.handlers.owner_parking import OwnerParkingHandler
from lanemq.broker.handlers.progress import ProgressHandler
from lanemq.broker.handlers.resets import ResetHandler
from lanemq.broker.long_answers import LongAnswers
from lanemq.broker.monitor.group_figures import GroupFigures
from lanemq.broker.monitor.health import Health, open_monitor
from lanemq.broker.recording import Recording
from lanemq.broker.recovery import recovered_groups
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.client import identity as identities
from lanemq.client.coordination import EVERY_GROUP, epochs_below, read_entry
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
from lanemq.log.folder.checks import coordinator_in, refuse_backup
from lanemq.log.folder.lock import DataLock
from lanemq.log.state.database import COORDINATOR, State
from lanemq.log.state.group_rows import EPOCH_FLOOR
from lanemq.model.errors import BrokerRefused, GroupNotFound, StorageError, TransportError, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.net.connection import ConnectionPool
from lanemq.net.descriptors import DescriptorReserve
from lanemq.net.loop_slices import LoopSlices
from lanemq.net.server import ConnectionLimits, Listener, Server
from lanemq.net.server_tls import TlsDetector
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.route_bodies import ClusterInfo

if TYPE_CHECKING:
    from lanemq.net.monitor import Monitor

log = logging.getLogger(__name__)

STATE_FILE = "state.db"
_CLUSTER = "cluster"
"""Name of a value in the state database."""
FILES = 16
"""Descriptors that a coordinator uses beside its connections."""
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
        self._monitor: Monitor | None = None
        self._health: Health | None = None
        self._opened = contextlib.ExitStack()

    @property
    def running(self) -> "CoordinatorParts":
        assert self._running is not None, "the coordinator is not started"
        return self._running

    @property
    def monitor_address(self) -> Address | None:
        """Where the monitor listens; None if it is off, or could not listen."""
        return None if self._monitor is None else self._monitor.address

    async def start(self) -> None:
        """Restore what is on disk, find the cluster, then listen; returns when members can connect."""
        with contextlib.ExitStack() as undo:
            self._health = Health(self._clock, asyncio.get_running_loop())
            self._monitor = open_monitor(self.options.monitor, self._health, required=self.options.monitor_required)
            if self._monitor is not None:
                undo.callback(self._monitor.close)
            folder = self.options.data
            is_new = self._own_folder(undo)
            pool = ConnectionPool(security=self.options.security, clock=self._clock)
            undo.callback(pool.close)
            link = ClusterLink(self.options.cluster, pool)
            info = await _reached(link)
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
        self._health.running(self.running.figures, lambda: self.running.housekeeping.last_tick)
        log.info("coordinates %s on %s, data in %s", identity.cluster, self.address, folder)

    async def stop(self) -> None:
        """Stop cleanly. Leases stay with their members, who continue when a coordinator is back."""
        running = self.running
        if self._health is not None:
            self._health.stopping()
        running.parts.stopping = True
        for task in (running.watching, running.ticking):
            task.cancel()
        await asyncio.gather(running.watching, running.ticking, return_exceptions=True)
        running.server.stop_accepting()
        await running.server.close()
        await running.parts.row_thread.call(_nothing)
        running.parts.progress_keeper.save_now()
        self._opened.close()

    async def watched(self, stop: asyncio.Event) -> None:
        """Waits for the event; raises if this coordinator must end before, because another one has taken over."""
        stopped, watching = asyncio.create_task(stop.wait()), self.running.watching
        await asyncio.wait({stopped, watching}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if watching.done():
            await watching

    def reload(self) -> None:
        """Read users and certificates again. What cannot be read stays as it was, with an error in the log."""
        self.running.reload_users()
        self.running.server.reload_certificates()

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
            await self._refuse_copy(entries, link)
        else:
            # Above those of the coordinator that is replaced, also if this machine's clock is behind.
            state.put(EPOCH_FLOOR, str(max(state.epoch_floor(), *map(epochs_below, entries))))
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

    async def _refuse_copy(self, entries: list[str], link: ClusterLink) -> None:
        """Refuse a copy of the folder of a coordinator that runs: both have the same id."""
        here = self.options.advertised(self.options.listen.port)
        for address in {read_entry(entry)[1] for entry in entries if entry} - {here}:
            if await link.answers(address):
                raise UsageError(
                    f"the coordinator of this cluster runs at {address} already, with another data folder: stop it "
                    f"first, and continue with the newer folder"
                )

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

    def _own_folder(self, undo: contextlib.ExitStack) -> bool:
        """Lock the data folder; whether it is new. Refuses what is not that of a coordinator."""
        folder = self.options.data
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        undo.callback(self._lock_folder().close)
        refuse_backup(folder)
        is_new = not (folder / STATE_FILE).exists()
        if not is_new and coordinator_in(folder) is None:
            raise UsageError(f"{folder} is not the data folder of a coordinator: give it a folder of its own")
        return is_new

    # what a simulation replaces

    def _lock_folder(self) -> DataLock:
        return DataLock(self.options.data)

    def _new_state(self, path: Path) -> State:
        return State(path)

    def _new_thread(self) -> DiskThread:
        return DiskThread(asyncio.get_running_loop(), "rows")

    def _new_listener(self) -> Listener:
        return Listener(self.options.listen)

    def _new_server(self, connections: Connections, parts: GroupContext) -> Server:
        total = DescriptorReserve(wanted=ConnectionLimits().total, files=lambda: FILES).connections()
        return Server(
            connections,
            limits=ConnectionLimits(total, signed=self.options.users is not None),
            refusals=parts.counters.refusals,
            joining=parts.counters.joining,
            tls_detector=parts.tls,
        )

    # wiring

    def _assemble(
        self, identity: Identity, state: State, thread: DiskThread, recording: Recording, link: ClusterLink
    ) -> "CoordinatorParts":
        clock, loop, options = self._clock, asyncio.get_running_loop(), self.options
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
                by_user=options.users is not None,
                progress=tables.progress.table,
                locks=tables.locks,
            ),
            tls=None if options.tls is None else TlsDetector(options.tls, clock),
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
        audit = Audit(clock)
        dispatch = Dispatch(
            served, parts.notices.answered, counters.refusals, ADMINISTRATIVE, audit.watched, clock=clock
        )
        users = options.users
        guard = None if users is None else Guard(users, dispatch, _no_topic, clock, counters.refusals, audit.refused)
        server = self._new_server(Connections(parts, guard or dispatch, groups), parts)
        housekeeping = GroupHousekeeping(parts, server)
        return CoordinatorParts(
            parts,
            queues,
            watch,
            server,
            housekeeping,
            GroupFigures(parts, identity.name, identity.cluster, options.data, lambda: watch.problems()),
            _nothing if guard is None else guard.reload,
            asyncio.create_task(watch.run(), name="lanemq-cluster-watch"),
            asyncio.create_task(housekeeping.run(), name="lanemq-housekeeping"),
        )


@dataclass(frozen=True, slots=True)
class CoordinatorParts:
    """Everything that works in a started coordinator."""

    parts: GroupContext
    queues: ClusterQueues
    watch: ClusterWatch
    server: Server
    housekeeping: GroupHousekeeping
    figures: GroupFigures
    reload_users: Callable[[], None]
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
    if is_new:
        state.put(EPOCH_FLOOR, str(clock.wall() // 1000))
        state.put(_CLUSTER, cluster)
        state.put(COORDINATOR, identities.origin.random(6).hex())
    name, known = state.get(COORDINATOR), state.get(_CLUSTER)
    if name is None or known is None:
        raise StorageError("state.db does not say which cluster it is for: restore the data folder from a backup")
    return Identity(name, known)


async def _reached(link: ClusterLink) -> ClusterInfo:
    try:
        return await link.info()
    except TransportError as error:
        raise UsageError(
            f"the cluster cannot be reached: {error}; start its name servers, or correct --cluster"
        ) from error


def _no_topic(position: int) -> str:
    raise BrokerRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a coordinator has no messages: ask their broker")


def _nothing() -> None:
    return None
