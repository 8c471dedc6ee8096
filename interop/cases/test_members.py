"""Several members of an orderly group share, join, leave and die; a queue has one worker at a time.

The members are of one kind, or one is a Java client and the other LaneMQ's; the result must be the same.
"""

import pytest

from interop.clients import Listening, Rule
from interop.judge import done, queues
from interop.rounds import KEYS, all_done, assert_in_order, history, send_rounds
from interop.stage import GUEST, HOST, Stage

ALIKE = pytest.param((HOST, HOST), id="alike")
GUEST_SECOND = pytest.param((HOST, GUEST), id="lane-second", marks=pytest.mark.guest)
GUEST_FIRST = pytest.param((GUEST, HOST), id="lane-first", marks=pytest.mark.guest)


@pytest.mark.row("A46")
@pytest.mark.row("A55")
@pytest.mark.parametrize("kinds", [ALIKE, GUEST_SECOND])
def test_members_share_the_queues_and_no_queue_is_worked_on_twice_at_once(stage: Stage, kinds: tuple[str, str]) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    members = [stage.member(group, topic, Listening(sleep_ms=5), kind=kind) for kind in kinds]
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "both members are known")
    texts: list[str] = []

    def settled() -> bool:
        """Sends rounds until the members share the queues two and two, because the time of a rebalance is unknown."""
        number = len(texts) // len(KEYS)
        fresh = send_rounds(stage, topic, range(number, number + 1))
        texts.extend(fresh)
        stage.eventually(all_done(members, fresh), "the round is done")
        shares = [queues(turn for turn in member.turns() if turn.body in fresh) for member in members]
        return [len(share) for share in shares] == [2, 2] and not shares[0] & shares[1]

    stage.eventually(settled, "two queues each", within=90)
    assert_in_order(history(*members), texts)


@pytest.mark.row("A12")
@pytest.mark.parametrize("kinds", [ALIKE, GUEST_SECOND, GUEST_FIRST])
def test_a_queue_in_a_running_turn_is_not_handed_to_the_member_that_joins(stage: Stage, kinds: tuple[str, str]) -> None:
    """The new member must not process messages after a turn that still runs."""
    topic, group = stage.topic(queues=4), stage.name("g")
    texts = send_rounds(stage, topic, range(4))
    holding = Listening(rules=[Rule(":2", hold=True)])
    old = stage.member(group, topic, holding, kind=kinds[0])
    old.wait(lambda turns: len(turns) == len(done(turns)) + 4)  # every queue is inside a turn
    new = stage.member(group, topic, kind=kinds[1])
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "the joiner is known")
    with pytest.raises(TimeoutError):
        new.wait(lambda turns: len(turns) > 0, within=8)
    old.release()
    stage.eventually(all_done([old, new], texts), "all is done", within=90)
    assert_in_order(history(old, new), texts)


@pytest.mark.parametrize("kinds", [ALIKE, GUEST_SECOND, GUEST_FIRST])
def test_a_member_that_leaves_hands_its_queues_over_before_the_lease_is_over(
    stage: Stage, kinds: tuple[str, str]
) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    leaver = stage.member(group, topic, kind=kinds[0])
    texts = send_rounds(stage, topic, range(3))
    stage.eventually(all_done([leaver], texts), "the first rounds are done")
    heir = stage.member(group, topic, kind=kinds[1])
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "both members are known")
    leaver.stop()
    more = send_rounds(stage, topic, range(3, 6))
    stage.eventually(all_done([leaver, heir], more), "the heir has all", within=45)
    assert_in_order(history(leaver, heir), texts + more)


@pytest.mark.lease
@pytest.mark.row("A41")
@pytest.mark.row("A43")
@pytest.mark.parametrize("kinds", [ALIKE, GUEST_SECOND, GUEST_FIRST])
def test_the_queues_of_a_killed_member_come_to_the_others_and_nothing_is_skipped(
    stage: Stage, kinds: tuple[str, str]
) -> None:
    """Its messages are delivered again, in order, after its lock has ended."""
    topic, group = stage.topic(queues=4), stage.name("g")
    texts = send_rounds(stage, topic, range(4))
    holding = Listening(rules=[Rule(":2", hold=True)])
    victim = stage.member(group, topic, holding, own_process=True, kind=kinds[0])
    victim.wait(lambda turns: len(turns) == len(done(turns)) + 4)
    last_sign_us = max(turn.started_us for turn in victim.turns())
    victim.kill()
    heir = stage.member(group, topic, kind=kinds[1])
    stage.eventually(all_done([heir], [text for text in texts if text[-1] in "23"]), "the heir", within=150)
    expected = stage.take_over(*kinds)
    assert expected.least_us <= heir.turns()[0].started_us - last_sign_us <= expected.most_us
    unfinished = [turn for turn in victim.turns() if turn.ended_us is None]
    for turn in unfinished:
        turn.ended_us = last_sign_us
    assert_in_order(history(victim, heir), texts)
