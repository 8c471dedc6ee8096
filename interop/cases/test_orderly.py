"""Orderly consumption by one member: order, one turn at a time, suspend, rollback, dead letters."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from interop.clients import Listening, Rule, Turn
from interop.judge import bodies, by_key, done, in_order_with_repeats, overlaps, queues
from interop.stage import Stage


def _send(stage: Stage, topic: str, texts: list[str], key: str | None = None) -> None:
    producer = stage.producer()
    for text in texts:
        producer.send(topic, text, key=key or text.split(":")[0])


def _finished(count: int) -> Callable[[list[Turn]], bool]:
    return lambda turns: len(done(turns)) >= count


@pytest.mark.row("A2")
@pytest.mark.row("A16")
def test_each_key_is_consumed_in_the_order_it_was_sent(stage: Stage) -> None:
    topic, group = stage.topic(), stage.name("g")
    texts = [f"order-{i % 10}:{i}" for i in range(100)]
    _send(stage, topic, texts)
    turns = stage.member(group, topic).wait(_finished(100))
    assert by_key(bodies(turns)) == by_key(texts)
    assert overlaps(turns) == []


@pytest.mark.row("A1")
def test_a_topic_with_one_queue_has_one_order(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    texts = [f"order-{i % 7}:{i}" for i in range(50)]
    _send(stage, topic, texts)
    assert bodies(stage.member(group, topic).wait(_finished(50))) == texts


@pytest.mark.row("A3")
@pytest.mark.row("A4")
def test_a_running_turn_delays_its_queue_and_no_other(stage: Stage) -> None:
    topic, group = stage.topic(queues=4), stage.name("g")
    _send(stage, topic, [f"{word}:{i}" for i in range(5) for word in ("TagA", "TagB")])  # queues 3 and 0
    member = stage.member(group, topic, Listening(rules=[Rule("TagA:0", hold=True, times=1)]))
    member.wait(lambda turns: len(done(turns)) == 5 and len(turns) == 6)
    assert by_key(bodies(member.turns())) == {"TagA": ["TagA:0"], "TagB": [f"TagB:{i}" for i in range(5)]}
    member.release()
    assert by_key(bodies(member.wait(_finished(10))))["TagA"] == [f"TagA:{i}" for i in range(5)]


@pytest.mark.parametrize("verdict", ["suspend", "throw", "nothing"])
def test_a_failed_message_comes_again_before_its_successors(stage: Stage, verdict: str) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["k:0", "k:1", "k:2"])
    rules = [Rule("k:1", verdict, times=3)]
    turns = stage.member(group, topic, Listening(rules=rules)).wait(_finished(3))
    assert bodies(turns) == ["k:0", "k:1", "k:1", "k:1", "k:1", "k:2"]
    assert [turn.messages[0].attempts for turn in turns] == [0, 0, 1, 2, 3, 0]


def test_a_suspended_queue_waits_as_long_as_asked(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["k:0"])
    listening = Listening(rules=[Rule("k:0", "suspend", times=2)], suspend_ms=700)
    turns = stage.member(group, topic, listening).wait(_finished(1))
    assert all(_pause_ms(earlier, later) >= 690 for earlier, later in pairwise(turns))


def _pause_ms(earlier: Turn, later: Turn) -> float:
    assert earlier.ended_us is not None
    return (later.started_us - earlier.ended_us) / 1000


def test_a_rollback_goes_back_to_the_first_uncommitted_message(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, [f"k:{i}" for i in range(5)])
    rules = [Rule("k:1", "commit"), Rule("k:3", "rollback", times=1), Rule("k:4", "commit")]
    listening = Listening(rules=rules, auto_commit=False)
    turns = stage.member(group, topic, listening).wait(lambda turns: "k:4" in bodies(done(turns)))
    assert bodies(turns) == ["k:0", "k:1", "k:2", "k:3", "k:2", "k:3", "k:4"]


def test_what_was_not_committed_comes_again_after_a_restart(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, [f"k:{i}" for i in range(4)])
    manual = Listening(rules=[Rule("k:1", "commit")], auto_commit=False)
    first = stage.member(group, topic, manual)
    first.wait(_finished(4))
    first.stop()
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 2}, "the commit is at the broker")
    assert bodies(stage.member(group, topic).wait(_finished(2))) == ["k:2", "k:3"]


@pytest.mark.parametrize("batch", [3, 10])
def test_a_batch_of_the_listener_is_in_order(stage: Stage, batch: int) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    texts = [f"k:{i}" for i in range(20)]
    _send(stage, topic, texts)
    listening = Listening(batch=batch)
    turns = stage.member(group, topic, listening).wait(lambda turns: len(bodies(done(turns))) >= 20)
    assert bodies(turns) == texts
    assert max(len(turn.messages) for turn in turns) <= batch


def test_a_message_with_used_up_attempts_becomes_a_dead_letter_and_the_queue_goes_on(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["k:0", "k:1", "k:2"])
    listening = Listening(rules=[Rule("k:1", "suspend")], max_attempts=2)
    turns = stage.member(group, topic, listening).wait(_finished(2))
    assert bodies(turns) == ["k:0", "k:1", "k:1", "k:1", "k:2"]
    puller = stage.puller(stage.name("g"))
    dead = stage.eventually(lambda: puller.pull(f"%DLQ%{group}", 0, 0).messages, "the dead letter")
    assert [seen.body for seen in dead] == ["k:1"]
    assert dead[0].properties["RETRY_TOPIC"] == topic


def test_a_member_that_comes_back_goes_on_where_the_group_was(stage: Stage) -> None:
    topic, group = stage.topic(), stage.name("g")
    texts = [f"order-{i % 8}:{i}" for i in range(40)]
    _send(stage, topic, texts[:20])
    first = stage.member(group, topic)
    before = bodies(first.wait(_finished(20)))
    first.stop()
    _send(stage, topic, texts[20:])
    after = bodies(stage.member(group, topic).wait(lambda turns: texts[-1] in bodies(done(turns)) and len(turns) >= 20))
    for key, expected in by_key(texts).items():
        seen = by_key(before).get(key, []) + by_key(after).get(key, [])
        assert in_order_with_repeats(seen, expected), (key, seen)


def test_two_groups_consume_the_same_topic_independently(stage: Stage) -> None:
    topic = stage.topic()
    texts = [f"order-{i % 5}:{i}" for i in range(20)]
    _send(stage, topic, texts)
    slow = stage.member(stage.name("g"), topic, Listening(rules=[Rule(":", hold=True)]))
    slow.wait(lambda turns: len(turns) >= 1)
    fast = stage.member(stage.name("g"), topic).wait(_finished(20))
    assert by_key(bodies(fast)) == by_key(texts)
    slow.release()
    assert queues(slow.wait(_finished(20))) == queues(fast)
