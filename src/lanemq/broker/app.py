"""A broker: how its parts are connected, and how it starts and stops.

Order of a stop: stop accepting → answer held pulls → wait until everything staged is on disk → close connections → save
offsets, stamps and indexes → mark a clean stop.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lanemq.broker.access.audit import ADMINISTRATIVE, Audit
from lanemq.broker.access.guard import Guard
from lanemq.broker.charges import Charges
from lanemq.broker.config import BrokerOptions
from lanemq.broker.connections import Connections
from lanemq.broker.context import BrokerContext, Counters
from lanemq.broker.dispatch import Dispatch, Handler
from lanemq.broker.group_queues import OwnQueues
from lanemq.broker.handlers.bounds import BoundsHandler
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.handlers.locks import LockHandler
from lanemq.broker.handlers.offsets import OffsetHandler
from lanemq.broker.handlers.operator_parking import OperatorParkingHandler
from lanemq.broker.handlers.owner_parking import OwnerParkingHandler
from lanemq.broker.handlers.progress import ProgressHandler
from lanemq.broker.handlers.pull import PullHandler
from lanemq.broker.handlers.queries import QueryHandler
from lanemq.broker.handlers.replies import ReplyHandler
from lanemq.broker.handlers.resets import ResetHandler
from lanemq.broker.handlers.retries import RetryHandler
from lanemq.broker.handlers.routes import RouteHandler
from lanemq.broker.handlers.send import SendHandler
from lanemq.broker.handlers.stats import StatsHandler
from lanemq.broker.handlers.topics import TopicHandler
from lanemq.broker.housekeeping import Housekeeping
from lanemq.broker.long_answers import LongAnswers
from lanemq.broker.monitor.figures import Figures
from lanemq.broker.monitor.health import Health, open_monitor
from lanemq.broker.recording import Recording
from lanemq.broker.recovery import Tables, recovered, undo_stamps
from lanemq.broker.storage.checkpoints import Checkpoints, unsaved_stamps
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.topic_keeper import TopicKeeper, TopicRows
from lanemq.broker.storage.unread import UnreadMessages
from lanemq.broker.waking import HeldPull, Waking
from lanemq.clock import Clock, SystemClock, machine_of, nanoseconds_of
from lanemq.core.brokering.disk_space import LowSpace, log_limit
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.quotas import GroupUse
from lanemq.history import last_time, open_history
from lanemq.log.options import StoreOptions
from lanemq.log.state.space_reserve import SpaceReserve
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.units import to_millis
from lanemq.net.address import Address
from lanemq.net.serving.descriptors import DescriptorReserve
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.outbox import Outbox
from lanemq.net.serving.server import ConnectionLimits, Listener, Server
from lanemq.net.serving.server_tls import TlsDetector
from lanemq.wire.record import RecordView, pack_host

if TYPE_CHECKING:
    from lanemq.net.serving.monitor import Monitor

log = logging.getLogger(__name__)

MIN_DISK_BYTES = 16 * 1024 * 1024
"""The smallest disk. The write-ahead log of `state.db` alone grows to 4 MiB."""

OpenStore = Callable[[Path, StoreOptions], Store]


class Broker:
    """One broker process: `await start()`, serve, `await stop()`."""

    def __init__(self, options: BrokerOptions, clock: Clock | None = None, open_store: OpenStore = Store) -> None:
        """`open_store` lets a test replace the disk by a failing one."""
        self.options = options
        self.address = options.listen
        """Where clients connect; after the start with the real port."""
        self._clock = clock or SystemClock()
        self._open_store = open_store
        self._running: Running | None = None
        self._monitor: Monitor | None = None
        self._health: Health | None = None

    @property
    def running(self) -> "Running":
        """Everything that works in a started broker."""
        assert self._running is not None, "the broker is not started"
        return self._running

    @property
    def read_only(self) -> bool:
        """Whether a failed write has stopped sends; reads continue."""
        return self.running.context.group_commit.failure is not None

    async def start(self) -> None:
        """Recover what is on disk, then listen; returns when clients can connect."""
        with contextlib.ExitStack() as undo:
            self._health = Health(self._clock, asyncio.get_running_loop())
            self._monitor = open_monitor(self.options.monitor, self._health, required=self.options.monitor_required)
            undo.callback(self.close_monitor)
            _refuse_tiny_disk(self.options.data)
            store = self._open_store(self.options.data, _store_options(self.options))
            undo.callback(store.close)
            space_reserve = self._new_space_reserve()
            recording = self._open_history()
            undo.callback(recording.close)
            threads = self._new_threads(space_reserve.release)
            for each in threads:
                undo.callback(each.stop)
            tables = recovered(self.options, self._clock, store, threads.rows, recording)
            listener = self._new_listener()
            undo.callback(listener.close)
            self.address = listener.address
            self._running = self._assemble(store, threads, recording, tables, space_reserve)
            self._running.housekeeping.reserve_at_start()
            self._running.server.accept_from(listener)
            undo.pop_all()
        self._health.running(self.running.figures, lambda: self.running.housekeeping.last_tick)
        log.info("listening on %s, data in %s", self.address, self.options.data)

    def reload(self) -> None:
        """Read users and certificates again. What cannot be read stays as it was, with an error in the log."""
        self.running.reload_users()
        self.running.server.reload_certificates()

    async def stop(self) -> None:
        """Stop cleanly: everything accepted is on disk, and the next start needs no recovery."""
        running, context = self.running, self.running.context
        if self._health is not None:
            self._health.stopping()
        context.stopping = True
        running.ticking.cancel()
        await asyncio.gather(running.ticking, return_exceptions=True)
        running.server.stop_accepting()
        running.pull.release_all()
        await context.group_commit.drained()
        await context.search_thread.call(_nothing)  # after all submitted jobs, so that their outcomes are handled
        await context.thread.call(_nothing)
        await context.row_thread.call(_nothing)
        running.checkpoints.stop()
        await running.server.close()
        saved = False
        try:
            context.progress_keeper.save_now()
            running.checkpoints.save_now()
            saved = True
        finally:
            for thread in (context.search_thread, context.thread, context.row_thread):
                thread.stop()
            context.recording.close()
            context.store.close(unsaved_stamps(context.producers), clean=saved)
            self.close_monitor()
        log.info("stopped %s", "read-only, after a failed write" if self.read_only else "cleanly")

    @property
    def monitor_address(self) -> Address | None:
        """Where the monitor listens; None if it is off, or could not listen."""
        return None if self._monitor is None else self._monitor.address

    def _monitor_in_force(self) -> object:
        if self.options.monitor is not None and self.monitor_address is None:
            return f"off: could not listen on {self.options.monitor}"
        return self.monitor_address

    def close_monitor(self) -> None:
        """Closes the port for metrics and health, if it is open."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.close()

    # wiring

    def _assemble(
        self, store: Store, threads: "Threads", recording: Recording, tables: Tables, space_reserve: SpaceReserve
    ) -> "Running":
        context = self._new_context(store, threads, recording, tables)
        figures, answers = Figures(context), LongAnswers(context.slices, context.clock)
        send, pull, groups = SendHandler(context), PullHandler(context), GroupHandler(context, answers)
        served = [send.table(), pull.table(), groups.table(), *_other_tables(context, answers, pull, figures)]
        audit, refusals = Audit(self._clock), context.counters.refusals
        dispatch = Dispatch(served, context.notices.answered, refusals, ADMINISTRATIVE, audit.watched, self._clock)
        guard = None if self.options.users is None else self._new_guard(dispatch, context, audit)
        if guard is not None:
            context.users = guard.users
        store_sends = send.store_sends if guard is None else None
        handle = dispatch if guard is None else guard
        connections = Connections(context, handle, groups, store_sends=store_sends, on_closed=pull.disconnected)
        server = self._new_server(context, connections)
        checkpoints = _new_checkpoints(context)
        housekeeping = Housekeeping(context, pull, checkpoints, server, space_reserve)
        ticking = asyncio.create_task(housekeeping.run(), name="lanemq-housekeeping")
        return Running(
            context,
            server,
            _nothing if guard is None else guard.reload,
            pull,
            groups,
            checkpoints,
            housekeeping,
            figures,
            ticking,
        )

    def _new_context(self, store: Store, threads: "Threads", recording: Recording, tables: Tables) -> BrokerContext:
        options, clock = self.options, self._clock
        advertised = Address(options.advertised_host, self.address.port)
        polls: LongPolls[HeldPull] = LongPolls()
        loop = asyncio.get_running_loop()
        slices, outbox = LoopSlices(loop, nanoseconds_of(clock)), Outbox(loop)
        waking = Waking(polls, slices)
        counters, topic_rows = Counters(), TopicRows(store.state, threads.rows)
        group_commit = GroupCommit(
            store,
            threads.log,
            clock,
            pack_host(*advertised),
            rows=topic_rows,
            refusals=counters.refusals,
            outbox=outbox,
            on_arrivals=waking.arrived,
            on_undone=partial(undo_stamps, tables.producers),
        )
        on_failure, on_full = group_commit.stop_writing, group_commit.pause
        reserve = self._new_reserve(store)
        topic_keeper = TopicKeeper(tables.topics, topic_rows, on_failure=on_failure, on_full=on_full, clock=clock)
        return BrokerContext(
            options=options,
            clock=clock,
            store=store,
            state=store.state,
            thread=threads.log,
            row_thread=threads.rows,
            search_thread=threads.search,
            group_commit=group_commit,
            outbox=outbox,
            slices=slices,
            advertised=advertised,
            topics=tables.topics,
            topic_keeper=topic_keeper,
            queues=OwnQueues(options.name, tables.topics, topic_keeper),
            counters=counters,
            low_space=LowSpace(options.min_free_bytes),
            charges=_new_charges(tables, counters, clock, by_user=options.users is not None),
            members=tables.members,
            groups=tables.groups,
            locks=tables.locks,
            progress_keeper=tables.progress,
            unread=UnreadMessages(store, tables.progress.table, clock),
            producers=tables.producers,
            producer_users=tables.producers.users(),
            polls=polls,
            waking=waking,
            delays=tables.delays,
            delay_delivery=DelayDelivery(tables.delays, store, clock, tables.topics, group_commit),
            recording=recording,
            reserve=reserve,
            tls=None if options.tls is None else TlsDetector(options.tls, clock),
            in_force=self._in_force(reserve),
        )

    def _in_force(self, reserve: DescriptorReserve) -> dict[str, object]:
        """Options whose value depends on this machine. The housekeeping keeps those of connections up to date."""
        return {
            "listen": self.address,
            "retention_bytes": _store_options(self.options).retention_bytes,
            **self._connection_limits(reserve).in_force(),
            "monitor": self._monitor_in_force(),
        }

    def _new_reserve(self, store: Store) -> DescriptorReserve:
        """Simulations override this with one that does not depend on the machine."""
        return DescriptorReserve(wanted=self.options.max_connections, files=lambda: store.open_files)

    def _new_threads(self, on_full: Callable[[], bool]) -> "Threads":
        """Simulations override this with some that need no thread. `on_full` makes room for rows on a full disk."""
        loop = asyncio.get_running_loop()
        return Threads(DiskThread(loop, "log"), DiskThread(loop, "rows", on_full), DiskThread(loop, "search"))

    def _new_space_reserve(self) -> SpaceReserve:
        """Simulations override this with one that reserves nothing."""
        return SpaceReserve(self.options.data)

    def _new_listener(self) -> Listener:
        """Simulations override this with one that needs no socket."""
        return Listener(self.options.listen)

    def _new_server(self, context: BrokerContext, connections: Connections) -> Server:
        """Simulations override this with one on a simulated network."""
        return Server(
            connections,
            limits=self._connection_limits(context.reserve),
            refusals=context.counters.refusals,
            joining=context.counters.joining,
            reads=context.group_commit,
            outbox=context.outbox,
            tls_detector=context.tls,
        )

    def _connection_limits(self, reserve: DescriptorReserve) -> ConnectionLimits:
        """The limits of the options, lowered if the process may not open that many files beside those of the log."""
        return ConnectionLimits(reserve.connections(), signed=self.options.users is not None)

    def _new_guard(self, dispatch: Dispatch, context: BrokerContext, audit: Audit) -> Guard:
        users = self.options.users
        assert users is not None

        def topic_at(position: int) -> str:
            return RecordView(context.store.read_at(position)).topic

        return Guard(users, dispatch, topic_at, self._clock, context.counters.refusals, audit.refused)

    def _open_history(self) -> Recording:
        folder, name, now = self.options.history, f"broker-{self.options.name}", nanoseconds_of(self._clock)
        alive = last_time(folder, name, now())
        history = open_history(folder, name, now, role="broker", machine=machine_of(self._clock))
        return Recording(history, self.options.name, alive)


class Threads(NamedTuple):
    """The threads that use the disk."""

    log: DiskThread
    rows: DiskThread
    search: DiskThread


@dataclass(frozen=True, slots=True)
class Running:
    """Everything that works in a started broker."""

    context: BrokerContext
    server: Server
    reload_users: Callable[[], None]
    pull: PullHandler
    groups: GroupHandler
    checkpoints: Checkpoints
    housekeeping: Housekeeping
    figures: Figures
    ticking: asyncio.Task[None]
    """Runs the housekeeping."""


def _nothing() -> None:
    return None


def _disk_size(folder: Path) -> int:
    """The size of the disk of a folder that may not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).total


def _refuse_tiny_disk(folder: Path) -> None:
    """Refuse a disk on which the broker's own files would take what messages and locks need. 0: its size is unknown."""
    total = _disk_size(folder)
    if 0 < total < MIN_DISK_BYTES:
        raise StorageError(
            f"the disk of {folder} has {total >> 20} MiB, and a broker needs {MIN_DISK_BYTES >> 20} MiB or more: "
            f"choose a folder on a larger disk"
        )


def _store_options(options: BrokerOptions) -> StoreOptions:
    return StoreOptions(
        segment_bytes=options.segment_bytes,
        durable=options.durable,
        retention_ms=max(1, to_millis(options.retention)),
        retention_bytes=log_limit(options.retention_bytes, options.segment_bytes, _disk_size(options.data)),
        recover=options.recover,
    )


def _other_tables(
    context: BrokerContext, answers: LongAnswers, pull: PullHandler, figures: Figures
) -> list[Mapping[int, Handler]]:
    """What the handlers serve that only the dispatcher knows."""
    handlers = (
        LockHandler(context, answers),
        OffsetHandler(context),
        BoundsHandler(context),
        OwnerParkingHandler(context),
        OperatorParkingHandler(context, answers),
        RouteHandler(context),
        TopicHandler(context, pull.topic_deleted, answers),
        RetryHandler(context, answers),
        ReplyHandler(context),
        QueryHandler(context),
        ProgressHandler(context, answers),
        StatsHandler(context, figures, answers),
        ResetHandler(context, pull.group_moved, answers),
    )
    return [handler.table() for handler in handlers]


def _new_checkpoints(context: BrokerContext) -> Checkpoints:
    return Checkpoints(
        context.clock,
        store=context.store,
        row_thread=context.row_thread,
        search_thread=context.search_thread,
        group_commit=context.group_commit,
        topic_keeper=context.topic_keeper,
        producers=context.producers,
        delays=context.delays,
        slices=context.slices,
    )


def _new_charges(tables: Tables, counters: Counters, clock: Clock, *, by_user: bool) -> Charges:
    progress, locks = tables.progress.table, tables.locks
    groups = {*tables.groups, *progress.groups(), *locks.groups()}
    return Charges(
        clock,
        counters.refusals,
        GroupUse(groups, now=clock.now()),
        by_user=by_user,
        topics=tables.topics,
        progress=progress,
        locks=locks,
    )
