"""Lanes that do not continue: held after a failure, parked, or waiting for a missing number.

Invariants:
- New messages of a lane that is held or parked wait in it, in order, and it continues only from its first message. A
  message leaves a lane applied, recognised as a repeat, or as a dead letter.
- A timer is called once, between the same two events of its key whether or not the lane had to wait; if it fails, it
  waits at the head of the lane as an event would. The timers of a lane that waits, wait too.
"""

from typing import Final, TypeAlias

from msgspec.structs import replace

from lanemq.model.errors import LaneFrozen
from lanemq.pipelines.stages.transitions.lanes import LaneTable
from lanemq.pipelines.stages.transitions.messages import WaitingMessage, timer_message
from lanemq.pipelines.stages.transitions.operator_requests import RequestedActions
from lanemq.pipelines.stages.transitions.rules import (
    DISCARDED,
    PASSED_ON,
    BehindWatermark,
    Early,
    Late,
    ParkLane,
    RetryLater,
    Rules,
    SkipMessage,
    error_text,
    error_text_with_place,
    next_step,
    storable,
)
from lanemq.pipelines.stages.transitions.shard import GAP_AT, PARKED_AT, KeyLane, WaitingMessages, WaitReason, key_of
from lanemq.pipelines.stages.transitions.timers import NO_TIMERS, first_due

Queued: TypeAlias = list[tuple[WaitingMessage, int | None]]
"""Messages with their numbers, as far as these are known."""
KEYLESS: Final = (
    "it has no key, and every state belongs to a key: send it with a key, or leave such messages out in prepare="
)
"""The reason of a dead letter without a key."""


class HeldLanes:
    """The held and parked lanes of one shard during one unit of work. `waiting` is the shard's own table of them."""

    def __init__(self, table: LaneTable, waiting: dict[str, int], rules: Rules, wall: int) -> None:
        self._table = table
        self._waiting = waiting
        self._rules = rules
        self._wall = wall
        self._time_of = rules.event_time.reader() if rules.timed else None
        # A lane that waits for missing numbers is ordered by number, not by arrival.
        self._by_number = rules.number is not None and rules.on_gap == "hold"
        self.unsaved: dict[str, None] = {}
        """Lanes to encode at the end of the unit, once, because their queues can be long."""
        self._sizes: dict[str, int] = {}
        """Bytes that wait in a lane, where they were counted."""
        self.dead: list[tuple[WaitingMessage, str | None, str, int, bool]] = []
        """Message, key, reason, attempts, and whether it still waits in its lane."""

    def fail_new(self, name: str, message: WaitingMessage, error: BaseException, *, poison: bool) -> None:
        """Handles a new event that could not be applied."""
        self._table.counts["gaps"] += isinstance(error, Early)
        self._table.counts["poison"] += poison
        if not self._fail(name, message, error, poison=poison, failures=1):
            self._table.counts["held"] += 1

    def refuse_keyless(self, message: WaitingMessage) -> None:
        """Makes a message without a key a dead letter, whatever the policy: no retry would give it a key."""
        self._table.counts["poison"] += 1
        self._table.counts["dead_letters"] += 1
        self.dead.append((message, None, KEYLESS, 1, False))

    def _fail(self, name: str, message: WaitingMessage, error: BaseException, *, poison: bool, failures: int) -> bool:
        """Handles the nth failure of an event. Returns whether its lane continues without it."""
        lane = self._table.restore(name)
        if message.timer is not None:
            lane.timers = lane.without_timer(message.timer)
        if isinstance(error, Late):
            self._reject_late(name, lane, message, error)
            return True
        number = None if poison else self._number_of(name, message)
        if isinstance(error, BehindWatermark):
            self._table.counts["late"] += 1
            self._skip(name, lane, message, number, f"came late: {error}", failures)
            return True
        if isinstance(error, Early) and self._rules.on_gap == "hold":
            self._hold(name, lane, WaitReason.GAP, str(error), 0, [(message, error.number)])
            return False
        reason = (
            f"cannot be decoded: {error_text(error)}"
            if poison
            else f"{type(error).__name__}: {error_text_with_place(error)}"
        )
        if message.timer is not None:
            reason = f"timer {storable(message.timer.name)!r}: {reason}"
        then = next_step(self._rules.policy, failures)
        if poison and not message.noticed and then != SkipMessage():
            message = replace(message, noticed=True)
            self._dead_letter(message, name, reason, failures, waits=True)
        match then:
            case RetryLater(delay):
                self._hold(name, lane, WaitReason.HELD, reason, failures, [(message, number)], self._wall + delay)
                return False
            case ParkLane():
                self._table.counts["parked"] += 1
                self._hold(name, lane, WaitReason.PARKED, reason, failures, [(message, number)])
                return False
            case SkipMessage():
                self._skip(name, lane, message, number, reason, failures)
                return True

    def join(self, name: str, lane: KeyLane, message: WaitingMessage) -> None:
        """Adds a new message to a lane that waits. The message it waits for is taken even if the lane is full."""
        waiting = lane.waiting
        assert waiting is not None
        number = self._number_of(name, message)
        if self._by_number and number is not None and (lane.is_past(number) or number in waiting.numbers):
            self._drop(name, lane, message, number)
            return
        expected = self._rules.first_number if lane.number is None else lane.number + 1
        wanted = waiting.why is WaitReason.GAP and number is not None and number == expected
        if self._is_full(name, waiting, message) and not wanted:
            self._overflow(name, waiting, message)
            return
        waiting.messages.append(message)
        waiting.numbers.append(number)
        self._sizes[name] += _size(message)
        self.unsaved[name] = None
        self._table.counts["held"] += 1
        if (
            waiting.why is WaitReason.GAP
            and not message.late
            and (number is None or expected is None or number <= expected)
        ):
            self._drain(name)

    def _drop(self, name: str, lane: KeyLane, message: WaitingMessage, number: int) -> None:
        """Settles a message whose number the lane has passed, or that waits in it already."""
        if lane.number is not None and lane.has_missed(number):
            self._reject_late(name, lane, message, Late(number, lane.number, doubtful=lane.is_doubtful(number)))
        else:
            self._table.counts["repeats"] += 1

    def _reject_late(self, name: str, lane: KeyLane, message: WaitingMessage, error: Late) -> None:
        """Makes a message that its lane continued without a dead letter: applying it now would break the order."""
        lane.settle_missed(error.number)
        self._table.see(name, lane, message.stored)
        self._table.save(name, lane)
        self._table.counts["late"] += 1
        self._dead_letter(message, name, str(error), 0)

    def redrive(self, name: str, message: WaitingMessage) -> None:
        """Tries a dead letter again, after everything that waits in its lane, unless its number is still to come."""
        self._table.counts["redriven_dead_letters"] += 1
        if key_of(name) is None:
            self.refuse_keyless(message)
            return
        lane = self._table.loaded.get(name) or self._table.restore(name)
        given = replace(message, late=False) if self._is_still_to_come(name, lane, message) else message
        if lane.waiting is None:
            self._table.counts["held"] += not self._try(name, given, 0)
            return
        try:
            self.join(name, lane, given)
        except LaneFrozen:  # a redriven letter never fails the batch: it becomes a dead letter again
            self.join(name, lane, message)

    def _is_still_to_come(self, name: str, lane: KeyLane, message: WaitingMessage) -> bool:
        """Whether a lane that is ordered by number waits, or will wait, for the number of a dead letter.

        Such a message became a dead letter because the lane was full, or because its number could not be read then.
        False for a key that was forgotten: nothing is known about its numbers.
        """
        number = self._read_number(name, message) if self._by_number else None
        if number is None or lane.is_past(number):
            return False
        return lane.number is not None or lane.waiting is not None or number == self._rules.first_number

    def _settle_redriven(self, name: str, message: WaitingMessage) -> None:
        """Records the number of a dead letter that was applied, so that its repeats are recognised."""
        number, lane, first = self._read_number(name, message), self._table.loaded[name], self._rules.first_number
        if number is None:
            return
        if lane.is_past(number):
            lane.settle_missed(number)
        elif lane.number is not None or number == first:
            lane.advance_to(number, first)
        self._table.save(name, lane)

    def retry(self, actions: RequestedActions) -> None:
        """Retries lanes whose wait is over, and does what operators requested."""
        for name, retry_at in list(self._waiting.items()):
            match actions.for_lane(name):
                case "redrive":
                    self._table.counts["redriven"] += 1
                    self._drain(name, redriven=True)
                case "discard" | "discard_first" as action:
                    self._discard(name, first_only=action == "discard_first")
                case None if 0 <= retry_at <= self._wall:
                    self._drain(name)

    def _drain(self, name: str, *, redriven: bool = False) -> None:
        """Applies what waits in a lane, head first, until it is empty or fails again.

        A redriven lane gets all its retries again, and continues past a missing number.
        """
        queue, failures = self._take_all(name)
        failures = 0 if redriven else failures
        skip_gap = redriven
        while queue:
            if not failures:
                self._queue_due_timer(name, queue)
            message = self._pop_next(name, queue, skip_gap=skip_gap)
            skip_gap = skip_gap and message.timer is not None
            if self._try(name, message, failures):
                failures = 0
                continue
            self._put_back(name, queue)
            return

    def _queue_due_timer(self, name: str, queue: Queued) -> None:
        """Puts the timer that was due when the next message came in front of it."""
        head = queue[0][0]
        timer = first_due(self._table.loaded[name].timers, head.watermark, head.arrived)
        if timer is not None:
            queue.insert(0, (timer_message(timer), None))

    def call_due_timers(self, name: str) -> bool:
        """Calls the timers of a lane that are due, the earliest first. Returns whether the lane continues."""
        table = self._table
        while (timer := first_due(table.loaded[name].timers, table.watermark, self._wall)) is not None:
            if not self._try(name, timer_message(timer), 0):
                table.counts["held"] += 1
                return False
        return True

    def _try(self, name: str, message: WaitingMessage, failures: int) -> bool:
        """Tries a message, or a timer in place of one. Returns whether the lane continues."""
        table, poison = self._table, message.timer is None
        try:
            lane = table.loaded[name]
            if message.timer is not None:
                table.call_timer(name, lane, message.timer, failures + 1)
                return True
            event = message.event(key_of(name), self._rules.value(message.value), failures + 1)
            poison = False
            event_time = self._time_of(event) if self._time_of is not None else 0
            table.apply(name, lane, event, event_time, message.watermark)
        except PASSED_ON:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
            return self._fail(name, message, error, poison=poison, failures=failures + 1)
        if message.late:
            table.late.append((message.topic, message.broker, message.queue_id, message.offset))
            self._settle_redriven(name, message)
        return True

    def _pop_next(self, name: str, queue: Queued, *, skip_gap: bool) -> WaitingMessage:
        """The head of the queue; `skip_gap` makes missing numbers before it count as missed."""
        lane = self._table.loaded[name]
        message, number = queue.pop(0)
        if skip_gap and number is not None and not lane.is_past(number):
            lane.advance_to(number, self._rules.first_number)
            lane.number = number - 1
        return message

    def _take_all(self, name: str) -> tuple[Queued, int]:
        """Takes everything out of a lane. The caller puts back what it does not settle."""
        lane = self._table.loaded.get(name) or self._table.restore(name)
        waiting = lane.waiting
        assert waiting is not None
        queue = list(zip(waiting.messages, waiting.numbers, strict=True))
        if self._by_number:
            queue = _by_number(queue)
        lane.waiting = None
        self._table.save(name, lane)
        self._waiting.pop(name, None)
        self.unsaved.pop(name, None)
        self._sizes.pop(name, None)
        return queue, waiting.failures

    def _put_back(self, name: str, rest: Queued) -> None:
        """Queues messages behind the one that failed."""
        waiting = self._table.loaded[name].waiting
        assert waiting is not None
        waiting.messages += [message for message, _ in rest]
        waiting.numbers += [number for _, number in rest]

    def _hold(
        self,
        name: str,
        lane: KeyLane,
        why: WaitReason,
        reason: str,
        failures: int,
        head: Queued,
        retry_at: int = PARKED_AT,
    ) -> None:
        message, number = head[0]
        lane.waiting = WaitingMessages(why, reason, self._wall, failures, retry_at, [message], [number])
        self._waiting[name] = GAP_AT if why is WaitReason.GAP else retry_at
        self._table.timers.set(name, NO_TIMERS)
        self.unsaved[name] = None

    def _skip(
        self, name: str, lane: KeyLane, message: WaitingMessage, number: int | None, reason: str, failures: int
    ) -> None:
        """Makes a message a dead letter and lets its lane continue."""
        self._dead_letter(message, name, reason, failures)
        if number is not None and not lane.is_past(number):
            lane.advance_to(number, self._rules.first_number)
        self._table.see(name, lane, message.stored)
        self._table.save(name, lane)

    def _discard(self, name: str, *, first_only: bool) -> None:
        """Makes the messages of a lane, or only the first one, dead letters, as an operator requested."""
        queue, failures = self._take_all(name)
        lane = self._table.loaded[name]
        discarded = queue[:1] if first_only else queue
        for message, number in discarded:
            self._skip(name, lane, message, number, DISCARDED, failures)
        self._table.counts["discarded"] += len(discarded)
        rest = queue[len(discarded) :]
        if rest:
            self._hold(name, lane, WaitReason.HELD, "continues after a discarded message", 0, rest, self._wall)
            self._put_back(name, rest[1:])
            self._drain(name)

    def _is_full(self, name: str, waiting: WaitingMessages, message: WaitingMessage) -> bool:
        limits = self._rules.limits
        if name not in self._sizes:
            self._sizes[name] = sum(map(_size, waiting.messages))
        too_large = self._sizes[name] + _size(message) > limits.max_waiting_bytes_per_lane
        return too_large or len(waiting.messages) >= limits.max_waiting_per_lane

    def _overflow(self, name: str, waiting: WaitingMessages, message: WaitingMessage) -> None:
        limits, count = self._rules.limits, len(waiting.messages)
        option = "max_waiting_per_lane" if count >= limits.max_waiting_per_lane else "max_waiting_bytes_per_lane"
        if limits.when_lane_is_full == "stop" and not message.late:
            raise LaneFrozen(
                f"{count} messages of key {key_of(name)!r} wait in its lane, as many as "
                f"StateLimits({option}={getattr(limits, option)}) allows: redrive or discard the key, raise the limit, "
                f"or give up this key's order with when_lane_is_full='dead_letter'"
            )
        self._dead_letter(message, name, f"its lane is full ({count} messages wait in it)", 0)

    def _dead_letter(
        self, message: WaitingMessage, name: str, reason: str, attempts: int, *, waits: bool = False
    ) -> None:
        """Reports a message as a dead letter. `waits`: it is still in its lane, and is redriven with the lane."""
        self.dead.append((message, key_of(name), reason, attempts, waits))
        self._table.counts["dead_letters"] += 1

    def _number_of(self, name: str, message: WaitingMessage) -> int | None:
        """The number that orders the message; None if there are no numbers, it has none, or it is a late redrive."""
        return None if message.late or message.timer is not None else self._read_number(name, message)

    def _read_number(self, name: str, message: WaitingMessage) -> int | None:
        if self._rules.number is None:
            return None
        try:
            return self._rules.number(message.event(key_of(name), self._rules.value(message.value), 1))
        except PASSED_ON:
            raise
        except BaseException:  # noqa: BLE001 - the user's code; the message is read again when it is applied
            return None


def _size(message: WaitingMessage) -> int:
    return len(message.value or b"")


def _by_number(queue: Queued) -> Queued:
    """Sorts by number. A message without a number keeps its position, because the others cannot be compared with it.

    Redriven dead letters stay behind all numbers: otherwise a missing number queued behind one would never be reached.
    One at the head stays there, because it is what failed.
    """
    late = [each for each in queue[1:] if each[0].late]
    if late:
        return _by_number([each for at, each in enumerate(queue) if not at or not each[0].late]) + late
    ordered: Queued = []
    begin = 0
    for at, (_, number) in enumerate(queue):
        if number is None:
            ordered += [*sorted(queue[begin:at], key=_number), queue[at]]
            begin = at + 1
    return ordered + sorted(queue[begin:], key=_number)


def _number(each: tuple[WaitingMessage, int | None]) -> int:
    return each[1] or 0
