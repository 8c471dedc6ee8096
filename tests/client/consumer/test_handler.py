"""What the user's answers mean: statuses, exceptions and verdicts of every kind of handler."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.worker_fixture import handler_call, run_of

from lanemq.client.consumer.turns.handler import (
    AlreadyApplied,
    ConcurrentHandler,
    ConcurrentlyStatus,
    HandlerCall,
    HandlerVerdict,
    MessageFailed,
    OrderlyHandler,
    OrderlyStatus,
    Retry,
    Skip,
    Stop,
    ToDeadLetter,
    batch_handler,
    describe,
    stop_after,
)
from lanemq.core.consuming.runs import (
    COMMIT,
    FAILED,
    HOPELESS,
    ONE_BY_ONE,
    ROLL_BACK,
    STOPPED,
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


@pytest.mark.parametrize("kind", ["function", "orderly listener", "concurrent listener"])
def test_what_was_applied_before_is_done_and_the_rest_of_the_batch_runs_again(kind: str) -> None:
    batch = (message(0), message(1), message(2))

    def ends(verdict: AlreadyApplied) -> Stop | None:
        def handler(*_: Any) -> Any:
            raise verdict

        handle = {
            "function": batch_handler(HandlerCall("h", False, handler), batched=True),
            "orderly listener": OrderlyHandler(handler),
            "concurrent listener": ConcurrentHandler(handler),
        }[kind]
        return handle(batch, run_of(*batch))

    assert ends(AlreadyApplied(message=batch[2])) is None
    assert ends(AlreadyApplied(message=batch[0])) == Stop(STOPPED, succeeded=1)
    mixed = ends(AlreadyApplied())
    assert mixed is not None
    assert mixed.outcome is ONE_BY_ONE


@pytest.mark.parametrize("after", [float("nan"), float("inf"), 1e300, -1, -0.001, "soon", True, [5]])
def test_a_retry_with_a_meaningless_delay_is_a_failure_that_says_so(after: Any) -> None:
    stop = stop_after(Retry(after=after), (message(0),))
    assert stop is not None
    assert stop.outcome is FAILED
    assert "has no meaning" in str(stop.error)


def test_a_retry_takes_a_timedelta() -> None:
    stop = stop_after(Retry(after=timedelta(seconds=2)), (message(0),))
    assert stop is not None
    assert stop.outcome == Suspend(Millis(2000))


def test_a_batch_is_decided_at_the_message_that_the_exception_names() -> None:
    batch = (message(0), message(1), message(2))
    failed, later, dead = MessageFailed(batch[1]), Retry(1, message=1), ToDeadLetter("bad", message=batch[1])
    assert stop_after(failed, batch) == Stop(FAILED, succeeded=1, concerned=1, error=failed)
    assert stop_after(later, batch) == Stop(Suspend(Millis(1000)), succeeded=1, concerned=1, error=later)
    assert stop_after(dead, batch) == Stop(Suspend(None), succeeded=1, concerned=1, error=dead, dead_letter="bad")
    assert stop_after(Skip(message=batch[1]), batch) == Stop(STOPPED, succeeded=2)
    assert stop_after(Skip(message=2), batch) is None


@pytest.mark.parametrize("kind", [MessageFailed, Skip, Retry, ToDeadLetter])
def test_messages_whose_transaction_was_rolled_back_are_not_done(kind: Callable[..., HandlerVerdict]) -> None:
    batch = (message(0), message(1), message(2))
    error = kind(message=batch[2])
    error.rolled_back = batch
    stop = stop_after(error, batch)
    assert stop is not None
    assert (stop.outcome, stop.succeeded) == (ONE_BY_ONE, 0)
    error.rolled_back = (batch[2],)  # a block for each message: those before it have committed
    alone = stop_after(error, batch)
    assert alone is None or alone.succeeded == 2


NAMELESS = [ValueError(), Skip(), Retry(), ToDeadLetter(), Undecodable("x"), MessageFailed(3), MessageFailed(-1)]


@pytest.mark.parametrize("error", NAMELESS)
def test_an_exception_that_names_no_message_of_a_batch_divides_it(error: BaseException) -> None:
    stop = stop_after(error, (message(0), message(1)))
    assert stop is not None
    assert (stop.outcome, stop.succeeded) == (ONE_BY_ONE, 0)


def test_a_name_that_does_not_fit_is_a_failure_and_never_a_skip() -> None:
    stop = stop_after(Skip(message=message(9)), (message(0),))
    assert stop is not None
    assert stop.outcome is FAILED
    assert "not in this batch" in str(stop.error)


def test_texts_of_user_code_are_made_storable() -> None:
    class Silent(Exception):
        def __repr__(self) -> str:
            raise SystemExit

    class Odd(Exception):
        def __repr__(self) -> str:
            return "\udc80"

    assert describe(Silent()).endswith("(its text cannot be produced)")
    assert describe(Odd()) == "?"


def test_a_failed_message_of_a_batch_is_described_by_its_cause() -> None:
    failed = MessageFailed(1)
    assert describe(failed) == "MessageFailed()"
    failed.__cause__ = ZeroDivisionError("division by zero")
    assert describe(failed) == "ZeroDivisionError('division by zero')"
    reasoned = MessageFailed(1, "no stock")
    reasoned.__cause__ = KeyError("x")
    assert describe(reasoned) == "MessageFailed('no stock')"
    stop = stop_after(ToDeadLetter(12), (message(0),))  # type: ignore[arg-type]
    assert stop is not None
    assert stop.dead_letter == "12"


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
