"""A failed key freezes itself, and nothing else: one case at a time."""

import pytest
from tests.client.street import QUEUE, Call, Street, served, stored

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


def test_a_refused_batch_is_tried_by_halves_and_only_the_guilty_key_fails() -> None:
    street = served(max_batch_messages=10)
    street.offer(None, "a", "b", "a", "c", bad=[1])
    street.heal()
    assert street.requests[:4] == [[1, 2, 3, 4, 5], [1, 2], [1], [2]]
    assert stored(street) == [1, 3, 5]
    assert isinstance(street.told.errors[2], MessageRefused)
    with pytest.raises(LaneFrozen, match="earlier message of key 'a' to queue orders/b/0 failed: the broker refused"):
        raise street.told.errors[4]
    assert street.frozen() == {"a"}


def test_what_was_sent_behind_a_refused_one_waits_for_the_brokers_no() -> None:
    """Sent again before that, under another number, it could be stored twice."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", "c", bad=[0])
    street.take()
    street.answer()
    assert street.wire[0].batch.epoch == street.wire[1].batch.epoch == 1, "still those of the old epoch"
    assert len(street.wire) == 2
    street.take()
    street.answer()
    assert len(street.wire) == 1
    street.take()
    street.answer()
    assert [request.batch.epoch for request in street.wire] == [2, 2]
    street.heal()
    assert stored(street) == [2, 3]


def test_what_was_stored_before_the_refused_one_is_stored_once() -> None:
    """Its answer waits for the disk, so the refusal is heard first."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", "c", bad=[1])
    for _ in range(3):
        street.take()
    street.answer(refusals_first=True)
    street.answer(refusals_first=True)
    assert street.wire == []
    street.heal()
    assert stored(street) == [1, 3]
    assert street.told.receipts.keys() == {0, 1, 3}


def test_a_straggler_of_the_old_epoch_is_refused() -> None:
    street = served(max_batch_messages=1, window=2, timeout=10.0)
    street.offer("a", "b")
    street.wire.pop()  # swallowed by the network, for now
    straggler = street.wire.pop()
    street.tick(10_000)
    street.resume("a")
    street.offer("a")
    street.heal()
    assert street._broker_takes(straggler).code == ResponseCode.PRODUCER_FENCED
    assert stored(street) == [3]


def test_a_time_out_freezes_the_keys_under_way_and_the_others_go_on() -> None:
    street = served(max_batch_messages=2, window=1, timeout=10.0)
    street.offer("a", "b")
    street.tick(5000)
    street.offer("c", "a", "d", "c")
    street.tick(5000)
    assert isinstance(street.told.errors[1], RequestTimedOut)
    assert isinstance(street.told.errors[2], RequestTimedOut)
    assert isinstance(street.told.errors[4], LaneFrozen)
    assert street.frozen() == {"a", "b"}
    street.wire.pop(0)
    street.heal()
    assert stored(street) == [3, 5, 6]


def test_a_message_that_was_never_sent_and_is_too_late_freezes_its_key() -> None:
    street = Street(timeout=10.0)
    street.offer("a", "b")
    street.clock.millis += 5000
    street.offer("c", "b")
    street.clock.millis += 5000
    street._do(street.engine.tick())
    with pytest.raises(RequestTimedOut, match="was not sent"):
        raise street.told.errors[0]
    assert isinstance(street.told.errors[3], LaneFrozen)
    assert street.frozen() == {"a", "b"}
    street.connect()
    street.take()
    street.answer()
    assert street.log == [2]


@pytest.mark.parametrize(
    ("code", "why"), [(ResponseCode.NO_PERMISSION, None), (ResponseCode.PRODUCER_FENCED, ProducerFenced)]
)
def test_what_is_not_the_messages_fault_freezes_the_queue(code: int, why: type[LaneError] | None) -> None:
    """Every other message would be refused as well: trying them all would only hide it."""
    street = served(max_batch_messages=2, window=1)
    street.offer("a", "b", "c", None)
    request = street.wire.pop()
    street._do(street.engine.replied(request, Command(code, 0, 1), None))
    assert street.told.errors.keys() == {1, 2, 3, 4}
    (frozen,) = street.engine.frozen("orders")
    assert (frozen.key, frozen.queue, frozen.since) == (None, QUEUE, street.clock.wall())
    assert why is None or isinstance(frozen.why, why)
    with pytest.raises(LaneFrozen, match=r"call resume\('orders'\)"):
        street.offer("d")
    assert street.engine.frozen("other") == []
    assert street.engine.resume("orders")
    street.offer("d")
    street.heal()
    assert len(stored(street)) == 1


def test_messages_without_a_key_freeze_nothing() -> None:
    street = served()
    street.offer(None, None, "a", bad=[1])
    street.heal()
    assert stored(street) == [1, 3]
    assert street.frozen() == set()


def test_a_sender_that_is_told_first_needs_no_resume() -> None:
    street = served()
    street.offer("a", bad=[0], told=True)
    street.heal()
    street.offer("a", told=True)
    street.heal()
    assert stored(street) == [2]


def test_keys_of_a_failed_call_open_when_it_ends() -> None:
    street, call = served(), Call()
    street.offer("a", "b", bad=[0], ticket=call)
    while street.wire or street.answers:
        street.take()
        street.answer()
    assert street.frozen() == {"a"}
    with pytest.raises(LaneFrozen):
        street.offer("b", "a", ticket=call)
    street.engine.call_ended(call)
    assert street.frozen() == set()
    assert call.errors.keys() == {1}


def test_nothing_of_a_run_is_taken_in_if_one_of_its_keys_is_frozen() -> None:
    street = served()
    street.offer("a", bad=[0])
    street.heal()
    before = len(street.diary.sent)
    with pytest.raises(LaneFrozen, match=r"decide what to do about it, then call resume\('orders', key='a'\)"):
        street.offer("b", "a", "c")
    assert len(street.diary.sent) == before
    assert street.engine.is_idle


def test_the_first_failure_is_shown_as_the_reason() -> None:
    street = served()
    street.offer("a", bad=[0])
    street.heal()
    since = street.clock.wall()
    street.clock.millis += 1000
    with pytest.raises(LaneFrozen):
        street.offer("a")
    (frozen,) = street.engine.frozen()
    assert (frozen.topic, frozen.key, frozen.queue) == ("orders", "a", QUEUE)
    assert frozen.since <= since
    assert isinstance(frozen.why, MessageRefused)


def test_drop_gives_up_what_waits_and_opens_the_key() -> None:
    street = Street()
    street.offer("a", "b", "a")
    street.drop("a")
    assert {number for number, error in street.told.errors.items() if isinstance(error, Dropped)} == {0, 2}
    street.offer("a")
    street.heal()
    assert street.log == [1, 3]
    street.check_told()


def test_drop_leaves_what_is_under_way_to_the_broker() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a", "a")
    street.drop("a")
    street.heal()
    assert stored(street) == [1]
    assert street.told.errors.keys() == {2}


def test_a_key_resumed_while_its_messages_are_still_refused_goes_on_behind_them() -> None:
    """What was under way behind the failed one is told at once and not sent again; new messages are."""
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "a", "b", bad=[0])
    street.take()
    street.answer()
    assert street.told.errors.keys() == {1, 2}
    assert street.diary.told["2"] == "unknown", "nobody has heard of it yet"
    street.resume("a")
    street.offer("a")
    street.heal()
    assert stored(street) == [3, 4]
    street.check_told()


def test_an_answer_to_a_batch_that_was_taken_apart_is_not_told_twice() -> None:
    """The broker's limits were changed by a restart: the first attempt is stored, the second one refused."""
    street = served(max_batch_messages=3, window=1)
    street.offer("a", "b", "c")
    late, stale = street.wire[0], street.engine
    street.take()
    street.cut()
    street.messages[2].bad = True
    street.tick(100)
    street.take()
    street.answer()
    street._do(stale.replied(late, Command(0, 0, 1, {"queueOffset": "0"}), None))
    street.heal()
    assert street.told.receipts.keys() == {0, 1, 3}
    assert stored(street) == [1, 2, 3], "each once: their numbers are the same, alone and together"


def test_flush_waits_for_what_was_accepted_though_others_left_the_line() -> None:
    """It may wait for everything that was in line when they left, and never for what came after that."""
    street = Street(max_batch_messages=1, window=1)
    street.offer("a", "b", "c")
    mark = street.engine.mark()
    street.offer("b", "b", "c")
    street.drop("b")
    street.offer("a")
    street.tick(1)
    for _ in range(3):
        assert not mark.settled
        street.take()
        street.answer()
    assert mark.settled


def test_a_message_given_up_under_way_is_not_told_again_when_its_batch_turns_out_stored() -> None:
    """As above: the broker has them all, but calls the first one illegal when it is sent again."""
    street = served(max_batch_messages=2, window=2)
    street.offer("a")
    street.offer("a", "c")
    street.take()
    street.take()
    street.cut()
    street.messages[1].bad = True
    street.tick(100)
    street.take()
    street.answer()
    assert street.told.errors.keys() == {1, 2}
    street.heal()
    assert street.told.receipts.keys() == {0, 3}
    assert street.engine.buffered_bytes == 0
    assert stored(street) == [1, 2, 3]


def test_flush_waits_for_an_older_message_though_one_behind_it_did_not_come_back() -> None:
    street = served(max_batch_messages=1, window=3)
    street.offer("a", "b", bad=[0])
    mark = street.engine.mark()
    street.offer("a")
    for _ in range(3):
        street.take()
        street.answer()
    assert street.told.errors.keys() == {1, 3}
    assert not mark.settled
    street.take()
    street.answer()
    assert mark.settled


def test_flush_does_not_wait_longer_because_of_a_new_epoch() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a", "b", "c", bad=[0])
    mark = street.engine.mark()
    street.drop("b")
    street.offer(*["d"] * 20)
    for settled in (False, True):
        street.take()
        street.answer()
        assert mark.settled is settled
    assert stored(street) == [3]


def test_a_frozen_key_is_open_after_drop_and_after_resume() -> None:
    for decide in (Street.drop, Street.resume):
        street = served()
        street.offer("a", "b", bad=[0, 1])
        street.heal()
        decide(street, "a")
        assert street.frozen() == {"b"}
        street.offer("a")
        street.heal()
        assert stored(street) == [3]


def test_what_goes_out_again_fills_the_window_and_does_not_wait_for_company() -> None:
    street = served(max_batch_messages=10, window=4)
    street.offer(*[f"k{number}" for number in range(8)], bad=[0])
    for _ in range(4):  # the batch, its half, a quarter, the guilty one
        street.take()
        street.answer()
    assert [request.batch.epoch for request in street.wire] == [2, 2, 2, 2]
    assert [len(request.batch.messages) for request in street.wire] == [1, 1, 1, 1]


def test_a_request_whose_answer_is_lost_is_under_way_no_more() -> None:
    """Otherwise the next connection would be ended for being silent."""
    street = served(request_timeout=3.0)
    street.offer("a")
    street.cut()
    street.clock.millis += 5000
    assert street.engine.tick().hang_up == []


def test_a_stored_message_that_is_refused_when_it_is_sent_again_is_not_called_failed() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a", "a")
    street.take()
    street.cut()
    street.ban(1)
    street.heal()
    with pytest.raises(MessageRefused, match="may be stored or not, because not every attempt at it was answered"):
        raise street.told.errors[1]
    assert street.diary.told == {"0": "stored", "1": "unknown", "2": "failed"}
    assert stored(street) == [1]


def test_a_queue_that_is_closed_while_an_answer_is_lost_leaves_open_what_is_stored() -> None:
    street = served(max_batch_messages=1, window=1)
    street.offer("a")
    street.take()
    street.cut()
    street.tick(100)
    request = street.wire.pop()
    street._do(street.engine.replied(request, Command(ResponseCode.NO_PERMISSION, 0, 1), None))
    with pytest.raises(NotAllowed, match="may be stored or not"):
        raise street.told.errors[1]
    assert street.diary.told["1"] == "unknown"


def test_a_time_out_leaves_younger_messages_of_other_keys_alone() -> None:
    street = served(max_batch_messages=1, window=3, timeout=10.0, request_timeout=3600.0)
    street.offer("a")
    street.tick(9_999)
    street.offer("b", "a", "c")
    street.tick(1)
    assert street.told.errors.keys() == {1, 3}
    assert isinstance(street.told.errors[1], RequestTimedOut)
    with pytest.raises(LaneFrozen, match="it may be stored or not, because an earlier message of key 'a'"):
        raise street.told.errors[3]
    assert street.frozen() == {"a"}
    street.wire.pop(0)  # it never arrives
    street.heal()
    assert stored(street) == [2, 4]
    street.check_told()
