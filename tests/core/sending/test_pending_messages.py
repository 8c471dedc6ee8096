"""A line kept in parts behaves like a plain list of messages."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.core.sending import pending_line
from lanemq.core.sending.pending_line import PendingLine
from lanemq.core.sending.sent_window import SendBatch
from lanemq.model.units import Epoch, Millis

Entries = list[tuple[str, int, Millis]]

SIZES = st.lists(st.integers(1, 50), max_size=6)
STEPS = st.lists(
    st.tuples(st.just("add"), SIZES)
    | st.tuples(st.just("back"), SIZES)
    | st.tuples(st.just("cut"), st.integers(1, 8), st.integers(1, 120))
    | st.tuples(st.just("late"), st.integers(0, 5))
    | st.tuples(st.just("keys"), st.sets(st.sampled_from("abc"))),
    max_size=30,
)


def key_of(message: str) -> str | None:
    return None if message[0] == "d" else message[0]


def cut(plain: Entries, most: int, max_bytes: int) -> Entries:
    """As many as fit, and at least one, message by message."""
    taken, total = plain[:1], sum(size for _, size, _ in plain[:1])
    for entry in plain[1:most]:
        total += entry[1]
        if total > max_bytes:
            break
        taken.append(entry)
    return taken


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0, 2, 100]), st.sampled_from([0, 5, 100]))
def test_messages_come_out_as_from_a_plain_list(steps: Sequence[tuple[Any, ...]], listed: int, unread: int) -> None:
    """Whether or not their keys are indexed."""
    with mock.patch.multiple(pending_line, MAX_LISTED=listed, MAX_UNREAD=unread):
        behaves_like_a_plain_list(steps)


def behaves_like_a_plain_list(steps: Sequence[tuple[Any, ...]]) -> None:
    line: PendingLine[str] = PendingLine(key_of)
    plain: Entries = []
    number = 0
    for now, step in enumerate(steps):
        match step:
            case ("add" | "back" as where, sizes):
                names = [f"{'abcd'[(number + place) % 4]}{number + place}" for place in range(len(sizes))]
                number += len(sizes)
                if where == "add":
                    line.add(names, sizes, Millis(now), number)
                    plain += [(name, size, Millis(now)) for name, size in zip(names, sizes, strict=True)]
                else:
                    oldest = plain[0][2] if plain else Millis(now)
                    line.put_back([SendBatch(Epoch(1), 0, tuple(names), sizes, oldest, -number)])
                    plain[:0] = [(name, size, oldest) for name, size in zip(names, sizes, strict=True)]
            case ("cut", most, max_bytes) if plain:
                taken = cut(plain, most, max_bytes)
                found = line.cut(most, max_bytes)
                assert list(zip(found.messages, found.sizes, strict=True)) == [each[:2] for each in taken]
                assert found.deadline == taken[0][2]
                del plain[: len(taken)]
            case ("late", age):
                late = [name for name, _, deadline in plain if deadline <= now - age]
                assert line.take_late(Millis(now - age)) == late
                del plain[: len(late)]
            case ("keys", keys):
                gone = [name for name, _, _ in plain if key_of(name) in keys]
                assert line.take_keys(keys) == gone
                plain = [each for each in plain if each[0] not in gone]
        assert line.messages() == [name for name, _, _ in plain]
        assert line.count == len(plain)
        assert line.size == sum(size for _, size, _ in plain)
        assert line.deadline == (plain[0][2] if plain else None)


def test_a_message_too_large_for_a_batch_is_cut_alone() -> None:
    line: PendingLine[str] = PendingLine(key_of)
    line.add(("a", "b", "c"), (10, 999, 10), Millis(1), 0)
    assert [list(line.cut(9, 100).messages) for _ in range(3)] == [["a"], ["b"], ["c"]]


class Large:
    """A message that supports weak references."""


def test_messages_that_were_cut_are_not_kept() -> None:
    """A line may hold megabytes: messages that were sent must not be kept with those that wait."""
    messages = [Large() for _ in range(4)]
    watched = [weakref.ref(message) for message in messages]
    line: PendingLine[Large] = PendingLine(lambda _: None)
    line.add(messages, [1] * 4, Millis(1), 0)
    del messages
    line.cut(3, 100)
    gc.collect()
    assert [each() is None for each in watched] == [True, True, True, False]


def read_by_failures(waiting: int, together: int) -> list[int]:
    """How many messages three failures read, one after the other, in a line of parts of this size."""
    read = 0

    def counted(message: str) -> str:
        nonlocal read
        read += 1
        return message

    line: PendingLine[str] = PendingLine(counted)
    for start in range(0, waiting, together):
        line.add([f"k{number}" for number in range(start, start + together)], [1] * together, Millis(1), start)
    found = []
    for key in ("k5", f"k{waiting - 1}", f"k{waiting // 2}"):
        read = 0
        assert line.take_keys({key, "missing"}) == [key]
        found.append(read)
    assert line.count == waiting - 3
    return found


@pytest.mark.parametrize("together", [1, 2, 125])
def test_a_failure_reads_no_more_of_a_long_line_than_of_a_short_one(together: int) -> None:
    short, long = read_by_failures(1_000, together), read_by_failures(20_000, together)
    assert long[0] <= 3 * short[0]
    assert long[1:] == short[1:] == [together, together]


@pytest.mark.parametrize("together", [1, 125])
def test_without_the_index_a_failure_reads_the_whole_line(together: int) -> None:
    """The negative control."""
    with mock.patch.multiple(pending_line, MAX_LISTED=10**9, MAX_UNREAD=10**9):
        assert read_by_failures(20_000, together)[0] >= 20_000


def test_the_index_forgets_messages_that_were_sent() -> None:
    line: PendingLine[str] = PendingLine(key_of)
    for number in range(20_000):
        line.add((f"a{number}",), (1,), Millis(number), number)
        if number >= 1_000:
            line.cut(1, 1)
    assert line._indexed <= 3 * line.count
    assert line.take_keys({"a"}) == [f"a{number}" for number in range(19_000, 20_000)]
    assert not line._by_key
