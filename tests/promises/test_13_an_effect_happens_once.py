"""Promise 13: an effect in your database happens once."""

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.chaos.members import TIMEOUT, LocalGroup, key_in, until
from tests.chaos.system import GROUP, TOPIC

from lanemq import App
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.effects import AlreadyApplied, forget, once
from lanemq.errors import LeaseLost

KEY = key_in(0)
RARELY = 3600.0
"""Nothing is committed while the member runs, so its successor gets everything again."""


class Shop:
    """A table of effects, written with `once` and, for comparison, without."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.closing(self.connect()) as connection:
            for table in ("once", "plain"):
                connection.execute(f"CREATE TABLE {table} (key TEXT, number INTEGER, owner TEXT)")
            connection.commit()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=TIMEOUT)

    def apply(self, messages: Sequence[Message], owner: str = "") -> None:
        rows = [(message.key, message.value(), owner) for message in messages]
        with contextlib.closing(self.connect()) as connection, connection:
            connection.executemany("INSERT INTO plain VALUES (?, ?, ?)", rows)
        with once(messages, self.connect) as connection:
            connection.executemany("INSERT INTO once VALUES (?, ?, ?)", rows)

    def numbers(self, table: str = "once", key: str = KEY) -> list[int]:
        with contextlib.closing(self.connect()) as connection:
            found = connection.execute(f"SELECT number FROM {table} WHERE key = ? ORDER BY rowid", [key])
            return [number for (number,) in found.fetchall()]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


def send(group: LocalGroup, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        group.producer.send(TOPIC, number, key=KEY, queue=0)


def test_what_is_delivered_again_after_a_crash_has_no_second_effect(group: LocalGroup, shop: Shop) -> None:
    """ "A repeated delivery is skipped": and the plain write beside it happens twice."""
    send(group, 10)
    a = group.member("a", lambda message: shop.apply([message]), commit_every=RARELY)
    until("a is through", lambda: len(group.done) == 10)
    a.stop(now=True)
    group.member("b", lambda message: shop.apply([message]))
    send(group, 1, 10)
    until("b is through", lambda: shop.numbers()[-1:] == [10])
    assert shop.numbers() == [*range(11)]
    assert shop.numbers("plain") == [*range(10), *range(11)]


def test_a_retry_after_the_effect_finds_it_done(group: LocalGroup, shop: Shop) -> None:
    """Code behind the block fails once: the retry is done without a second effect, and without running that code."""
    failed = threading.Event()
    behind: list[int] = []

    def fails_behind_the_block(message: Message) -> None:
        shop.apply([message])
        behind.append(message.value())
        if not failed.is_set():
            failed.set()
            raise ValueError("behind the block")

    send(group, 2)
    group.member("a", fails_behind_the_block, on_fail=HoldKey(backoff=Backoff(0.01, 1, 0.01)))
    until("both are through", lambda: behind == [0, 1])
    assert shop.numbers() == [0, 1]
    assert shop.numbers("plain") == [0, 0, 1]


def test_a_parked_lane_that_is_redriven_is_applied_once_and_in_order(group: LocalGroup, shop: Shop) -> None:
    mended = threading.Event()

    def fails_inside_the_block(message: Message) -> None:
        with once(message, shop.connect) as connection:
            connection.execute("INSERT INTO once VALUES (?, ?, '')", [message.key, message.value()])
            if not mended.is_set():
                raise ValueError("not yet")

    send(group, 3)
    group.member("a", fails_inside_the_block, on_fail=HoldKey(retries=0))
    with ParkedAdmin(group.address) as parked:
        until("all are parked", lambda: [lane.messages for lane in parked.lanes(GROUP)] == [3])
        assert shop.numbers() == []
        mended.set()
        assert parked.redrive(parked.lanes(GROUP)[0])
        until("nothing is parked any more", lambda: not parked.lanes(GROUP))
    send(group, 1, 3)
    until("the newest is applied", lambda: shop.numbers()[-1:] == [3])
    assert shop.numbers() == [0, 1, 2, 3]


def test_a_stale_owner_that_wakes_up_is_refused(group: LocalGroup, shop: Shop) -> None:
    """ "A stale owner's transaction is refused", also for a key that the new owner has not touched."""
    untouched = next(key for key in (f"u{n}" for n in range(1000)) if key != KEY)
    inside, wakes = threading.Event(), threading.Event()
    ends: list[BaseException | None] = []

    def sleeps(message: Message) -> None:
        inside.set()
        assert wakes.wait(TIMEOUT)
        try:
            shop.apply([message], "a")
        except BaseException as error:
            ends.append(error)
            raise
        ends.append(None)

    held = threading.Event()
    group.producer.send(TOPIC, 0, key=untouched, queue=0)
    a = group.member("a", sleeps)
    assert inside.wait(TIMEOUT)
    a.stop(now=True)

    def applies_one_key(message: Message) -> None:
        if message.key == untouched:
            assert held.wait(TIMEOUT)
        shop.apply([message], "b")

    group.member("b", applies_one_key)
    send(group, 1)
    until("b has applied another key", lambda: shop.numbers() == [0])
    wakes.set()
    until("a has tried", lambda: ends)
    held.set()
    assert isinstance(ends[0], LeaseLost)
    until("b applies it", lambda: shop.numbers(key=untouched) == [0])


def test_batches_are_applied_once_however_they_are_cut(group: LocalGroup, shop: Shop) -> None:
    def member(name: str, size: int) -> App:
        app = App(group.address, group=GROUP, client_id=name, commit_every=RARELY)

        @app.ordered(TOPIC, batch_size=size)
        def on_messages(messages: Sequence[Message]) -> None:
            shop.apply(messages)

        app.start()
        return app

    send(group, 10)
    a = member("a", 4)
    until("a is through", lambda: len(shop.numbers()) == 10)
    a.stop(now=True)
    send(group, 5, 10)
    b = member("b", 7)
    until("b is through", lambda: shop.numbers()[-1:] == [14])
    b.stop()
    assert shop.numbers() == [*range(15)]
    assert len(shop.numbers("plain")) >= 25


def test_what_is_forgotten_is_applied_again_on_purpose(group: LocalGroup, shop: Shop) -> None:
    send(group, 3)
    a = group.member("a", lambda message: shop.apply([message]), commit_every=RARELY)
    until("a is through", lambda: len(shop.numbers()) == 3)
    a.stop(now=True)
    forget(shop.connect, group=GROUP, topic=TOPIC)
    group.member("b", lambda message: shop.apply([message]))
    until("b applies all of them again", lambda: shop.numbers() == [0, 1, 2, 0, 1, 2])


def test_a_handler_that_catches_the_verdict_goes_on(group: LocalGroup, shop: Shop) -> None:
    """For what must happen at least once behind the block."""
    behind: list[int] = []

    def always_notifies(message: Message) -> None:
        with contextlib.suppress(AlreadyApplied):
            shop.apply([message])
        behind.append(message.value())

    send(group, 2)
    a = group.member("a", always_notifies, commit_every=RARELY)
    until("a is through", lambda: behind == [0, 1])
    a.stop(now=True)
    group.member("b", always_notifies)
    until("b has notified again", lambda: behind == [0, 1, 0, 1])
    assert shop.numbers() == [0, 1]
