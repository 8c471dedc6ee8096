"""Never two leaders that answer, and never an epoch twice, whatever clocks, pauses, answers and the store do."""

from collections.abc import Callable

import pytest
from tests.core.brokering.cluster.leader_world import Rules, TrustsServerTime, World

from lanemq.core.brokering.cluster.epoch_floor import EPOCH_STEP, EpochFloor
from lanemq.core.brokering.cluster.leadership import (
    TERM_MS,
    WAIT_MS,
    Contender,
    Sight,
    Term,
    TermRow,
    claim,
    is_complete,
)
from lanemq.model.units import Millis

SEEDS = 100
ROW = TermRow(5, "one", 7, "10.0.0.1:9873")


def problems(rules: Rules, seeds: int = SEEDS) -> list[str]:
    return [f"seed {seed}: {each}" for seed in range(seeds) for each in World(seed, rules).run().problems]


def test_there_are_never_two_leaders_that_answer_and_no_epoch_is_issued_twice() -> None:
    worlds = [World(seed).run() for seed in range(SEEDS)]
    assert [problem for world in worlds for problem in world.problems] == []
    assert sum(world.terms for world in worlds) > 5 * SEEDS, "leaders were hardly replaced, so nothing was tried"
    assert sum(len(world.issued) for world in worlds) > 20 * SEEDS


@pytest.mark.extended
def test_there_are_never_two_leaders_in_many_more_worlds() -> None:
    assert problems(Rules(), 5_000) == []


class AnswersForEver(Term):
    """The mutant that does not look at its clock."""

    def answers(self, *, now: Millis) -> bool:
        return not self.ended


class Resumes(Term):
    """The mutant that continues when a late answer says that it still leads."""

    def check(self, *, now: Millis) -> bool:
        return not self.ended


class ForgetsTheRun(Contender):
    """The mutant that does not notice that the store was restarted or replaced."""

    def saw(self, sight: Sight, *, now: Millis) -> None:
        super().saw(sight._replace(run=""), now=now)

    def replaceable(self, *, now: Millis) -> Sight | None:
        seen = super().replaceable(now=now)
        return None if seen is None else AnyRun(*seen)


class AnyRun(Sight):
    """Equal to the same row in any run."""

    def __ne__(self, other: object) -> bool:
        return not (isinstance(other, Sight) and self.row == other.row)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        (Rules(term=AnswersForEver), "answer at"),
        (Rules(contender=TrustsServerTime), "answer at"),
        (Rules(contender=ForgetsTheRun), "answer at"),
        (Rules(ids=False), "answer at"),
        (Rules(term=Resumes), "twice"),
        (Rules(floor=False), "twice"),
    ],
    ids=["answers without a valid term", "trusts server time", "forgets the run", "no leader id",
         "resumes", "no floor outside"],
)  # fmt: skip
def test_a_mutant_of_the_rule_is_found(mutant: Rules, what: str) -> None:
    assert any(what in problem for seed in range(1_000, 3_000) for problem in World(seed, mutant).run().problems)


# the rule in steps


def watched(
    times: dict[int, TermRow], former: Sight | None = None, run: Callable[[int], str] = lambda time: "r"
) -> list[int]:
    """When the contender that looks at these times may replace what it sees."""
    contender, allowed = Contender(former), []
    for time, row in times.items():
        contender.saw(Sight(row, run(time)), now=Millis(time))
        if contender.replaceable(now=Millis(time)) is not None:
            allowed.append(time)
    return allowed


def test_a_contender_waits_a_whole_term_from_its_own_first_look() -> None:
    assert watched({0: ROW, WAIT_MS - 1: ROW, WAIT_MS: ROW}) == [WAIT_MS]


def test_each_renewal_makes_it_wait_again() -> None:
    renewed = ROW._replace(serial=8)
    assert watched({0: ROW, 2_000: renewed, WAIT_MS: renewed, 2_000 + WAIT_MS: renewed}) == [2_000 + WAIT_MS]


def test_a_store_that_was_restarted_makes_it_wait_again() -> None:
    runs = {0: "first", WAIT_MS: "second", 2 * WAIT_MS: "second"}
    assert watched(dict.fromkeys(runs, ROW), run=lambda time: runs[time]) == [2 * WAIT_MS]


def test_who_hands_over_is_replaced_at_once() -> None:
    assert watched({0: ROW, 10: ROW._replace(leader="", serial=8)}) == [10]


def test_who_handed_over_before_a_restart_of_the_store_is_waited_for() -> None:
    """The store may have gone back to that row, from one with a leader."""
    released = ROW._replace(leader="", serial=8)
    assert watched({0: released, WAIT_MS: released}) == [WAIT_MS]
    assert watched({0: ROW, 10: released}, run=str) == []


def test_a_process_that_answers_no_more_takes_its_own_place_at_once() -> None:
    assert watched({0: ROW}, former=Sight(ROW, "r")) == [0]
    assert watched({0: ROW}, former=Sight(ROW, "another run")) == []
    assert watched({0: ROW}, former=Sight(ROW._replace(leader="other"), "r")) == []


def test_a_term_counts_from_before_its_last_transaction_was_sent() -> None:
    term = Term(claim(ROW, "two", "10.0.0.2:9873"), sent_at=Millis(100))
    assert term.number == 6
    assert term.answers(now=Millis(100 + TERM_MS - 1))
    assert not term.answers(now=Millis(100 + TERM_MS))
    term.confirmed(sent_at=Millis(900), now=Millis(950))
    assert term.answers(now=Millis(900 + TERM_MS - 1))
    assert not term.answers(now=Millis(900 + TERM_MS))
    assert term.row == TermRow(6, "two", 1, "10.0.0.2:9873")


def test_a_term_that_has_run_out_is_over_even_if_its_last_transaction_is_confirmed_later() -> None:
    term = Term(ROW, sent_at=Millis(0))
    assert term.check(now=Millis(TERM_MS - 1))
    term.confirmed(sent_at=Millis(10), now=Millis(TERM_MS + 10))
    assert not term.answers(now=Millis(20))


def test_a_term_that_ended_never_answers_again() -> None:
    term = Term(ROW, sent_at=Millis(0))
    term.end("first reason")
    term.end("second reason")
    term.confirmed(sent_at=Millis(10), now=Millis(15))
    assert not term.answers(now=Millis(20))
    assert term.ended == "first reason"


def test_epochs_are_granted_only_below_a_limit_that_was_entered_before() -> None:
    floor = EpochFloor()
    assert not floor.allows(5, 1)
    floor.entered(floor.wanted(5))
    assert floor.allows(5, 2 * EPOCH_STEP - 5)
    assert not floor.allows(5, 2 * EPOCH_STEP - 4)
    assert floor.wanted(EPOCH_STEP) > floor.wanted(5)


# whether a store has lost something


def test_in_the_run_in_which_the_last_leader_began_nothing_is_lost() -> None:
    assert is_complete(Sight(ROW, "r"), "r", None)
    assert is_complete(Sight(ROW, "r"), None, None), "nobody has led yet"


def test_after_a_restart_only_who_led_before_can_tell() -> None:
    assert is_complete(Sight(ROW, "new"), "r", ROW)
    assert not is_complete(Sight(ROW, "new"), "r", None)
    assert not is_complete(Sight(ROW, "new"), "r", ROW._replace(leader="other"))


def test_who_led_before_cannot_tell_if_somebody_else_has_led_since() -> None:
    """Of that one the store may have lost everything, so it shows the row of the former leader, with all of its own."""
    assert is_complete(Sight(ROW, "new"), "r", ROW, known=ROW.term)
    assert not is_complete(Sight(ROW, "new"), "r", ROW, known=ROW.term + 1)


def test_a_transaction_that_is_missing_is_noticed_and_one_of_unknown_outcome_is_not_missed() -> None:
    assert not is_complete(Sight(ROW, "new"), "r", ROW._replace(serial=ROW.serial + 1))
    assert is_complete(Sight(ROW, "new"), "r", ROW._replace(serial=ROW.serial - 1))


def test_a_claim_is_above_every_term_that_is_known() -> None:
    assert claim(ROW, "two", "", known=40).term == 41
    assert claim(ROW, "two", "", known=2).term == 6
