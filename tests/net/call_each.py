"""For connections on which callbacks wait for replies."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from lanemq.model.errors import LaneError
from lanemq.wire.command import Command

OnReply: TypeAlias = Callable[[Command | None, LaneError | None], None]


def call_each(replies: Sequence[tuple[OnReply, Command | None, LaneError | None]]) -> None:
    for on_reply, reply, error in replies:
        on_reply(reply, error)
