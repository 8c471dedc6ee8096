"""Requests whose answers need questions to brokers first."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from lanemq.broker.dispatch import answer, answer_error, answer_fault
from lanemq.model.errors import LaneError
from lanemq.net.serving.peer import Peer
from lanemq.wire.bodies import Body
from lanemq.wire.command import Command


class BackgroundAnswers:
    """Answers requests from tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, peer: Peer, request: Command, work: Coroutine[Any, Any, Body]) -> None:
        """Answer with the result of `work`, or with its error."""
        task = asyncio.create_task(_answer(peer, request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Answer nothing any more: the term is over."""
        for task in tuple(self._tasks):
            task.cancel()


async def _answer(peer: Peer, request: Command, work: Coroutine[Any, Any, Body]) -> None:
    try:
        result = await work
    except LaneError as error:
        answer_error(peer, request, error)
    except Exception:
        answer_fault(peer, request)
        raise
    else:
        answer(peer, request, {}, result.encode())
