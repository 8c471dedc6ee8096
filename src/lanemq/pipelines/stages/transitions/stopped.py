"""Lanes that stand still: held after a failure, parked, or waiting for a missing number.

The rules guarded here: what comes for a stopped lane waits behind it, in order; the lane moves on only from its head;
a message leaves a lane applied, recognised as a repeat, or as a dead letter, never otherwise.
"""

from typing import TypeAlias

from msgspec.structs import replace

from lanemq.model.errors import LaneFrozen
from lanemq.pipelines.stages.transitions.error_text import DISCARDED, words_of
from lanemq.pipelines.stages.transitions.event import Message
from lanemq.pipelines.stages.transitions.lane import Lane, Waiting, Why
from lanemq.pipelines.stages.transitions.lane_table import LaneTable
from lanemq.pipelines.stages.transitions.operator_requests import Orders
from lanemq.pipelines.stages.transitions.policies import GiveUp, SetAside, TryAgain, after
from lanemq.pipelines.stages.transitions.rules import Early, Late, Rules, UnfitState
from lanemq.pipelines.stages.transitions.shard import GAP_AT, PARKED_AT, key_of

Queued: TypeAlias = list[tuple[Message, int | None]]
"""Messages with their numbers, as far as they are known."""


class StoppedLanes:
    """The stopped lanes of one shard during one unit of work. `waiting` is the shard's own list of them."""

    def __init__(self, table: LaneTable, waiting: dict[str, int], rules: Rules, wall: int) -> None:
        self._table = table
        self._waiting = waiting
        self._rules = rules
        self._wall = wall
        # With numbers a lane's order is theirs, whatever order they came in.
        self._by_number = rules.number is not None and rules.on_gap == "hold"
        self.standing: dict[str, None] = {}
        """Lanes whose bytes are behind: encoded once, at the end, because their queues can be long."""
        self._sizes: dict[str, int] = {}
        """Bytes that wait in a lane, where they were asked for."""
        self.dead: list[tuple[Message, str | None, str, int, bool]] = []
        """Message, key, reason, attempts, and whether it still waits in its lane."""

    def arrived(self, name: str, message: Message, error: Exception, *, poison: bool) -> None:
        """A new event could not be applied."""
        self._table.counts["gaps"] += isinstance(error, Early)
        self._table.counts["poison"] += poison
        if not self._failed(name, message, error, poison=poison, failures=1):
            self._table.counts["held"] += 1

    def _failed(self, name: str, message: Message, error: Exception, *, poison: bool, failures: int) -> bool:
        """An event could not be applied, for the nth time. True: its lane goes on without it."""
        lane = self._table.restore(name)
        if isinstance(error, Late):
            self._too_late(name, lane, message, error)
            return True
        number = None if poison else self._number_of(name, message)
        if isinstance(error, Early) and self._rules.on_gap == "hold":
            self._stand(name, lane, Why.GAP, str(error), 0, [(message, error.number)])
            return False
        reason = f"{'cannot be decoded' if poison else type(error).__name__}: {words_of(error)}"
        then = after(self._rules.policy, failures)
        if poison and failures == 1 and then != GiveUp():
            self._bury(message, name, reason, failures, waits=True)
        match then:
            case TryAgain(delay):
                self._stand(name, lane, Why.HELD, reason, failures, [(message, number)], self._wall + delay)
                return False
            case SetAside():
                self._table.counts["parked"] += 1
                self._stand(name, lane, Why.PARKED, reason, failures, [(message, number)])
                return False
            case GiveUp():
                self._skip(name, lane, message, number, reason, failures)
                return True

    def join(self, name: str, lane: Lane, message: Message) -> None:
        """A new message of a stopped lane. One that the lane waits for goes on even if the lane is full."""
        waiting = lane.waiting
        assert waiting is not None
        number = self._number_of(name, message)
        if self._by_number and number is not None and self._is_known(lane, waiting, number):
            self._drop(name, lane, message, number)
            return
        expected = self._rules.first_number if lane.number is None else lane.number + 1
        wanted = waiting.why is Why.GAP and number is not None and number == expected
        if self._is_full(name, waiting, message) and not wanted:
            self._overflow(name, waiting, message)
            return
        waiting.messages.append(message)
        waiting.numbers.append(number)
        self._sizes[name] += _size(message)
        self.standing[name] = None
        self._table.counts["held"] += 1
        if waiting.why is Why.GAP and not message.late and (number is None or expected is None or number <= expected):
            self._drain(name)

    def come_late(self, name: str, message: Message) -> None:
        """A dead letter again, behind everything that its lane has, unless its number's turn is still to come."""
        self._table.counts["redriven_letters"] += 1
        lane = self._table.hot.get(name) or self._table.restore(name)
        given = replace(message, late=False) if self._has_its_turn(name, lane, message) else message
        if lane.waiting is None:
            self._table.counts["held"] += not self._try(name, given, 0)
            return
        try:
            self.join(name, lane, given)
        except LaneFrozen:  # a letter stops nothing: it is one again
            self.join(name, lane, message)

    def _has_its_turn(self, name: str, lane: Lane, message: Message) -> bool:
        """Whether a lane that goes by numbers waits, or will wait, for a letter's: set aside because the lane was full
        or because it told no number then. Of a key that is not known any more nobody can say.
        """
        number = self._told(name, message) if self._by_number else None
        if number is None or lane.is_past(number):
            return False
        return lane.number is not None or lane.waiting is not None or number == self._rules.first_number

    def _settle_late(self, name: str, message: Message) -> None:
        """A letter was applied: what comes with its number from now on is a repeat."""
        number, lane, first = self._told(name, message), self._table.hot[name], self._rules.first_number
        if number is None:
            return
        if lane.is_past(number):
            lane.settle_missed(number)
        elif lane.number is not None or number == first:
            lane.reach(number, first)
        self._table.save(name, lane)

    def _drop(self, name: str, lane: Lane, message: Message, number: int) -> None:
        """A number below the lane's, or one that waits in it."""
        if lane.number is not None and lane.has_missed(number):
            self._too_late(name, lane, message, Late(number, lane.number, doubtful=lane.is_doubtful(number)))
        else:
            self._table.counts["repeats"] += 1

    def _too_late(self, name: str, lane: Lane, message: Message, error: Late) -> None:
        """The lane went on without it: applied now it would be out of order, dropped it would be lost silently."""
        lane.settle_missed(error.number)
        self._table.see(name, lane, message.stored)
        self._table.save(name, lane)
        self._table.counts["late"] += 1
        self._bury(message, name, str(error), 0)

    def run(self, orders: Orders) -> None:
        """A pass: lanes whose time has come, and those that a person decided about."""
        for name, retry_at in list(self._waiting.items()):
            match orders.verb(name):
                case "redrive":
                    self._table.counts["redriven"] += 1
                    self._drain(name, redriven=True)
                case "discard" | "discard_first" as verb:
                    self._discard(name, first_only=verb == "discard_first")
                case None if 0 <= retry_at <= self._wall:
                    self._drain(name)

    def _drain(self, name: str, *, redriven: bool = False) -> None:
        """Runs what waits in a lane, head first, until it is empty or stops again.

        Redriven lanes have their retries again, and go on past a missing number.
        """
        queue, failures = self._empty(name)
        failures = 0 if redriven else failures
        leap = redriven
        while queue:
            message = self._pop_next(name, queue, leap=leap)
            leap = False
            if self._try(name, message, failures):
                failures = 0
                continue
            self._put_back(name, queue)
            return

    def _try(self, name: str, message: Message, failures: int) -> bool:
        """Whether the lane may go on."""
        table, poison = self._table, True
        try:
            lane = table.hot[name]
            event = message.event(key_of(name), self._rules.value(message.value), failures + 1)
            poison = False
            table.apply(name, lane, event)
        except UnfitState:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises, the policy decides
            return self._failed(name, message, error, poison=poison, failures=failures + 1)
        if message.late:
            table.late.append((message.topic, message.queue_id, message.offset))
            self._settle_late(name, message)
        return True

    def _pop_next(self, name: str, queue: Queued, *, leap: bool) -> Message:
        """The message whose turn it is; `leap` makes a missing number count as seen."""
        lane = self._table.hot[name]
        message, number = queue.pop(0)
        if leap and number is not None and not lane.is_past(number):
            lane.reach(number, self._rules.first_number)
            lane.number = number - 1
        return message

    def _empty(self, name: str) -> tuple[Queued, int]:
        """Takes everything out of a lane: what is not settled is put back by whoever does this."""
        lane = self._table.hot.get(name) or self._table.restore(name)
        waiting = lane.waiting
        assert waiting is not None
        queue = list(zip(waiting.messages, waiting.numbers, strict=True))
        if self._by_number:
            queue = _in_turn(queue)
        lane.waiting = None
        self._table.save(name, lane)
        self._waiting.pop(name, None)
        self.standing.pop(name, None)
        self._sizes.pop(name, None)
        return queue, waiting.failures

    def _put_back(self, name: str, rest: Queued) -> None:
        """Behind the message that stopped the lane."""
        waiting = self._table.hot[name].waiting
        assert waiting is not None
        waiting.messages += [message for message, _ in rest]
        waiting.numbers += [number for _, number in rest]

    def _stand(
        self, name: str, lane: Lane, why: Why, reason: str, failures: int, head: Queued, retry_at: int = PARKED_AT
    ) -> None:
        message, number = head[0]
        lane.waiting = Waiting(why, reason, self._wall, failures, retry_at, [message], [number])
        self._waiting[name] = GAP_AT if why is Why.GAP else retry_at
        self.standing[name] = None

    def _skip(self, name: str, lane: Lane, message: Message, number: int | None, reason: str, failures: int) -> None:
        """A message leaves its lane as a dead letter."""
        self._bury(message, name, reason, failures)
        if number is not None and not lane.is_past(number):
            lane.reach(number, self._rules.first_number)
        self._table.see(name, lane, message.stored)
        self._table.save(name, lane)

    def _discard(self, name: str, *, first_only: bool) -> None:
        """A person's word: the messages, or the first of them, are given up."""
        queue, failures = self._empty(name)
        lane = self._table.hot[name]
        given_up = queue[:1] if first_only else queue
        for message, number in given_up:
            self._skip(name, lane, message, number, DISCARDED, failures)
        self._table.counts["discarded"] += len(given_up)
        rest = queue[len(given_up) :]
        if rest:
            self._stand(name, lane, Why.HELD, "goes on behind a discarded message", 0, rest, self._wall)
            self._put_back(name, rest[1:])
            self._drain(name)

    def _is_full(self, name: str, waiting: Waiting, message: Message) -> bool:
        limits = self._rules.limits
        if name not in self._sizes:
            self._sizes[name] = sum(map(_size, waiting.messages))
        too_large = self._sizes[name] + _size(message) > limits.max_waiting_bytes_per_lane
        return too_large or len(waiting.messages) >= limits.max_waiting_per_lane

    def _overflow(self, name: str, waiting: Waiting, message: Message) -> None:
        limits, count = self._rules.limits, len(waiting.messages)
        option = "max_waiting_per_lane" if count >= limits.max_waiting_per_lane else "max_waiting_bytes_per_lane"
        if limits.when_lane_is_full == "stop" and not message.late:
            raise LaneFrozen(
                f"key {key_of(name)!r} stands still and {count} messages wait behind it, as many as "
                f"StateLimits({option}={getattr(limits, option)}) allows: redrive or discard the key, raise the limit, "
                f"or give up this key's order with when_lane_is_full='dead_letter'"
            )
        self._bury(message, name, f"its lane is full ({count} messages wait in it)", 0)

    def _bury(self, message: Message, name: str, reason: str, attempts: int, *, waits: bool = False) -> None:
        """`waits`: it is only told of; the lane has it, and whoever redrives it redrives the lane."""
        self.dead.append((message, key_of(name), reason, attempts, waits))
        self._table.counts["dead"] += 1

    def _is_known(self, lane: Lane, waiting: Waiting, number: int) -> bool:
        return lane.is_past(number) or number in waiting.numbers

    def _number_of(self, name: str, message: Message) -> int | None:
        """None: there are no numbers, or this message does not tell its own, or it does not count any more."""
        return None if message.late else self._told(name, message)

    def _told(self, name: str, message: Message) -> int | None:
        """What the message says, whether or not it counts."""
        if self._rules.number is None:
            return None
        try:
            return self._rules.number(message.event(key_of(name), self._rules.value(message.value), 1))
        except Exception:  # noqa: BLE001 - the user's code; the message is looked at again when its turn comes
            return None


def _size(message: Message) -> int:
    return len(message.value or b"")


def _in_turn(queue: Queued) -> Queued:
    """By number. A message that tells no number keeps its place: nobody knows who may pass it.

    Letters that were redriven have no place among numbers: they stay behind them, or a missing number that comes
    behind a letter would be waited for in vain. One that is the head is what stopped the lane.
    """
    late = [each for each in queue[1:] if each[0].late]
    if late:
        return _in_turn([each for at, each in enumerate(queue) if not at or not each[0].late]) + late
    ordered: Queued = []
    begin = 0
    for at, (_, number) in enumerate(queue):
        if number is None:
            ordered += [*sorted(queue[begin:at], key=_number), queue[at]]
            begin = at + 1
    return ordered + sorted(queue[begin:], key=_number)


def _number(each: tuple[Message, int | None]) -> int:
    return each[1] or 0
