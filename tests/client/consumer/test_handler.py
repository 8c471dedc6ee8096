"""What the user's answers mean: statuses, exceptions and verdicts of every kind of handler."""

from typing import Any

import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.worker_fixture import run_of

from lanemq.client.consumer.turns.handler import (
    ConcurrentHandler,
    ConcurrentlyStatus,
    OrderlyHandler,
    OrderlyStatus,
    Retry,
    Skip,
    Stop,
    ToDeadLetter,
    batch_handler,
    handler_call,
    stop_after,
)
from lanemq.core.consuming.runs import (
    COMMIT,
    FAILED,
    HOPELESS,
    ROLL_BACK,
    Suspend,
)
from lanemq.model.errors import CodecError, InvalidOption, Undecodable
from lanemq.model.units import Millis


@pytest.mark.row("A80")
def test_an_exception_means_retry_and_never_skip() -> None:
    error = ValueError("broken")
    assert stop_after(error, (message(0),)) == Stop(FAILED, error=error)


def test_each_verdict_gives_its_outcome() -> None:
    batch = (message(0),)
    assert stop_after(Skip(), batch) is None
    later, whenever, dead = Retry(after=2.5), Retry(), ToDeadLetter("bad")
    assert stop_after(later, batch) == Stop(Suspend(Millis(2500)), error=later)
    assert stop_after(whenever, batch) == Stop(Suspend(None), error=whenever)
    assert stop_after(dead, batch) == Stop(Suspend(None), error=dead, dead_letter="bad")


def test_a_body_that_cannot_be_decoded_is_a_failure_that_names_its_place() -> None:
    def handler(event: dict[str, int]) -> None: ...

    handler = batch_handler(handler_call(handler), batched=False)
    stop = handler((message(7, body=b"not json"),), run_of(message(7)))
    assert stop is not None
    assert stop.outcome is HOPELESS
    assert isinstance(stop.error, Undecodable)
    assert "orders/a/0@7" in str(stop.error)


def test_a_codec_error_of_the_handlers_own_work_is_retried() -> None:
    """It may concern a value that the handler wanted to send, or a registry that is away."""
    error = CodecError("cannot encode object as JSON")
    assert stop_after(error, (message(0),)) == Stop(FAILED, error=error)


@pytest.mark.row("A92")
@pytest.mark.row("A93")
@pytest.mark.row("A94")
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (OrderlyStatus.SUCCESS, None),
        (OrderlyStatus.COMMIT, COMMIT),
        (OrderlyStatus.ROLLBACK, COMMIT),
        (OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, Suspend(None)),
        (None, Suspend(None)),
    ],
)
def test_orderly_statuses_with_automatic_commit(status: OrderlyStatus | None, wanted: Any) -> None:
    """COMMIT and ROLLBACK are illegal then and count as success; the scheduler says so in its answer."""
    stop = OrderlyHandler(lambda messages, context: status)((message(0),), run_of(message(0)))
    assert (stop and stop.outcome) == wanted


@pytest.mark.row("A95")
@pytest.mark.row("A96")
@pytest.mark.row("A97")
@pytest.mark.row("A98")
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (OrderlyStatus.SUCCESS, None),
        (OrderlyStatus.COMMIT, COMMIT),
        (OrderlyStatus.ROLLBACK, ROLL_BACK),
        (OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, Suspend(None)),
    ],
)
def test_orderly_statuses_with_manual_commit(status: OrderlyStatus, wanted: Any) -> None:
    stop = OrderlyHandler(lambda messages, context: status, manual=True)((message(0),), run_of(message(0)))
    assert (stop and stop.outcome) == wanted


@pytest.mark.row("A100")
@pytest.mark.parametrize(("asked", "waits"), [(5, 10), (60_000, 30_000), (700, 700)])
def test_a_listeners_suspend_time_is_kept_between_ten_milliseconds_and_thirty_seconds(asked: int, waits: int) -> None:
    def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.suspend_current_queue_time_millis = asked
        return OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    stop = OrderlyHandler(listener)((message(0),), run_of(message(0)))
    assert stop is not None
    assert stop.outcome == Suspend(Millis(waits))


def test_auto_commit_off_without_manual_commit_is_an_error() -> None:
    def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.auto_commit = False
        return OrderlyStatus.SUCCESS

    stop = OrderlyHandler(listener)((message(0),), run_of(message(0)))
    assert stop is not None
    assert isinstance(stop.error, InvalidOption)


@pytest.mark.row("A79")
def test_a_listener_cannot_change_its_sequence_of_messages() -> None:
    given = []
    OrderlyHandler(lambda messages, context: given.append(messages))((message(0),), run_of(message(0)))
    with pytest.raises(TypeError):
        given[0][0] = None


def test_a_concurrent_listener_fails_only_messages_after_its_ack_index() -> None:
    def listener(messages: Any, context: Any) -> ConcurrentlyStatus:
        context.ack_index = 0
        context.delay_level_when_next_consume = 4
        return ConcurrentlyStatus.CONSUME_SUCCESS

    batch = (message(0), message(1), message(2))
    assert ConcurrentHandler(listener)(batch, run_of(*batch)) == Stop(FAILED, succeeded=1, delay_level=4)
