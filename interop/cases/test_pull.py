"""Pull consumers: one pull at a time, and RocketMQ's lite pull."""

from interop.clients import Content, Poller, Seen
from interop.stage import Stage


def _send(stage: Stage, topic: str, count: int) -> list[str]:
    producer = stage.producer()
    texts = [f"m{i:02}" for i in range(count)]
    for text in texts:
        producer.send(topic, Content(text, tags="odd" if int(text[1:]) % 2 else "even"), key="k")
    stage.stored(topic, count)
    return texts


def test_a_pull_returns_the_messages_from_its_offset_on(stage: Stage) -> None:
    topic, puller = stage.topic(queues=1), stage.puller(stage.name("g"))
    texts = _send(stage, topic, 10)
    pulled = puller.pull(topic, 0, 3, most=4)
    assert (pulled.status, pulled.next, pulled.min, pulled.max) == ("FOUND", 7, 0, 10)
    assert [seen.body for seen in pulled.messages] == texts[3:7]
    assert [seen.offset for seen in pulled.messages] == [3, 4, 5, 6]


def test_a_pull_at_the_end_finds_nothing_new(stage: Stage) -> None:
    topic, puller = stage.topic(queues=1), stage.puller(stage.name("g"))
    _send(stage, topic, 3)
    pulled = puller.pull(topic, 0, 3)
    assert (pulled.status, pulled.next) == ("NO_NEW_MSG", 3)


def test_a_pull_beyond_the_end_returns_the_end(stage: Stage) -> None:
    topic, puller = stage.topic(queues=1), stage.puller(stage.name("g"))
    _send(stage, topic, 3)
    pulled = puller.pull(topic, 0, 100)
    assert (pulled.status, pulled.next) == ("OFFSET_ILLEGAL", 3)


def test_a_pull_by_tag_skips_the_others(stage: Stage) -> None:
    topic, puller = stage.topic(queues=1), stage.puller(stage.name("g"))
    texts = _send(stage, topic, 10)
    pulled = puller.pull(topic, 0, 0, tags="odd")
    assert [seen.body for seen in pulled.messages] == texts[1::2]
    assert pulled.next == 10


def test_a_pull_that_matches_nothing_moves_on(stage: Stage) -> None:
    topic, puller = stage.topic(queues=1), stage.puller(stage.name("g"))
    _send(stage, topic, 10)
    pulled = puller.pull(topic, 0, 0, tags="neither")
    assert (pulled.status, pulled.next) == ("NO_MATCHED_MSG", 10)


def test_a_lite_pull_consumer_gets_a_queue_in_order(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    texts = _send(stage, topic, 30)
    assert [seen.body for seen in _polled(stage, stage.poller(group, topic), 30)] == texts


def test_a_lite_pull_consumer_goes_on_where_it_committed(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, 10)
    first = stage.poller(group, topic)
    _polled(stage, first, 10)
    first.commit()
    first.stop()
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 10}, "offset 10 is committed")
    stage.producer().send(topic, "next", key="k")
    assert [seen.body for seen in _polled(stage, stage.poller(group, topic), 1)] == ["next"]


def test_a_lite_pull_consumer_reads_again_after_a_seek(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    texts = _send(stage, topic, 10)
    poller = stage.poller(group, topic)
    _polled(stage, poller, 10)
    poller.seek(topic, 0, 4)
    assert [seen.body for seen in _polled(stage, poller, 6)] == texts[4:]


def _polled(stage: Stage, poller: Poller, count: int) -> list[Seen]:
    found: list[Seen] = []

    def enough() -> bool:
        found.extend(poller.poll())
        return len(found) >= count

    stage.eventually(enough, f"{count} messages polled", within=90)
    return found
