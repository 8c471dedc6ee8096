"""Queue locks: RocketMQ's batch requests, with leases and epochs for clients that ask for them.

A change of owner is on disk before it is answered: a crash could otherwise make the broker give out the same epoch
twice, to two owners. The same holds for a renewal while the row of the grant that it renews is not on disk.

A new owner receives what is finished above its start offset. An owner that did not ask for it will repeat those
messages, so the finished ranges are deleted with the grant.

Every lock request and keep-alive also shows that the sender is alive (`core/brokering/members/membership`). The answer
to a sender that is not a member of the group, because it was silent for too long, says so, and it sends a heartbeat.
"""

import logging
import re
from collections.abc import Callable, Container, Iterator, Sequence

import msgspec

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer, answer_error
from lanemq.broker.group_rules import use_groups
from lanemq.broker.left_out import leave_out
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.broker.storage.checkpoints import lease_row
from lanemq.core.brokering.lock_table import MIN_LEASE_MS, Lease, LockGrant, Refusal, SavedLease
from lanemq.core.brokering.members.group import ConnectionId
from lanemq.core.brokering.progress_store import SavedLane
from lanemq.core.brokering.quotas import Quota
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import BrokerRefused, NotAllowed, StorageError
from lanemq.model.names import check_group, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.net.serving.peer import Peer
from lanemq.wire.bodies import LaneLease, LaneRefusal, LockRequest, LockResponse, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import LockAnswerHeader, LockHeader
from lanemq.wire.lane_fields import LANE_EPOCH

log = logging.getLogger(__name__)

MAX_QUEUES = 2_048
"""Queues in one lock request: more would hold the event loop. A topic has at most 1,024."""
AT_ONCE = 64
"""Queues that one step locks or unlocks; a step takes half a millisecond. Requests for more are handled in slices."""
MAX_LINES = 64
"""Lines in the log about one lock request; each costs some ten microseconds."""
MAX_NAME_CHARS = 255
"""Length of a client id or broker name; they are part of every row on disk."""
MAX_QUEUE_ID = 2**31 - 1
MAX_FINISHED_CHARS = 4 * 1024 * 1024
"""Characters of finished ranges in one answer: together with the queues' names it must stay within a frame."""
_NO_QUEUES = LockResponse().encode()
_NUMBER = re.compile("[0-9]{1,18}")
"""An epoch. `str.isdigit` accepts characters that `int` does not."""


class LockHandler:
    """Requests 41 and 42, and LaneMQ's own list of leases."""

    def __init__(self, context: GroupContext, answers: LongAnswers) -> None:
        self._context = context
        self._answers = answers
        self._unsaved: dict[tuple[str, MessageQueue], SavedLease] = {}
        # Lanes that a grant passes and that are not marked on disk.
        self._unmarked: dict[tuple[str, MessageQueue], list[SavedLane]] = {}

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.LANE_LOCKS: self._show,
        }

    def _lock(self, peer: Peer, request: Command) -> None:
        body = _decode(request.body)
        header = LockHeader.from_ext(request.ext)
        now = self._context.clock.now()
        self._refuse_other_client(peer, request, body.client_id, releases=False)
        member = self._context.members.alive(ConnectionId(peer.number), body.client_id, body.consumer_group, now=now)
        if header.lane_keep_alive is not None:
            kept = self._context.locks.keep_alive(body.client_id, header.lane_keep_alive, now=now)
            serial = header.lane_keep_alive if kept else 0
            answer(peer, request, self._answer_fields(serial, member=member), _NO_QUEUES)
            return
        queues = self._existing(body.mq_set)
        if queues:
            use_groups(self._context, peer, request, (body.consumer_group,))
            self._charge_new(peer, request, body.consumer_group, queues)
            # `_save` takes it, if there is a row to save.
            self._context.charges.refuse_if_taken(Quota.ROWS, peer, request)
        self._in_slices(peer, request, body, self._lock_steps(peer, request, body, header, member=member))

    def _answer_fields(self, serial: int, *, member: bool) -> dict[str, str]:
        return LockAnswerHeader(
            lane_keep_alive=serial or None,
            lane_not_member=None if member else True,
            lane_term=self._context.term or None,
        ).to_ext()

    def _refuse_other_client(self, peer: Peer, request: Command, client_id: str, *, releases: bool) -> None:
        """Raise if a connection would release or refresh the leases of another connection's client.

        A client that has just reconnected may refresh its leases before its heartbeat, and while the broker has not
        noticed the end of its old connection: then the same user or address is enough.
        """
        context, connection = self._context, ConnectionId(peer.number)
        own = context.members.connections_of(client_id)
        if not own or connection in own:
            return
        stranger = releases or context.members.client_of(connection) is not None
        if stranger or context.charges.party(peer, request) not in {context.clients[each].party for each in own}:
            context.counters.refusals.add(RefusalReason.NOT_ALLOWED)
            raise NotAllowed(
                ResponseCode.NO_PERMISSION,
                f"client {client_id} is connected elsewhere: its locks can be changed on its own connection only; "
                f"send a heartbeat first, or use another client id",
            )

    def _in_slices(self, peer: Peer, request: Command, body: LockRequest, steps: Steps) -> None:
        """Take the steps at once, or in slices if there are many queues."""
        if len(body.mq_set) > AT_ONCE or any(self._reads_more(body, each.queue) for each in body.mq_set):
            self._answers.begin(peer, request, steps, in_order=True)
        else:
            for _ in steps:
                pass

    def _reads_more(self, body: LockRequest, queue: MessageQueue) -> bool:
        """Whether a queue was read with tags, by another client than the one that asks for it."""
        read = self._context.progress.at(body.consumer_group, queue).filtered
        return read is not None and read.owner != body.client_id

    def _lock_steps(
        self,
        peer: Peer,
        request: Command,
        body: LockRequest,
        header: LockHeader,
        *,
        member: bool,
    ) -> Steps:
        """Grant the queues, a part of them in each step, then save and answer."""
        group, wish = body.consumer_group, header.lane_lease_millis
        granted, reply, serial, left = list[Lease](), LockResponse(), 0, MAX_FINISHED_CHARS
        overtaken: list[SavedLane] = []
        for part in _parts_of(body.mq_set):
            now = self._context.clock.now()
            grant = self._context.locks.acquire(
                group,
                self._grantable(group, body.client_id, self._existing(part)),  # both may change between two steps
                body.client_id,
                lease=self._lease(wish),
                keep_alive_timeout=_keep_alive_timeout(header),
                now=now,
            )
            granted += grant.granted
            serial = grant.serial or serial
            self._unsaved.update(((group, row.queue), row) for row in grant.changes)
            for lease in grant.granted:
                if lease.changed:
                    yield from leave_out(self._context, group, lease.queue)
            if wish is None or header.lane_finished is None:
                overtaken += self._start_without_lanes(group, grant.granted)
            reply.lock_ok_mq_set += [QueueBody.of(lease.queue) for lease in grant.granted]
            if wish is not None:
                finished = self._finished(group, grant, left) if header.lane_finished else {}
                left -= sum(map(len, finished.values()))
                resets = bool(header.lane_resets)
                reply.lane_leases += [
                    self._describe(group, lease, finished.get(lease.queue, ""), now, resets=resets)
                    for lease in grant.granted
                ]
                reply.lane_refused += map(_refusal, grant.refused)
            yield
        changed = [lease for lease in granted if lease.changed]
        self._context.counters.leases_granted += len(changed)
        _log_changed(group, changed)
        keys = [(group, lease.queue) for lease in granted] if self._unsaved else []
        rows = self._current([self._unsaved[key] for key in keys if key in self._unsaved])
        new, encoded = {row.queue for row in rows}, reply.encode()

        def saved() -> None:
            if self._context.recording.on:
                self._context.recording.locked(group, [self._as_it_is(group, each, new) for each in granted])
            named = 0 if header.lane_keep_alive_millis is None else serial
            answer(peer, request, {} if wish is None else self._answer_fields(named, member=member), encoded)

        keys = [(group, lease.queue) for lease in granted] if overtaken or self._unmarked else []
        self._mark_lanes(peer, request, overtaken, keys, lambda: self._save(peer, request, rows, saved))
        return None

    def _start_without_lanes(self, group: str, granted: Sequence[Lease]) -> list[SavedLane]:
        """New owners that know neither finished ranges nor lanes run what follows the offset; returns lanes to save."""
        started = [self._context.progress.at(group, lease.queue) for lease in granted if lease.changed]
        for progress in started:
            progress.forget_finished()
        return [SavedLane.of(lane) for progress in started for lane in progress.overtake_lanes()]

    def _mark_lanes(
        self,
        peer: Peer,
        request: Command,
        lanes: list[SavedLane],
        granted: Sequence[tuple[str, MessageQueue]],
        then: Callable[[], None],
    ) -> None:
        """Call `then` once these lanes, and those that an earlier grant of these queues passed, are on disk: after a
        crash they must not seem to be as they were. Answer with the error if that fails."""
        keeper, unmarked = self._context.progress_keeper, self._unmarked

        def settled(error: StorageError | None) -> None:
            then() if error is None else answer_error(peer, request, error)

        def stored() -> None:
            for key in [key for key in granted if unmarked.get(key) is lanes]:
                del unmarked[key]

        if lanes:
            unmarked.update(dict.fromkeys(granted, lanes))
            keeper.save(lanes, settled, stored=stored)
        elif any(key in unmarked for key in granted):
            keeper.settled(settled)
        else:
            then()

    def _charge_new(self, peer: Peer, request: Command, group: str, queues: Sequence[MessageQueue]) -> None:
        """Charge locks that the group never had before: they stay in memory and on disk."""
        new = self._context.locks.count_new(group, queues)
        if new:
            self._context.charges.must_grow(Quota.LEASES, peer, request, group, new)

    def _as_it_is(self, group: str, lease: Lease, new: Container[MessageQueue]) -> Lease:
        """A grant for the history, as it is once it is on disk: a grant lost in a crash was never given.

        The lease may have been shortened by a lost connection while it was written.
        """
        last = self._context.locks.latest(group, lease.queue)
        if last is not None and last.epoch == lease.epoch:
            until = min(lease.expires_at, last.expires_at)
        else:
            until = self._context.clock.now()
        return lease._replace(expires_at=until, changed=lease.changed or lease.queue in new)

    def _existing(self, named: Sequence[QueueBody]) -> list[MessageQueue]:
        """The queues that exist. Others are left out of the answer, as if another member held them.

        Otherwise leases could grow without bound, and a queue under two broker names could have two owners.
        """
        return [each.queue for each in named if self._context.queues.has(each.queue)]

    def _grantable(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Without queues that the client may not take: another member of the group reads more of the topic, or the
        queue may get no new owner now.

        It keeps what it has until its handlers have ended and it gives the queue back.
        """
        waits = {
            topic for topic in {each.topic for each in queues} if self._context.members.waits(group, topic, client_id)
        }
        free = self._context.queues.grantable
        return [
            each
            for each in queues
            if self._owner(group, each) == client_id or (each.topic not in waits and free(group, each))
        ]

    def _owner(self, group: str, queue: MessageQueue) -> str | None:
        last = self._context.locks.latest(group, queue)
        return None if last is None else last.owner

    def _lease(self, wish: int | None) -> Millis | None:
        return None if wish is None else Millis(max(wish, MIN_LEASE_MS))

    def _finished(self, group: str, grant: LockGrant, left: int) -> dict[MessageQueue, str]:
        """As much as an answer can carry, `left` characters; the rest is forgotten, and its messages are delivered
        again."""
        sent: dict[MessageQueue, str] = {}
        for lease in grant.granted:
            queue = lease.queue
            progress = self._context.progress.at(group, queue)
            if len(progress.finished) <= left:
                sent[queue] = progress.finished
                left -= len(progress.finished)
            else:
                progress.forget_finished()
        return sent

    def _describe(self, group: str, lease: Lease, finished: str, now: Millis, *, resets: bool) -> LaneLease:
        """The grant, its epoch and the group's committed offset in one answer, which saves two round trips.

        `resets`: the owner does not pull here, so it learns of a reset from this answer.
        """
        queue, progress = lease.queue, self._context.progress.at(group, lease.queue)
        return LaneLease(
            topic=queue.topic,
            broker_name=queue.broker,
            queue_id=queue.queue_id,
            epoch=lease.epoch,
            lease_millis=lease.expires_at - now,
            offset=-1 if progress.offset is None else progress.offset,
            finished=finished,
            moved=resets and progress.tell_reset(),
            parked=progress.serial,
        )

    def _unlock(self, peer: Peer, request: Command) -> None:
        body = _decode(request.body)
        self._refuse_other_client(peer, request, body.client_id, releases=True)
        self._in_slices(peer, request, body, self._unlock_steps(peer, request, body))

    def _unlock_steps(self, peer: Peer, request: Command, body: LockRequest) -> Steps:
        """Release the queues, a part of them in each step, then save and answer."""
        group, epoch, released = body.consumer_group, _epoch(request.ext.get(LANE_EPOCH)), list[SavedLease]()
        for part in _parts_of(body.mq_set):
            queues, now = [queue.queue for queue in part], self._context.clock.now()
            rows = self._context.locks.release(group, queues, body.client_id, epoch=epoch, now=now)
            self._unsaved.update(((group, row.queue), row) for row in rows)
            if self._context.recording.on:
                self._context.recording.unlocked(rows, body.client_id)
            released += rows
            yield
        if released:
            self._context.counters.leases_released += len(released)
            self._context.notices.group_changed([group])
        self._save(peer, request, self._current(released), lambda: answer(peer, request))
        return None

    def _current(self, rows: Sequence[SavedLease]) -> Sequence[SavedLease]:
        """Rows of leases that are still as they were in an earlier step. Those of a topic that was deleted since must
        not be written behind its deletion."""
        pairs = [(row, self._context.locks.latest(row.group, row.queue)) for row in rows]
        return [row for row, last in pairs if last is not None and last.epoch == row.epoch]

    def _save(self, peer: Peer, request: Command, rows: Sequence[SavedLease], saved: Callable[[], None]) -> None:
        """Call `saved` once the rows are on disk, immediately if there are none; or answer with the error."""
        if not rows:
            saved()
            return

        charges = self._context.charges
        counted = charges.take_if_free(Quota.ROWS, peer, request)

        def done(_: object, error: StorageError | None) -> None:
            if counted:
                charges.give_back(Quota.ROWS, peer)
            if error is not None:
                # The rows stay unsaved, so that no renewal is answered before they are on disk.
                answer_error(peer, request, error)
                return
            for row in rows:
                if self._unsaved.get((row.group, row.queue)) is row:
                    del self._unsaved[row.group, row.queue]
            saved()

        state = self._context.state
        self._context.row_thread.submit_rows(state, lambda: state.save_leases(map(lease_row, rows)), done)

    def _show(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._lease_steps(request.ext.get("consumerGroup") or None))

    def _lease_steps(self, wanted: str | None) -> Steps:
        now = self._context.clock.now()
        leases: list[msgspec.Raw] = []
        for group, lease in self._context.locks.in_steps(wanted, now=now):
            if lease is not None:
                shown = {
                    "group": group,
                    "topic": lease.queue.topic,
                    "brokerName": lease.queue.broker,
                    "queueId": lease.queue.queue_id,
                    "owner": lease.owner,
                    "epoch": lease.epoch,
                    "remainingMillis": lease.expires_at - now,
                }
                leases.append(msgspec.Raw(msgspec.json.encode(shown)))
            yield
        return msgspec.json.encode({"leases": leases})


def _parts_of(queues: Sequence[QueueBody]) -> Iterator[Sequence[QueueBody]]:
    """Parts of bounded length; one that is empty if there are no queues."""
    for start in range(0, max(1, len(queues)), AT_ONCE):
        yield queues[start : start + AT_ONCE]


def _log_changed(group: str, changed: Sequence[Lease]) -> None:
    """A line for each queue with a new owner; one for all of them if they are many."""
    for lease in changed[:MAX_LINES]:
        log.info("group %s: %s owns %s, epoch %s", group, lease.owner, lease.queue, lease.epoch)
    if len(changed) > MAX_LINES:
        log.info("group %s: %s owns %s further queues", group, changed[0].owner, len(changed) - MAX_LINES)


def _decode(data: bytes) -> LockRequest:
    body = LockRequest.of_request(data)
    check_group(body.consumer_group)
    if not 0 < len(body.client_id) <= MAX_NAME_CHARS:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"clientId must have 1 to {MAX_NAME_CHARS} characters")
    if len(body.mq_set) > MAX_QUEUES:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"at most {MAX_QUEUES} queues in one lock request")
    for topic in dict.fromkeys(queue.topic for queue in body.mq_set):
        check_topic(topic)
    for queue in body.mq_set:
        if not 0 <= queue.queue_id <= MAX_QUEUE_ID:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"queueId {queue.queue_id} of {queue.topic} cannot exist")
        if len(queue.broker_name) > MAX_NAME_CHARS:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"brokerName has more than {MAX_NAME_CHARS} characters")
    return body


def _keep_alive_timeout(header: LockHeader) -> Millis | None:
    """None: the whole lease. A stock client's lock never ends early, so it needs none."""
    timeout = header.lane_keep_alive_millis
    return None if header.lane_lease_millis is None or timeout is None else Millis(max(timeout, 0))


def _epoch(text: str | None) -> Epoch | None:
    return Epoch(int(text)) if text is not None and _NUMBER.fullmatch(text) else None


def _refusal(refusal: Refusal) -> LaneRefusal:
    queue: MessageQueue = refusal.queue
    return LaneRefusal(
        topic=queue.topic,
        broker_name=queue.broker,
        queue_id=queue.queue_id,
        holder=refusal.holder,
        remaining_millis=refusal.remaining,
    )
