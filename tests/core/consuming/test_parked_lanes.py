"""Parked lanes between a member and a broker, step by step: offered, stored, given back, released."""

from tests.core.consuming.parked_lanes_fixture import (
    PAUSE,
    M,
    Q,
    fail,
    give,
    lanes_of,
    member,
    one,
    parked,
    put,
    reconcile,
    run,
    store,
    work,
)

from lanemq.core.consuming.parked_lanes import NextRequest, ParkedAtBroker, ParkRequest, RedriveRequest
from lanemq.core.consuming.retry_policy import HoldKey, Park
from lanemq.core.consuming.runs import DONE
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.model.units import Millis


def test_a_failed_lane_is_offered_to_the_broker_with_everything_behind_it() -> None:
    scheduler = parked()
    assert one(scheduler) == ParkRequest("k", (M(0, "k"), M(1, "k")), Failure("why", 1))
    assert work(scheduler) == [], "one question at a time"
    assert scheduler.committable(Q) == 0


def test_messages_that_the_broker_stored_are_finished_and_the_lane_stays_parked() -> None:
    scheduler = parked()
    store(scheduler)
    assert scheduler.committable(Q) == 2
    put(scheduler, (2, "k"), (3, "j"))
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(3, "j"),)
    assert one(scheduler) == ParkRequest("k", (M(2, "k"),), None)
    assert scheduler.snapshot()[Q].parked == ("k",)


def test_messages_that_the_broker_did_not_take_are_offered_again_after_a_pause() -> None:
    scheduler = parked()
    store(scheduler, settled=1)
    assert scheduler.committable(Q) == 1
    assert work(scheduler, now=PAUSE - 1) == []
    assert one(scheduler, now=PAUSE) == ParkRequest("k", (M(1, "k"),), None)


def test_a_lane_that_the_broker_refuses_stays_here() -> None:
    scheduler = parked()
    store(scheduler, status=None, settled=0)
    assert (scheduler.committable(Q), run(scheduler)) == (0, None)
    assert one(scheduler, now=PAUSE) == ParkRequest("k", (M(0, "k"), M(1, "k")), Failure("why", 1))


def test_a_request_without_an_answer_is_repeated() -> None:
    scheduler = parked()
    first = one(scheduler)
    lanes_of(scheduler).unanswered(first, now=Millis(0), pause=PAUSE)
    assert (scheduler.committable(Q), work(scheduler)) == (0, [])
    assert one(scheduler, now=PAUSE) == first


def test_messages_that_the_broker_may_have_are_settled_before_its_copies_run() -> None:
    """The answer was lost: the broker has message 2 and will give it back, so it must not run here."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    lanes_of(scheduler).unanswered(one(scheduler), now=Millis(0), pause=Millis(0))
    reconcile(scheduler, {"k": True})
    assert one(scheduler) == ParkRequest("k", (M(2, "k"),), None)
    lanes_of(scheduler).parked(
        ParkRequest("k", (M(2, "k"),), None), 1, LaneStatus.REDRIVING, now=Millis(0), pause=PAUSE
    )
    assert one(scheduler) == NextRequest("k", -1)
    assert scheduler.committable(Q) == 3


def test_resume_in_the_member_does_not_release_a_lane_that_the_broker_may_have() -> None:
    scheduler = parked()
    lanes_of(scheduler).unanswered(one(scheduler), now=Millis(0), pause=PAUSE)
    assert scheduler.resume(Q, "k")
    assert run(scheduler) is None
    assert isinstance(one(scheduler), ParkRequest)


def test_redriven_messages_run_one_by_one_before_newer_ones() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    assert give(scheduler, M(0, "k")).done == -1
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"),)
    assert run(scheduler) is None
    scheduler.finish(found, DONE, now=Millis(0))
    assert run(scheduler) is None, "the broker must know first"
    assert give(scheduler, M(1, "k")).done == 0
    found = run(scheduler)
    assert found is not None
    scheduler.finish(found, DONE, now=Millis(0))
    assert give(scheduler, None, None).done == 1
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(2, "k"),)
    scheduler.finish(found, DONE, now=Millis(0))
    assert (scheduler.committable(Q), scheduler.snapshot()[Q].parked) == (3, ())


def test_a_redriven_message_that_fails_is_parked_again_and_not_taken_along_twice() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    give(scheduler, M(0, "k"))
    fail(scheduler, "again")
    assert one(scheduler) == ParkRequest("k", (M(2, "k"),), Failure("again", 1), failed_again=0)
    assert scheduler.committable(Q) == 2


def test_an_emptied_lane_is_released() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {})
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(2, "k"),)


def test_newer_messages_of_a_lane_that_was_emptied_run() -> None:
    """An operator discarded the lane between two renewals, before the member's request."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    store(scheduler, status=None, settled=0)
    assert run(scheduler) is not None


def test_a_lane_with_a_request_under_way_is_not_released_by_a_listing() -> None:
    """The listing may be older than the answer."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    assert work(scheduler)
    reconcile(scheduler, {})
    assert run(scheduler) is None


def test_a_lane_parked_after_the_listing_was_asked_for_is_not_released_by_it() -> None:
    scheduler = parked()
    lanes = lanes_of(scheduler)
    before = lanes.at_broker()
    store(scheduler)
    put(scheduler, (2, "k"))
    lanes.reconcile({}, before)
    scheduler.offer(Q)
    assert run(scheduler) is None


def test_a_lane_whose_redriven_message_runs_is_not_released() -> None:
    """An operator has discarded the whole lane; two turns of one key must not overlap."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, {"k": True})
    give(scheduler, M(0, "k"))
    running = run(scheduler)
    reconcile(scheduler, {})
    assert run(scheduler) is None
    assert running is not None
    scheduler.finish(running, DONE, now=Millis(0))
    give(scheduler, None, None)
    assert run(scheduler) is not None


def test_a_resume_is_kept_when_the_broker_refuses_the_lane() -> None:
    scheduler = parked()
    under_way = one(scheduler)
    scheduler.resume(Q, "k")
    assert isinstance(under_way, ParkRequest)
    lanes_of(scheduler).parked(under_way, 0, None, now=Millis(0), pause=PAUSE)
    scheduler.offer(Q)
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"), M(1, "k"))


def test_a_redrive_reported_in_an_answer_begins_at_once() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    store(scheduler, status=LaneStatus.REDRIVING, settled=1)
    assert one(scheduler) == NextRequest("k", -1)


def test_resume_in_the_member_goes_through_the_broker() -> None:
    scheduler = parked()
    store(scheduler)
    assert scheduler.resume(Q, "k")
    assert run(scheduler) is None
    found = one(scheduler)
    assert found == RedriveRequest("k")
    lanes_of(scheduler).redrive_accepted(found)
    assert one(scheduler) == NextRequest("k", -1)


def test_resume_in_the_member_releases_a_lane_that_is_only_here_at_once() -> None:
    scheduler = parked()
    assert scheduler.resume(Q, "k")
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"), M(1, "k"))
    assert not scheduler.resume(Q, "k")


def test_a_resume_does_not_overtake_a_request_under_way() -> None:
    """Otherwise the message would run here, and again from the broker after newer ones."""
    scheduler = parked()
    under_way = one(scheduler)
    assert scheduler.resume(Q, "k")
    assert run(scheduler) is None
    assert isinstance(under_way, ParkRequest)
    lanes_of(scheduler).parked(under_way, 2, LaneStatus.PARKED, now=Millis(0), pause=PAUSE)
    assert one(scheduler) == RedriveRequest("k")


def test_a_policy_may_keep_its_lanes_in_memory() -> None:
    scheduler = parked(HoldKey(retries=0, then=Park(at_broker=False)))
    assert work(scheduler) == []
    assert scheduler.snapshot()[Q].parked == ("k",)


def test_a_new_owner_restores_parked_lanes() -> None:
    scheduler = member(0, parked=(ParkedAtBroker("k", False, 1), ParkedAtBroker("j", True, 0)))
    put(scheduler, (0, "j"), (1, "k"), (2, "k"), (3, "i"))
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(3, "i"),)
    assert work(scheduler) == [ParkRequest("k", (M(2, "k"),), None), NextRequest("j", -1)]


def test_parked_messages_that_are_pulled_again_count_as_finished_ranges() -> None:
    """Otherwise a later owner would run them after newer messages of their key."""
    scheduler = member(0, parked=(ParkedAtBroker("k", False, 2),))
    put(scheduler, (0, "i"), (1, "k"), (2, "k"))
    assert (scheduler.committable(Q), scheduler.finished_ranges(Q).ranges()) == (0, [(1, 3)])
    assert work(scheduler) == []
