"""What the group of a coordinated run has done, judged against the log as it was found at the end.

A mark names a message at its place in the log. A message that was lost with the end of the log and sent again has
another one, also if a member that had read the lost one handles it later.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lanemq.client.message import Message
from lanemq.history import History
from lanemq.model.log_marks import LogMark
from lanemq.model.queue import MessageQueue
from lanemq.testing.sim.effects import is_as_sent
from lanemq.testing.sim.world import World
from lanemq.wire.log_marks import log_mark


class LoggedMessage(NamedTuple):
    key: str
    mark: LogMark


class Ledger:
    """A table with epochs, as `once` has it: a smaller one than the queue's highest is refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs: dict[MessageQueue, int] = {}
        self._written: dict[tuple[MessageQueue, LogMark], int] = {}
        """The number of the first write of each message at each place."""
        self._handled: set[str] = set()
        self._writes = 0

    def write(self, message: Message, history: History) -> None:
        trace, queue = self._world.trace, message.queue
        if not is_as_sent(message):
            self._world.problem(f"got {message}, which was never sent like this")
        if message.epoch < self._epochs.get(queue, 0):
            trace.count("write of a stale owner refused")
            return
        self._epochs[queue] = message.epoch
        self._written.setdefault((queue, log_mark(message.record)), self._writes)
        self._writes += 1
        trace.count("redelivery", message.message_id in self._handled)
        self._handled.add(message.message_id)

    def judge(self, log: Mapping[MessageQueue, Iterable[LoggedMessage]]) -> None:
        """Every message that is in the log was handled, the first time in the order of its key, and at one place only.

        A message that was handled, lost with the end of the log and sent again may be behind others now that were sent
        meanwhile. It had its turn in the order of the log that is gone, so only turns at its place in this log count.
        """
        for queue, messages in log.items():
            last: dict[str, int] = {}
            first: dict[str, LogMark] = {}
            for key, mark in messages:
                turn = self._written.get((queue, mark))
                if mark.id in first:
                    self._world.trace.count("repeat stored")
                    if turn is not None and (queue, first[mark.id]) in self._written:
                        self._world.problem(f"{mark.id} was stored twice in {queue}, and delivered twice")
                    continue
                first[mark.id] = mark
                if mark.id not in self._handled:
                    self._world.problem(f"{mark.id} of key {key} in {queue} was lost: no handler finished it")
                if turn is not None:
                    if turn < last.get(key, -1):
                        self._world.problem(f"{mark.id} of key {key} in {queue} was handled too late")
                    last[key] = turn
