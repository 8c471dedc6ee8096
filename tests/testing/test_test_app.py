"""`TestApp`: the real lanes, policies and contexts, without a broker and without waiting."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from lanemq import (
    App,
    Backoff,
    DeadLetter,
    Depends,
    HoldKey,
    InvalidOption,
    Message,
    MissingKey,
    Retry,
    Skip,
    ToDeadLetter,
    UsageError,
)
from lanemq.effects import once
from lanemq.testing import TestApp, assert_in_order


class Paid(pydantic.BaseModel):
    cents: int


def new_app(**settings: Any) -> App:
    return App("localhost:1", group="g", **settings)


def test_handlers_get_typed_events_in_order() -> None:
    app, seen = new_app(), list[tuple[str | None, int]]()

    @app.ordered("orders")
    def handle(event: Paid, message: Message) -> None:
        seen.append((message.key, event.cents))

    with TestApp(app) as test:
        for cents in (1, 2, 3):
            for key in ("a", "b"):
                test.send("orders", Paid(cents=cents), key=key)
        test.run()
    assert sorted(seen) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
    assert_in_order(seen)
    assert_in_order([turn.message for turn in test.turns])


def test_retries_wait_on_virtual_time_and_hold_only_their_key() -> None:
    app, failures = new_app(), [ValueError("away"), ValueError("away"), None]

    @app.ordered("orders", on_fail=HoldKey(retries=5, backoff=Backoff(first=60, factor=2, max=3600)))
    def handle(event: dict[str, int], message: Message) -> None:
        if message.key == "bad" and event["n"] == 1 and (error := failures.pop(0)):
            raise error

    with TestApp(app) as test:
        for n in (1, 2):
            test.send("orders", {"n": n}, key="bad")
        test.send("orders", {"n": 1}, key="good")
        test.run()
        assert [(turn.value["n"], turn.attempt, turn.at) for turn in test.turns_of("bad")] == [
            (1, 1, 0.0),
            (1, 2, 60.0),
            (1, 3, 180.0),
            (2, 1, 180.0),
        ]
        assert [turn.at for turn in test.turns_of("good")] == [0.0]
        assert test.parked == []


def test_a_key_that_keeps_failing_is_parked_with_what_follows_until_it_is_resumed() -> None:
    app, broken = new_app(), True

    @app.ordered("orders", on_fail=HoldKey(retries=2))
    def handle(event: int) -> None:
        if broken:
            raise RuntimeError("broken")

    with TestApp(app) as test:
        test.send("orders", 1, key="k")
        test.send("orders", 2, key="k")
        test.run()
        assert test.parked == [("orders", "k")]
        assert [(turn.value, str(turn.error)) for turn in test.turns] == [(1, "broken")] * 3
        broken = False
        assert test.resume("orders", "k")
        test.run()
        assert [turn.value for turn in test.turns if turn.error is None] == [1, 2]
        assert test.parked == []


def test_decisions_of_a_handler() -> None:
    app = new_app()

    @app.ordered("orders")
    def handle(event: str, message: Message) -> None:
        if event == "later" and message.attempt == 1:
            raise Retry(after=90)
        if event == "skip":
            raise Skip
        if event == "bury":
            raise ToDeadLetter("no address")

    with TestApp(app) as test:
        for event in ("later", "skip", "bury", "fine"):
            test.send("orders", event, key="k")
        test.run()
        assert [(letter.message.value(), letter.why) for letter in test.dead_letters] == [("bury", "no address")]
        assert test.now == 90.0
        assert [turn.value for turn in test.turns] == ["later", "later", "skip", "bury", "fine"]


def test_dead_letters_let_successors_pass() -> None:
    app = new_app()

    @app.ordered("orders", on_fail=DeadLetter(skip=True, hold=HoldKey(retries=1)))
    def handle(event: int) -> None:
        if event == 1:
            raise ValueError(event)

    with TestApp(app) as test:
        test.send("orders", 1, key="k")
        test.send("orders", 2, key="k")
        test.run()
        assert [letter.message.value() for letter in test.dead_letters] == [1]
        assert [turn.value for turn in test.turns] == [1, 1, 2]


def test_a_message_without_a_key_is_refused_as_an_ordered_topic_does() -> None:
    app = new_app()
    app.ordered("orders")(lambda message: None)
    with TestApp(app) as test, pytest.raises(MissingKey, match="orders"):
        test.send("orders", 1)


def test_concurrent_messages_come_back_with_the_delays_of_a_broker() -> None:
    app = new_app()

    @app.concurrent("metrics")
    def handle(event: int, message: Message) -> None:
        if message.attempt < 3:
            raise ValueError

    with TestApp(app) as test:
        sent = test.send("metrics", 1, tag="cpu", properties={"host": "a"})
        test.run()
        assert [(turn.attempt, turn.at) for turn in test.turns] == [(1, 0.0), (2, 10.0), (3, 40.0)]
        last = test.turns[-1].message
        assert (last.tag, last.properties["host"], last.message_id) == ("cpu", "a", sent.message_id)


def test_messages_are_sent_now_and_later_ones_on_virtual_time() -> None:
    app = new_app()
    app.ordered("orders")(lambda message: None)
    with TestApp(app) as test:
        first = test.send("orders", 1, key="k")
        test.run(seconds=3600)
        second = test.send("orders", 2, key="k")
    assert abs(first.born_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert second.born_at - first.born_at == timedelta(hours=1)


def test_a_plain_handler_sees_no_event_loop_as_on_the_threads_of_an_app() -> None:
    app = new_app()

    @app.ordered("orders")
    def handle(event: int) -> None:
        assert asyncio.run(asyncio.sleep(0, event)) == 1

    with TestApp(app) as test:
        test.send("orders", 1, key="k")
        test.run()
        assert [turn.error for turn in test.turns] == [None]


def test_lifespan_and_dependencies_work_with_async_handlers() -> None:
    seen = list[Any]()

    class Pool: ...

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        app.provide(Pool())
        seen.append("open")
        yield
        seen.append("closed")

    app = new_app(lifespan=lifespan)

    @app.ordered("orders")
    async def handle(event: int, pool: Annotated[Pool, Depends()]) -> None:
        await asyncio.sleep(0)
        seen.append((event, type(pool).__name__))

    with TestApp(app) as test:
        test.send("orders", 1, key="k")
        test.run()
    assert seen == ["open", (1, "Pool"), "closed"]


def test_async_tests_use_their_own_loop() -> None:
    app = new_app()

    @app.ordered("orders")
    async def handle(event: int) -> None: ...

    async def a_test() -> list[Any]:
        async with TestApp(app) as test:
            test.send("orders", 1, key="k")
            with pytest.raises(UsageError, match="run_async"):
                test.run()
            await test.run_async()
            return [turn.value for turn in test.turns]

    assert asyncio.run(a_test()) == [1]


def test_only_so_much_time_passes() -> None:
    app = new_app()

    @app.ordered("orders", on_fail=HoldKey(retries=-1, backoff=Backoff(first=10, factor=1, max=10)))
    def handle(event: int) -> None:
        raise ValueError("always")

    with TestApp(app) as test:
        test.send("orders", 1, key="k")
        test.run(seconds=35)
        assert [turn.at for turn in test.turns] == [0.0, 10.0, 20.0, 30.0]
        assert test.now == 35.0


def test_mistakes_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.ordered("orders", on_fail=HoldKey(retries=-1))
    def handle(event: int) -> None:
        raise ValueError("always")

    with pytest.raises(UsageError, match="with TestApp"):
        TestApp(app).send("orders", 1, key="k")
    monkeypatch.setattr("lanemq.testing.app.MAX_TURNS", 5)
    with TestApp(app) as test:
        with pytest.raises(InvalidOption, match="no handler for topic 'order': it has orders"):
            test.send("order", 1, key="k")
        test.send("orders", 1, key="k")
        with pytest.raises(AssertionError, match=r"always.*run\(seconds"):
            test.run()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1"])
def test_only_a_span_of_time_can_pass(seconds: Any) -> None:
    with TestApp(new_app()) as test, pytest.raises(InvalidOption, match="seconds"):
        test.run(seconds=seconds)


@pytest.mark.parametrize("rows_before", [0, 3])
def test_two_tests_with_one_database_do_not_disturb_each_other(tmp_path: Path, rows_before: int) -> None:
    """Each `TestApp` begins at offset 0. To `once`, that is a queue of its own and not one whose log began again."""
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE events (key TEXT, number INTEGER)")
        app = new_app()

        @app.ordered("orders", on_fail=HoldKey(retries=0))
        def apply(number: int, message: Message) -> None:
            with once(message, database) as connection:
                connection.execute("INSERT INTO events VALUES (?, ?)", (message.key, number))

        for count in (rows_before, 2):
            with TestApp(app) as test:
                for number in range(count):
                    test.send("orders", number, key="a")
                test.run()
                assert [turn.error for turn in test.turns] == [None] * count
                assert test.parked == []
        assert database.execute("SELECT count(*) FROM events").fetchone() == (rows_before + 2,)
