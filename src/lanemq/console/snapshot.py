"""A snapshot: everything that the overview screens show, read from the brokers at one moment.

Pages are made from the newest snapshot, so a hundred open pages cost the brokers as much as one. A snapshot is not
consistent: its parts are read one after the other, within milliseconds.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.clusters import other_clusters
from lanemq.client.admin.coordinated import leader_note
from lanemq.client.admin.dead_letters import dead_letter_queues
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.admin.queue_progress import (
    NO_MESSAGE,
    QueueBacklog,
    QueuePosition,
    backlog_start,
    progress_at,
    store_times,
)
from lanemq.client.admin.retries import DelayedRetries, RetriesNow
from lanemq.client.admin.views import GroupDescription, GroupMember, TopicDescription
from lanemq.client.admin.watching import BrokerView, HeldLaneView, UnknownMember, WatchAdmin
from lanemq.clock import Clock
from lanemq.model.errors import LaneError, NotAllowed, TopicNotFound
from lanemq.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, to_millis

log = logging.getLogger(__name__)

MAX_KNOWN_AGES = 20_000
"""Store times of messages that are remembered, so that a queue that does not move is not read again."""


@dataclass(frozen=True, slots=True)
class GroupNow:
    """A group at the time of a snapshot."""

    name: str
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]
    queues: tuple[QueueBacklog, ...]
    note: str = ""
    broadcasting: bool = False
    """Each member keeps its own offsets, so there is no lag."""
    coordinator: str = ""
    """Who keeps its leases, offsets and lanes beside an Apache cluster; empty if the brokers do."""
    reported: bool = False
    """A program that is no member, such as a Spark query, reports how far it has read."""

    @property
    def lag(self) -> int:
        """Messages that the group has not finished."""
        return sum(each.at.lag for each in self.queues)

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest message that the group has not finished; 0 if there is none, None if it is unknown."""
        return oldest_age(self.queues)

    @property
    def backlog_seconds(self) -> float | None:
        """How late the group is without keys that are held; as `lag_seconds`."""
        return oldest_age(
            each if each.backlog_ms is None else replace(each, lag_ms=each.backlog_ms) for each in self.queues
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """Without retry topics that were never used."""
        shown = {each.at.queue.topic for each in self.queues}
        return tuple(sorted(shown | {each for each in self.subscriptions if not each.startswith(RETRY_PREFIX)}))


def oldest_age(queues: Iterable[QueueBacklog]) -> float | None:
    """Age in seconds of the oldest unfinished message; 0 if there is none, None while a broker does not know it."""
    ages = [(each.age_unknown, each.lag_ms or 0) for each in queues]
    return None if any(unknown for unknown, _ in ages) else max((age for _, age in ages), default=0) / 1000


@dataclass(frozen=True, slots=True)
class GroupDeadLetters:
    """The dead letters of a group, which are messages of a topic of their own."""

    group: str
    topic: str
    messages: int
    """Without discarded ones."""
    newest: datetime | None


NO_RETRIES = RetriesNow()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that was read; `error` says why it is empty or incomplete."""

    taken: Millis
    """Wall time."""
    took: float = 0.0
    """Seconds of reading."""
    brokers: tuple[BrokerView, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    groups: tuple[GroupNow, ...] = ()
    parked: tuple[ParkedLaneView, ...] = ()
    """Lanes at the brokers: parked, being redriven, or held there because they are long."""
    held: tuple[HeldLaneView, ...] = ()
    """Lanes that members hold in memory."""
    unknown: tuple[UnknownMember, ...] = ()
    """Members that may hold lanes which are not among `held`."""
    dead: tuple[GroupDeadLetters, ...] = ()
    other_clusters: str = ""
    """Which of the console's servers are not shown, because they belong to another cluster."""
    retries: RetriesNow = NO_RETRIES
    """Messages of concurrent groups that brokers delay until their next attempt."""
    error: str = ""
    refused: bool = False
    """Whether the brokers answer, but do not let the console read: its credentials are wrong, or may not."""

    def topic(self, name: str) -> TopicDescription | None:
        return next((each for each in self.topics if each.topic == name), None)

    def group(self, name: str) -> GroupNow | None:
        return next((each for each in self.groups if each.name == name), None)


@dataclass(slots=True)
class KnownAges:
    """Store times of the messages at which groups stand. A stored message never changes, so each is read once."""

    times: dict[QueuePosition, int] = field(default_factory=dict)

    def of(self, behind: Mapping[QueuePosition, int], server: str) -> dict[QueuePosition, int | None]:
        """The store times of all positions, as `store_times` has them. Reads those that are not known."""
        if len(self.times) > MAX_KNOWN_AGES:
            self.times.clear()
        read = store_times({each: end for each, end in behind.items() if each not in self.times}, server)
        self.times |= {each: stored for each, stored in read.items() if stored is not None and stored != NO_MESSAGE}
        return {each: self.times.get(each, read.get(each)) for each in behind}


class SnapshotReader:
    """Takes snapshots, one at a time. Blocking; not thread-safe."""

    def __init__(self, server: str, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._ages = KnownAges()
        self._retries = DelayedRetries(server)
        self._admin = WatchAdmin(server)
        self._parked = ParkedAdmin(server)

    def close(self) -> None:
        self._admin.close()
        self._parked.close()

    def take(self) -> Snapshot:
        """A snapshot; if the brokers cannot be reached, an empty one that says so."""
        begin, wall = self._clock.now(), self._clock.wall()
        try:
            found = self._take(wall)
        except LaneError as error:
            found = Snapshot(wall, error=str(error), refused=isinstance(error, NotAllowed))
        except Exception as error:
            # A defect must not end the thread: every page would keep its first answer until the console is restarted.
            log.exception("a reading of the brokers failed, and is tried again")
            found = Snapshot(
                wall, error=f"the console cannot read what the brokers answer: {error!r}; its log has more"
            )
        return replace(found, took=(self._clock.now() - begin) / 1000)

    def _take(self, wall: Millis) -> Snapshot:
        admin = self._admin
        brokers = admin.brokers()
        names = admin.topics(internal=True)
        shown = set(admin.topics())
        topics = tuple(_described(admin, (each for each in names if each in shown or _is_dead_letters(each))))
        groups = self._groups(wall)
        held = admin.all_held_lanes((group.name, each.at) for group in groups for each in group.queues)
        return Snapshot(
            wall,
            brokers=brokers,
            topics=tuple(each for each in topics if not _is_dead_letters(each.topic)),
            groups=groups,
            parked=tuple(self._parked.lanes()),
            held=held.lanes,
            unknown=held.unknown,
            other_clusters=other_clusters(self._server),
            retries=self._retries.read((each.name, each.info) for each in brokers),
            dead=tuple(_dead_letters(admin, each) for each in topics if _is_dead_letters(each.topic)),
        )

    def _groups(self, wall: Millis) -> tuple[GroupNow, ...]:
        groups, leases = self._admin.describe_groups()
        left = {(lease.group, lease.queue): to_millis(lease.remaining) for lease in leases}
        late = [at for each in groups for at in each.queues if at.lag > 0]
        behind = {(at.queue, int(at.offset)): int(at.end) for at in late}
        behind |= {backlog_start(at): int(at.end) for at in late if at.finished}
        stored = self._ages.of(behind, self._server)
        return tuple(self._group(each, left, stored, wall) for each in groups)

    def _group(
        self,
        group: GroupDescription,
        left: Mapping[tuple[str, MessageQueue], Millis],
        stored: Mapping[QueuePosition, int | None],
        wall: Millis,
    ) -> GroupNow:
        queues = (progress_at(at, stored, left.get((group.group, at.queue)), wall) for at in group.queues)
        shown = tuple(each for each in queues if each.worth_showing)
        return GroupNow(
            name=group.group,
            members=group.members,
            subscriptions=group.subscriptions,
            queues=shown,
            note=group.note,
            broadcasting=group.broadcasting,
            coordinator=f"{group.coordinator}{leader_note(group.leader)}",
            reported=group.reported,
        )


def _is_dead_letters(topic: str) -> bool:
    return topic.startswith(DEAD_LETTER_PREFIX)


def _described(admin: Admin, names: Iterable[str]) -> Iterator[TopicDescription]:
    """Without topics that were deleted in between, or that only a name server still has."""
    for name in names:
        with contextlib.suppress(TopicNotFound):
            yield admin.describe_topic(name)


def _dead_letters(admin: Admin, topic: TopicDescription) -> GroupDeadLetters:
    newest = [each.last_stored_at for each in topic.queues if each.last_stored_at is not None and each.messages]
    return GroupDeadLetters(
        topic.topic.removeprefix(DEAD_LETTER_PREFIX),
        topic.topic,
        sum(each.count for each in dead_letter_queues(admin, topic)),
        max(newest, default=None),
    )
