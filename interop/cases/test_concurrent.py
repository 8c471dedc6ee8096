"""Concurrent and broadcasting groups: retry topic, dead letters, delivery to every member."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from interop.clients import Listening, Rule, Turn
from interop.judge import bodies, done
from interop.stage import Stage


def _send(stage: Stage, topic: str, texts: list[str]) -> None:
    producer = stage.producer()
    for text in texts:
        producer.send(topic, text, key=text)


def _finished(count: int) -> Callable[[list[Turn]], bool]:
    return lambda turns: len(done(turns)) >= count


def test_every_message_is_consumed(stage: Stage) -> None:
    topic, group = stage.topic(), stage.name("g")
    texts = [f"m{i:02}" for i in range(50)]
    _send(stage, topic, texts)
    turns = stage.member(group, topic, Listening(orderly=False)).wait(_finished(50))
    assert sorted(bodies(turns)) == texts


@pytest.mark.parametrize("verdict", ["later", "throw"])
def test_a_failed_message_comes_again_through_the_retry_topic(stage: Stage, verdict: str) -> None:
    topic, group = stage.topic(), stage.name("g")
    _send(stage, topic, ["good", "bad"])
    rules = [Rule("bad", verdict, times=2, delay_level=1)]
    member = stage.member(group, topic, Listening(orderly=False, rules=rules, max_attempts=16))
    turns = member.wait(lambda turns: "bad" in bodies(done(turns)), within=120)
    again = [turn for turn in turns if turn.body == "bad"]
    assert [turn.messages[0].attempts for turn in again] == [0, 1, 2]
    assert {turn.messages[0].topic for turn in again} == {topic}
    assert all(later.started_us - first.started_us >= 990_000 for first, later in pairwise(again))


def test_a_message_sent_back_for_good_is_a_dead_letter_at_once(stage: Stage) -> None:
    topic, group = stage.topic(), stage.name("g")
    _send(stage, topic, ["good", "bad"])
    rules = [Rule("bad", "later", delay_level=-1)]
    stage.member(group, topic, Listening(orderly=False, rules=rules, max_attempts=16)).wait(_finished(1))
    assert _dead(stage, group) == ["bad"]


def test_a_message_with_used_up_attempts_becomes_a_dead_letter(stage: Stage) -> None:
    topic, group = stage.topic(), stage.name("g")
    _send(stage, topic, ["good", "bad"])
    rules = [Rule("bad", "later", delay_level=1)]
    member = stage.member(group, topic, Listening(orderly=False, rules=rules, max_attempts=1))
    assert _dead(stage, group) == ["bad"]
    assert [turn.messages[0].attempts for turn in member.turns() if turn.body == "bad"] == [0, 1]


def _dead(stage: Stage, group: str) -> list[str]:
    puller = stage.puller(stage.name("g"))
    dead = stage.eventually(lambda: puller.pull(f"%DLQ%{group}", 0, 0).messages, "a dead letter", within=90)
    return [seen.body for seen in dead]


@pytest.mark.row("A25")
@pytest.mark.parametrize("orderly", [False, pytest.param(True, marks=pytest.mark.lease)])
def test_every_broadcasting_member_gets_every_message(stage: Stage, orderly: bool) -> None:
    """Orderly members of 4.9.x lock the queues against each other, so each waits for the lease of the one before.

    The last one waits for two leases of a minute each.
    """
    topic, group = stage.topic(queues=2), stage.name("g")
    listening = Listening(orderly=orderly, broadcast=True)
    members = [stage.member(group, topic, listening) for _ in range(3)]
    texts = [f"m{i:02}" for i in range(20)]
    _send(stage, topic, texts)
    for member in members:
        assert sorted(bodies(member.wait(_finished(20), within=180))) == texts


def test_two_members_share_the_messages(stage: Stage) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    members = [stage.member(group, topic, Listening(orderly=False)) for _ in range(2)]
    stage.eventually(lambda: len(stage.admin.members(group)) == 2, "both members are known")
    producer = stage.producer()
    sent: list[str] = []

    def both_work() -> bool:
        sent.append(f"m{len(sent)}")
        producer.send(topic, sent[-1])
        return all(member.turns() for member in members)

    stage.eventually(both_work, "both members had a turn")
    stage.eventually(lambda: {body for m in members for body in bodies(done(m.turns()))} == set(sent), "all")
