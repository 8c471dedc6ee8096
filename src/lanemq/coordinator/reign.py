"""Everything that works while this process leads: loaded when its term begins, dropped when it ends."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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
from lanemq.broker.recording import Recording
from lanemq.broker.recovery import GroupTables
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.client.coordination import Leader
from lanemq.clock import Clock, nanoseconds_of
from lanemq.coordinator.background_answers import BackgroundAnswers
from lanemq.coordinator.cluster import ClusterLink
from lanemq.coordinator.comparison import ComparisonHandler
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.coordinator.leader_report import LeaderReport
from lanemq.coordinator.moves import MoveHandler
from lanemq.coordinator.queues import ClusterQueues
from lanemq.coordinator.store import StateStore
from lanemq.coordinator.term_gate import TermGate
from lanemq.coordinator.watch import ClusterWatch
from lanemq.core.brokering.cluster.confirmed_queues import ConfirmedQueues
from lanemq.core.brokering.cluster.copied_offsets import CopiedOffsets
from lanemq.core.brokering.cluster.leadership import Term
from lanemq.core.brokering.quotas import GroupUse
from lanemq.log.state.group_rows import GroupRows, LeaseRow
from lanemq.model.errors import BrokerRefused, GroupNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.net.address import Address
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.server import Server
from lanemq.net.serving.server_tls import TlsDetector
from lanemq.wire.codes import RequestCode, ResponseCode

NOT_HERE = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CHECK_CLIENT_CONFIG,
)
"""Requests about groups that go to the brokers, also for coordinated groups. These are created and ended by moves."""


class Identity(NamedTuple):
    """Who the coordinators of a cluster are, in their store."""

    name: str
    cluster: str
    """The names of the clusters, as the name servers listed them when the store was made."""


class Loaded(NamedTuple):
    """What a new leader has read from the store."""

    identity: Identity
    tables: GroupTables
    leases: list[LeaseRow]
    confirmed: str
    """The confirmed queues, as JSON."""
    copies: dict[str, CopiedOffsets]
    """What was copied to the brokers, by group."""
    floor: int
    """Every epoch that was ever granted is at most this."""
    grants_from: Millis
    """When queues may get new owners; 0: at once."""


class Ground(NamedTuple):
    """What a process has, whether it leads or not."""

    options: CoordinatorOptions
    clock: Clock
    thread: DiskThread
    address: Address
    """Where members connect."""
    store: StateStore
    new_server: Callable[[Connections, GroupContext], Server]


@dataclass(frozen=True, slots=True)
class Reign:
    """Everything that works in a coordinator that leads."""

    context: GroupContext
    queues: ClusterQueues
    watch: ClusterWatch
    server: Server
    housekeeping: GroupHousekeeping
    figures: GroupFigures
    background: BackgroundAnswers
    reload_users: Callable[[], None]
    tasks: list[asyncio.Task[None]]
    """The watch of the cluster, and the housekeeping; empty until it begins."""

    @property
    def watching(self) -> asyncio.Task[None]:
        return self.tasks[0]

    def begin(self) -> None:
        """Start what runs by itself."""
        self.tasks.append(asyncio.create_task(self.watch.run(), name="lanemq-cluster-watch"))
        self.tasks.append(asyncio.create_task(self.housekeeping.run(), name="lanemq-housekeeping"))

    async def quiet(self) -> None:
        """Stop what runs by itself."""
        self.background.cancel()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def drop(self) -> None:
        """The term is over: nothing that was decided leaves this process any more."""
        self.context.stopping = True
        self.server.leave_listener()
        await self.quiet()
        self.context.recording.close()
        await self.server.abort()

    async def end(self) -> None:
        """Answer what was asked, and save everything; the term is still valid."""
        self.context.stopping = True
        await self.quiet()
        self.server.leave_listener()
        self.server.stop_accepting()
        await self.context.row_thread.call(_nothing)
        await self.context.row_thread.call(self.context.progress_keeper.save_now)


def new_reign(
    ground: Ground,
    loaded: Loaded,
    term: Term,
    rows: GroupRows,
    link: ClusterLink,
    recording: Recording,
    heard_of: Callable[[int], None],
) -> Reign:
    """Connect the parts of a leader. Nothing runs yet."""
    options, clock, loop, tables = ground.options, ground.clock, asyncio.get_running_loop(), loaded.tables
    confirmed = ConfirmedQueues(msgspec.json.decode(loaded.confirmed, type=list[MessageQueue]))
    queues, slices, counters = ClusterQueues(clock, confirmed), LoopSlices(loop, nanoseconds_of(clock)), Counters()
    queues.grants_from = loaded.grants_from
    queues.remember(MessageQueue(row.topic, row.broker, row.queue_id) for row in loaded.leases)
    tables.locks.raise_floor(Epoch(loaded.floor))
    if recording.on:
        recording.filters_restored((row.group, row.topic) for row in tables.filters)
        recording.restarted(tables.locks.snapshot(now=clock.now()), tables.offsets, clean=False)
    context = GroupContext(
        clock=clock,
        state=rows,
        row_thread=ground.thread,
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
        leads=lambda: term.answers(now=clock.now()),
        term=term.number,
        tls=None if options.tls is None else TlsDetector(options.tls, clock),
    )
    context.admit = _Admission(context)
    identity = loaded.identity
    watch = ClusterWatch(identity.name, Leader(ground.address, term.number), link, context, queues, heard_of)
    watch.copies.restore(loaded.copies)
    groups = GroupHandler(context, answers := LongAnswers(slices, clock))
    background = BackgroundAnswers()
    handlers = (
        groups,
        LockHandler(context, answers),
        OffsetHandler(context),
        OwnerParkingHandler(context),
        OperatorParkingHandler(context, answers),
        ProgressHandler(context, answers),
        ResetHandler(context, watch.copies.overwrite, answers),
        MoveHandler(context, link, queues, watch, background),
        ComparisonHandler(context, link, queues, background),
        LeaderReport(context, ground.store, watch.leader, background),
    )
    served: list[dict[int, Handler]] = [
        {code: handler for code, handler in each.table().items() if code not in NOT_HERE} for each in handlers
    ]
    audit = Audit(clock)
    dispatch = Dispatch(served, context.notices.answered, counters.refusals, ADMINISTRATIVE, audit.watched, clock=clock)
    users = options.users
    gate = TermGate(dispatch, context, heard_of)
    guard = None if users is None else Guard(users, gate, _no_topic, clock, counters.refusals, audit.refused)
    server = ground.new_server(Connections(context, guard or gate, groups), context)
    return Reign(
        context,
        queues,
        watch,
        server,
        GroupHousekeeping(context, server),
        GroupFigures(context, identity.name, identity.cluster, options.data, lambda: watch.problems()),
        background,
        _nothing if guard is None else guard.reload,
        [],
    )


class _Admission:
    """Refuses groups that were not moved here."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def __call__(self, group: str) -> None:
        if group not in self._context.groups:
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} is not coordinated: it is consumed at the brokers. "
                f"To move it here: lanemq group coordinate {group}",
            )


def _no_topic(position: int) -> str:
    raise BrokerRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a coordinator has no messages: ask their broker")


def _nothing() -> None:
    return None
