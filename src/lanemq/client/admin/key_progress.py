"""What a group does with one key: its messages, its progress, and one sentence about what the key waits for.

`key_facts` asks brokers and the queue's owner; `KeyProgress.waits_for` is the sentence. Reasons are checked in the
order in which they must be removed: a parked lane stays parked whichever member owns the queue, and without an owner
there is no retry. Some facts only the owner knows; if it does not answer, the sentence says so and contains what is
known without it.

An Apache broker does not index keys, and a search reads only a part of the queue. What the group has not finished
there is asked of the owner, which knows the keys of all messages that it has fetched. What nobody knows is "not known",
never "nothing".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.dead_letters import GroupDeadLetter, dead_letters_of
from lanemq.client.admin.parked import ParkedAdmin, ParkedLaneView
from lanemq.client.admin.queue_progress import QueueBacklog, queue_progress
from lanemq.client.admin.retries import GroupRetry, Progress, RetrySearch, retry_progress
from lanemq.client.admin.topic_reader import MAX_FOUND, TopicReader
from lanemq.client.admin.views import FIRST_OFFSET, GroupDescription, GroupQueue, LaneStateView, NoAnswer
from lanemq.client.message import Message
from lanemq.clock import SystemClock, time_text
from lanemq.core.consuming.runs import Order
from lanemq.core.consuming.views import LaneActivity
from lanemq.core.finished_ranges import NOTHING_FINISHED
from lanemq.core.lane_status import LaneStatus
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.names import dead_letter_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.wording import duration_text, plural

EACH_MEMBER = "the group is broadcasting, and each member keeps its own offsets"
MAX_SEARCHED = 2_000
"""Messages of the key's queue that are read where the broker does not index keys, the newest ones. Fewer find less of a
key that is seldom used; more make each answer slower, and read the queue for it."""
NEVER = 2**63
"""An offset that no message has."""
NOT_KNOWN = "not known: "
"""Begins a reason that could not be found out."""
REPORTING_PROGRAM = (
    "what only the program knows that reports the group's offsets; if that is a pipeline, lanemq pipeline parked list "
    "--held CHECKPOINT lists the keys that it holds"
)
OWN_TURN = "its own turn: it is running, is about to be retried, or is held after a failure"


@dataclass(frozen=True, slots=True)
class KeyProgress:
    """The progress of one group with one key."""

    group: str
    members: int
    progress: QueueBacklog
    done: int
    pending: tuple[int, ...]
    """Offsets of the key's messages that are neither finished nor parked."""
    parked: ParkedLaneView | None = None
    """The key's lane, if it is parked; its messages are neither done nor pending."""
    lane: LaneStateView | NoAnswer | None = None
    """The owner's view of the lane; None if there is no owner, or nothing pending."""
    dead: Mapping[int, GroupDeadLetter] = field(default_factory=dict)
    """Dead letters by the offset of the message that was given up; such messages are not done."""
    retries: Mapping[int, GroupRetry] = field(default_factory=dict)
    """Retries of a concurrent group by the offset of the message that failed; such messages are not done."""
    retries_unknown: str = ""
    """Why it is not known whether messages wait for a retry; empty if it is."""
    retry_progress: Progress = field(default_factory=dict)
    """The group's progress in its retry topic."""
    broadcasting: bool = False
    """Each member keeps its own offsets, so that the other figures are empty."""
    owners_unknown: str = ""
    """Why the queue may have an owner although none is known; empty if it has none."""
    unsearched: range = range(0)
    """Offsets that the group has not finished, and of which nobody knows whether they are of this key."""
    reported: bool = False
    """A program that is no member, such as a pipeline, reports the offsets. It may hold keys that the broker takes for
    finished."""
    all_searched: bool = True
    """False if other messages of the key may be in the queue; those outside `unsearched` are finished."""

    @property
    def sentence(self) -> str:
        """`waits_for` as the end of a sentence about the group."""
        blocker = self.waits_for
        if blocker.startswith(NOT_KNOWN):
            return f"may wait for something that is not known: {blocker.removeprefix(NOT_KNOWN)}"
        return f"waits for {blocker}"

    @property
    def waits_for(self) -> str:
        """What the key's first pending message waits for, and what those in retry do."""
        if self.broadcasting:
            return f"what only its members know: {EACH_MEMBER}"
        first = self._first_waits_for
        if not self.retries:
            return first
        again = _in_retry(self.retries, self.members)
        return f"{first}; and {again}" if self.pending or self.parked is not None else again

    @property
    def _first_waits_for(self) -> str:
        if self.parked is not None:
            return _parked(self.parked)
        if self.reported and not self.members:
            return self._not_read_by_program if self.pending else REPORTING_PROGRAM
        if not self.pending and self.unsearched:
            return NOT_KNOWN + self._not_searched
        if not self.pending:
            return _nothing(self.done, len(self.dead), self.retries_unknown, all_searched=self.all_searched)
        if not self.members:
            return "a member: no member of the group is online; start a consumer"
        known = _in_the_queue(self.pending[0] - self.progress.at.offset)
        if self.progress.at.owner is None and self.owners_unknown:
            return f"{known}. Who owns the queue is not known: {self.owners_unknown}"
        if self.progress.at.owner is None:
            return "an owner: no member owns the queue (the group is not ordered, or the queue is being handed over)"
        if isinstance(self.lane, LaneStateView):
            return _owner_says(self.lane, self.pending)
        return known if self.lane is None else f"{known}. More is unknown: {self.lane.why}{self._lease()}"

    @property
    def _not_read_by_program(self) -> str:
        at = self.progress.at.offset
        return (
            f"the program that reports the group's offsets, such as a pipeline: it has read the queue up to offset {at}"
        )

    @property
    def _not_searched(self) -> str:
        first, last = self.unsearched[0], self.unsearched[-1]
        which = f"offset {first} of the queue" if first == last else f"offsets {first} to {last} of the queue"
        return f"{which} may be of this key, and the group has not finished them: {self._why_not_searched}"

    @property
    def _why_not_searched(self) -> str:
        here = "they were not searched, and "
        if not self.members:
            return f"{here}no member of the group is online"
        if isinstance(self.lane, NoAnswer):
            return here + self.lane.why
        if isinstance(self.lane, LaneStateView):
            at = f"the queue's owner is at offset {self.lane.committable} and processes it in offset order"
            fetched = f"the queue's owner has fetched messages only up to offset {self.lane.next_offset}"
            return here + (at if Order(self.lane.order) is Order.QUEUE else fetched)
        return here + (self.owners_unknown or "no member owns the queue, who would know")

    def _lease(self) -> str:
        left = self.progress.lease_ms
        return "" if left is None else f". Its lease ends in {duration_text(left)} unless it is renewed"


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What is known about a key, from the log, offsets, locks, parked lanes and the queue's owner."""

    key: str
    queue: MessageQueue
    """The queue of the key's newest message."""
    hashed: MessageQueue
    """The queue that the key's hash selects."""
    messages: list[Message]
    groups: list[KeyProgress]
    not_searched: str = ""
    """Where older messages of the key may be that were not searched, as a sentence; empty if there are none."""


def key_facts(key: str, topic: str, group: str | None, server: str) -> KeyFacts:
    """Collects the facts for one group, or for every group that reads the topic. A group may be missing: it has no
    offset in the key's queue."""
    with TopicReader(server, topic) as reader:
        hashed = pick_queue(key, reader.route.publish)
        messages, searched = _search(reader, key, hashed)
    queue = messages[-1].queue if messages else hashed
    with Admin(server) as admin:
        start = searched.start if queue == hashed else searched.start_elsewhere
        groups = _reading_groups(admin, group, server, queue, key, messages, start)
        groups = _with_parked(groups, key, queue, server, messages)
        groups = _with_dead_letters(admin, _with_retries(admin, groups, messages), messages)
    return KeyFacts(key, queue, hashed, messages, groups, searched.note)


class _Searched(NamedTuple):
    """Which messages were searched for a key, by queue: those from an offset on."""

    start: int = 0
    """In the queue that the key's hash selects; 0 if all of them were."""
    start_elsewhere: int = 0
    """In the other queues."""
    note: str = ""
    """What was not searched, as a sentence; empty if everything was."""


def _search(reader: TopicReader, key: str, hashed: MessageQueue) -> tuple[list[Message], _Searched]:
    """The newest messages of a key, and what was searched for them.

    An Apache broker does not index keys, so the newest messages of the key's queue are read there. Search keys are
    indexed, and find those that a producer with another hash has put into another queue.
    """
    indexed = reader.find(key)
    if reader.route.is_lanemq(hashed.broker):
        return indexed, _Searched()
    first, end = reader.bounds(hashed)
    start = max(first, end - MAX_SEARCHED)
    read = [message for message in reader.read(hashed, start, end) if message.key == key]
    known = {(message.queue, message.queue_offset) for message in read}
    messages = [*(each for each in indexed if (each.queue, each.queue_offset) not in known), *read]
    messages.sort(key=lambda each: each.queue_offset)
    if start == first:
        return messages[-MAX_FOUND:], _Searched(0, NEVER)
    note = (
        f"{hashed.broker} does not index keys: of the {end - first:,} messages of queue {hashed.queue_id} only the "
        f"newest {MAX_SEARCHED:,} were searched."
    )
    return messages[-MAX_FOUND:], _Searched(start, NEVER, note)


def _reading_groups(
    admin: Admin,
    group: str | None,
    server: str,
    queue: MessageQueue,
    key: str | None,
    messages: list[Message],
    searched_from: int = 0,
) -> list[KeyProgress]:
    """The progress of one group, or of every group that reads the queue."""
    known = admin.known_groups()
    names = [group] if group else sorted(known)
    progress = (_key_progress(admin, name, server, queue, key, messages, searched_from) for name in names)
    return [replace(each, reported=known.get(each.group, False)) for each in progress if each is not None]


def _key_progress(
    admin: Admin,
    name: str,
    server: str,
    queue: MessageQueue,
    key: str | None,
    messages: list[Message],
    searched_from: int = 0,
) -> KeyProgress | None:
    description = admin.group_progress(name)
    if description.broadcasting:
        nothing = QueueBacklog(GroupQueue(queue, FIRST_OFFSET, FIRST_OFFSET), None, None)
        reads = queue.topic in description.subscriptions
        return KeyProgress(name, len(description.members), nothing, 0, (), broadcasting=True) if reads else None
    if not any(each.queue == queue for each in description.queues):
        return None
    description = admin.with_owners(description)
    here = replace(description, queues=tuple(each for each in description.queues if each.queue == queue))
    leases = {lease.queue: lease for lease in admin.locks(name)}
    for progress in queue_progress(here, leases, server, SystemClock().wall()):
        offsets = [message.queue_offset for message in messages if message.queue == queue]
        at, finished = progress.at.offset, NOTHING_FINISHED
        if progress.at.finished and any(offset >= at for offset in offsets):
            committed, finished = admin.progress(name, queue)
            at = committed if committed is not None else at
        pending = tuple(offset for offset in offsets if offset >= at and offset not in finished)
        done = len(offsets) - len(pending)
        known = KeyProgress(
            name,
            len(description.members),
            progress,
            done,
            pending,
            owners_unknown=description.owners_unknown,
            unsearched=range(at, min(searched_from, progress.at.end)),
            all_searched=not searched_from,
        )
        known = replace(known, retry_progress=retry_progress(admin, description) if known.done else {})
        if not pending and not known.unsearched:
            return known
        return _with_lane(known, _ask_owner(description, known, server, key))
    return None


def _with_lane(known: KeyProgress, lane: LaneStateView | NoAnswer | None) -> KeyProgress:
    """The progress with the owner's answer. It tells of messages that the search did not find, unless it concerns the
    whole queue."""
    if not isinstance(lane, LaneStateView) or Order(lane.order) is Order.QUEUE:
        return replace(known, lane=lane)
    unsearched = range(max(known.unsearched.start, lane.next_offset), known.unsearched.stop)
    head = () if lane.head is None or lane.head not in known.unsearched else (lane.head,)
    return replace(known, lane=lane, pending=(*head, *known.pending), unsearched=unsearched)


def message_progress(message: Message, server: str) -> list[KeyProgress]:
    """How far every group is with one message. As `key_facts`, but only this message is counted."""
    queue, key = message.queue, message.key
    with Admin(server) as admin:
        groups = _reading_groups(admin, None, server, queue, key, [message])
        groups = _with_parked(groups, key, queue, server, [message])
        return _with_dead_letters(admin, _with_retries(admin, groups, [message]), [message])


def _ask_owner(
    description: GroupDescription, known: KeyProgress, server: str, key: str | None
) -> LaneStateView | NoAnswer | None:
    owner, queue = known.progress.at.owner, known.progress.at.queue
    if owner is None:
        return None
    if owner not in {member.client_id for member in description.members}:
        return NoAnswer(f"its owner {owner} is no longer connected", silent=True)
    with Admin(server) as admin:
        return admin.lane_state(description.group, owner, queue, key)


def _with_parked(
    groups: list[KeyProgress], key: str | None, queue: MessageQueue, server: str, messages: list[Message]
) -> list[KeyProgress]:
    """The groups with their parked lanes. What is before a lane is done, and what is behind it is pending."""
    with ParkedAdmin(server) as admin:
        lanes = {lane.group: lane for lane in admin.lanes(topic=queue.topic, key=key) if lane.queue == queue}
    offsets = [message.queue_offset for message in messages if message.queue == queue]
    completed = []
    for each in groups:
        if (lane := lanes.get(each.group)) is not None:
            done = sum(offset < lane.first for offset in offsets)
            pending = tuple(offset for offset in each.pending if offset > lane.last)
            each = replace(each, parked=lane, done=done, pending=pending)
        completed.append(each)
    return completed


def _with_retries(admin: Admin, groups: list[KeyProgress], messages: list[Message]) -> list[KeyProgress]:
    """The groups with the messages that they will get again."""
    if not any(each.retry_progress for each in groups):
        return groups
    queue = groups[0].progress.at.queue
    search = RetrySearch(admin, [one for one in messages if one.queue == queue])
    completed = []
    for each in groups:
        if each.retry_progress:
            copies, unknown = search.of(each.group, each.retry_progress)
            retries = {offset: retry for offset, retry in copies.items() if offset not in each.pending}
            if each.progress.at.owner is not None:
                unknown = ""  # an ordered group holds failed messages itself
            each = replace(each, retries=retries, retries_unknown=unknown, done=each.done - len(retries))
        completed.append(each)
    return completed


def _with_dead_letters(admin: Admin, groups: list[KeyProgress], messages: list[Message]) -> list[KeyProgress]:
    """The groups with the messages that they gave up. A message that is to run again, after a reset, is pending."""
    topics = set(admin.topics(internal=True)) if messages else set()
    completed = []
    for each in groups:
        if dead_letter_topic(each.group) in topics and not each.broadcasting:
            queue = each.progress.at.queue
            waiting = {
                *each.pending,
                *each.retries,
                *(_offsets(each.parked, queue, messages) if each.parked is not None else ()),
            }
            finished = [one for one in messages if one.queue == queue and one.queue_offset not in waiting]
            dead = dead_letters_of(admin, each.group, finished)
            each = replace(each, dead=dead, done=each.done - len(dead))
        completed.append(each)
    return completed


def _offsets(lane: ParkedLaneView, queue: MessageQueue, messages: list[Message]) -> list[int]:
    """Which of the key's messages are in a parked lane."""
    offsets = (message.queue_offset for message in messages if message.queue == queue)
    return [offset for offset in offsets if lane.first <= offset <= lane.last]


# the sentence


def _in_retry(retries: Mapping[int, GroupRetry], members: int) -> str:
    """When the failed messages are tried again."""
    offset, first = min(
        retries.items(), key=lambda each: (each[1].due is not None, each[1].due or each[1].since, each[0])
    )
    others = f"; {plural(len(retries) - 1, 'other message')} in retry" if len(retries) > 1 else ""
    failed = f"offset {offset} failed {plural(first.attempts, 'time')}"
    if first.due is not None:
        return f"its next attempt, at about {time_text(first.due)}: {failed} and the broker delays it{others}"
    taken = "until a member takes it" if members else "and no member of the group is online: start a consumer"
    return f"its next attempt: {failed} and is in the group's retry topic, {taken}{others}"


def _nothing(done: int, dead: int, unknown: str = "", *, all_searched: bool = True) -> str:
    if unknown and done:
        return f"nothing, unless a message waits for a retry, which is not known: {unknown}"
    if not dead and not done:
        return f"nothing: the key has no {'messages' if all_searched else 'unfinished message'}"
    if not dead:
        return "nothing: all messages are finished"
    given_up = f"{plural(dead, 'message')} {'is' if dead == 1 else 'are'} given up as dead letter{'s' * (dead > 1)}"
    return f"nothing: {given_up}, all others are finished" if done else f"nothing: {given_up}"


def _in_the_queue(ahead: int) -> str:
    if ahead <= 0:
        return OWN_TURN
    return (
        f"its own turn, or at most {plural(ahead, 'message')} ahead of it in the queue: with queue order all of them "
        f"run first; with key order only those of the same key do, and the others delay only the commit"
    )


def _parked(lane: ParkedLaneView) -> str:
    since = time_text(lane.parked_since)
    if lane.status is LaneStatus.REDRIVING:
        return f"its redrive: {plural(lane.messages, 'message')} from offset {lane.first} on run before newer messages"
    reason = lane.reason or "no reason given"
    if lane.status is LaneStatus.HELD:
        return (
            f"its next attempt, which its owner makes by itself: offset {lane.first} failed "
            f"{plural(lane.attempts, 'time')}, last at {since}: {reason}; {plural(lane.messages, 'message')} from "
            f"there on wait at the broker"
        )
    where = (
        f"after {plural(lane.attempts, 'attempt')} at offset {lane.first}: {reason}"
        if lane.attempts
        else f"at {reason}"
    )
    wait = "message waits" if lane.messages == 1 else "messages wait"
    return f"an operator: parked since {since} {where}; {lane.messages} {wait} from offset {lane.first}"


def _owner_says(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    state = LaneActivity(lane.state)
    if state is LaneActivity.EMPTY:
        return _not_fetched(lane, pending)
    return _blocked_by(lane, pending) + _STATES[state](lane)


def _not_fetched(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    if pending[-1] < lane.next_offset:
        return (
            f"nothing: all messages are finished, and only the commit waits for offset {lane.committable} of the queue"
        )
    return (
        f"its fetch: the owner has fetched up to offset {lane.next_offset}; the first unfinished is {lane.committable}"
    )


def _blocked_by(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    """With queue order, the message that blocks the queue may belong to another key."""
    ahead = [offset for offset in pending if offset >= lane.committable]
    if Order(lane.order) is not Order.QUEUE or not ahead or lane.head is None or ahead[0] <= lane.head:
        return ""
    return f"offset {lane.head} of the queue, {ahead[0] - lane.head} before its own, which waits for "


def _running(lane: LaneStateView) -> str:
    time = _span(lane.running_for)
    where = f" at {lane.client}" if lane.client else ""
    return f"its handler{where}: running for {time} from offset {lane.head} on{_failures(lane)}"


def _held(lane: LaneStateView) -> str:
    return f"its next attempt, in {_span(lane.retry_in)}: offset {lane.head}{_failures(lane)}"


def _queue_held(lane: LaneStateView) -> str:
    left = _span(lane.retry_in)
    return f"its queue, which is held for another {left}: offset {lane.head}{_failures(lane)}"


def _parked_here(lane: LaneStateView) -> str:
    return (
        f"an operator: parked in its owner's memory at offset {lane.head}{_failures(lane)}; App.resume there lets it "
        f"run again, and so does a restart of that member"
    )


def _unleased(lane: LaneStateView) -> str:
    return f"its owner's lease to be renewed: offset {lane.head} is next{_failures(lane)}"


def _leaving(lane: LaneStateView) -> str:
    return f"the queue's next owner: it is being handed over, offset {lane.head} is next{_failures(lane)}"


def _ready(lane: LaneStateView) -> str:
    return f"a free worker: {plural(lane.waiting, 'message')} from offset {lane.head} on are ready{_failures(lane)}"


_STATES = {
    LaneActivity.RUNNING: _running,
    LaneActivity.HELD: _held,
    LaneActivity.QUEUE_HELD: _queue_held,
    LaneActivity.PARKED: _parked_here,
    LaneActivity.UNLEASED: _unleased,
    LaneActivity.LEAVING: _leaving,
    LaneActivity.READY: _ready,
}


def _failures(lane: LaneStateView) -> str:
    """The failures so far, if there were any."""
    if lane.blocked_for is None:
        return ""
    times = f" failed {plural(lane.attempts, 'time')}" if lane.attempts else " failed"
    return f",{times}, blocked for {_span(lane.blocked_for)}: {lane.reason or 'no reason given'}"


def _span(seconds: float | None) -> str | None:
    return duration_text((seconds or 0) * 1000)
