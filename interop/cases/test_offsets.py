"""Offsets of a group: commits, resets, search by time."""

from interop.clients import Listening
from interop.judge import bodies, done
from interop.stage import Stage

BEGINNING_MS = 1
"""A time before every message."""


def _send(stage: Stage, topic: str, texts: list[str]) -> list[int]:
    producer = stage.producer()
    return [producer.send(topic, text, key="k").offset for text in texts]


def test_the_committed_offset_is_the_next_one_to_read(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["0", "1", "2"])
    member = stage.member(group, topic)
    member.wait(lambda turns: len(done(turns)) == 3)
    member.stop()
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 3}, "offset 3 is committed")


def test_progress_is_committed_while_the_member_runs(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["0", "1"])
    stage.member(group, topic).wait(lambda turns: len(done(turns)) == 2)
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 2}, "offset 2 is committed", within=30)


def test_an_offline_group_is_reset_and_reads_again(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["0", "1", "2"])
    member = stage.member(group, topic)
    member.wait(lambda turns: len(done(turns)) == 3)
    member.stop()
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 3}, "offset 3 is committed")
    assert stage.admin.reset(topic, group, BEGINNING_MS) == {0: 0}
    again = stage.member(group, topic).wait(lambda turns: len(done(turns)) == 3)
    assert bodies(again) == ["0", "1", "2"]


def test_a_running_group_is_reset_and_reads_again_in_order(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["0", "1", "2"])
    member = stage.member(group, topic)
    member.wait(lambda turns: len(done(turns)) == 3)
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 3}, "offset 3 is committed", within=30)
    stage.admin.reset(topic, group, BEGINNING_MS)
    turns = member.wait(lambda turns: len(done(turns)) >= 6, within=120)
    assert bodies(turns) == ["0", "1", "2", "0", "1", "2"]


def test_a_time_between_two_messages_finds_the_later_one(stage: Stage) -> None:
    topic, producer = stage.topic(queues=1), stage.producer()
    puller = stage.puller(stage.name("g"))
    times: list[int] = []

    def two_times() -> bool:
        """Sends messages until two have different store times, which are in milliseconds."""
        producer.send(topic, f"{len(times)}", key="k")
        stage.stored(topic, len(times) + 1)
        times.append(puller.pull(topic, 0, len(times)).messages[0].store_ms)
        return times[-1] > times[0]

    stage.eventually(two_times, "a later store time")
    assert stage.admin.search(topic, times[0] + 1) == {0: len(times) - 1}
    assert stage.admin.search(topic, BEGINNING_MS) == {0: 0}


def test_a_new_group_that_wants_the_first_offset_gets_everything(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["0", "1"])
    turns = stage.member(group, topic, Listening(from_last=False)).wait(lambda turns: len(done(turns)) == 2)
    assert bodies(turns) == ["0", "1"]
