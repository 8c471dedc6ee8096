"""What the engine remembers of a queue changes with the broker behind it, and with what is answered."""

from tests.client.producer.engine_sim import served


def test_a_stock_broker_under_a_known_name_gets_one_request_at_a_time() -> None:
    """It would store what it gets behind a lost one."""
    sim = served(max_batch_messages=1, window=4)
    sim.offer("a", "b", "c")
    assert len(sim.wire) == 3
    sim.heal()
    sim.checks_stamps = False
    sim.offer("a", "b", "c")
    assert len(sim.wire) == 1
    sim.heal()
    sim.checks_stamps = True
    sim.offer("a", "b", "c")
    assert len(sim.wire) == 3
    sim.heal()
    sim.check_told()


def test_a_silent_stock_broker_under_a_known_name_is_not_asked_twice() -> None:
    sim = served(request_timeout=3.0, timeout=20.0)
    sim.checks_stamps = False
    sim.offer("a")
    sim.clock.millis += 5000
    assert sim.engine.tick().hang_up == []


def test_messages_gather_while_a_repetition_is_under_way() -> None:
    """It is answered like any other request: one busy broker must not make batches small."""
    sim = served(max_batch_messages=10, window=4)
    sim.offer("a")
    sim.busy()
    sim.answer()
    sim.tick(100)
    (again,) = sim.wire
    sim.offer("b")
    sim.offer("c")
    assert sim.wire == [again]
    sim.heal()
    assert sim.requests == [[1], [2, 3]]
