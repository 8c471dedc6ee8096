"""A coordinator process: it waits until it leads, serves while it does, and drops everything when its term ends.

It serves the requests about groups that a LaneMQ broker serves, with the same handlers, and has no log.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from lanemq.broker.connections import Connections
from lanemq.broker.context import GroupContext
from lanemq.broker.monitor.health import Health, open_monitor
from lanemq.broker.recording import Recording
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.clock import Clock, SystemClock, machine_of, nanoseconds_of
from lanemq.coordinator.cluster import ClusterLink
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.coordinator.election import Election
from lanemq.coordinator.entries import OtherCoordinator
from lanemq.coordinator.figures import CoordinatorFigures
from lanemq.coordinator.loading import Start, check_cluster, load
from lanemq.coordinator.redirect import Redirect
from lanemq.coordinator.reign import Ground, Loaded, Reign, new_reign
from lanemq.coordinator.store import FolderStore, NotLeading, RowsOfTerm, StateStore
from lanemq.core.brokering.cluster.leadership import TERM_MS, Term
from lanemq.history import file_name, last_time, open_history
from lanemq.model.errors import LaneError, StorageError, TransportError, UsageError
from lanemq.net.address import Address
from lanemq.net.calling.connection import ConnectionPool
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.descriptors import DescriptorReserve
from lanemq.net.serving.peer import Dispatcher
from lanemq.net.serving.server import ConnectionLimits, Listener, Server
from lanemq.net.serving.server_tls import TlsDetector
from lanemq.wire.route_bodies import ClusterInfo

if TYPE_CHECKING:
    from lanemq.net.serving.monitor import Monitor

log = logging.getLogger(__name__)

FILES = 16
"""Descriptors that a coordinator uses beside its connections."""
AGAIN_SECONDS = 1.0
"""After a term that could not begin, so that another coordinator may try."""


class Coordinator:
    """One coordinator process: `await start()`, serve, `await stop()`."""

    def __init__(self, options: CoordinatorOptions, clock: Clock | None = None, *, replace: bool = False) -> None:
        """`replace`: takes the place of coordinators whose store is lost."""
        self.options = options
        self.address = options.listen
        """Where members connect; after the start with the real port."""
        self._clock = clock or SystemClock()
        self._replace = replace
        self._reign: Reign | None = None
        self._monitor: Monitor | None = None
        self._health: Health | None = None
        self._leading: asyncio.Task[None] | None = None
        self._opened = contextlib.ExitStack()
        self._warnings = RateLimitedLog(log, self._clock)

    @property
    def running(self) -> Reign:
        """What works while this process leads."""
        assert self._reign is not None, "the coordinator does not lead"
        return self._reign

    @property
    def leads(self) -> bool:
        return self._reign is not None

    @property
    def monitor_address(self) -> Address | None:
        """Where the monitor listens; None if it is off, or could not listen."""
        return None if self._monitor is None else self._monitor.address

    async def start(self) -> None:
        """Open the store, find the cluster, and listen; returns when this process leads, or knows that another may."""
        with contextlib.ExitStack() as undo:
            self._health = Health(self._clock, asyncio.get_running_loop())
            self._monitor = open_monitor(self.options.monitor, self._health, required=self.options.monitor_required)
            if self._monitor is not None:
                undo.callback(self._monitor.close)
            self._store = self._new_store()
            undo.callback(self._store.close)
            self._store.connect()
            self._pool = ConnectionPool(security=self.options.security, clock=self._clock)
            undo.callback(self._pool.close)
            check_cluster(self._store, await _reached(ClusterLink(self.options.cluster, self._pool)))
            self._thread = self._new_thread()
            undo.callback(self._thread.stop)
            undo.callback(self._store.cut)  # before that: a silent database is not waited for
            self._listener = self._new_listener()
            undo.callback(self._listener.close)
            self.address = self.options.advertised(self._listener.address.port)
            self._election = Election(self._store, self._thread, self._clock, self.address)
            figures = CoordinatorFigures(self._store, self._election, lambda: self._reign)
            self._leading = asyncio.create_task(self._run(), name="lanemq-leading")
            undo.callback(self._leading.cancel)
            await self._first_look()
            self._opened = undo.pop_all()
        self._health.running(figures, lambda: figures.last_tick)
        log.info("coordinates %s, state in %s", self.address, self._store.shown)

    async def _first_look(self) -> None:
        """Wait until this process leads, or waits for another one; raises what keeps it from both."""
        assert self._leading is not None
        looked = asyncio.create_task(self._election.looked.wait())
        await asyncio.wait({looked, self._leading}, return_when=asyncio.FIRST_COMPLETED)
        looked.cancel()
        if self._leading.done():
            await self._leading

    async def stop(self) -> None:
        """Stop cleanly: a leader hands over. Leases stay with their members, who continue at the next leader."""
        if self._health is not None:
            self._health.stopping()
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)
        reign, self._reign = self._reign, None
        if reign is not None:
            await self._hand_over(reign)
        self._opened.close()

    async def _hand_over(self, reign: Reign) -> None:
        """Save everything, and let another coordinator lead at once. A silent database is not waited for."""
        cut = asyncio.get_running_loop().call_later(TERM_MS / 1000, self._store.cut)
        try:
            try:
                await reign.end()
            finally:
                await reign.drop()  # first: another one may lead before this process knows
            await self._thread.call(self._store.hand_over)
        except StorageError as error:
            log.warning("the term could not be handed over, the next leader waits for its end: %s", error)
        cut.cancel()

    async def watched(self, stop: asyncio.Event) -> None:
        """Waits for the event; raises if this coordinator must end before, because another one has taken over."""
        assert self._leading is not None
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, self._leading}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self._leading.done():
            await self._leading

    def reload(self) -> None:
        """Read users and certificates again. What cannot be read stays as it was, with an error in the log."""
        if self._reign is not None:
            self._reign.reload_users()
            self._reign.server.reload_certificates()

    # leading

    async def _run(self) -> None:
        """Wait, lead, and wait again, for ever. Raises what an operator must decide."""
        while True:
            async with self._redirecting():
                term = await self._election.won()
            renewing = asyncio.create_task(self._election.keep(term), name="lanemq-term")
            try:
                await self._lead(term, renewing)
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _redirecting(self) -> AsyncIterator[None]:
        """Answers who leads, meanwhile. The owner of a folder leads at once."""
        if not self._store.shared:
            yield
            return
        server = self._new_waiting_server(Redirect(lambda: self._election.leader))
        server.accept_from(self._listener)
        try:
            yield
        finally:
            server.leave_listener()
            await server.close()

    async def _lead(self, term: Term, renewing: asyncio.Task[None]) -> None:
        """Lead until the term ends, which `renewing` says."""
        try:
            reign = await self._begun(term)
        except (OtherCoordinator, UsageError):
            raise
        except LaneError as error:
            if not self._election.looked.is_set():
                raise  # the start says so
            self._warnings.warn("begin", f"this coordinator cannot begin to lead, trying again: {error}")
            await self._give_up(term)
            return
        self._reign = reign
        self._election.looked.set()
        log.info("leads with term %d", term.number)
        await asyncio.wait({renewing, reign.watching}, return_when=asyncio.FIRST_COMPLETED)
        self._reign = None
        if reign.watching.done():
            term.end("its watch has ended")
        log.warning("leads no more: %s", term.ended)
        await reign.drop()
        if not reign.watching.cancelled() and (failure := reign.watching.exception()) is not None:
            raise failure

    async def _begun(self, term: Term) -> Reign:
        """Load everything, enter this leader at a name server, and serve."""
        link = ClusterLink(self.options.cluster, self._pool, lambda: self._must_lead(term))
        rows = RowsOfTerm(self._store, term)
        start = Start(self._store, rows, self._election, link, self._thread, self._clock, self.address, self._replace)
        loaded = await load(start)
        self._must_lead(term)
        recording = self._open_history(loaded)
        ground = Ground(self.options, self._clock, self._thread, self.address, self._store, self._new_server)
        reign = new_reign(ground, loaded, term, rows, link, recording, self._election.heard_of)
        try:
            if self._replace:
                await reign.watch.take_over()
                self._replace = False
            if self._store.shared or self._election.terms > 1:
                await reign.watch.register_once()
            else:
                await reign.watch.register_everywhere()
        except BaseException:
            await reign.drop()
            raise
        reign.begin()
        reign.server.accept_from(self._listener)
        return reign

    async def _give_up(self, term: Term) -> None:
        """End a term that could not begin."""
        if not term.ended:
            with contextlib.suppress(StorageError):
                await self._thread.call(self._store.hand_over)
            term.end("it could not begin")
            await asyncio.sleep(AGAIN_SECONDS)
        self._election.ended(term)

    def _must_lead(self, term: Term) -> None:
        if not term.answers(now=self._clock.now()):
            raise NotLeading(f"this coordinator does not lead any more: {term.ended or 'its term has run out'}")

    def _open_history(self, loaded: Loaded) -> Recording:
        """The history of one term. Coordinators that share a database may share the folder of histories too."""
        folder, name, now = self.options.history, f"coordinator-{loaded.identity.name}", nanoseconds_of(self._clock)
        process = f"{name}-{self.address.port}" if self._store.shared else name
        others = [] if folder is None else [each.stem for each in folder.glob(f"{file_name(name)}*.jsonl")]
        alive = max((last_time(folder, each, now()) for each in {process, *others}), default=0)
        history = open_history(folder, process, now, role="broker", machine=machine_of(self._clock))
        return Recording(history, process, alive)

    # what a simulation replaces

    def _new_store(self) -> StateStore:
        if self.options.state is not None:
            from lanemq.coordinator.postgres_rows import PostgresRows  # needs psycopg

            return PostgresRows(self.options.state, self._clock)
        assert self.options.data is not None, "a coordinator has a folder or a database"
        return FolderStore(self.options.data, self._clock)

    def _new_thread(self) -> DiskThread:
        return DiskThread(asyncio.get_running_loop(), "rows")

    def _new_listener(self) -> Listener:
        return Listener(self.options.listen)

    def _new_server(self, connections: Connections, context: GroupContext) -> Server:
        return Server(
            connections,
            limits=self._limits(),
            refusals=context.counters.refusals,
            joining=context.counters.joining,
            tls_detector=context.tls,
            may_answer=context.leads,
        )

    def _new_waiting_server(self, redirect: Dispatcher) -> Server:
        tls = self.options.tls
        return Server(
            redirect, limits=self._limits(), tls_detector=None if tls is None else TlsDetector(tls, self._clock)
        )

    def _limits(self) -> ConnectionLimits:
        total = DescriptorReserve(wanted=ConnectionLimits().total, files=lambda: FILES).connections()
        return ConnectionLimits(total, signed=self.options.users is not None)


async def _reached(link: ClusterLink) -> ClusterInfo:
    try:
        return await link.info()
    except TransportError as error:
        raise UsageError(
            f"the cluster cannot be reached: {error}; start its name servers, or correct --cluster"
        ) from error
