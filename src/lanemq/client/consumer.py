"""Messages by iteration, for programs that want to drive.

    with Consumer("localhost:9876", group="audit", topics=["orders"]) as consumer:
        for message in consumer:
            ...
            consumer.done(message)

Messages of a key come in order: the next one only after `done` (or `dead`) of the one before; `retry` brings the
same one again. Messages of other keys may be taken meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from lanemq.client.consumer_options import ConsumerOptions
from lanemq.client.consumer_snapshot import ConsumerSnapshot, take_snapshot
from lanemq.client.engine_thread import EngineThread
from lanemq.client.message import Message
from lanemq.client.open_turns import OpenTurns, plans_for
from lanemq.client.station import make_board
from lanemq.core.retry_policy import FailurePolicy
from lanemq.core.turns import Why


class Consumer:
    """One member of a group. Iterate from one thread; decide about messages from any."""

    def __init__(
        self,
        servers: str,
        *,
        group: str,
        topics: str | Sequence[str],
        tags: str = "*",
        on_fail: FailurePolicy | None = None,
        **options: Any,
    ) -> None:
        self.options = ConsumerOptions(servers=servers, group=group, **options)
        plans = plans_for(topics, tags, on_fail)
        board = make_board(plans[0], self.options.clock)
        self._turns = OpenTurns(board, group, self.options.history)
        self._thread = EngineThread(self.options, plans, board)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, now: bool = False) -> None:
        """Undecided messages go back and will be delivered again; the rest is committed and handed over."""
        self._turns.abandon()
        self._thread.stop(now=now)

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in `timeout` seconds, or the consumer was closed."""
        turn = self._turns.board.take(timeout)
        return None if turn is None else self._turns.give_out(turn)

    def done(self, message: Message) -> bool:
        """The lane goes on. False: the queue was lost meanwhile, the message will be delivered again."""
        return self._turns.done(message)

    def retry(self, message: Message, after: float | None = None) -> None:
        """The same message again, after `after` seconds or as the failure policy says."""
        self._turns.retry(message, after)

    def dead(self, message: Message, why: str = "") -> bool:
        """To the group's dead letters; the lane goes on behind it. False: the broker did not take it."""
        turn, end = self._turns.buried(message, why)
        engine = self._thread.engine
        settling = engine.aftermath.settle(engine.stations[turn.queue.topic], turn, end)
        return asyncio.run_coroutine_threadsafe(settling, self._thread.loop).result().why is Why.STOPPED

    def snapshot(self) -> ConsumerSnapshot:
        return take_snapshot(self._thread.engine)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.poll()
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> "Consumer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
