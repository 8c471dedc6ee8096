"""A lane adapts to the kind of its broker, and batches grow while a request is in flight."""

from tests.client.producer.engine_sim import served


def test_a_stock_broker_under_a_known_name_gets_one_request_at_a_time() -> None:
    """It would store a later request although an earlier one was lost."""
    sim = served(max_count=1, window=4)
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
    sim.check_outcomes()


def test_a_silent_stock_broker_under_a_known_name_gets_no_repetition() -> None:
    sim = served(answer_timeout=3_000, delivery_timeout=20.0)
    sim.checks_stamps = False
    sim.offer("a")
    sim.clock.at += 5000
    assert sim.engine.tick().hang_up == ()


def test_batches_grow_while_a_repetition_is_in_flight() -> None:
    """A repetition is answered like any request: a busy broker must not make batches small."""
    sim = served(max_count=10, window=4)
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
