"""What the log says of failures: once per attempt, with the place, and one traceback."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.consumer.fakes import committable, queue
from tests.client.consumer.worker_fixture import WorkerFixture

from lanemq.client.consumer.turns.handler import (
    Retry,
)
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import HoldKey, HoldQueue


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    """Level, text and whether a traceback came with it, of every line about handlers."""
    return [
        (each.levelname, each.getMessage(), each.exc_info is not None)
        for each in caplog.records
        if each.getMessage().startswith(("handler", "body cannot be decoded"))
    ]


PLACE = "topic=orders queue=orders/a/0 offset=0 key='k'"


def parked(fixture: WorkerFixture) -> bool:
    with fixture.scheduler as lanes:
        view = lanes.view(queue(0))
    return view is not None and bool(view.parked)


def run_to_the_end(handler: Callable[..., Any], caplog: pytest.LogCaptureFixture, **plan: Any) -> None:
    caplog.set_level("INFO")
    fields = {"body": plan.pop("body", b"{}")}
    fixture = WorkerFixture(handler, **{"policy": HoldQueue(suspend=0.01)} | plan)

    def scenario(fixture: WorkerFixture) -> None:
        fixture.add(queue(0))
        fixture.put(queue(0), 1, **fields)
        fixture.wait(lambda: committable(fixture.scheduler, queue(0)) == 1 or parked(fixture))

    fixture.run(scenario)


def test_a_retry_verdict_is_logged_as_information(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def handler(message: Message) -> None:
        calls.append(message.attempt)
        if len(calls) < 3:
            raise Retry(after=0.01)

    run_to_the_end(handler, caplog)
    assert said(caplog) == [
        ("INFO", f"handler decided, attempt 1: {PLACE}: Retry('try again after 0.01 s')", False),
        ("INFO", f"handler decided, attempt 2: {PLACE}: Retry('try again after 0.01 s')", False),
    ]


def test_a_lane_parked_by_retry_verdicts_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: Message) -> None:
        raise Retry

    run_to_the_end(handler, caplog, policy=HoldKey(retries=0))
    assert [(level, trace) for level, _, trace in said(caplog)] == [("ERROR", False)]


def test_an_exception_is_logged_once_per_attempt_with_its_place_and_one_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def handler(message: Message) -> None:
        calls.append(message.attempt)
        if len(calls) < 3:
            raise ValueError("not yet")

    run_to_the_end(handler, caplog)
    assert said(caplog) == [
        ("WARNING", f"handler failed, attempt 1, trying again: {PLACE}: ValueError('not yet')", True),
        ("WARNING", f"handler failed, attempt 2, trying again: {PLACE}: ValueError('not yet')", False),
    ]


def test_a_body_that_cannot_be_decoded_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    def handler(event: dict[str, int]) -> None: ...

    run_to_the_end(handler, caplog, policy=HoldKey(retries=16), body=b"not json")
    ((level, text, trace),) = said(caplog)
    assert (level, trace) == ("ERROR", False)
    assert text.startswith(f"body cannot be decoded, lane parked until it is redriven: {PLACE}: Undecodable(")


def test_a_traceback_begins_in_the_users_code(caplog: pytest.LogCaptureFixture) -> None:
    """Compiled or not: frames of LaneMQ between the worker and the handler are left out."""

    def handler(message: Message) -> None:
        raise ValueError(message.attempt)

    run_to_the_end(handler, caplog, policy=HoldKey(retries=0))
    (info,) = [each.exc_info for each in caplog.records if each.exc_info]
    assert [frame.name for frame in traceback.extract_tb(info[2])] == ["handler"]
