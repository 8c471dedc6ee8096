"""The end of a consumer: what was done is reported, and if that fails somebody hears of it."""

import asyncio
import logging
from typing import Any

import pytest
from tests.client.consumer_fakes import FakeBroker, SimEngine, no_answer, queue, record, sim_plan, until
from tests.client.virtual_time import run_virtual

from lanemq.client.message import Message


async def stopped(broker: FakeBroker, handler: Any, away_ms: int, **changes: Any) -> int:
    """A member that consumed everything is stopped while nobody answers commits; how long its stop took."""
    engine = SimEngine(broker, "a", [sim_plan(handler)], commit_every_ms=60_000, **changes)
    running = asyncio.create_task(engine.run())
    await engine.started.wait()
    await asyncio.sleep(1)
    begin = broker.clock.now()

    def away(member: str, name: str, about: Any) -> None:
        if name == "commit" and broker.clock.now() < begin + away_ms:
            no_answer()

    broker.faults.append(away)
    engine.stop()
    await running
    return broker.clock.now() - begin


async def nothing(_: Message) -> None: ...


def filled() -> FakeBroker:
    broker = FakeBroker([queue(0)])
    broker.store(queue(0), *[record(n) for n in range(5)])
    return broker


def test_a_stop_reports_its_last_offset_to_a_broker_that_was_briefly_away() -> None:
    async def main() -> None:
        broker = filled()
        took = await stopped(broker, nothing, away_ms=2_000)
        assert broker.offsets[queue(0)] == 5
        assert 2_000 <= took <= 4_000
        assert [each[2] for each in broker.noted if each[2] in ("commit", "unlock", "leave")][-3:] == [
            "commit", "unlock", "leave",
        ]  # fmt: skip

    run_virtual(main)


def test_a_stop_whose_offset_cannot_be_reported_ends_in_its_time_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It must not be taken for a handler that runs on: there is none to look for."""

    async def main() -> None:
        broker = filled()
        took = await stopped(broker, nothing, away_ms=60_000, stop_ms=5_000)
        assert took <= 5_000
        assert len(broker.what("commit")) >= 5
        assert broker.what("unlock") == []

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert "its last offset could not be reported" in caplog.text
    assert "handler running" not in caplog.text


def test_a_stop_that_leaves_a_handler_behind_says_that(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = filled()
        began = asyncio.Event()

        async def forever(_: Message) -> None:
            began.set()
            await asyncio.Event().wait()

        took = await stopped(broker, forever, away_ms=0, stop_ms=3_000)
        await until(began.is_set)
        assert 3_000 <= took < 6_000

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert "left behind with its handler running" in caplog.text
    assert "could not be reported" not in caplog.text
