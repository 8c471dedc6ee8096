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


class _Written(NamedTuple):
    number: int
    offset: int
    truncations: int


class Ledger:
    """A table with epochs, as `once` has it: a smaller one than the queue's highest is refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs: dict[MessageQueue, int] = {}
        self._written: dict[str, _Written] = {}
        self.truncations = 0
        """How often the end of the log was lost. Lost messages are sent again, or their offsets are used again."""

    def write(self, message: Message, history: History) -> None:
        trace, queue = self._world.trace, message.queue
        if not is_as_sent(message):
            self._world.problem(f"got {message}, which was never sent like this")
        if message.epoch < self._epochs.get(queue, 0):
            trace.count("write of a stale owner refused")
            return
        self._epochs[queue] = message.epoch
        before = self._written.get(message.message_id)
        if before is None:
            self._written[message.message_id] = _Written(len(self._written), message.queue_offset, self.truncations)
            return
        trace.count("redelivery")
        if before.offset != message.queue_offset and before.truncations == self.truncations:
            self._world.problem(f"{message.message_id} was stored twice in {queue}, and delivered twice")

    def judge(self, log: Mapping[MessageQueue, Iterable[LoggedMessage]]) -> None:
        """Every message that is in the log was handled, and the first time in the order of its key."""
        for queue, messages in log.items():
            last: dict[str, _Written] = {}
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
                if message.key in last and last[message.key].number > written.number:
                    self._world.problem(f"{message.id} of key {message.key} in {queue} was handled too late")
                last[message.key] = written
