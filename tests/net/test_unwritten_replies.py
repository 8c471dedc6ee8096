"""Replies that are made outside a read leave together, at the end of the loop iteration or when their maker says so."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from lanemq.net.unwritten_replies import UnwrittenReplies


class Iteration:
    """The part of an event loop that is needed: what runs at the end of the iteration."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def end(self) -> None:
        soon, self.soon = self.soon, []
        for each in soon:
            each()


class Writes:
    def __init__(self) -> None:
        self.iteration = Iteration()
        self.replies = UnwrittenReplies(cast("asyncio.AbstractEventLoop", self.iteration))
        self.written: list[str] = []

    def add(self, name: str) -> None:
        self.replies.add(lambda: self.written.append(name))


def test_replies_are_written_at_the_end_of_the_iteration_in_order() -> None:
    writes = Writes()
    writes.add("a")
    writes.add("b")
    assert writes.written == []
    assert len(writes.iteration.soon) == 1
    writes.iteration.end()
    assert writes.written == ["a", "b"]


def test_who_has_made_all_replies_writes_them_at_once_and_only_once() -> None:
    writes = Writes()
    writes.add("a")
    writes.replies.write()
    assert writes.written == ["a"]
    writes.add("b")
    writes.iteration.end()
    assert writes.written == ["a", "b"]
    writes.add("c")
    writes.iteration.end()
    assert writes.written == ["a", "b", "c"]


def test_a_reply_that_cannot_be_written_does_not_keep_back_the_others(caplog: pytest.LogCaptureFixture) -> None:
    writes = Writes()

    def fails() -> None:
        raise OSError("as asked")

    writes.replies.add(fails)
    writes.add("b")
    writes.iteration.end()
    assert writes.written == ["b"]
    assert "a reply could not be written" in caplog.text


def test_a_reply_that_is_made_by_a_write_is_written_too() -> None:
    writes = Writes()
    writes.replies.add(lambda: writes.add("made"))
    writes.iteration.end()
    writes.iteration.end()
    assert writes.written == ["made"]
