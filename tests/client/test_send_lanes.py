"""What the engine remembers of a queue changes with the broker behind it, and with what is answered."""

from tests.client.street import served


def test_a_stock_broker_under_a_known_name_gets_one_request_at_a_time() -> None:
    """It would store what it gets behind a lost one."""
    street = served(max_batch_messages=1, window=4)
    street.offer("a", "b", "c")
    assert len(street.wire) == 3
    street.heal()
    street.checks_stamps = False
    street.offer("a", "b", "c")
    assert len(street.wire) == 1
    street.heal()
    street.checks_stamps = True
    street.offer("a", "b", "c")
    assert len(street.wire) == 3
    street.heal()
    street.check_told()


def test_a_silent_stock_broker_under_a_known_name_is_not_asked_twice() -> None:
    street = served(request_timeout=3.0, timeout=20.0)
    street.checks_stamps = False
    street.offer("a")
    street.clock.millis += 5000
    assert street.engine.tick().hang_up == []


def test_messages_gather_while_a_repetition_is_under_way() -> None:
    """It is answered like any other request: one busy broker must not make batches small."""
    street = served(max_batch_messages=10, window=4)
    street.offer("a")
    street.busy()
    street.answer()
    street.tick(100)
    (again,) = street.wire
    street.offer("b")
    street.offer("c")
    assert street.wire == [again]
    street.heal()
    assert street.requests == [[1], [2, 3]]
