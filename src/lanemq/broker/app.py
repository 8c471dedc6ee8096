"""A broker: how its parts are connected, and how it starts and stops.

Order of a stop: stop accepting → answer held pulls → wait until everything staged is on disk → close connections → save
offsets, stamps and indexes → mark a clean stop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from lanemq.broker.access.guard import Guard
from lanemq.broker.config import BrokerOptions
from lanemq.broker.dispatch import Dispatch, Handler
from lanemq.broker.handlers.assignments import AssignmentHandler
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.handlers.locks import LockHandler
from lanemq.broker.handlers.offsets import OffsetHandler
from lanemq.broker.handlers.operator_parking import OperatorParkingHandler
from lanemq.broker.handlers.owner_parking import OwnerParkingHandler
from lanemq.broker.handlers.pull import PullHandler
from lanemq.broker.handlers.queries import QueryHandler
from lanemq.broker.handlers.resets import ResetHandler
from lanemq.broker.handlers.retries import RetryHandler
from lanemq.broker.handlers.routes import RouteHandler
from lanemq.broker.handlers.send import SendHandler, SendRuns
from lanemq.broker.handlers.stats import StatsHandler
from lanemq.broker.handlers.topics import TopicHandler
from lanemq.broker.housekeeping import Housekeeping
from lanemq.broker.notices import Notices
from lanemq.broker.parts import Parts
from lanemq.broker.recording import Recording
from lanemq.broker.storage.checkpoints import (
    Checkpoints,
    producer_row,
    restored_cursors,
    restored_lease,
    restored_offset,
    restored_producer,
)
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.broker.storage.group_commit import GroupCommit, LogThread
from lanemq.broker.storage.parking import Parking
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.clock import Clock, SystemClock, nanoseconds_of
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.group_offsets import GroupOffsets
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.membership import ConnectionId, Membership
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.history import NO_HISTORY, last_time, open_history
from lanemq.log.appender import Arrival
from lanemq.log.options import StoreOptions
from lanemq.log.state import ProducerRow
from lanemq.log.store import Store
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.stamp import Stamp
from lanemq.model.units import Epoch, Millis, QueueOffset, to_millis
from lanemq.net.address import Address
from lanemq.net.server import Peer, Server
from lanemq.net.server_tls import TlsDetector
from lanemq.wire.command import Command
from lanemq.wire.properties import PropertyName, find_stamp
from lanemq.wire.record import RecordView, pack_host
from lanemq.wire.route_bodies import SubscriptionGroupConfig

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05

OpenStore = Callable[[Path, StoreOptions], Store]


class Broker:
    """One broker process: `await start()`, serve, `await stop()`."""

    def __init__(self, options: BrokerOptions, clock: Clock | None = None, open_store: OpenStore = Store) -> None:
        """`open_store` lets a test replace the disk by a failing one."""
        self.options = options
        self._clock = clock or SystemClock()
        self._open_store = open_store
        self._dispatch = Dispatch()
        self._ticking: asyncio.Task[None] | None = None
        self._recording = Recording(NO_HISTORY)
        self._parts: Parts
        self._server: Server
        self._handle: Handler
        self.address = options.listen

    async def start(self) -> None:
        """Recover what is on disk, then listen; returns when clients can connect."""
        store = self._open_store(self.options.data, _store_options(self.options))
        self._thread = self._new_thread()
        try:
            self._recording = self._open_history()
            self._parts = self._assemble(store)
            self._recover()
            self._handle = self._dispatch if self.options.users is None else self._new_guard(self.options.users)
            self._server = self._new_server()
            self.address = await self._server.listen(self.options.listen)
            self._parts.advertised = Address(self.options.advertised_host, self.address.port)
            self._parts.group_commit.store_host = pack_host(*self._parts.advertised)
        except BaseException:
            self._thread.stop()
            self._recording.close()
            store.close()
            raise
        self._ticking = asyncio.create_task(self._tick_for_ever(), name="lanemq-housekeeping")
        log.info("listening on %s, data in %s", self.address, self.options.data)

    async def stop(self) -> None:
        """Stop cleanly: everything accepted is on disk, and the next start needs no recovery."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        self._server.stop_accepting()
        self._pull.release_all()
        await self._parts.group_commit.drained()
        await self._thread.call(_nothing)  # after all submitted jobs, so that their outcomes are handled
        await self._server.close()
        try:
            self._checkpoints.save_offsets_now()
        finally:
            self._thread.stop()
            self._recording.close()
            self._parts.store.close(self._stamps_to_save())
        log.info("stopped %s", "read-only, after a failed write" if self.read_only else "cleanly")

    @property
    def read_only(self) -> bool:
        """Whether a failed write has stopped sends; reads go on."""
        return self._parts.group_commit.failure is not None

    # called by the server

    def connected(self, peer: Peer) -> None:
        self._parts.notices.connected(peer)

    def received(self, peer: Peer, command: Command) -> None:
        if command.is_response:
            self._resets.answered(peer, command)
        else:
            self._handle(peer, command)

    def closed(self, peer: Peer) -> None:
        parts = self._parts
        self._pull.disconnected(peer)
        self._groups.disconnected(peer)
        parts.notices.closed(peer)
        client_id = parts.members.client_of(ConnectionId(peer.number))
        changes = parts.members.disconnected(ConnectionId(peer.number))
        if client_id is not None and not parts.members.connected(client_id):
            grace = to_millis(self.options.disconnect_grace)
            shortened = parts.locks.disconnected(client_id, grace=grace, now=self._clock.now())
            if self._recording.on:
                for group, lease in shortened:
                    self._recording.locked(group, [lease])
        parts.notices.group_changed(changes.groups)

    # wiring

    def _assemble(self, store: Store) -> Parts:
        options, clock = self.options, self._clock
        members = Membership(expiry_ms=to_millis(options.member_expiry))
        topics = TopicTable(
            auto_create=options.auto_create_topics,
            template_queues=options.default_queues,
            own_names=(options.name, options.cluster),
        )
        group_commit = GroupCommit(store, self._thread, clock, self._arrived, options.max_pending_bytes)
        parts = Parts(
            options=options,
            clock=clock,
            store=store,
            state=store.state,
            thread=self._thread,
            group_commit=group_commit,
            notices=Notices(members),
            advertised=options.listen,
            topics=topics,
            topic_keeper=TopicKeeper(topics, store.state, self._thread, group_commit.stop_writing),
            members=members,
            locks=LockTable(to_millis(options.stock_lease), first_serial=clock.wall()),
            offsets=GroupOffsets(),
            producers=ProducerTable(),
            polls=LongPolls(capacity=options.max_held_pulls),
            delays=DelayQueueCursors(),
            recording=self._recording,
            parking=Parking(options, store.state, self._thread, self._recording, clock.wall()),
        )
        self._add_handlers(parts)
        self._checkpoints = Checkpoints(
            options,
            clock,
            store,
            self._thread,
            group_commit,
            parts.topic_keeper,
            parts.producers,
            parts.offsets,
            parts.delays,
        )
        self._delays = DelayDelivery(parts.delays, store, clock, parts.topics, group_commit)
        self._housekeeping = Housekeeping(parts, self._pull, self._checkpoints, self._delays)
        return parts

    def _add_handlers(self, parts: Parts) -> None:
        self._pull = PullHandler(parts)
        self._groups = GroupHandler(parts)
        self._resets = ResetHandler(parts, self._pull.group_moved)
        self._runs = SendRuns(parts, self._dispatch)
        for handler in (
            SendHandler(parts),
            self._pull,
            LockHandler(parts),
            OffsetHandler(parts),
            OwnerParkingHandler(parts),
            OperatorParkingHandler(parts),
            self._groups,
            AssignmentHandler(parts),
            RouteHandler(parts),
            TopicHandler(parts, self._pull.topic_deleted),
            RetryHandler(parts),
            QueryHandler(parts),
            StatsHandler(parts),
            self._resets,
        ):
            self._dispatch.add(handler.table())

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        retention = self._parts.store.retention
        if retention.grown:
            retention.note(self._clock.now())
        self._delays.arrived(arrivals)
        self._pull.arrived(arrivals)

    def _new_thread(self) -> LogThread:
        """Simulations override this with one that needs no thread."""
        return LogThread(asyncio.get_running_loop())

    def _new_server(self) -> Server:
        """Simulations override this with one that needs no sockets."""
        options = self.options
        return Server(
            self,
            max_connections=options.max_connections,
            together=self._runs.take if options.users is None else None,  # every request must be checked
            reads=self._parts.group_commit,
            tls_detector=None if options.tls is None else TlsDetector(options.tls, self._clock),
        )

    def _new_guard(self, users: Path) -> Handler:
        store = self._parts.store
        return Guard(users, self._dispatch, lambda position: RecordView(store.read_at(position)).topic, self._clock)

    def _open_history(self) -> Recording:
        folder, name, now = self.options.history, f"broker-{self.options.name}", nanoseconds_of(self._clock)
        alive = last_time(folder, name, now())
        return Recording(open_history(folder, name, now, "broker"), alive)

    # recovery

    def _recover(self) -> None:
        parts = self._parts
        state = parts.state
        self._dropped = state.dropped_topics()
        parts.topic_keeper.load()
        parts.groups.update(
            (name, SubscriptionGroupConfig.decode(text.encode())) for name, text in state.groups().items()
        )
        parts.offsets.restore(restored_offset(row) for row in state.offsets())
        leases, floor = map(restored_lease, state.leases()), Epoch(state.epoch_floor())
        parts.locks.restore(leases, floor=floor, now=self._clock.now())
        parts.producers.restore(
            map(restored_producer, state.producers()), now=self._clock.now(), wall=self._clock.wall()
        )
        parts.delays.restore(restored_cursors(state))
        report = parts.store.recover(self._replay, self._stamps_to_save)
        if not report.clean:
            parts.offsets.cut_offsets(self._end_of)
        parts.offsets.cut_finished(self._end_of)
        parts.parking.recover(self._end_of)
        self._delays.recover()
        parts.store.retention.begin(now=self._clock.now(), wall=self._clock.wall())
        if self._recording.on:
            held = parts.locks.snapshot(now=self._clock.now())
            self._recording.restarted(held, map(restored_offset, state.offsets()), clean=report.clean)
        if not report.clean and (report.scanned or report.torn_bytes or report.damage):
            log.warning(
                "recovered after an unclean stop: %s records scanned, %s torn bytes cut, %s damaged places",
                report.scanned, report.torn_bytes, len(report.damage),
            )  # fmt: skip
        for place in report.damage:
            log.error("the log is damaged at %s (%s bytes): %s", place.position, place.length, place.reason)

    def _end_of(self, topic: str, queue_id: int) -> int:
        return self._parts.store.bounds(topic, queue_id)[1]

    def _stamps_to_save(self) -> list[ProducerRow]:
        return [producer_row(row) for row in self._parts.producers.dirty().rows]

    def _replay(self, record: RecordView) -> None:
        stamp = find_stamp(record.properties_text)
        if stamp is None:
            return
        topic, queue_id = _asked_queue(record)
        if record.position >= self._dropped.get(topic, 0):
            self._parts.producers.replay(
                topic,
                queue_id,
                Stamp(*stamp),
                1,
                QueueOffset(record.queue_offset),
                stored_at=Millis(record.store_timestamp),
            )

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._housekeeping.tick(self._server)


def _nothing() -> None:
    return None


def _asked_queue(record: RecordView) -> tuple[str, int]:
    """The queue in which a record's stamp counts: the one it was sent to, even while it is delayed."""
    if record.topic != SCHEDULE_TOPIC:
        return record.topic, record.queue_id
    properties = record.properties
    return properties.get(PropertyName.REAL_TOPIC, ""), int(properties.get(PropertyName.REAL_QUEUE, "0"))


def _store_options(options: BrokerOptions) -> StoreOptions:
    return StoreOptions(
        segment_bytes=options.segment_bytes,
        durable=options.durable,
        relaxed_sync_ms=to_millis(options.relaxed_sync),
        retention_ms=max(1, to_millis(options.retention)),
        retention_bytes=options.retention_bytes or None,
        recover=options.recover,
    )
