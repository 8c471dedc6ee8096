"""Replies leave together: at the end of the step in which they were made, or of the loop iteration."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from lanemq.net.serving.outbox import Outbox


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
        self.outbox = Outbox(cast("asyncio.AbstractEventLoop", self.iteration))
        self.written: list[str] = []

    def add(self, name: str) -> None:
        self.outbox.add(lambda: self.written.append(name))


def test_replies_are_written_at_the_end_of_the_iteration_in_order() -> None:
    writes = Writes()
    writes.add("a")
    writes.add("b")
    assert writes.written == []
    assert len(writes.iteration.soon) == 1
    writes.iteration.end()
    assert writes.written == ["a", "b"]


def test_replies_of_a_step_are_written_at_its_end_and_only_once() -> None:
    writes = Writes()
    with writes.outbox:
        writes.add("a")
        writes.add("b")
        assert writes.written == []
    assert writes.written == ["a", "b"]
    assert writes.iteration.soon == []
    writes.add("c")
    writes.iteration.end()
    assert writes.written == ["a", "b", "c"]


def test_the_end_of_a_step_inside_another_writes_what_both_have_made_so_far() -> None:
    writes = Writes()
    with writes.outbox:
        writes.add("outer")
        with writes.outbox:
            writes.add("inner")
        assert writes.written == ["outer", "inner"]
        writes.add("rest")
    assert writes.written == ["outer", "inner", "rest"]
    assert writes.iteration.soon == []


def test_a_step_that_fails_writes_what_it_has_made() -> None:
    writes = Writes()

    def step() -> None:
        with writes.outbox:
            writes.add("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert writes.written == ["a"]
    writes.add("b")
    assert len(writes.iteration.soon) == 1


def test_a_reply_that_cannot_be_written_does_not_keep_back_the_others(caplog: pytest.LogCaptureFixture) -> None:
    writes = Writes()

    def fails() -> None:
        raise OSError("as asked")

    writes.outbox.add(fails)
    writes.add("b")
    writes.iteration.end()
    assert writes.written == ["b"]
    assert "a reply could not be written" in caplog.text


def test_a_reply_that_is_made_by_a_write_is_written_too() -> None:
    writes = Writes()
    writes.outbox.add(lambda: writes.add("made"))
    writes.iteration.end()
    writes.iteration.end()
    assert writes.written == ["made"]
