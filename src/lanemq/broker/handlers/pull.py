"""Reading messages: pulls, and long polls that wait for an arrival.

A pull that finds nothing may be held. It is answered exactly once: when a message arrives that it wants, or at its
deadline. A pull that carries a lease's epoch is refused once the queue has another owner, so that a member that lost
its queue without knowing receives nothing more.

The owner of a queue may allow an answer in parts (`laneParts`): while messages arrive one by one, each leaves in a part
of its own, and client and broker are spared a request for each. The lease is checked again for every part.
"""

import logging
from collections.abc import Container
from dataclasses import dataclass

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer_code, answer_error
from lanemq.broker.group_rules import ownership
from lanemq.core.brokering.lock_table import Stale, Unowned
from lanemq.core.brokering.members.tag_filters import Tags, contains, shown
from lanemq.core.brokering.queue_progress import OFFSET_BYTES, FilteredRead, QueueProgress, ResetState, kind_of
from lanemq.core.brokering.quotas import Quota
from lanemq.core.brokering.topic_table import Permission
from lanemq.log.reading import ReadResult, ReadStatus
from lanemq.model.errors import BrokerBusy, BrokerRefused, LaneError, NotAllowed, StillRebuilding, TopicNotFound
from lanemq.model.java_hash import tag_code
from lanemq.model.names import check_group
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.rate_limited_log import FaultLog, FewLines
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, PullResponse
from lanemq.wire.record import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND

log = logging.getLogger(__name__)

STOCK_PULL_BYTES = 262_144
"""Largest answer to a stock client (RocketMQ: MessageStoreConfig.maxTransferBytesOnMessageInMemory)."""

MAX_PULL_MESSAGES = 4_096
"""Messages in one answer; RocketMQ clients ask for 32."""
MAX_PULL_BYTES = 4 * 1024 * 1024
"""Bytes in one answer; the first message is always in it."""
MAX_HOLD_MS = 25_000
"""Longest hold of a pull. RocketMQ's clients wait 30 s for the answer."""

REBUILD_HOLD_MS = 2_000
"""How long a pull that does not want to be held waits for a lost index entry. Clients wait 3 s for most answers."""
REBUILD_LOOK_MS = 100
"""Time between two looks for an index entry that is being rebuilt."""

PART_AFTER_MS = 1
"""A held pull is answered in parts only if no message came for so long. Messages that come faster share the answer to
the next pull, which costs both sides less than a part for each."""

MAX_TAGS = 1_000
MAX_EXPRESSION_CHARS = 32_767
"""Limits of the expression in a pull: hashing more takes longer than one request may hold the event loop."""

TAGS_OF_ONE, CHARS_OF_ONE = 20, 2_000
"""A pull with more tags or longer fields takes as much memory as several, and counts as several while it is held."""

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCH: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.EMPTY: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.AT_END: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.EMPTY_ILLEGAL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.BEYOND_END: ResponseCode.PULL_OFFSET_MOVED,
}


_NEVER = Millis(0)


@dataclass(slots=True, eq=False)
class _Pull:
    """A pull request with what is needed to run it again."""

    handler: "PullHandler"
    peer: Peer
    request: Command
    header: PullHeader
    tags: frozenset[int] | None
    filter: Tags | None
    """The tags themselves, if it is the pull of a LaneMQ client that does not want every message."""
    offset: int
    """Where the next part of the answer begins."""
    messages: int
    bytes: int
    """What the answer may still have."""
    in_parts: bool
    """Whether its answer may come in parts."""
    held_at: Millis = _NEVER
    deadline: Millis = _NEVER
    """Until when it is held for messages."""
    rebuilt_by: Millis | None = None
    """Until when it waits for a lost index entry at most; None if it does not."""
    topic_deleted: bool = False
    """Whether its topic was deleted while it was held."""
    weight: int = 1
    """As how many held pulls it counts."""

    def wake(self) -> None:
        self.handler.answer_held(self)


class PullHandler:
    """Requests 11 and 361."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._faults, self._lines = FaultLog(log, context.clock), FewLines(log, context.clock)
        self._held: dict[_Pull, None] = {}
        self._by_peer: dict[int, dict[_Pull, None]] = {}

    def table(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    def expire(self, now: Millis) -> None:
        self._context.waking.expire(now)

    def group_moved(self, group: str, queues: Container[tuple[str, int]]) -> None:
        """Answer a group's held pulls immediately after a reset of these queues, not at their deadline."""
        self._context.waking.release([pull for pull in self._held if _is_of(pull.header, group, queues)])

    def topic_deleted(self, topic: str) -> None:
        """Answer the held pulls of a deleted topic: they must not continue in a new topic of that name."""
        gone = [pull for pull in self._held if pull.header.topic == topic]
        for pull in gone:
            pull.topic_deleted = True  # a new topic of that name may exist when it is answered
        self._context.waking.release(gone)

    def release_all(self) -> None:
        """Answer all held pulls before the broker stops."""
        held = tuple(self._held)
        self._context.polls.forget(held)
        for pull in held:
            pull.in_parts = False
            self.answer_held(pull)

    def disconnected(self, peer: Peer) -> None:
        gone = self._by_peer.pop(peer.number, {})
        for pull in gone:
            self._held.pop(pull, None)
        self._context.charges.give_back(Quota.HELD_PULLS, peer, sum(pull.weight for pull in gone))
        self._context.waking.forget(gone)

    def _pull(self, peer: Peer, request: Command) -> None:
        header = PullHeader.from_ext(request.ext)
        self._check_group(header.consumer_group)
        self._check_topic(header)
        if header.consumer_group not in self._context.charges.group_use or header.sys_flag & PULL_COMMIT_OFFSET:
            self._context.charges.use_groups(peer, request, (header.consumer_group,))
        max_bytes = STOCK_PULL_BYTES if header.lane_max_bytes is None else header.lane_max_bytes
        pull = _Pull(
            self,
            peer,
            request,
            header,
            self._wanted_tags(header),
            _filter_of(header),
            header.queue_offset,
            header.max_msg_nums,
            max_bytes,
            in_parts=bool(header.lane_parts and header.lane_epoch),
        )
        self._check_owner(pull)
        self._check_filter(pull)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            if self._progress(header).offset is None:
                self._context.charges.must_grow(Quota.OFFSETS, peer, request, header.consumer_group, OFFSET_BYTES)
            self._commit(pull)
        reset_to = self._reset_to(pull)
        if reset_to is not None:
            self._answer_reset(pull, reset_to)
            return
        try:
            result = self._read(pull)
        except StillRebuilding as error:
            self._wait_for_index(pull, error)
            return
        if result.status in (ReadStatus.AT_END, ReadStatus.EMPTY) and self._hold(pull):
            return
        self._answer(pull, result)

    def _wait_for_index(self, pull: _Pull, error: StillRebuilding) -> None:
        """Hold a pull whose first message is not indexed yet, for as long as it wants to wait, and look again."""
        header, now = pull.header, self._context.clock.now()
        suspend = header.suspend_timeout_millis if header.sys_flag & PULL_SUSPEND else 0
        if pull.rebuilt_by is None:
            pull.rebuilt_by = Millis(now + max(REBUILD_HOLD_MS, min(suspend, MAX_HOLD_MS)))
        look_at = Millis(min(now + REBUILD_LOOK_MS, pull.rebuilt_by))
        try:
            if now < pull.rebuilt_by and self._hold_until(pull, look_at):
                return
        except BrokerBusy as busy:
            answer_error(pull.peer, pull.request, busy)
        else:
            answer_error(pull.peer, pull.request, error)

    def _check_group(self, group: str) -> None:
        settings = self._context.groups.get(check_group(group))
        if settings is not None and not settings.consume_enable:
            raise NotAllowed(ResponseCode.NO_PERMISSION, f"group {group} may not consume: its settings forbid it")

    def _check_topic(self, header: PullHeader) -> None:
        topic = self._context.topics.get(header.topic)
        if topic is None:
            raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic} does not exist")
        if header.lane_created not in (None, topic.created_ms):
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {header.topic} was deleted and created again: the pull is for the earlier one",
            )
        if not topic.permission & Permission.READ:
            raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
        if not 0 <= header.queue_id < topic.read_queues:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} of topic {header.topic} does not exist: it has {topic.read_queues}",
            )

    def _wanted_tags(self, header: PullHeader) -> frozenset[int] | None:
        """The hashes of the tags that this group wants; None: every message."""
        _refuse_filter(header.expression_type)
        if header.sys_flag & PULL_SUBSCRIPTION:
            return tag_codes(header.subscription or "*")
        known = self._context.members.subscription(header.consumer_group, header.topic)
        if known is None:
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {header.consumer_group} has no subscription to {header.topic}: send a heartbeat first",
            )
        if known.version < header.sub_version:
            raise BrokerRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the subscription is older than the pull")
        _refuse_filter(known.expression_type)
        return known.tag_codes or None

    def _check_owner(self, pull: _Pull) -> None:
        """Refuse a stale owner. A stock client has no epoch: it is counted, and answered as RocketMQ does."""
        header = pull.header
        queue = self._context.queues.named(header.topic, None, header.queue_id)
        verdict = ownership(self._context, pull.peer, header.consumer_group, queue, header)
        if not isinstance(verdict, Stale):
            return
        self._context.counters.stale_pulls += 1
        if header.lane_epoch is not None:
            remark = f"queue {header.queue_id} of {header.topic} belongs to {verdict.holder or 'no member'} now"
            raise BrokerRefused(ResponseCode.LEASE_REFUSED, remark)

    def _check_filter(self, pull: _Pull) -> None:
        """Refuse a pull that may skip messages which another member of the group selects.

        The member gives its queues of the topic back, as soon as it knows of the other one.
        """
        group, topic, tags = pull.header.consumer_group, pull.header.topic, pull.filter
        widest = None if tags is None else self._context.members.widest(group, topic)
        if tags is not None and widest is not None and not contains(tags, widest):
            raise BrokerRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"another member of group {group} reads {topic} with tags {shown(widest)!r}: a member with "
                f"{shown(tags)!r} would skip its messages, and gets no queue of the topic until it has left",
            )

    def _commit(self, pull: _Pull) -> None:
        header = pull.header
        progress, offset = self._progress(header), QueueOffset(header.commit_offset)
        verdict = ownership(self._context, pull.peer, progress.group, progress.queue, header)
        outcome = progress.commit(offset, kind=kind_of(verdict, stock=header.lane_epoch is None))
        if self._context.recording.on:
            owned = not isinstance(verdict, Unowned)
            self._context.recording.commit(
                progress.group, progress.queue, offset, header.lane_epoch, outcome, owned=owned
            )

    def _progress(self, header: PullHeader) -> QueueProgress:
        queue = self._context.queues.named(header.topic, None, header.queue_id)
        return self._context.progress.at(header.consumer_group, queue)

    def _read(self, pull: _Pull) -> ReadResult:
        header = pull.header
        result = self._context.store.read(
            header.topic,
            header.queue_id,
            pull.offset,
            max(1, min(pull.messages, MAX_PULL_MESSAGES)),
            max(1, min(pull.bytes, MAX_PULL_BYTES, pull.peer.max_reply_bytes)),
            pull.tags,
        )
        self._context.traffic.delivered(
            header.consumer_group, header.topic, result.count, len(result.data), now=self._context.clock.now()
        )
        if pull.tags is not None and header.lane_epoch is not None:
            owner, epoch = header.lane_client or "", Epoch(header.lane_epoch)
            self._progress(header).filtered = FilteredRead(owner, epoch, pull.tags, result.next_offset)
        for offset in result.damaged:
            queue = f"{header.topic}/{header.queue_id}"
            text = f"message {queue} offset {offset} is damaged and skipped"
            self._lines.write(logging.ERROR, f"damaged messages of {queue}", text)
        return result

    def _hold(self, pull: _Pull) -> bool:
        header = pull.header
        wants = header.sys_flag & PULL_SUSPEND and header.suspend_timeout_millis > 0
        if not wants or pull.request.is_oneway:
            return False
        pull.deadline = Millis(self._context.clock.now() + min(header.suspend_timeout_millis, MAX_HOLD_MS))
        return self._hold_until(pull, pull.deadline)

    def _hold_until(self, pull: _Pull, deadline: Millis) -> bool:
        """Hold a pull; False if the broker holds too many, and raises `BrokerBusy` if its client does."""
        header = pull.header
        offset = QueueOffset(pull.offset)
        pull.held_at = self._context.clock.now()
        chars = sum(map(len, pull.request.ext.values()))
        pull.weight = 1 + chars // CHARS_OF_ONE + len(pull.tags or ()) // TAGS_OF_ONE
        self._context.charges.take(Quota.HELD_PULLS, pull.peer, pull.request, pull.weight)
        if not self._context.polls.hold(pull, header.topic, header.queue_id, offset, pull.tags, deadline):
            self._context.charges.give_back(Quota.HELD_PULLS, pull.peer, pull.weight)
            return False
        self._held[pull] = None
        self._by_peer.setdefault(pull.peer.number, {})[pull] = None
        return True

    def answer_held(self, pull: _Pull) -> None:
        """Answer a pull that is no longer among the long polls."""
        if pull not in self._held:
            return  # its connection was closed a moment ago
        try:
            if self._answer_now(pull):
                return
        except StillRebuilding as error:
            self._no_longer_held(pull)
            self._wait_for_index(pull, error)
            return
        except LaneError as error:
            answer_error(pull.peer, pull.request, error)
        except Exception as error:  # noqa: BLE001 - as in `dispatch`
            self._faults.write(f"a held pull of {pull.peer} failed", error)
            answer_code(pull.peer, pull.request, ResponseCode.SYSTEM_ERROR, "internal error; ask again")
        self._no_longer_held(pull)

    def _no_longer_held(self, pull: _Pull) -> None:
        if self._held.pop(pull, self) is not self:
            del self._by_peer[pull.peer.number][pull]
            self._context.charges.give_back(Quota.HELD_PULLS, pull.peer, pull.weight)

    def _answer_now(self, pull: _Pull) -> bool:
        """Answer a pull, or a part of it; returns whether it is held for another part."""
        self._check_owner(pull)
        self._check_filter(pull)
        if pull.topic_deleted or self._context.topics.get(pull.header.topic) is None:
            ext = PullResponse(next_begin_offset=0, min_offset=0, max_offset=0).to_ext()
            answer_code(pull.peer, pull.request, ResponseCode.PULL_OFFSET_MOVED, "the topic was deleted", ext)
            return False
        if pull.peer.reads_slowly:
            # The client does not read its earlier answers: it gets the data when it asks again.
            self._answer_nothing(pull, pull.offset, ResponseCode.PULL_NOT_FOUND, "read your answers faster")
            return False
        reset_to = self._reset_to(pull)
        if reset_to is not None:
            self._answer_reset(pull, reset_to)
            return False
        result = self._read(pull)
        more = pull.in_parts and self._hold_again(pull, result)
        self._answer(pull, result, more=more)
        return more

    def _hold_again(self, pull: _Pull, result: ReadResult) -> bool:
        """Hold a pull whose answer comes in parts, behind the messages of this part; False if this is the last one.

        It stays among the held pulls in between, and still counts as one of its client.
        """
        header, now = pull.header, self._context.clock.now()
        is_last = (
            result.status is not ReadStatus.FOUND
            or result.next_offset < result.max_offset  # the rest is there already
            or result.count >= pull.messages
            or len(result.data) >= pull.bytes
            or now - pull.held_at < PART_AFTER_MS
            or now >= pull.deadline
        )
        if is_last:
            return False
        pull.offset = result.next_offset
        pull.messages -= result.count
        pull.bytes -= len(result.data)
        pull.held_at = now
        offset = QueueOffset(pull.offset)
        return self._context.polls.hold(pull, header.topic, header.queue_id, offset, pull.tags, pull.deadline)

    def _answer(self, pull: _Pull, result: ReadResult, *, more: bool = False) -> None:
        ext = PullResponse.ext_of(result.next_offset, result.min_offset, result.max_offset, more=more)
        code = _CODES[result.status]
        answer_code(pull.peer, pull.request, code, result.status.value, ext, result.data)

    def _answer_reset(self, pull: _Pull, offset: int) -> None:
        self._answer_nothing(pull, offset, ResponseCode.PULL_OFFSET_MOVED, "the offset was reset")

    def _answer_nothing(self, pull: _Pull, next_offset: int, code: ResponseCode, remark: str) -> None:
        low, high = self._context.store.bounds(pull.header.topic, pull.header.queue_id)
        ext = PullResponse(next_begin_offset=next_offset, min_offset=low, max_offset=high).to_ext()
        answer_code(pull.peer, pull.request, code, remark, ext)

    def _reset_to(self, pull: _Pull) -> QueueOffset | None:
        """The new offset if a reset of the group is pending; this pull is how the owner learns of it."""
        header, context = pull.header, self._context
        progress = self._progress(header)
        waits = context.recording.on and progress.reset is not ResetState.NONE
        offset = progress.moved_to(
            QueueOffset(pull.offset),
            # Consumers set SUSPEND; a client that does not has chosen the range that it reads.
            decides=not header.sys_flag & PULL_SUSPEND,
            commits=bool(header.lane_epoch),
        )
        if offset is None and waits:  # may be a new member, which never was at another offset
            context.recording.arrived(progress.group, progress.queue, pull.offset)
        return offset


def _is_of(header: PullHeader, group: str, queues: Container[tuple[str, int]]) -> bool:
    return header.consumer_group == group and (header.topic, header.queue_id) in queues


def _refuse_filter(kind: str | None) -> None:
    if kind not in (None, "", "TAG"):
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the broker does not support filters of type {kind}; use tags")


def _filter_of(header: PullHeader) -> Tags | None:
    """What the pull of a LaneMQ client selects; None for a stock client, and for one that wants every message."""
    if header.lane_client is None or not header.sys_flag & PULL_SUBSCRIPTION:
        return None
    return tags_in(header.subscription or "*")


def tag_codes(expression: str) -> frozenset[int] | None:
    """The hashes of the tags in `A || B`; None for `*`, which wants every message."""
    tags = tags_in(expression)
    return None if tags is None else frozenset(map(tag_code, tags))


def tags_in(expression: str) -> Tags | None:
    """The tags in `A || B`; None for `*`, which wants every message."""
    tags = [tag.strip() for tag in expression.split("||", MAX_TAGS)]
    if len(tags) > MAX_TAGS or len(expression) > MAX_EXPRESSION_CHARS:
        raise BrokerRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"a pull asks for at most {MAX_TAGS} tags with {MAX_EXPRESSION_CHARS} characters together: subscribe to "
            f"all tags, or use more topics",
        )
    if any(tag in ("*", "") for tag in tags):
        return None
    return frozenset(tags)
