"""A failed message freezes its key and nothing else, case by case."""

import pytest
from tests.client.producer.engine_sim import QUEUE, Call, EngineSim, served, stored

from lanemq.clock import wall_time
from lanemq.model.errors import (
    Dropped,
    LaneError,
    LaneFrozen,
    MessageRefused,
    NotAllowed,
    ProducerFenced,
    RequestTimedOut,
)
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command


def test_a_refused_batch_is_split_and_only_the_key_of_the_illegal_message_fails() -> None:
    sim = served(max_count=10)
    sim.offer(None, "a", "b", "a", "c", bad=[1])
    sim.heal()
    assert sim.requests[:4] == [[1, 2, 3, 4, 5], [1, 2], [1], [2]]
    assert stored(sim) == [1, 3, 5]
    assert isinstance(sim.results.errors[2], MessageRefused)
    with pytest.raises(LaneFrozen, match="earlier message of key 'a' to queue orders/b/0 failed: the broker refused"):
        raise sim.results.errors[4]
    assert sim.frozen() == {"a"}


def test_batches_behind_a_refused_one_are_sent_again_only_after_they_are_refused() -> None:
    """Sent again before that, under another sequence, they could be stored twice."""
    sim = served(max_count=1, window=3)
    sim.offer("a", "b", "c", bad=[0])
    sim.take()
    sim.answer()
    assert sim.wire[0].batch.epoch == sim.wire[1].batch.epoch == 1, "still those of the old epoch"
    assert len(sim.wire) == 2
    sim.take()
    sim.answer()
    assert len(sim.wire) == 1
    sim.take()
    sim.answer()
    assert [request.batch.epoch for request in sim.wire] == [2, 2]
    sim.heal()
    assert stored(sim) == [2, 3]


def test_a_batch_stored_before_the_refused_one_is_stored_once() -> None:
    """Its reply waits for the disk, so the refusal arrives first."""
    sim = served(max_count=1, window=3)
    sim.offer("a", "b", "c", bad=[1])
    for _ in range(3):
        sim.take()
    sim.answer(refusals_first=True)
    sim.answer(refusals_first=True)
    assert sim.wire == []
    sim.heal()
    assert stored(sim) == [1, 3]
    assert sim.results.receipts.keys() == {0, 1, 3}


def test_a_delayed_request_of_the_old_epoch_is_refused() -> None:
    sim = served(max_count=1, window=2, delivery_timeout=10.0)
    sim.offer("a", "b")
    sim.wire.pop()  # delayed by the network
    delayed = sim.wire.pop()
    sim.tick(10_000)
    sim.resume("a")
    sim.offer("a")
    sim.heal()
    assert sim._broker_takes(delayed).code == ResponseCode.PRODUCER_FENCED
    assert stored(sim) == [3]


def test_a_time_out_freezes_the_keys_in_flight_and_the_others_continue() -> None:
    sim = served(max_count=2, window=1, delivery_timeout=10.0)
    sim.offer("a", "b")
    sim.tick(5000)
    sim.offer("c", "a", "d", "c")
    sim.tick(5000)
    assert isinstance(sim.results.errors[1], RequestTimedOut)
    assert isinstance(sim.results.errors[2], RequestTimedOut)
    assert isinstance(sim.results.errors[4], LaneFrozen)
    assert sim.frozen() == {"a", "b"}
    sim.wire.pop(0)
    sim.heal()
    assert stored(sim) == [3, 5, 6]


def test_a_message_that_times_out_unsent_freezes_its_key() -> None:
    sim = EngineSim(delivery_timeout=10.0)
    sim.offer("a", "b")
    sim.clock.at += 5000
    sim.offer("c", "b")
    sim.clock.at += 5000
    sim._do(sim.engine.tick())
    with pytest.raises(RequestTimedOut, match="was not sent"):
        raise sim.results.errors[0]
    assert isinstance(sim.results.errors[3], LaneFrozen)
    assert sim.frozen() == {"a", "b"}
    sim.connect()
    sim.take()
    sim.answer()
    assert sim.log == [2]


@pytest.mark.parametrize(
    ("code", "why"), [(ResponseCode.NO_PERMISSION, None), (ResponseCode.PRODUCER_FENCED, ProducerFenced)]
)
def test_a_failure_that_any_message_would_meet_freezes_the_queue(code: int, why: type[LaneError] | None) -> None:
    """Every other message would be refused too: trying them all would only hide the cause."""
    sim = served(max_count=2, window=1)
    sim.offer("a", "b", "c", None)
    request = sim.wire.pop()
    sim._do(sim.engine.replied(request, Command(code, 0, 1), None))
    assert sim.results.errors.keys() == {1, 2, 3, 4}
    (frozen,) = sim.engine.frozen("orders")
    assert (frozen.key, frozen.queue, frozen.frozen_since) == (None, QUEUE, wall_time(sim.clock.wall()))
    assert why is None or isinstance(frozen.why, why)
    with pytest.raises(LaneFrozen, match=r"call resume\('orders'\)"):
        sim.offer("d")
    assert sim.engine.frozen("other") == []
    assert sim.engine.resume("orders")
    sim.offer("d")
    sim.heal()
    assert len(stored(sim)) == 1


def test_messages_without_a_key_freeze_nothing() -> None:
    sim = served()
    sim.offer(None, None, "a", bad=[1])
    sim.heal()
    assert stored(sim) == [1, 3]
    assert sim.frozen() == set()


def test_a_failed_send_needs_no_resume() -> None:
    sim = served()
    sim.offer("a", bad=[0], sender_waits=True)
    sim.heal()
    sim.offer("a", sender_waits=True)
    sim.heal()
    assert stored(sim) == [2]


def test_keys_of_a_failed_call_resume_when_it_ends() -> None:
    sim, call = served(), Call()
    sim.offer("a", "b", bad=[0], waiter=call)
    while sim.wire or sim.answers:
        sim.take()
        sim.answer()
    assert sim.frozen() == {"a"}
    with pytest.raises(LaneFrozen):
        sim.offer("b", "a", waiter=call)
    sim.engine.call_ended(call, interrupted=False)
    assert sim.frozen() == set()
    assert call.errors.keys() == {1}


def test_a_run_with_a_frozen_key_is_refused_as_a_whole() -> None:
    sim = served()
    sim.offer("a", bad=[0])
    sim.heal()
    before = len(sim.history.sent)
    with pytest.raises(LaneFrozen, match=r"decide what to do about it, then call resume\('orders', key='a'\)"):
        sim.offer("b", "a", "c")
    assert len(sim.history.sent) == before
    assert sim.engine.mark().settled


def test_the_first_failure_is_shown_as_the_reason() -> None:
    sim = served()
    sim.offer("a", bad=[0])
    sim.heal()
    since = sim.clock.wall()
    sim.clock.at += 1000
    with pytest.raises(LaneFrozen):
        sim.offer("a")
    (frozen,) = sim.engine.frozen()
    assert (frozen.topic, frozen.key, frozen.queue) == ("orders", "a", QUEUE)
    assert frozen.frozen_since <= wall_time(since)
    assert isinstance(frozen.why, MessageRefused)


def test_drop_gives_up_waiting_messages_and_resumes_the_key() -> None:
    sim = EngineSim()
    sim.offer("a", "b", "a")
    sim.drop("a")
    assert {number for number, error in sim.results.errors.items() if isinstance(error, Dropped)} == {0, 2}
    sim.offer("a")
    sim.heal()
    assert sim.log == [1, 3]
    sim.check_outcomes()


def test_drop_does_not_touch_messages_in_flight() -> None:
    sim = served(max_count=1, window=1)
    sim.offer("a", "a")
    sim.drop("a")
    sim.heal()
    assert stored(sim) == [1]
    assert sim.results.errors.keys() == {2}


def test_a_resumed_key_continues_with_new_messages_while_old_ones_are_still_refused() -> None:
    """Messages in flight behind the failed one fail at once and are not sent again; new messages are sent."""
    sim = served(max_count=1, window=3)
    sim.offer("a", "a", "b", bad=[0])
    sim.take()
    sim.answer()
    assert sim.results.errors.keys() == {1, 2}
    assert sim.history.outcomes["2"] == "unknown", "its reply has not come yet"
    sim.resume("a")
    sim.offer("a")
    sim.heal()
    assert stored(sim) == [3, 4]
    sim.check_outcomes()


def test_a_late_reply_to_a_split_batch_notifies_no_sender_twice() -> None:
    """A restart changed the broker's limits: the first attempt was stored, the second one is refused."""
    sim = served(max_count=3, window=1)
    sim.offer("a", "b", "c")
    late, stale = sim.wire[0], sim.engine
    sim.take()
    sim.cut()
    sim.messages[2].bad = True
    sim.tick(100)
    sim.take()
    sim.answer()
    sim._do(stale.replied(late, Command(0, 0, 1, {"queueOffset": "0"}), None))
    sim.heal()
    assert sim.results.receipts.keys() == {0, 1, 3}
    assert stored(sim) == [1, 2, 3], "each once: a message keeps its sequence when its batch is split"


def test_flush_waits_for_accepted_messages_after_others_were_dropped() -> None:
    """It waits for the two that are left of those before it, and for nothing else."""
    sim = EngineSim(max_count=1, window=1)
    sim.offer("a", "b", "c")
    mark = sim.engine.mark()
    sim.offer("b", "b", "c")
    sim.drop("b")
    sim.offer("a")
    sim.tick(1)
    for _ in range(2):
        assert not mark.settled
        sim.take()
        sim.answer()
    assert mark.settled


def test_a_message_given_up_in_flight_is_not_reported_again_when_its_batch_was_stored() -> None:
    """The broker has stored them all, but refuses the first one as illegal when it is sent again."""
    sim = served(max_count=2, window=2)
    sim.offer("a")
    sim.offer("a", "c")
    sim.take()
    sim.take()
    sim.cut()
    sim.messages[1].bad = True
    sim.tick(100)
    sim.take()
    sim.answer()
    assert sim.results.errors.keys() == {1, 2}
    sim.heal()
    assert sim.results.receipts.keys() == {0, 3}
    assert sim.engine.unsettled.bytes == 0
    assert stored(sim) == [1, 2, 3]


def test_flush_waits_for_an_older_message_after_a_newer_one_was_given_up() -> None:
    sim = served(max_count=1, window=3)
    sim.offer("a", "b", bad=[0])
    mark = sim.engine.mark()
    sim.offer("a")
    for _ in range(3):
        sim.take()
        sim.answer()
    assert sim.results.errors.keys() == {1, 3}
    assert not mark.settled
    sim.take()
    sim.answer()
    assert mark.settled


def test_flush_does_not_wait_longer_because_of_a_new_epoch() -> None:
    sim = served(max_count=1, window=1)
    sim.offer("a", "b", "c", bad=[0])
    mark = sim.engine.mark()
    sim.drop("b")
    sim.offer(*["d"] * 20)
    for settled in (False, True):
        sim.take()
        sim.answer()
        assert mark.settled is settled
    assert stored(sim) == [3]


def test_a_frozen_key_accepts_messages_after_drop_and_after_resume() -> None:
    for decide in (EngineSim.drop, EngineSim.resume):
        sim = served()
        sim.offer("a", "b", bad=[0, 1])
        sim.heal()
        decide(sim, "a")
        assert sim.frozen() == {"b"}
        sim.offer("a")
        sim.heal()
        assert stored(sim) == [3]


def test_messages_sent_again_fill_the_window_at_once() -> None:
    sim = served(max_count=10, window=4)
    sim.offer(*[f"k{number}" for number in range(8)], bad=[0])
    for _ in range(4):  # the batch, its half, a quarter, the illegal message
        sim.take()
        sim.answer()
    assert [request.batch.epoch for request in sim.wire] == [2, 2, 2, 2]
    assert [len(request.batch.messages) for request in sim.wire] == [1, 1, 1, 1]


def test_a_request_whose_reply_was_lost_is_not_in_flight() -> None:
    """Otherwise the next connection would be closed as unresponsive."""
    sim = served(answer_timeout=3_000)
    sim.offer("a")
    sim.cut()
    sim.clock.at += 5000
    assert sim.engine.tick().hang_up == ()


def test_a_stored_message_that_is_refused_when_sent_again_is_reported_as_unknown() -> None:
    sim = served(max_count=1, window=1)
    sim.offer("a", "a")
    sim.take()
    sim.cut()
    sim.ban(1)
    sim.heal()
    with pytest.raises(MessageRefused, match="may be stored or not, because not every attempt at it was answered"):
        raise sim.results.errors[1]
    assert sim.history.outcomes == {"0": "stored", "1": "unknown", "2": "failed"}
    assert stored(sim) == [1]


def test_a_refused_queue_reports_a_message_whose_reply_was_lost_as_unknown() -> None:
    sim = served(max_count=1, window=1)
    sim.offer("a")
    sim.take()
    sim.cut()
    sim.tick(100)
    request = sim.wire.pop()
    sim._do(sim.engine.replied(request, Command(ResponseCode.NO_PERMISSION, 0, 1), None))
    with pytest.raises(NotAllowed, match="may be stored or not"):
        raise sim.results.errors[1]
    assert sim.history.outcomes["1"] == "unknown"


def test_a_time_out_does_not_fail_younger_messages_of_other_keys() -> None:
    sim = served(max_count=1, window=3, delivery_timeout=10.0, answer_timeout=3_600_000)
    sim.offer("a")
    sim.tick(9_999)
    sim.offer("b", "a", "c")
    sim.tick(1)
    assert sim.results.errors.keys() == {1, 3}
    assert isinstance(sim.results.errors[1], RequestTimedOut)
    with pytest.raises(LaneFrozen, match="it may be stored or not, because an earlier message of key 'a'"):
        raise sim.results.errors[3]
    assert sim.frozen() == {"a"}
    sim.wire.pop(0)  # it never arrives
    sim.heal()
    assert stored(sim) == [2, 4]
    sim.check_outcomes()
