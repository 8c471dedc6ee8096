"""The start of a broker: restores what it knew from disk, and reads what was logged after the last checkpoint."""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lanemq.broker.config import BrokerOptions
from lanemq.broker.recording import Recording
from lanemq.broker.storage.checkpoints import (
    restored_cursors,
    restored_lease,
    restored_producer,
    unsaved_stamps,
)
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.progress_keeper import ProgressKeeper, StoredQueues
from lanemq.broker.storage.saved_filters import restored_filters
from lanemq.broker.storage.topic_keeper import restored_topic
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.members.filter_rows import FilterRow
from lanemq.core.brokering.members.membership import Membership
from lanemq.core.brokering.progress_store import EndedLane, QueueLog, SavedLane, SavedOffset
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import LaneName
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.log.recovery import RecoveryReport
from lanemq.log.retention import clock_problem
from lanemq.log.state.group_rows import GroupRows
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.log.store import Store
from lanemq.model.keys import shown_key
from lanemq.model.names import reply_topic
from lanemq.model.stamp import Stamp
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.wire.properties import find_stamp
from lanemq.wire.record import RecordView
from lanemq.wire.route_bodies import SubscriptionGroupConfig
from lanemq.wire.stamp_runs import asked_queue, stamp_runs

log = logging.getLogger(__name__)


class Tables(NamedTuple):
    """What a broker knows of topics, groups and producers after its start."""

    topics: TopicTable
    groups: dict[str, SubscriptionGroupConfig]
    members: Membership
    locks: LockTable
    progress: ProgressKeeper
    producers: ProducerTable
    delays: DelayQueueCursors


def recovered(
    options: BrokerOptions, clock: Clock, store: Store, row_thread: DiskThread, recording: Recording
) -> Tables:
    """The tables of a broker, restored from disk. Makes the store usable."""
    state = store.state
    topics = TopicTable(
        auto_create=options.auto_create_topics,
        template_queues=options.default_queues,
        own_names=(options.name, options.cluster, reply_topic(options.cluster)),
    )
    topics.restore(map(restored_topic, state.topics().values()))
    ProgressRows(state).name_broker(options.name)
    groups = recovered_groups(state, clock, row_thread, StoredQueues(store))
    delays = DelayQueueCursors()
    delays.restore(restored_cursors(state))
    producers = ProducerTable()
    producers.restore(map(restored_producer, state.producers()), now=clock.now())
    report = _replay_log(store, producers)

    table = groups.progress.table
    _cut_progress(store, table, ProgressRows(state), clean=report.clean)
    recording.lanes_restored(lane for each in table.parked() for lane in each.lanes.values())
    store.retention.begin(now=clock.now(), ages=state.ages())
    if (problem := clock_problem(state.last_run(), clock.wall())) is not None:
        log.warning("%s", problem)
    if recording.on:
        recording.filters_restored((row.group, row.topic) for row in groups.filters)
        held = groups.locks.snapshot(now=clock.now())
        if not report.clean:
            recording.crashed((topic.name, queue_id) for topic in topics.topics() for queue_id in range(topic.queues))
        recording.restarted(held, groups.offsets, clean=report.clean)
    _log_report(report)
    return Tables(topics, groups.settings, groups.members, groups.locks, groups.progress, producers, delays)


class GroupTables(NamedTuple):
    """What is known of groups after a start, and the rows that it comes from."""

    settings: dict[str, SubscriptionGroupConfig]
    members: Membership
    locks: LockTable
    progress: ProgressKeeper
    offsets: Sequence[SavedOffset]
    filters: Sequence[FilterRow]


def recovered_groups(state: GroupRows, clock: Clock, row_thread: DiskThread, queue_log: QueueLog) -> GroupTables:
    """The tables of groups, restored from the state database of a broker or of a coordinator."""
    settings = {name: SubscriptionGroupConfig.decode(text.encode()) for name, text in state.groups().items()}
    rows = ProgressRows(state)
    offsets, table = rows.offsets(), ProgressTable(serial=clock.wall())
    table.restore(offsets, rows.lanes())
    locks = LockTable(first_serial=clock.wall())
    locks.restore(map(restored_lease, state.leases()), floor=Epoch(state.epoch_floor()), now=clock.now())
    members, filters = Membership(), restored_filters(state.filters())
    members.restore(filters, now=clock.now())
    progress = ProgressKeeper(table, rows, queue_log, row_thread, clock)
    return GroupTables(settings, members, locks, progress, offsets, filters)


def _cut_progress(store: Store, table: ProgressTable, rows: ProgressRows, *, clean: bool) -> None:
    """Cut the progress of all groups at the ends of their queues, which a power cut may have moved back."""
    for progress in tuple(table):
        group, (topic, _, queue_id) = progress.group, progress.queue
        for key, offsets in progress.cut(store.bounds(topic, queue_id)[1], clean=clean).items():
            log.error(
                "group %s: %d parked messages of key %s of %s/%s were lost with the end of the log, from offset %d on",
                group, len(offsets), shown_key(key), topic, queue_id, offsets[0],
            )  # fmt: skip
            ended, lane = EndedLane(LaneName(group, progress.queue, key)), progress.lanes.get(key)
            rows.save([ended] if lane is None else [ended, SavedLane.of(lane, lane.offsets.rows())], synced=True)


def _replay_log(store: Store, producers: ProducerTable) -> RecoveryReport:
    """Recover the log. Records that are newer than the checkpoint complete the table of producers."""
    dropped = store.state.dropped_topics()

    def replay(buffer: bytes, size: int) -> None:
        for run in stamp_runs(buffer, 0, size):
            if run.position >= dropped.get(run.topic, 0):
                offset, stored_at = QueueOffset(run.offset), Millis(run.stored_at)
                producers.replay(run.topic, run.queue_id, run.first, run.length, offset, stored_at=stored_at)

    return store.recover(replay, lambda: unsaved_stamps(producers), rebuild_later=True)


def undo_stamps(producers: ProducerTable, lost: Iterable[bytes]) -> None:
    """Forget the stamps of records that were staged and could not be stored."""
    for record in map(RecordView, lost):
        stamp = find_stamp(record.properties_text)
        if stamp is not None:
            producers.undo(*asked_queue(record), Stamp(*stamp))


def _log_report(report: RecoveryReport) -> None:
    if not report.clean and (report.scanned or report.torn_bytes or report.damage):
        log.warning(
            "recovered after an unclean stop: %s records scanned, %s torn bytes cut, %s damaged places",
            report.scanned, report.torn_bytes, len(report.damage),
        )  # fmt: skip
    if report.indexes_lost:
        log.warning(
            "indexes are missing or damaged: they are rebuilt from the log while the broker serves; pulls of messages "
            "that are not indexed yet wait"
        )
    for place in report.damage:
        log.error("the log is damaged at %s (%s bytes): %s", place.position, place.length, place.reason)
