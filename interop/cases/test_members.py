"""Several members of an orderly group: sharing, joining, leaving, dying; a queue has one worker at a time."""

from collections.abc import Callable

import pytest

from interop.clients import Listening, Member, Rule, Turn
from interop.judge import bodies, by_key, done, in_order_with_repeats, overlaps, queues
from interop.stage import Stage

KEYS = [f"order-{i}" for i in range(12)]
"""Enough for every one of four queues."""
LEASE_US = 60_000_000
"""RebalanceLockManager: how long a lock lives that nobody renews."""
RENEWAL_US = 20_000_000
"""ProcessQueue: how often an owner renews."""


def _send_rounds(stage: Stage, topic: str, rounds: range) -> list[str]:
    producer = stage.producer()
    texts = [f"{key}:{i}" for i in rounds for key in KEYS]
    for text in texts:
        producer.send(topic, text, key=text.split(":")[0])
    return texts


def _all_done(members: list[Member], texts: list[str]) -> Callable[[], bool]:
    wanted = set(texts)
    return lambda: wanted <= {body for member in members for body in bodies(done(member.turns()))}


def _history(*members: Member) -> list[Turn]:
    return sorted((turn for member in members for turn in member.turns()), key=lambda turn: turn.started_us)


def _assert_in_order(turns: list[Turn], texts: list[str]) -> None:
    assert overlaps(turns) == []
    for key, expected in by_key(texts).items():
        seen = by_key(bodies(turns))[key]
        assert in_order_with_repeats(seen, expected), (key, seen)


@pytest.mark.row("A46")
@pytest.mark.row("A55")
def test_members_share_the_queues_and_no_queue_is_worked_on_twice_at_once(stage: Stage) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    members = [stage.member(group, topic, Listening(sleep_ms=5)) for _ in range(2)]
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "both members are known")
    texts: list[str] = []

    def settled() -> bool:
        """Rebalance happens when it happens: a round is sent until one is shared two and two."""
        number = len(texts) // len(KEYS)
        fresh = _send_rounds(stage, topic, range(number, number + 1))
        texts.extend(fresh)
        stage.eventually(_all_done(members, fresh), "the round is done")
        shares = [queues(turn for turn in member.turns() if turn.body in fresh) for member in members]
        return [len(share) for share in shares] == [2, 2] and not shares[0] & shares[1]

    stage.eventually(settled, "two queues each", within=90)
    _assert_in_order(_history(*members), texts)


@pytest.mark.row("A12")
def test_a_queue_in_a_running_turn_is_not_handed_to_the_member_that_joins(stage: Stage) -> None:
    """The seed's third problem: the joiner must not start what comes after a turn that still runs."""
    topic, group = stage.topic(queues=4), stage.name("g")
    texts = _send_rounds(stage, topic, range(4))
    holding = Listening(rules=[Rule(":2", hold=True)])
    old = stage.member(group, topic, holding)
    old.wait(lambda turns: len(turns) == len(done(turns)) + 4)  # every queue is inside a turn
    new = stage.member(group, topic)
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "the joiner is known")
    with pytest.raises(TimeoutError):
        new.wait(lambda turns: len(turns) > 0, within=8)
    old.release()
    stage.eventually(_all_done([old, new], texts), "all is done", within=90)
    _assert_in_order(_history(old, new), texts)


def test_a_member_that_leaves_hands_its_queues_over_before_the_lease_is_over(stage: Stage) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    leaver = stage.member(group, topic)
    texts = _send_rounds(stage, topic, range(3))
    stage.eventually(_all_done([leaver], texts), "the first rounds are done")
    heir = stage.member(group, topic)
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "both members are known")
    leaver.stop()
    more = _send_rounds(stage, topic, range(3, 6))
    stage.eventually(_all_done([leaver, heir], more), "the heir has all", within=45)
    _assert_in_order(_history(leaver, heir), texts + more)


@pytest.mark.lease
@pytest.mark.row("A41")
@pytest.mark.row("A43")
def test_the_queues_of_a_killed_member_come_to_the_others_and_nothing_is_skipped(stage: Stage) -> None:
    """Killed inside a turn: its messages come again, in order, at the earliest when its lock is over."""
    topic, group = stage.topic(queues=4), stage.name("g")
    texts = _send_rounds(stage, topic, range(4))
    victim = stage.member(group, topic, Listening(rules=[Rule(":2", hold=True)]), own_process=True)
    victim.wait(lambda turns: len(turns) == len(done(turns)) + 4)
    last_sign_us = max(turn.started_us for turn in victim.turns())
    victim.kill()
    heir = stage.member(group, topic)
    stage.eventually(_all_done([heir], [text for text in texts if text[-1] in "23"]), "the heir", within=150)
    assert heir.turns()[0].started_us - last_sign_us > LEASE_US - RENEWAL_US - 5_000_000
    unfinished = [turn for turn in victim.turns() if turn.ended_us is None]
    for turn in unfinished:
        turn.ended_us = last_sign_us
    _assert_in_order(_history(victim, heir), texts)
