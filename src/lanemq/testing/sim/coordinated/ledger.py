"""What the group of a coordinated run has done, judged against the log as it was found at the end."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lanemq.client.message import Message
from lanemq.history import History
from lanemq.model.queue import MessageQueue
from lanemq.testing.sim.effects import is_as_sent
from lanemq.testing.sim.world import World


class LoggedMessage(NamedTuple):
    key: str
    id: str
    offset: int


class _Written(NamedTuple):
    number: int
    """How many writes there were before it."""
    offset: int
    ends: int
    """How often the log had ended at this offset or below it: then another message may be there."""
    losses: int
    """How often the end of the log had been lost."""

    @property
    def place(self) -> tuple[int, int]:
        return self.offset, self.ends


class Ledger:
    """A table with epochs, as `once` has it: a smaller one than the queue's highest is refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs: dict[MessageQueue, int] = {}
        self._written: dict[str, list[_Written]] = {}
        """The writes of each message: the first at each place."""
        self._writes = 0
        self._ends: list[Mapping[MessageQueue, int]] = []
        """Where the log of each queue ended after each loss of its end."""
        self._losses = 0

    def end_is_lost(self) -> None:
        """The end of the log is gone. Lost messages are sent again, or their offsets are used again."""
        self._losses += 1

    def ends_at(self, ends: Mapping[MessageQueue, int]) -> None:
        """Where the log ends when its broker is back."""
        if len(self._ends) < self._losses:
            self._ends += [ends] * (self._losses - len(self._ends))

    def write(self, message: Message, history: History) -> None:
        trace, queue = self._world.trace, message.queue
        if not is_as_sent(message):
            self._world.problem(f"got {message}, which was never sent like this")
        if message.epoch < self._epochs.get(queue, 0):
            trace.count("write of a stale owner refused")
            return
        self._epochs[queue] = message.epoch
        offset = message.queue_offset
        written = _Written(self._writes, offset, self._ends_below(queue, offset), self._losses)
        self._writes += 1
        before = self._written.setdefault(message.message_id, [])
        if before:
            trace.count("redelivery")
            if before[0].offset != offset and before[0].losses == self._losses:
                self._world.problem(f"{message.message_id} was stored twice in {queue}, and delivered twice")
        if all(each.place != written.place for each in before):
            before.append(written)

    def _ends_below(self, queue: MessageQueue, offset: int) -> int:
        return sum(ends.get(queue, 0) <= offset for ends in self._ends)

    def judge(self, log: Mapping[MessageQueue, Iterable[LoggedMessage]]) -> None:
        """Every message that is in the log was handled, and the first time in the order of its key.

        A message that was handled, lost with the end of the log and sent again may be behind others now that were sent
        meanwhile. It had its turn in the order of the log that is gone, so only a turn since then is compared.
        """
        for queue, messages in log.items():
            last: dict[str, int] = {}
            seen: set[str] = set()
            for message in messages:
                self._world.trace.count("repeat stored", message.id in seen)
                if message.id in seen:
                    continue
                seen.add(message.id)
                written = self._written.get(message.id)
                if written is None:
                    self._world.problem(
                        f"{message.id} of key {message.key} in {queue} was lost: no handler finished it"
                    )
                    continue
                place = (message.offset, self._ends_below(queue, message.offset))
                for turn in (each for each in written if each.place == place):
                    if turn.number < last.get(message.key, -1):
                        self._world.problem(f"{message.id} of key {message.key} in {queue} was handled too late")
                    last[message.key] = turn.number
