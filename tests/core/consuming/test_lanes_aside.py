"""Parked lanes between a member and a broker, step by step: offered, stored, given back, released."""

from dataclasses import replace

import pytest
from tests.core.consuming.lanes_aside_fixture import (
    PAUSE,
    M,
    Q,
    answer,
    fail,
    give,
    lanes_of,
    member,
    no_answer,
    one,
    parked,
    put,
    reconcile,
    run,
    store,
    work,
)

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.lanes_aside import (
    LaneAnswer,
    LanesAside,
    NextRequest,
    ParkedAtBroker,
    ParkRequest,
    RedriveRequest,
)
from lanemq.core.consuming.retry_policy import KEPT_MESSAGES, HoldKey, Park
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.units import Millis, QueueOffset

REDRIVEN = ParkedAtBroker("k", LaneStatus.REDRIVING, 1)


def test_a_failed_lane_is_offered_to_the_broker_with_everything_behind_it() -> None:
    scheduler = parked()
    assert one(scheduler) == ParkRequest("k", (M(0, "k"), M(1, "k")), Failure("why", 1))
    assert work(scheduler) == [], "one question at a time"
    assert scheduler[Q].committable == 0


def test_messages_that_the_broker_stored_are_finished_and_the_lane_stays_parked() -> None:
    scheduler = parked()
    store(scheduler)
    assert scheduler[Q].committable == 2
    put(scheduler, (2, "k"), (3, "j"))
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(3, "j"),)
    assert one(scheduler) == ParkRequest("k", (M(2, "k"),), None)
    assert scheduler.view(Q).parked == ("k",)


def test_messages_that_the_broker_did_not_take_are_offered_again_after_a_pause() -> None:
    scheduler = parked()
    store(scheduler, settled=1)
    assert scheduler[Q].committable == 1
    assert work(scheduler, now=PAUSE - 1) == []
    assert one(scheduler, now=PAUSE) == ParkRequest("k", (M(1, "k"),), None)


def test_a_lane_that_the_broker_refuses_stays_here() -> None:
    scheduler = parked()
    store(scheduler, status=None, settled=0)
    assert (scheduler[Q].committable, run(scheduler)) == (0, None)
    assert one(scheduler, now=PAUSE) == ParkRequest("k", (M(0, "k"), M(1, "k")), Failure("why", 1))


def test_a_request_without_an_answer_is_repeated() -> None:
    scheduler = parked()
    first = one(scheduler)
    no_answer(scheduler, first)
    assert (scheduler[Q].committable, work(scheduler)) == (0, [])
    assert one(scheduler, now=PAUSE) == first


def test_messages_that_the_broker_may_have_are_settled_before_its_copies_run() -> None:
    """The answer was lost: the broker has message 2 and will give it back, so it must not run here."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    no_answer(scheduler, one(scheduler))
    reconcile(scheduler, REDRIVEN)
    again = one(scheduler)
    assert again == ParkRequest("k", (M(2, "k"),), None)
    answer(scheduler, again, LaneStatus.REDRIVING, settled=1)
    assert one(scheduler) == NextRequest("k", -1)
    assert scheduler[Q].committable == 3


def test_resume_in_the_member_does_not_release_a_lane_that_the_broker_may_have() -> None:
    scheduler = parked()
    no_answer(scheduler, one(scheduler))
    assert scheduler.resume(Q, "k")
    assert run(scheduler) is None
    assert isinstance(one(scheduler), ParkRequest)


def test_redriven_messages_run_one_by_one_before_newer_ones() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, REDRIVEN)
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
    assert give(scheduler, status=None).done == 1
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(2, "k"),)
    scheduler.finish(found, DONE, now=Millis(0))
    assert (scheduler[Q].committable, scheduler.view(Q).parked) == (3, ())


def test_a_redriven_message_that_fails_is_parked_again_and_not_taken_along_twice() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, REDRIVEN)
    give(scheduler, M(0, "k"))
    fail(scheduler, "again")
    assert one(scheduler) == ParkRequest("k", (M(2, "k"),), Failure("again", 1), failed_again=0)
    assert scheduler[Q].committable == 2


def test_an_emptied_lane_is_released() -> None:
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler)
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
    reconcile(scheduler)
    assert run(scheduler) is None


def test_a_lane_parked_after_the_listing_was_asked_for_is_not_released_by_it() -> None:
    scheduler = parked()
    lanes = lanes_of(scheduler)
    before = lanes.at_broker()
    store(scheduler)
    put(scheduler, (2, "k"))
    lanes.reconcile({}, before)
    assert run(scheduler) is None


def test_a_lane_whose_redriven_message_runs_is_not_released() -> None:
    """An operator has discarded the whole lane; two turns of one key must not overlap."""
    scheduler = parked()
    store(scheduler)
    put(scheduler, (2, "k"))
    reconcile(scheduler, REDRIVEN)
    give(scheduler, M(0, "k"))
    running = run(scheduler)
    reconcile(scheduler)
    assert run(scheduler) is None
    assert running is not None
    scheduler.finish(running, DONE, now=Millis(0))
    give(scheduler, status=None)
    assert run(scheduler) is not None


def test_a_resume_is_kept_when_the_broker_refuses_the_lane() -> None:
    scheduler = parked()
    under_way = one(scheduler)
    scheduler.resume(Q, "k")
    answer(scheduler, under_way, None)
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
    answer(scheduler, found, LaneStatus.REDRIVING)
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
    answer(scheduler, under_way, LaneStatus.PARKED, settled=2)
    assert one(scheduler) == RedriveRequest("k")


def test_a_policy_may_keep_its_lanes_in_memory() -> None:
    scheduler = parked(HoldKey(retries=0, then=Park(at_broker=False)))
    assert work(scheduler) == []
    assert scheduler.view(Q).parked == ("k",)


def test_a_new_owner_restores_parked_lanes() -> None:
    scheduler = member(
        0, parked=(ParkedAtBroker("k", LaneStatus.PARKED, 1), ParkedAtBroker("j", LaneStatus.REDRIVING, 0))
    )
    put(scheduler, (0, "j"), (1, "k"), (2, "k"), (3, "i"))
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(3, "i"),)
    assert work(scheduler) == [ParkRequest("k", (M(2, "k"),), None), NextRequest("j", -1)]


def test_parked_messages_that_are_pulled_again_count_as_finished_ranges() -> None:
    """Otherwise a later owner would run them after newer messages of their key."""
    scheduler = member(0, parked=(ParkedAtBroker("k", LaneStatus.PARKED, 2),))
    put(scheduler, (0, "i"), (1, "k"), (2, "k"))
    assert (scheduler[Q].committable, scheduler[Q].finished_ranges().ranges()) == (0, [(1, 3)])
    assert work(scheduler) == []


def pulled_after_the_lane_ended() -> LaneScheduler[M]:
    """A former owner parked offsets 0 and 1 of key k without committing past them, and the lane ran here."""
    scheduler = member(0, parked=(ParkedAtBroker("k", LaneStatus.REDRIVING, 1),))
    give(scheduler, M(0, "k"), M(1, "k"))
    found = run(scheduler)
    assert found is not None
    scheduler.finish(found, DONE, now=Millis(0))
    assert give(scheduler, status=None) == NextRequest("k", 1)
    put(scheduler, (0, "k"), (1, "k"), (2, "i"), (3, "k"))
    return scheduler


def test_messages_of_a_lane_that_ended_do_not_run_when_they_are_pulled_after_it() -> None:
    scheduler = pulled_after_the_lane_ended()
    runs = [run(scheduler), run(scheduler)]
    assert [each.messages for each in runs if each is not None] == [(M(2, "i"),), (M(3, "k"),)]
    assert scheduler[Q].committable == 2


def test_without_the_end_of_the_lane_its_messages_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(LanesAside, "without_ended", lambda _, messages: messages)
    again = run(pulled_after_the_lane_ended())
    assert again is not None
    assert again.messages == (M(0, "k"), M(1, "k"))


# held lanes

HOLD = HoldKey(retries=3, backoff=Backoff(0.01, 1.0, 0.01))


def held(behind: int = KEPT_MESSAGES) -> LaneScheduler[M]:
    """Key k has failed at offset 0, with retries left; `behind` messages of it follow."""
    scheduler = member(policy=HOLD)
    put(scheduler, *((offset, "k") for offset in range(behind + 1)))
    fail(scheduler)
    return scheduler


def later(scheduler: LaneScheduler[M], now: int = 1_000) -> LaneRun[M] | None:
    """The next run after every backoff."""
    found = scheduler.next_run(now=Millis(now))
    return found if isinstance(found, LaneRun) else None


def set_aside(scheduler: LaneScheduler[M]) -> None:
    """The broker takes the whole lane."""
    asked = one(scheduler)
    assert isinstance(asked, ParkRequest)
    assert (asked.held, asked.failure, asked.messages[0]) == (True, Failure("why", 1), M(0, "k"))
    answer(scheduler, asked, LaneStatus.HELD, settled=len(asked.messages))


def test_a_held_lane_with_few_messages_stays_in_the_member() -> None:
    scheduler = held(KEPT_MESSAGES - 1)
    assert work(scheduler) == []
    found = later(scheduler)
    assert found is not None
    assert (found.messages[0], found.attempt) == (M(0, "k"), 2)


@pytest.mark.parametrize(("keep", "aside"), [(4, False), (3, True), (1, True)])
def test_the_policy_says_how_many_messages_of_a_held_lane_wait_in_the_member(keep: int, aside: bool) -> None:
    scheduler = member(policy=replace(HOLD, keep=keep))
    put(scheduler, *((offset, "k") for offset in range(4)))
    fail(scheduler)
    assert bool(work(scheduler)) is aside


def test_a_held_lane_with_many_messages_gives_its_room_back_once_the_broker_has_them() -> None:
    scheduler = held()
    assert scheduler[Q].cached().count == KEPT_MESSAGES + 1
    assert scheduler[Q].committable == 0, "the broker has not confirmed them"
    set_aside(scheduler)
    assert (scheduler[Q].cached().count, scheduler[Q].committable) == (0, KEPT_MESSAGES + 1)
    assert scheduler.view(Q).parked == (), "it is held, and needs no redrive"


def test_a_held_lane_is_set_aside_when_its_backlog_grows() -> None:
    scheduler = held(10)
    put(scheduler, *((offset, "k") for offset in range(11, 200)), (200, "j"))
    asked = one(scheduler)
    assert isinstance(asked, ParkRequest)
    assert (asked.held, len(asked.messages)) == (True, 200)
    found = run(scheduler)
    assert found is not None
    assert found.messages == (M(200, "j"),)


def test_after_its_backoff_a_lane_is_fetched_and_goes_on_with_its_attempts() -> None:
    scheduler = held()
    set_aside(scheduler)
    assert work(scheduler) == [], "it waits for its backoff"
    assert (later(scheduler), scheduler.take_changes().to_fetch) == (None, True)
    assert give(scheduler, M(0, "k"), M(1, "k"), M(2, "k"), status=LaneStatus.HELD) == NextRequest("k", -1)
    found = later(scheduler)
    assert found is not None
    assert (found.messages, found.attempt) == ((M(0, "k"), M(1, "k")), 2)
    scheduler.finish(found, FAILED, now=Millis(1_000), reason="again")
    assert one(scheduler) == ParkRequest("k", (), Failure("again", 2), failed_again=0, held=True)
    assert later(scheduler, 1_001) is None
    found = later(scheduler, 2_000)
    assert found is not None
    assert (found.messages, found.attempt) == ((M(0, "k"),), 3), "the rest is fetched again when it succeeds"


def test_a_lane_at_the_broker_whose_retries_are_used_up_is_parked() -> None:
    scheduler = held()
    set_aside(scheduler)
    later(scheduler)
    give(scheduler, M(0, "k"), status=LaneStatus.HELD)
    for attempt in (2, 3, 4):
        found = later(scheduler, attempt * 1_000)
        assert found is not None
        assert found.attempt == attempt
        scheduler.finish(found, FAILED, now=Millis(attempt * 1_000), reason="again")
    assert one(scheduler, 9_000) == ParkRequest("k", (), Failure("again", 4), failed_again=0)
    assert scheduler.view(Q).parked == ("k",)


def test_a_new_owner_goes_on_with_a_held_lane_and_its_attempts() -> None:
    scheduler = member(9, parked=(ParkedAtBroker("k", LaneStatus.HELD, 8, first=3, attempts=2),), policy=HOLD)
    put(scheduler, (9, "k"))
    assert give(scheduler, M(3, "k"), status=LaneStatus.HELD) == NextRequest("k", -1)
    found = run(scheduler)
    assert found is not None
    assert (found.messages, found.attempt) == ((M(3, "k"),), 3)


def test_newer_messages_of_a_running_lane_wait_here_while_they_are_few_and_join_it_when_they_are_many() -> None:
    scheduler = held()
    set_aside(scheduler)
    later(scheduler)
    give(scheduler, M(0, "k"), status=LaneStatus.HELD)
    next_one = KEPT_MESSAGES + 1
    put(scheduler, (next_one, "k"))
    found = later(scheduler)
    assert found is not None
    assert found.messages == (M(0, "k"),)
    assert work(scheduler) == []
    put(scheduler, *((offset, "k") for offset in range(next_one + 1, next_one + 100)))
    joined = one(scheduler)
    assert isinstance(joined, ParkRequest)
    assert (len(joined.messages), joined.failure) == (100, None)
    assert later(scheduler) is None


def test_a_long_run_of_a_lane_is_reported_while_it_goes_on() -> None:
    scheduler = held()
    set_aside(scheduler)
    later(scheduler)
    give(scheduler, M(0, "k"), M(1, "k"), status=LaneStatus.HELD)
    found = later(scheduler)
    assert found is not None
    found.done = 1
    assert scheduler.note_progress(found)
    assert one(scheduler) == NextRequest("k", 0, wanted=0)


def test_a_lane_emptied_while_its_message_runs_is_released_afterwards() -> None:
    """An operator discarded it. Its newer messages must not run beside the one that is running."""
    scheduler = held()
    set_aside(scheduler)
    later(scheduler)
    give(scheduler, M(0, "k"), M(1, "k"), status=LaneStatus.HELD)
    found = later(scheduler)
    assert found is not None
    put(scheduler, *((offset, "k") for offset in range(KEPT_MESSAGES + 1, KEPT_MESSAGES + 100)))
    store(scheduler, status=None, settled=0)
    assert later(scheduler) is None
    scheduler.finish(found, DONE, now=Millis(1_000))
    found = later(scheduler)
    assert found is not None
    assert found.messages[0] == M(KEPT_MESSAGES + 1, "k")


def test_a_lane_that_the_broker_refuses_goes_on_here() -> None:
    """Retention deleted its messages before they could be parked."""
    scheduler = held()
    store(scheduler, status=None, settled=0)
    assert run(scheduler) is None, "its backoff has not ended"
    found = later(scheduler)
    assert found is not None
    assert (found.messages[0], found.attempt) == (M(0, "k"), 2)


def test_newer_messages_of_a_lane_that_was_emptied_run_after_its_message_failed() -> None:
    scheduler = parked()
    store(scheduler)
    reconcile(scheduler, REDRIVEN)
    give(scheduler, M(0, "k"))
    failing = run(scheduler)
    assert failing is not None
    put(scheduler, *((offset, "k") for offset in range(2, KEPT_MESSAGES + 3)))
    store(scheduler, status=None, settled=0)
    scheduler.finish(failing, FAILED, now=Millis(0), reason="again")
    found = run(scheduler)
    assert found is not None
    assert found.messages[0] == M(2, "k")


def test_an_answer_from_before_a_reset_changes_nothing_after_it() -> None:
    scheduler = parked()
    before, asked = lanes_of(scheduler), one(scheduler)
    scheduler.drop(Q)
    scheduler.add(Q, QueueOffset(0), usable_until=NO_LEASE_NEEDED, broker_parks=True)
    put(scheduler, (0, "k"), (1, "k"))
    before.answered(asked, LaneAnswer(LaneStatus.PARKED, settled=2), now=Millis(0))
    assert scheduler[Q].committable == 0
    fail(scheduler)
    assert one(scheduler) == asked


def with_redriven(*messages: M) -> tuple[LaneScheduler[M], LaneRun[M]]:
    """A held lane whose first messages the broker gave back, and their run."""
    scheduler = held()
    set_aside(scheduler)
    later(scheduler)
    give(scheduler, *messages, status=LaneStatus.HELD)
    taken = later(scheduler)
    assert taken is not None
    return scheduler, taken


def test_a_failure_while_another_is_reported_is_reported_too() -> None:
    scheduler, failing = with_redriven(M(0, "k"))
    scheduler.finish(failing, FAILED, now=Millis(1_000), reason="second")
    second = one(scheduler)
    failing_again = later(scheduler, 2_000)
    assert failing_again is not None
    scheduler.finish(failing_again, FAILED, now=Millis(2_000), reason="third")
    answer(scheduler, second, LaneStatus.HELD)
    assert one(scheduler) == ParkRequest("k", (), Failure("third", 3), failed_again=0, held=True)


def test_what_is_done_while_a_report_is_under_way_is_reported_next() -> None:
    scheduler, running = with_redriven(M(0, "k"), M(1, "k"))
    running.done = 1
    assert scheduler.note_progress(running)
    report = one(scheduler)
    scheduler.finish(running, DONE, now=Millis(1_000))
    answer(scheduler, report, LaneStatus.HELD)
    assert one(scheduler) == NextRequest("k", 1)


def test_fetched_messages_that_were_discarded_before_they_could_run_do_not_run() -> None:
    scheduler = parked()
    store(scheduler)
    reconcile(scheduler, REDRIVEN)
    give(scheduler, M(0, "k"))
    reconcile(scheduler, REDRIVEN._replace(first=1))
    assert run(scheduler) is None
    assert one(scheduler) == NextRequest("k", -1)


def test_before_a_reset_only_what_is_done_below_the_new_offset_is_reported() -> None:
    scheduler, running = with_redriven(M(0, "k"), M(1, "k"))
    scheduler.finish(running, DONE, now=Millis(1_000))
    lanes = lanes_of(scheduler)
    assert lanes.last_reports(1) == [NextRequest("k", 0, wanted=0)]
    assert lanes.last_reports(9) == [NextRequest("k", 1, wanted=0)]
    assert lanes.last_reports(0) == []
